"""Metrics that are read when somebody asks: tasks and memory of the arbiter, modes, devices, channels, the GPU."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from cockpit import __version__
from cockpit.arbiter.requests import LatencyHistogram
from cockpit.arbiter.status import Status
from cockpit.runtime import Runtime
from cockpit.scheduling.service import SchedulingService
from cockpit.service.state import Mode, ServiceState
from cockpit.telemetry.metrics import SECONDS, task_label
from cockpit.telemetry.watch import SLOWDOWNS, GpuSample

_FINDINGS: Final = ("pcie_width", "pcie_generation", "pcie_replays", "gpu_lost", *SLOWDOWNS)
_MIB: Final = 1 << 20


class Microphone(Protocol):
    """What is read of pipeline.audio.lasting.LastingMicrophone."""

    xruns: int
    samples_lost: int
    losses: int


class Speaker(Protocol):
    """What is read of pipeline.audio.lasting.LastingSpeaker."""

    losses: int

    @property
    def underruns(self) -> int: ...


class Followed(Protocol):
    """What is read of cockpit.headunit.stream.EventStream."""

    @property
    def subscribers(self) -> int: ...
    @property
    def dropped(self) -> int: ...


@dataclass(frozen=True, eq=False)
class LiveMetrics:
    """Of one process. profile: its name, and the hash of what is in force. texts: language models by name, each
    telling what requests took (see cockpit.api.stats).
    """

    runtime: Runtime
    service: ServiceState
    profile: str
    profile_sha256: str
    device: str
    scheduling: SchedulingService | None = None
    microphone: Microphone | None = None
    speaker: Speaker | None = None
    events: Followed | None = None
    texts: Mapping[str, Any] = field(default_factory=dict)

    def collect(self) -> Iterator[Metric]:
        """Everything, as it is now."""
        yield InfoMetricFamily(
            "cockpit_build", "This program.",
            value={"version": __version__, "python": platform.python_version(), "device": self.device},
        )  # fmt: skip
        yield InfoMetricFamily(
            "cockpit_profile", "The profile in force.", value={"name": self.profile, "sha256": self.profile_sha256}
        )
        yield from self._modes()
        yield from self._audio()
        yield from self._channels()
        yield from _requests(self.texts)
        if self.scheduling is not None:
            status = self.scheduling.dispatcher.status(verbose=False)
            yield from _tasks(status)
            yield from _times(self.scheduling)
            yield from _memory(status)
            yield from self._gpu(self.scheduling)

    def _modes(self) -> Iterator[Metric]:
        modes = self.service.status().modes
        named = [((mode,), mode in modes) for mode in get_args(Mode)]
        yield _gauge("cockpit_degraded", "1 while the process has to do without something.", ["mode"], named)
        muted = self.runtime.by_hand.muted
        yield _gauge("cockpit_microphone_muted", "1 while the driver has muted the microphone.", [], [((), muted)])

    def _audio(self) -> Iterator[Metric]:
        microphone, speaker = self.microphone, self.speaker
        if microphone is None or speaker is None:
            return
        blocks = [(("microphone",), microphone.xruns), (("speaker",), speaker.underruns)]
        yield _counter(
            "cockpit_audio_xruns", "Blocks that the microphone lost, or for which reply audio came too late.",
            ["device"], blocks,
        )  # fmt: skip
        lost = [((), microphone.samples_lost)]
        yield _counter("cockpit_audio_lost_samples", "Samples at 16 kHz that the microphone lost.", [], lost)
        gone = [(("microphone",), microphone.losses), (("speaker",), speaker.losses)]
        yield _counter("cockpit_audio_device_losses", "How often a device went.", ["device"], gone)

    def _channels(self) -> Iterator[Metric]:
        edges = self.runtime.edges.all()
        waiting = [((edge.name,), len(edge)) for edge in edges]
        yield _gauge("cockpit_channel_waiting", "Messages between two stages.", ["channel"], waiting)
        dropped = [((edge.name,), edge.counts.dropped) for edge in edges]
        yield _counter("cockpit_channel_dropped", "Messages dropped: the next stage was late.", ["channel"], dropped)
        if self.events is not None:
            yield _gauge("cockpit_event_clients", "Who follows the events.", [], [((), self.events.subscribers)])
            lost = [((), self.events.dropped)]
            yield _counter("cockpit_events_dropped", "Events that clients lost by reading too slowly.", [], lost)

    @staticmethod
    def _gpu(scheduling: SchedulingService) -> Iterator[Metric]:
        if not scheduling.watch.present:
            return
        found = {finding.code for finding in scheduling.maintenance.findings}
        yield _gauge(
            "cockpit_gpu_finding", "1 for what raises latency, judged once a second.", ["code"],
            [((code,), code in found) for code in _FINDINGS],
        )  # fmt: skip
        yield from gpu_metrics(scheduling.watch.sample())


def gpu_metrics(sample: GpuSample) -> Iterator[Metric]:
    """Of one reading; what the device does not report is left out."""
    gauges: tuple[tuple[str, str, float | None, float], ...] = (
        ("memory_used_bytes", "Device memory in use, by whomever.", sample.memory_used_bytes, 1),
        ("memory_total_bytes", "Device memory.", sample.memory_total_bytes, 1),
        ("utilisation_ratio", "Share of time in which a kernel ran.", sample.utilisation_percent, 0.01),
        ("sm_clock_hertz", "Clock of the multiprocessors.", sample.sm_clock_mhz, 1e6),
        ("sm_clock_max_hertz", "The highest one.", sample.sm_clock_max_mhz, 1e6),
        ("memory_clock_hertz", "Clock of the memory.", sample.memory_clock_mhz, 1e6),
        ("temperature_celsius", "Of the chip.", sample.temperature_c, 1),
        ("power_watts", "Drawn now.", sample.power_w, 1),
        ("pcie_lanes", "Width of the link now.", sample.pcie_width, 1),
        ("pcie_max_lanes", "Width that device and slot could have.", sample.pcie_width_max, 1),
        ("pcie_generation", "Of the link now; falls when idle.", sample.pcie_generation, 1),
    )
    for name, text, value, scale in gauges:
        if value is not None:
            yield _gauge(f"cockpit_gpu_{name}", text, [], [((), value * scale)])
    if sample.pcie_replays is not None:
        yield _counter("cockpit_gpu_pcie_replays", "Packets sent again: bit errors.", [], [((), sample.pcie_replays)])
    if sample.clock_event_bits is not None:
        slowed = [((name,), name in sample.slowdowns) for name in SLOWDOWNS]
        yield _gauge("cockpit_gpu_slowdown", "1 while something holds the clocks down.", ["reason"], slowed)


def _tasks(status: Status) -> Iterator[Metric]:
    tasks = [(task_label(task.name), task) for task in status.tasks]

    def gauge(name: str, text: str, of: str, scale: float = 1.0) -> Metric:
        return _gauge(name, text, ["task"], [((label,), getattr(task, of) * scale) for label, task in tasks])

    def counter(name: str, text: str, of: str) -> Metric:
        return _counter(name, text, ["task"], [((label,), getattr(task, of)) for label, task in tasks])

    yield gauge("cockpit_task_queued", "Requests that wait for the lane.", "queued")
    yield gauge("cockpit_task_queue_limit", "How many may wait.", "queue_limit")
    yield gauge("cockpit_task_sla_seconds", "What the profile promises of the latency's P95.", "sla_ms", 1e-3)
    yield gauge("cockpit_task_memory_bytes", "KV memory that the task's sessions hold.", "held_mb", _MIB)
    yield gauge("cockpit_task_memory_budget_bytes", "KV memory that they may hold.", "budget_mb", _MIB)
    yield counter("cockpit_task_finished", "Requests that have ended.", "finished")
    yield counter("cockpit_task_missed_sla", "Of them, those past the promise.", "missed_sla")
    yield counter("cockpit_task_tokens", "Tokens generated.", "tokens")
    yield counter("cockpit_task_preempted", "Runs ended for somebody more urgent, and done again.", "preempted")
    paused = [((label,), task.state.startswith("paused")) for label, task in tasks]
    yield _gauge("cockpit_task_paused", "1 while the task is paused.", ["task"], paused)


def _times(scheduling: SchedulingService) -> Iterator[Metric]:
    families = {
        "latency": HistogramMetricFamily(
            "cockpit_time_to_first_token_seconds",
            "From submission to the first token; to the end for urgent tasks and requests without tokens.",
            labels=["task"],
        ),
        "queue": HistogramMetricFamily(
            "cockpit_queue_seconds", "From submission until the lane was the request's.", labels=["task"]
        ),
        "tpot": HistogramMetricFamily(
            "cockpit_time_per_output_token_seconds", "Mean time of a request's later tokens.", labels=["task"]
        ),
    }
    for task, times in scheduling.dispatcher.task_times().items():
        for name, family in families.items():
            histogram: LatencyHistogram = getattr(times, name)
            below = histogram.below([round(bound * 1e9) for bound in SECONDS])
            buckets = [(str(bound), float(count)) for bound, count in zip(SECONDS, below, strict=True)]
            buckets.append(("+Inf", float(histogram.count)))
            family.add_metric([task_label(task)], buckets, histogram.sum_ns / 1e9)
    yield from families.values()


def _memory(status: Status) -> Iterator[Metric]:
    memory, degraded = status.memory, status.degraded
    yield _gauge("cockpit_kv_usage_ratio", "Share of the KV memory that sessions hold.", [], [((), memory.pressure)])
    yield _gauge("cockpit_kv_bytes", "KV memory held.", [], [((), memory.held_mb * _MIB)])
    yield _gauge("cockpit_kv_capacity_bytes", "KV memory there is.", [], [((), memory.arena_mb * _MIB)])
    yield _gauge("cockpit_kv_sessions", "Sessions that hold some.", [], [((), memory.sessions)])
    yield _counter("cockpit_kv_evictions", "Sessions evicted.", [], [((), memory.evictions)])
    if memory.used_percent is not None:
        share = [((), memory.used_percent / 100)]
        yield _gauge("cockpit_memory_usage_ratio", "Share of the device's memory in use.", [], share)
    yield _gauge("cockpit_memory_limit_ratio", "The share not to pass.", [], [((), memory.limit_percent / 100)])
    yield _gauge("cockpit_memory_refusing", "1 while new sessions are refused.", [], [((), memory.refusing)])
    yield _counter(
        "cockpit_degraded_entered", "How often tasks were paused for a promise.", [], [((), degraded.entered)]
    )
    yield _counter("cockpit_request_timeouts", "Requests that waited too long.", [], [((), status.timeouts)])


def _requests(texts: Mapping[str, Any]) -> Iterator[Metric]:
    """Of the API's requests for text, by model and task."""
    outcomes = CounterMetricFamily(
        "cockpit_api_requests",
        "Requests for text: answered, cut short, turned away.",
        labels=["model", "task", "outcome"],
    )
    prompts = CounterMetricFamily(
        "cockpit_api_prompt_tokens",
        "Of their prompts: computed, or found in a cache.",
        labels=["model", "task", "source"],
    )
    for model, service in texts.items():
        for task, counted in service.stats.shown().items():
            label = task_label(task)
            for outcome, key in (("answered", "requests"), ("stopped", "stopped"), ("refused", "refused")):
                outcomes.add_metric([model, label, outcome], counted[key])
            prompts.add_metric([model, label, "computed"], counted["prefill_tokens"])
            prompts.add_metric([model, label, "cached"], counted["reused_tokens"])
    yield outcomes
    yield prompts


_Rows = Iterable[tuple[tuple[str, ...], float]]


def _gauge(name: str, text: str, labels: Sequence[str], rows: _Rows) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in rows:
        family.add_metric(values, float(value))
    return family


def _counter(name: str, text: str, labels: Sequence[str], rows: _Rows) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, value in rows:
        family.add_metric(values, float(value))
    return family
