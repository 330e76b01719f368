"""The CUDA backend's promises on a fake driver: what CI can hold it to without a GPU."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from cockpit.device.base import Device, LaneSpec, open_device
from cockpit.device.cuda.device import CudaDevice, open_cuda
from cockpit.device.cuda.driver import BoundDriver, Partition
from models.errors import ConfigError, DeviceUnavailable
from tests.support.cuda.fake_cuda import FakeDriver

CLUSTERS = {"a": 32, "b": 72, "c": 16, "system": 8}


def lanes() -> list[LaneSpec]:
    return [
        LaneSpec("navigation:1", ("a",), priority=9, memory_budget_bytes=1 << 20),
        LaneSpec("dialogue:1", ("b",), priority=5),
        LaneSpec("dialogue:2", ("b", "c"), priority=5),
        LaneSpec("navigation:3", ("c", "a", "b"), priority=9),
        LaneSpec("background", ("a", "b", "c"), priority=1),
    ]


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


@pytest.fixture
def device(driver: FakeDriver) -> CudaDevice:
    return open_cuda(CLUSTERS, lanes(), driver)


def test_device_fulfils_the_contract(device: CudaDevice) -> None:
    contract: Device = device
    assert contract.kind == "cuda"
    assert contract.granularity == 8
    assert contract.units == 132
    assert contract.memory().used_bytes == 7
    assert contract.event_sync_cost(100).p99_us == 99.0


def test_device_is_split_once_and_clusters_share_no_sm(driver: FakeDriver, device: CudaDevice) -> None:
    assert driver.splits == 1
    ids = [unit for cluster in device.clusters.values() for unit in cluster.unit_ids]
    assert len(ids) == len(set(ids)) == sum(cluster.units for cluster in device.clusters.values())


def test_everything_is_made_at_open(driver: FakeDriver, device: CudaDevice) -> None:
    made = len(driver.partitions), len(driver.streams)
    for name in device.lanes:
        with device.enter(name):
            device.synchronise(name)
        device.verify_placement(name)
    assert (len(driver.partitions), len(driver.streams)) == made


def test_lane_is_the_union_of_its_clusters(device: CudaDevice) -> None:
    assert {name: lane.units for name, lane in device.lanes.items()} == {
        "navigation:1": 32,
        "dialogue:1": 72,
        "dialogue:2": 88,
        "navigation:3": 120,
        "background": 120,
    }
    assert len({lane.stream for lane in device.lanes.values()}) == len(device.lanes)


def test_lanes_with_the_same_clusters_share_a_context_but_no_stream(driver: FakeDriver, device: CudaDevice) -> None:
    first, second = (driver.streams[device.lanes[name].stream] for name in ("navigation:3", "background"))
    assert first[0] is second[0]
    assert (first[1], second[1]) == (True, False)


def test_last_cluster_may_take_the_rest_of_the_split(device: CudaDevice) -> None:
    assert device.clusters["system"].unit_ids == tuple(range(120, 132))


def test_units_are_rounded_up_to_the_granularity() -> None:
    device = open_cuda({"a": 3, "b": 9}, [LaneSpec("x", ("a", "b"))], FakeDriver())
    assert (device.clusters["a"].units, device.clusters["b"].units, device.lanes["x"].units) == (8, 16, 24)


def test_granularity_of_two_is_the_devices_own() -> None:
    device = open_cuda({"a": 6, "b": 8}, [LaneSpec("x", ("a",))], FakeDriver(sms=16, unit=2, kept_back=0))
    assert (device.granularity, device.lanes["x"].units) == (2, 6)


@pytest.mark.parametrize("clusters", [{"a": 128, "b": 16}, {"a": 120, "b": 8, "c": 8}, {"a": 1000}])
def test_too_many_sms_are_refused_with_the_sum(clusters: dict[str, int]) -> None:
    with pytest.raises(DeviceUnavailable, match=str(sum(clusters.values()))) as refused:
        open_cuda(clusters, [LaneSpec("x", ("a",))], FakeDriver())
    assert refused.value.exit_code == 3


def test_cluster_without_sms_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="'a'"):
        open_cuda({"a": 0, "b": 8}, [LaneSpec("x", ("b",))], FakeDriver())


def test_placement_is_proved(device: CudaDevice) -> None:
    placement = device.verify_placement("dialogue:2")
    assert placement.ok
    assert placement.observed == tuple(range(32, 120))
    assert placement.allowed == placement.observed


def test_placement_outside_the_lane_is_reported() -> None:
    device = open_cuda(CLUSTERS, lanes(), FakeDriver(wander=frozenset({131})))
    placement = device.verify_placement("navigation:1")
    assert not placement.ok
    assert 131 in placement.observed
    assert device.verify_placement("dialogue:1").ok


def test_enter_makes_the_lanes_context_current_and_undoes_it(driver: FakeDriver, device: CudaDevice) -> None:
    with device.enter("dialogue:1") as lane:
        assert driver.current == [driver.streams[lane.stream][0]]
    assert driver.current == []
    with pytest.raises(KeyError):
        device.enter("unknown")


def test_close_frees_streams_before_contexts_and_only_once(driver: FakeDriver, device: CudaDevice) -> None:
    device.close()
    device.close()
    kinds = [isinstance(thing, Partition) for thing in driver.destroyed]
    assert kinds == sorted(kinds)
    assert len(driver.destroyed) == len(driver.streams) + len(driver.partitions)


def test_a_failure_while_opening_frees_what_was_made() -> None:
    class Failing(FakeDriver):
        def stream(self, partition: Partition, urgent: bool) -> int:
            if urgent:
                raise DeviceUnavailable("no stream")
            return super().stream(partition, urgent)

    driver = Failing()
    with pytest.raises(DeviceUnavailable):
        open_cuda(CLUSTERS, lanes(), driver)
    assert set(map(id, driver.partitions)) <= set(map(id, driver.destroyed))


def onnxruntime_with(*providers: str) -> ModuleType:
    module = ModuleType("onnxruntime")
    module.get_available_providers = lambda: list(providers)  # type: ignore[attr-defined]
    return module


def test_session_settings_carry_the_lanes_stream_and_budget(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", onnxruntime_with("CUDAExecutionProvider", "CPUExecutionProvider"))
    settings = device.session_settings("navigation:1")
    assert settings.providers == ("CUDAExecutionProvider",)
    assert settings.provider_options[0]["user_compute_stream"] == str(device.lanes["navigation:1"].stream)
    assert settings.provider_options[0]["gpu_mem_limit"] == str(1 << 20)
    assert "gpu_mem_limit" not in device.session_settings("dialogue:1").provider_options[0]


def test_cuda_that_would_run_on_the_cpu_is_refused(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", onnxruntime_with("CPUExecutionProvider"))
    with pytest.raises(DeviceUnavailable, match="pip install"):
        device.session_settings("navigation:1")


def test_fingerprint_names_the_device_and_is_fit_for_a_file_name(device: CudaDevice) -> None:
    assert device.fingerprint == open_cuda({"a": 8}, [], FakeDriver()).fingerprint
    assert device.fingerprint.startswith("cuda-fake-gpu-sm90-driver13000-")
    assert set(device.fingerprint) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


def test_a_machine_without_a_driver_is_exit_code_3(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ModuleType("driver")

    def no_library(_: int) -> tuple[int]:
        raise RuntimeError("libcuda.so.1 not found")

    missing.cuInit = no_library  # type: ignore[attr-defined]
    monkeypatch.setattr("cockpit.device.cuda.driver._bindings", lambda: missing)
    with pytest.raises(DeviceUnavailable, match="device: cpu") as refused:
        open_device("cuda", {"a": 8}, [LaneSpec("x", ("a",))])
    assert refused.value.exit_code == 3


def test_a_failed_driver_call_names_its_reason() -> None:
    class Status(int):
        name = "CUDA_ERROR_OUT_OF_MEMORY"

    with pytest.raises(DeviceUnavailable, match="OUT_OF_MEMORY"):
        BoundDriver().check((Status(2), None))
    assert BoundDriver().check((Status(0), 7)) == 7
    assert BoundDriver().check((Status(0), 7, 8)) == (7, 8)
