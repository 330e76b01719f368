"""The CPU cases of the isolation benchmark: two pinned clusters against one shared pool, on ONNX Runtime.

Navigation is three steps of a small network, the dialogue an endless row of larger ones that yields between steps.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from benchmarks.scheduler.contention import Case, CaseSet
from cockpit.device.base import Device, LaneSpec, SessionSettings, YieldGate, open_device
from models.errors import DeviceUnavailable

NAVIGATION_STEPS = 3
ROWS = 32


def network(width: int, layers: int) -> bytes:
    """`layers` square fp32 products of `width` on ROWS rows."""
    random = np.random.default_rng(1)
    weights, nodes, last = [], [], "x"
    for index in range(layers):
        values = (random.standard_normal((width, width)) / width**0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(values, f"w{index}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{index}"], [f"y{index}"]))
        last = f"y{index}"
    sizes = [ROWS, width]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name in ("x", last)]
    graph = helper.make_graph(nodes, "steps", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def session(model: bytes, settings: SessionSettings) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings.intra_op_num_threads
    options.inter_op_num_threads = settings.inter_op_num_threads
    for key, value in settings.config.items():
        options.add_session_config_entry(key, value)
    return onnxruntime.InferenceSession(model, options, providers=list(settings.providers))


@dataclass
class Worker:
    """A network in a lane: `run` is one step."""

    device: Device
    lane: str
    network: onnxruntime.InferenceSession
    x: np.ndarray[Any, Any]

    def run(self) -> None:
        self.network.run(None, {"x": self.x})


@dataclass
class StepLoad:
    """The dialogue: step after step in its lane, parked at the gate between steps. One step is worth one unit."""

    worker: Worker
    gate: YieldGate | None

    def begin(self) -> None:
        self.entered = self.worker.device.enter(self.worker.lane)
        self.entered.__enter__()

    def step(self) -> float:
        if self.gate is not None and self.gate.closed:
            self.gate.wait(1.0)
        self.worker.run()
        return 1.0

    def end(self) -> None:
        self.entered.__exit__(None, None, None)


def cpu_cases(quick: bool) -> CaseSet:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise DeviceUnavailable("two clusters need two cores; this process may use one: widen its CPU affinity")
    half = len(cores) // 2
    lanes = [
        LaneSpec("navigation", ("a",), priority=9),
        LaneSpec("dialogue", ("b",)),
        LaneSpec("navigation, all cores", ("a", "b"), priority=9),
        LaneSpec("dialogue, all cores", ("a", "b")),
    ]
    device = open_device("cpu", {"a": half, "b": len(cores) - half}, lanes)
    small, large = network(512, 4), network(768, 3)
    gate = YieldGate()
    samples = 25 if quick else 60

    def worker(lane: str, model: bytes) -> Worker:
        made = session(model, device.session_settings(lane))
        width = made.get_inputs()[0].shape[1]
        return Worker(device, lane, made, np.ones((ROWS, width), np.float32))

    def navigation(lane: str) -> Callable[[], None]:
        its = worker(lane, small)

        def navigate() -> None:
            with device.enter(lane):
                for _ in range(NAVIGATION_STEPS):
                    its.run()

        return navigate

    apart, together = navigation("navigation"), navigation("navigation, all cores")
    pooled = StepLoad(worker("dialogue, all cores", large), None)
    pinned = StepLoad(worker("dialogue", large), None)
    answer = ("two pinned clusters, yielding", "dialogue")
    cases = [
        Case("navigation alone, all cores", together, samples=samples),
        Case("navigation alone, its cluster", apart, samples=samples),
        Case("one shared pool", together, pooled, "dialogue", None, samples),
        Case("one shared pool, yielding", together, StepLoad(pooled.worker, gate), "dialogue", gate, samples),
        Case("two pinned clusters", apart, pinned, "dialogue", None, samples),
        Case(answer[0], apart, StepLoad(pinned.worker, gate), "dialogue", gate, samples),
    ]
    title = f"navigation = {NAVIGATION_STEPS} steps of a small network; {len(cores)} cores, ONNX Runtime"
    return CaseSet(device.name, platform.release(), title, cases, answer, (2.0, 8.0), device.close)
