"""The decode kernels behind the session contract: ONNX Runtime reads prompts, they compute single tokens, same memory.

decode_rows.cu runs on the host, on a Qwen2-shaped model of random weights in float16.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest

from cockpit.device.cuda_decode.serving import StepDecoders, served_shape, served_sources
from models.build.llm import _device_graphs
from models.build.llm_emit import WeightFile
from models.build.llm_gguf import Checkpoint
from models.engines.llm.device import DeviceLm
from models.engines.llm.memory import Sizes
from models.engines.llm.session import LmSession, Step
from models.engines.placement import CpuPlacement
from tests.support.cuda.host_decoder import FACTS, KernelPlacement

LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, VOCAB, CAPACITY = 2, 512, 8, 2, 128, 264, 64
EPS = 1e-6
SIZES = Sizes(LAYERS, KV_HEADS, 64, HIDDEN, VOCAB, CAPACITY, slots=2, block=2, width=2)
PROMPT = [5, 17, 200, 31, 8]
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="runs CUDA C++ through the host's g++: none here")


def write_gguf(path: Path) -> Path:
    random = np.random.default_rng(11)
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_rope_freq_base(1e6)

    def tensor(name: str, *shape: int) -> None:
        mean, scale = (1.0, 0.2) if name.endswith("norm") else (0.0, shape[-1] ** -0.5)
        ending = ".bias" if len(shape) == 1 and "norm" not in name else ".weight"
        writer.add_tensor(name + ending, random.normal(mean, scale, shape).astype(np.float32))

    tensor("token_embd", VOCAB, HIDDEN)
    tensor("output_norm", HIDDEN)
    for layer in range(LAYERS):
        blk = f"blk.{layer}."
        tensor(blk + "attn_norm", HIDDEN)
        tensor(blk + "ffn_norm", HIDDEN)
        for part, rows in (("q", HEADS * 64), ("k", KV_HEADS * 64), ("v", KV_HEADS * 64)):
            tensor(f"{blk}attn_{part}", rows, HIDDEN)
            tensor(f"{blk}attn_{part}", rows)
        tensor(blk + "attn_output", HIDDEN, HEADS * 64)
        tensor(blk + "ffn_gate", FFN, HIDDEN)
        tensor(blk + "ffn_up", FFN, HIDDEN)
        tensor(blk + "ffn_down", HIDDEN, FFN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("qwen")
    checkpoint = Checkpoint.open(write_gguf(out / "tiny.gguf"))
    with WeightFile(out / "model.bin") as file:
        _device_graphs(checkpoint, checkpoint.shape(), np.float16, file, out, lambda step, share: None)
    config = {"architecture": "qwen2", "quant": "f16", "layers": LAYERS, "kv_heads": KV_HEADS, "head_dim": 64}
    (out / "config.json").write_text(json.dumps(config | {"rms_epsilon": EPS}), encoding="utf-8")
    return out


@pytest.fixture(scope="module")
def placement(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> KernelPlacement:
    return KernelPlacement(folder, tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="module")
def kernels(folder: Path, placement: KernelPlacement) -> DeviceLm:
    return DeviceLm.load(folder, {"lane": placement}, SIZES, "qwen2", EPS)


@pytest.fixture(scope="module")
def graphs(folder: Path) -> DeviceLm:
    return DeviceLm.load(folder, {"lane": CpuPlacement(2)}, SIZES, "qwen2", EPS)


def opened(lm: DeviceLm) -> LmSession:
    return LmSession(lm.open_body(), lm.head, frozenset())


def test_a_prompt_of_the_graphs_goes_on_in_the_kernels(
    kernels: DeviceLm, graphs: DeviceLm, placement: KernelPlacement
) -> None:
    assert (kernels.decoder, graphs.decoder) == ("kernels", "onnxruntime")
    answers: list[Any] = []
    for lm in (kernels, graphs):
        ran = placement.driver.replayed
        session = opened(lm)
        session.set_tokens(PROMPT)
        answers.append(list(session.generate(max_new_tokens=4)))
        assert placement.driver.replayed - ran == (3 if lm is kernels else 0), "the first token is the prompt's"
        hidden = session.hidden()
        answers.append(lm.head.logits(hidden)[0])
        allowed = np.array([3, 77, 140], np.int64)
        assert lm.head.best(hidden, allowed) == allowed[answers[-1][allowed].argmax()]
        session.close()
    assert answers[0] == answers[2]
    np.testing.assert_allclose(answers[1], answers[3], atol=0.02 * np.abs(answers[3]).max())


def test_texts_of_one_step_are_those_of_steps_alone(kernels: DeviceLm) -> None:
    sessions = [opened(kernels) for _ in range(2)]
    for session, prompt in zip(sessions, (PROMPT, PROMPT[:3]), strict=True):
        session.set_tokens(prompt)
    alone = []
    for session, token in zip(sessions, (9, 250), strict=True):
        hidden = session.body.run([token], session.cached, every_row=False)
        alone.append(kernels.head.best(hidden))
    steps = [Step(session.body, token, session.cached) for session, token in zip(sessions, (9, 250), strict=True)]
    both = kernels.step(steps, ())
    assert kernels.head.best_each(both, [None, None]) == alone
    allowed = np.array([1, alone[1], 263], np.int64)
    assert kernels.head.best_each(both, [None, allowed]) == alone
    # Once the head ran for another row, what the step left is computed again from its rows.
    kernels.head.logits(kernels.head.row(both, 0))
    assert kernels.head.best_each(both, [None, None]) == alone
    for session in sessions:
        session.close()


def test_a_text_is_taken_over_and_brought_back(kernels: DeviceLm) -> None:
    first, second = opened(kernels), opened(kernels)
    first.set_tokens(PROMPT)
    answer = list(first.generate(max_new_tokens=2))
    text = list(first.tokens)
    parked = first.park()
    assert second.adopt(first, text) == first.cached
    expected = list(first.generate(max_new_tokens=1))
    second.set_tokens(text)
    assert list(second.generate(max_new_tokens=1)) == expected
    second.forget()
    second.restore(parked, text)
    second.set_tokens(text)
    assert list(second.generate(max_new_tokens=1)) == expected
    assert len(answer) == 2
    first.close()
    second.close()


def test_what_the_kernels_do_not_serve_says_why(folder: Path) -> None:
    index = json.loads((folder / "weights.json").read_text(encoding="utf-8"))
    shapes = {name: tuple(said["shape"]) for name, said in index["tensors"].items()}

    def why(**changes: Any) -> str:
        said: dict[str, Any] = {"architecture": "qwen2", "eps": EPS, "layers": LAYERS, "kv_heads": 2, "head_dim": 64}
        shape = served_shape(**(said | {"shapes": shapes} | changes))
        return shape if isinstance(shape, str) else ""

    assert why() == ""
    assert "gemma3" in why(architecture="gemma3")
    assert "build it anew" in why(eps=None)
    assert "blk.2.attn_norm.weight" in why(layers=3)
    assert "head_dim 32" in why(head_dim=32)
    assert len(served_sources([folder])) == 1
    old = StepDecoders(SimpleNamespace(), SimpleNamespace(capability=(7, 5)), SimpleNamespace())  # type: ignore[arg-type]
    assert "compute capability 8.0" in str(old.open(None, None, None, None, None))  # type: ignore[arg-type]
    assert FACTS.capability >= (8, 0)
