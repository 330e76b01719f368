"""Watching the GPU through NVML: memory, clocks, throttling, the PCIe link under load. Absent NVML is a null object.

The classic cause of a sudden jump in tail latency is a link that fell from x16 to x8: it is named in the log with its
remedy. An idle link narrows its generation to save power, so the link is judged under load only.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Final, Protocol

log = logging.getLogger("cockpit.watch")

UNDER_LOAD_PERCENT: Final = 10
"""GPU utilisation from which the PCIe link must show its full width and generation."""

_SLOWDOWNS: Final = {
    0x4: ("sw_power_cap", "the power limit holds its clocks down: check nvidia-smi -q -d POWER and the supply"),
    0x8: ("hw_slowdown", "hardware halves its clocks: check power cables, supply and cooling"),
    0x20: ("sw_thermal", "it is hot and the driver holds its clocks down: check air flow and heat sinks"),
    0x40: ("hw_thermal", "it is too hot and hardware holds its clocks down: stop the load, check cooling"),
    0x80: ("hw_power_brake", "the power supply asks it to slow down: check the supply"),
}
"""NVML clocks-event bits that cost latency. Idle (0x1) and clocks set on purpose (0x2, 0x10, 0x100) do not count."""


SLOWDOWNS: Final = tuple(name for name, _ in _SLOWDOWNS.values())
"""Their names."""


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One reading. None: this device does not report it. Clocks in MHz, power in W, temperature in degrees Celsius."""

    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    utilisation_percent: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    clock_event_bits: int | None = None
    slowdowns: tuple[str, ...] = ()
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_replays: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that raises latency, with its remedy. `code` is stable: pcie_width, pcie_generation, pcie_replays,
    gpu_lost, or a name from the slowdowns."""

    code: str
    message: str


class Watch(Protocol):
    """Read by a housekeeping thread, about once a second. One thread at a time."""

    present: bool
    """False for the null object; `why` then says what is missing."""
    why: str

    def sample(self) -> GpuSample: ...

    def look(self) -> tuple[Finding, ...]:
        """Read once and judge. Findings that are new are logged, and so is their end."""
        ...

    def close(self) -> None: ...


class NoWatch:
    """What stands in where NVML is absent: reads nothing, finds nothing."""

    present = False

    def __init__(self, why: str) -> None:
        self.why = why

    def sample(self) -> GpuSample:
        return GpuSample()

    def look(self) -> tuple[Finding, ...]:
        return ()

    def close(self) -> None:
        return None


class NvmlWatch:
    """One GPU over a loaded NVML (`nvml`: the pynvml module, `handle`: its device handle)."""

    present = True
    why = ""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._best_width = 0
        self._best_generation = 0
        self._replays = -1
        self._known: dict[str, Finding] = {}
        self._lost = False

    def sample(self) -> GpuSample:
        """Raises nothing: a value that the device does not report is None."""
        nvml = self._nvml
        memory = self._read("nvmlDeviceGetMemoryInfo")
        load = self._read("nvmlDeviceGetUtilizationRates")
        events = self._read("nvmlDeviceGetCurrentClocksEventReasons")
        if events is None:
            events = self._read("nvmlDeviceGetCurrentClocksThrottleReasons")
        power_mw = self._read("nvmlDeviceGetPowerUsage")
        return GpuSample(
            None if memory is None else int(memory.used),
            None if memory is None else int(memory.total),
            None if load is None else int(load.gpu),
            self._read("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            self._read("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
            self._read("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            events,
            tuple(name for bit, (name, _) in _SLOWDOWNS.items() if (events or 0) & bit),
            self._read("nvmlDeviceGetCurrPcieLinkWidth"),
            self._read("nvmlDeviceGetMaxPcieLinkWidth"),
            self._read("nvmlDeviceGetCurrPcieLinkGeneration"),
            self._read("nvmlDeviceGetMaxPcieLinkGeneration"),
            self._read("nvmlDeviceGetPcieReplayCounter"),
            self._read("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            None if power_mw is None else power_mw / 1000,
        )

    def _read(self, function: str, *arguments: Any) -> Any:
        call = getattr(self._nvml, function, None)
        if call is None:
            return None
        try:
            return call(self._handle, *arguments)
        except self._nvml.NVMLError_GpuIsLost:
            self._lost = True
            return None
        except self._nvml.NVMLError as error:
            log.debug("%s: %s", function, error)
            return None

    def look(self) -> tuple[Finding, ...]:
        sample = self.sample()
        found = {finding.code: finding for finding in self._judge(sample)}
        for code, finding in found.items():
            if code not in self._known:
                log.warning("%s", finding.message, extra={"code": code})
        for code, finding in self._known.items():
            if code not in found and code != "pcie_replays":
                log.info("over: %s", finding.message, extra={"code": code})
        self._known = found
        return tuple(found.values())

    def _judge(self, sample: GpuSample) -> list[Finding]:
        found: list[Finding] = []
        if self._lost:
            message = "the GPU fell off the bus: restart the machine; if it happens again, check slot, riser and supply"
            return [Finding("gpu_lost", message)]
        if (sample.utilisation_percent or 0) >= UNDER_LOAD_PERCENT:
            found += self._judge_link(sample)
        if sample.pcie_replays is not None:
            if 0 <= self._replays < sample.pcie_replays:
                more = sample.pcie_replays - self._replays
                message = f"{more} PCIe replays since the last look: bit errors on the link; reseat the card or riser"
                found.append(Finding("pcie_replays", message))
            self._replays = sample.pcie_replays
        for name, remedy in _SLOWDOWNS.values():
            if name in sample.slowdowns:
                clock = f" ({sample.sm_clock_mhz} of {sample.sm_clock_max_mhz} MHz)" if sample.sm_clock_mhz else ""
                found.append(Finding(name, f"the GPU runs slowed down{clock}: {remedy}"))
        return found

    def _judge_link(self, sample: GpuSample) -> list[Finding]:
        found: list[Finding] = []
        if sample.pcie_width is not None:
            self._best_width = max(self._best_width, sample.pcie_width_max or 0, sample.pcie_width)
            if sample.pcie_width < self._best_width:
                found.append(
                    Finding(
                        "pcie_width",
                        f"PCIe link runs x{sample.pcie_width} of x{self._best_width} under load: copies take "
                        f"{self._best_width / sample.pcie_width:g} times as long and tail latency jumps; reseat the "
                        "card or riser, clean its contacts, check the slot's lanes in the firmware's settings",
                    )
                )
        if sample.pcie_generation is not None:
            best = max(self._best_generation, sample.pcie_generation_max or 0, sample.pcie_generation)
            self._best_generation = best
            if sample.pcie_generation < best:
                found.append(
                    Finding(
                        "pcie_generation",
                        f"PCIe link runs at generation {sample.pcie_generation} of {best} under load: check link power "
                        "management (pcie_aspm) and the slot's speed in the firmware's settings",
                    )
                )
        return found

    def close(self) -> None:
        self._nvml.nvmlShutdown()


def open_watch(index: int = 0) -> Watch:
    """NVML's view of GPU `index`; the null object, with the reason in `why`, where there is none to watch."""
    try:
        import pynvml
    except ImportError as error:
        return NoWatch(f"nvidia-ml-py is not installed ({error}): pip install nvidia-ml-py")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return NoWatch(f"NVML does not answer ({error}): is an NVIDIA driver installed and loaded?")
    try:
        return NvmlWatch(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index))
    except pynvml.NVMLError as error:
        pynvml.nvmlShutdown()
        return NoWatch(f"NVML knows no GPU {index} ({error})")
