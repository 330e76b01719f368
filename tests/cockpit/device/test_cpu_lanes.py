"""CPU clusters and lanes on this machine's own cores, ONNX Runtime inside them, and the gate a task yields at."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from cockpit.device.base import LaneSpec, YieldGate, open_device
from models.errors import ConfigError, DeviceUnavailable
from tests.support.waiting import LONG_S, ended, until

CORES = sorted(os.sched_getaffinity(0))
two_cores = pytest.mark.skipif(
    len(CORES) < 2, reason="needs two cores: a lane of one core has nothing to be apart from"
)


def test_a_lane_of_one_core_runs_there_and_the_thread_leaves_as_it_came() -> None:
    device = open_device("cpu", {"a": 1, "system": 0}, [LaneSpec("nav", ("a",), 1 << 20, 9)])
    before = os.sched_getaffinity(0)
    with device.enter("nav") as lane:
        assert os.sched_getaffinity(0) == {CORES[0]} == set(lane.cores)
    assert os.sched_getaffinity(0) == before
    placement = device.verify_placement("nav")
    assert placement.ok
    assert placement.observed == (CORES[0],)
    assert (lane.units, lane.memory_budget_bytes, lane.priority, lane.stream) == (1, 1 << 20, 9, 0)


@two_cores
def test_one_and_one_are_apart() -> None:
    device = open_device("cpu", {"a": 1, "b": 1}, [LaneSpec("nav", ("a",)), LaneSpec("talk", ("b",))])
    seen = [set(device.verify_placement(lane).observed) for lane in ("nav", "talk")]
    assert seen == [{CORES[0]}, {CORES[1]}]


@two_cores
def test_lanes_may_overlap() -> None:
    device = open_device("cpu", {"a": 1, "b": 1}, [LaneSpec("nav", ("a", "b")), LaneSpec("talk", ("b",))])
    assert device.lanes["nav"].cores == tuple(CORES[:2])
    assert device.verify_placement("nav").ok
    assert device.verify_placement("talk").observed == (CORES[1],)


def test_a_lane_without_cores_of_its_own_is_not_pinned() -> None:
    device = open_device("cpu", {"system": 0}, [LaneSpec("misc", ("system",))])
    before = os.sched_getaffinity(0)
    with device.enter("misc"):
        assert os.sched_getaffinity(0) == before
    assert device.verify_placement("misc").ok
    assert device.session_settings("misc").intra_op_num_threads == len(CORES)


@two_cores
def test_placement_that_is_wrong_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_device("cpu", {"a": 1, "b": 1}, [LaneSpec("nav", ("a",))])
    monkeypatch.setattr(os, "sched_setaffinity", lambda _thread, _cores: None)
    assert not device.verify_placement("nav").ok


def test_refusals_name_the_remedy() -> None:
    with pytest.raises(DeviceUnavailable, match="lower the units") as caught:
        open_device("cpu", {"a": 4096}, [])
    assert caught.value.exit_code == 3
    with pytest.raises(ConfigError, match="cpu, cuda"):
        open_device("tpu", {}, [])
    with pytest.raises(ConfigError, match="known: a"):
        open_device("cpu", {"a": 1}, [LaneSpec("nav", ("b",))])
    with pytest.raises(KeyError):
        open_device("cpu", {"a": 1}, []).session_settings("nav")


def test_a_forbidden_core_is_a_start_up_error(monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_device("cpu", {"a": 1}, [LaneSpec("nav", ("a",))])

    def refuse(_thread: int, _cores: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with pytest.raises(DeviceUnavailable, match="CPUAffinity"), device.enter("nav"):
        pass
    with pytest.raises(DeviceUnavailable, match="CPUAffinity"):
        device.verify_placement("nav")


def identity_model(path: Path) -> Path:
    from onnx import TensorProto, checker, helper, save

    square = helper.make_tensor_value_info("x", TensorProto.FLOAT, [256, 256])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [256, 256])
    nodes = [
        helper.make_node("MatMul", ["x", "x"], ["h0"]),
        *[helper.make_node("MatMul", [f"h{i}", "x"], [f"h{i + 1}"]) for i in range(7)],
        helper.make_node("Identity", ["h7"], ["y"]),
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "chain", [square], [out]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    checker.check_model(model)
    save(model, path)
    return path


def pool_threads() -> dict[int, set[int]]:
    """Native thread -> its cores, without Python's own: one of an earlier test may still come or go."""
    ours = {thread.native_id for thread in threading.enumerate()}
    cores = {}
    for entry in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it ended since the folder was read
            if (thread := int(entry.name)) not in ours:
                cores[thread] = os.sched_getaffinity(thread)
    return cores


@two_cores
@pytest.mark.parametrize("clusters", [("a",), ("a", "b")])
def test_sessions_stay_in_their_lane(tmp_path: Path, clusters: tuple[str, ...]) -> None:
    device = open_device("cpu", {"a": 1, "b": 1}, [LaneSpec("nav", clusters)])
    settings = device.session_settings("nav")
    options = ort.SessionOptions()
    options.intra_op_num_threads = settings.intra_op_num_threads
    options.inter_op_num_threads = settings.inter_op_num_threads
    for key, value in settings.config.items():
        options.add_session_config_entry(key, value)
    before = set(pool_threads())
    session = ort.InferenceSession(
        str(identity_model(tmp_path / "m.onnx")), options, providers=list(settings.providers)
    )
    assert session.get_providers()[0] == settings.providers[0]
    wanted = [{core} for core in device.lanes["nav"].cores[1:]]
    # A pool's thread pins itself some moments after it was made.
    until(lambda: [cores for thread, cores in pool_threads().items() if thread not in before] == wanted)
    eye = np.eye(256, dtype=np.float32)
    with device.enter("nav"):
        np.testing.assert_array_equal(session.run(None, {"x": eye})[0], eye)


def test_memory_and_event_cost_are_read() -> None:
    device = open_device("cpu", {"a": 1}, [LaneSpec("nav", ("a",))])
    memory = device.memory()
    assert 0 < memory.free_bytes <= memory.total_bytes
    assert 0 <= memory.pressure < 1
    cost = device.event_sync_cost(200)
    assert 0 < cost.p50_us <= cost.p99_us
    assert "CPU" in cost.what
    assert device.fingerprint.startswith("cpu-")
    assert device.fingerprint == open_device("cpu", {"a": 1}, []).fingerprint


# --- the gate ------------------------------------------------------------------------------------------------------
def test_the_gate_parks_and_releases() -> None:
    gate = YieldGate()
    steps = 0
    stop = False

    def work() -> None:
        nonlocal steps
        while not stop:
            if gate.closed:
                gate.wait(LONG_S)
            steps += 1
            time.sleep(0.0005)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    with gate.hold(parked_within_s=LONG_S) as parked:
        assert parked
        held = steps
        time.sleep(0.05)
        assert steps == held
    until(lambda: steps > held)
    stop = True
    ended(worker)
    assert gate.waits == 1
    assert gate.waited_ns >= 50_000_000
    assert gate.parked == 0


def test_holds_nest() -> None:
    gate = YieldGate()
    with gate.hold():
        with gate.hold():
            assert gate.holders == 2
        assert gate.closed
    assert not gate.closed
    with pytest.raises(RuntimeError, match="pair each close"):
        gate.open()


def test_a_wait_ends_at_its_timeout() -> None:
    gate = YieldGate()
    gate.close()
    waited_ns = gate.wait(0.02)
    assert waited_ns > 15_000_000
    assert gate.closed


def test_reading_the_gate_costs_next_to_nothing() -> None:
    gate = YieldGate()
    rounds = 200_000
    began = time.thread_time_ns()
    for _ in range(rounds):
        if gate.closed:
            gate.wait()
    assert (time.thread_time_ns() - began) / rounds < 1_000, "under a microsecond of this thread's time a boundary"
