"""The ONNX Runtime peer of the decode benchmark computes the same decoder as the benchmark's reference."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gemma.session import DecodeShape
from benchmarks.harness.random_model import HEAD_DIM, Layer, Model, Reference, pack
from benchmarks.peers.ort_graph import GraphPlan
from benchmarks.peers.ort_session import Stepper, compare, weights_of

SHAPE = DecodeShape(hidden=256, layers=7, q_heads=4, kv_heads=2, ffn=512, vocab=600, window=6)
CAPACITY = 16


def model() -> Model:
    generator = torch.Generator().manual_seed(5)

    def matrix(rows: int, columns: int):  # type: ignore[no-untyped-def]
        return pack(torch.randn(rows, columns, generator=generator) * columns**-0.5, "fp16")

    def norm(*sizes: int) -> torch.Tensor:
        return 1 + 0.1 * torch.randn(*sizes, generator=generator)

    layers = [
        Layer(
            matrix(SHAPE.qkv_rows, SHAPE.hidden),
            matrix(SHAPE.hidden, SHAPE.attention_width),
            matrix(2 * SHAPE.ffn, SHAPE.hidden),
            matrix(SHAPE.hidden, SHAPE.ffn),
            norm(4, SHAPE.hidden),
            norm(2, HEAD_DIM),
        )
        for _ in range(SHAPE.layers)
    ]
    angles = torch.outer(torch.arange(CAPACITY, dtype=torch.float64), torch.rand(HEAD_DIM // 2, generator=generator))
    rope = {
        flag: torch.stack([(angles / d).cos(), (angles / d).sin()], -1).float() for flag, d in ((False, 1), (True, 8))
    }
    return Model(SHAPE, "fp16", layers, matrix(SHAPE.vocab, SHAPE.hidden), norm(SHAPE.hidden), rope)


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("as_inputs", [True, False])
def test_steps_agree_with_the_reference(rows: bool, as_inputs: bool) -> None:
    """Without `fused_norms`: only CUDA norms q and k inside the attention; there the benchmark compares by itself."""
    ours = model()
    plan = GraphPlan(rows=rows, fused_norms=False, as_inputs=as_inputs, kind="fp32")
    stepper = Stepper(SHAPE, plan, weights_of(ours, plan, CAPACITY), CAPACITY).open()
    start, token = 9, 17
    reference = Reference(ours, *stepper.fill(3), quantise=False)
    stepper.seek(token, start)
    for step in range(4):
        got, want = stepper.step(), reference.step(token, start + step)
        assert (got - want).norm() / want.norm() < 2e-3
        token = int(want.argmax())
        assert stepper.token == token
        assert stepper.position == start + step + 1


@pytest.mark.parametrize("choose", [True, False])
def test_half_precision_is_close(choose: bool) -> None:
    ours = model()
    plan = GraphPlan(fused_norms=False, choose=choose)
    stepper = Stepper(SHAPE, plan, weights_of(ours, plan, CAPACITY), CAPACITY).open()
    assert stepper.elsewhere() == {}
    assert compare(stepper, ours, 8)["rel_error"] < 2e-2
