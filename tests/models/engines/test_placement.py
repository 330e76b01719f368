"""How the CPU's sessions are opened."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from models.engines.llm.cpu import SPIN_US
from models.engines.placement import CpuPlacement


@pytest.mark.parametrize(
    ("spin_us", "entries"),
    [
        (0, {"session.intra_op.allow_spinning": "0"}),
        (SPIN_US, {"session.force_spinning_stop": "1", "session.intra_op.spin_duration_us": str(SPIN_US)}),
    ],
)
def test_threads_never_spin_longer_than_they_may(tmp_path: Path, spin_us: int, entries: dict[str, str]) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "g.onnx")
    options = CpuPlacement(2, spin_us=spin_us).open(tmp_path / "g.onnx").inner.get_session_options()
    assert {key: options.get_session_config_entry(key) for key in entries} == entries
    assert 0 < SPIN_US <= 100, "a millisecond, ONNX Runtime's own limit, halves the speed beside other programs"
