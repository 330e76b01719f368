"""The watch over a fake NVML: what it reads, what it names, and that absence is quiet."""

from __future__ import annotations

import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cockpit.telemetry.watch import GpuSample, NoWatch, NvmlWatch, open_watch


class FakeNvml(ModuleType):
    """As much of pynvml as the watch calls; `state` holds what the GPU reports, `absent` what it does not support."""

    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    class NVMLError_GpuIsLost(NVMLError):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.state: dict[str, Any] = {
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=3 << 30, total=8 << 30, free=5 << 30),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=90, memory=40),
            "nvmlDeviceGetClockInfo": 1980,
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetCurrentClocksEventReasons": 0,
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetCurrPcieLinkGeneration": 5,
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetPcieReplayCounter": 0,
            "nvmlDeviceGetTemperature": 45,
            "nvmlDeviceGetPowerUsage": 120_500,
        }
        self.absent: set[str] = set()
        self.lost = False
        self.shut = 0
        self.devices = 1

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__.get("state", {}):
            raise AttributeError(name)

        def read(_handle: Any, *_arguments: Any) -> Any:
            if self.lost:
                raise self.NVMLError_GpuIsLost("GPU is lost")
            if name in self.absent:
                raise self.NVMLError("Not Supported")
            return self.state[name]

        return read

    def nvmlInit(self) -> None:
        return None

    def nvmlShutdown(self) -> None:
        self.shut += 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index >= self.devices:
            raise self.NVMLError("Not Found")
        return "handle"


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml()


def test_a_sample_holds_what_the_device_reports(nvml: FakeNvml) -> None:
    sample = NvmlWatch(nvml, "handle").sample()
    assert (sample.memory_used_bytes, sample.memory_total_bytes) == (3 << 30, 8 << 30)
    assert (sample.pcie_width, sample.pcie_generation, sample.pcie_replays) == (16, 5, 0)
    assert (sample.temperature_c, sample.power_w, sample.slowdowns) == (45, 120.5, ())


def test_what_is_not_supported_is_none(nvml: FakeNvml) -> None:
    nvml.absent = set(nvml.state)
    watch = NvmlWatch(nvml, "handle")
    assert watch.sample() == GpuSample()
    assert watch.look() == ()


def test_the_older_name_of_the_clock_events_will_do(nvml: FakeNvml) -> None:
    del nvml.state["nvmlDeviceGetCurrentClocksEventReasons"]
    nvml.state["nvmlDeviceGetCurrentClocksThrottleReasons"] = 0x40
    assert NvmlWatch(nvml, "handle").sample().slowdowns == ("hw_thermal",)


def test_x16_to_x8_is_named_once_with_its_remedy(nvml: FakeNvml, caplog: pytest.LogCaptureFixture) -> None:
    watch = NvmlWatch(nvml, "handle")
    with caplog.at_level(logging.INFO, "cockpit.watch"):
        assert watch.look() == ()
        nvml.state["nvmlDeviceGetCurrPcieLinkWidth"] = 8
        assert [finding.code for finding in watch.look()] == ["pcie_width"]
        watch.look()
        assert len(caplog.records) == 1
        assert "x8 of x16" in caplog.text
        assert "reseat" in caplog.text
        nvml.state["nvmlDeviceGetCurrPcieLinkWidth"] = 16
        assert watch.look() == ()
        assert caplog.records[-1].getMessage().startswith("over:")


def test_an_idle_link_is_not_judged(nvml: FakeNvml) -> None:
    nvml.state["nvmlDeviceGetUtilizationRates"] = SimpleNamespace(gpu=0, memory=0)
    nvml.state["nvmlDeviceGetCurrPcieLinkGeneration"] = 1
    nvml.state["nvmlDeviceGetCurrentClocksEventReasons"] = 0x1
    watch = NvmlWatch(nvml, "handle")
    assert watch.look() == ()
    nvml.state["nvmlDeviceGetUtilizationRates"] = SimpleNamespace(gpu=50, memory=0)
    assert [finding.code for finding in watch.look()] == ["pcie_generation"]


def test_replays_count_from_the_first_look(nvml: FakeNvml) -> None:
    nvml.state["nvmlDeviceGetPcieReplayCounter"] = 7
    watch = NvmlWatch(nvml, "handle")
    assert watch.look() == ()
    nvml.state["nvmlDeviceGetPcieReplayCounter"] = 10
    (finding,) = watch.look()
    assert finding.code == "pcie_replays"
    assert finding.message.startswith("3 PCIe replays")
    assert watch.look() == ()


@pytest.mark.parametrize(("bits", "code"), [(0x4, "sw_power_cap"), (0x20, "sw_thermal"), (0x48, "hw_slowdown")])
def test_slowdowns_are_named(nvml: FakeNvml, bits: int, code: str) -> None:
    nvml.state["nvmlDeviceGetCurrentClocksEventReasons"] = bits
    nvml.state["nvmlDeviceGetClockInfo"] = 990
    found = NvmlWatch(nvml, "handle").look()
    assert code in [finding.code for finding in found]
    assert "990 of 1980 MHz" in found[0].message


def test_a_lost_gpu_is_one_finding(nvml: FakeNvml) -> None:
    watch = NvmlWatch(nvml, "handle")
    nvml.lost = True
    assert [finding.code for finding in watch.look()] == ["gpu_lost"]


def test_open_watch(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    watch = open_watch()
    assert watch.present
    watch.close()
    assert nvml.shut == 1
    beyond = open_watch(3)
    assert not beyond.present
    assert "no GPU 3" in beyond.why


def test_absence_is_a_null_object(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise nvml.NVMLError("Driver Not Loaded")

    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(nvml, "nvmlInit", fail, raising=False)
    watch = open_watch()
    assert isinstance(watch, NoWatch)
    assert "driver" in watch.why
    assert watch.look() == ()
    assert watch.sample() == GpuSample()
    watch.close()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "pip install" in open_watch().why
