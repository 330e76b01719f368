"""Prometheus metrics of a process: what turns took and came to, counted as they end, and what is read when it is asked.

No label holds words: tasks, stages, tools, reasons and modes are known lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from cockpit.headunit.observer import NoObserver
from cockpit.runtime import STAGES
from pipeline.turn_log import TurnRecord

SECONDS: Final = (
    0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0
)  # fmt: skip
"""Upper bounds of the histograms' buckets."""
_TIMED: Final = {"endpoint": "endpoint", "asr": "recognise", "llm": "understand", "tts_first": "speak"}
"""The times of a turn that one stage took, and that stage."""


class Live(Protocol):
    """What is read at the moment it is asked for."""

    def collect(self) -> Iterable[Metric]: ...


def task_label(name: str | None) -> str:
    """`dialogue` for dialogue_task; `none` for a turn whose words were not understood."""
    return "none" if name is None else name.removesuffix("_task")


class Metrics(NoObserver):
    """An Observer of the chain that counts. Any thread calls."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the series
        self._registry = CollectorRegistry()
        self._live: Live | None = None
        registry = self._registry
        self._first_audio = Histogram(
            "cockpit_first_audio_seconds", "From the end of speech to the first sample of the reply.",
            ["task"], buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self._stage = Histogram(
            "cockpit_stage_seconds",
            "What a stage took of a turn: endpoint until the turn was over, speak until the first sound.",
            ["stage", "task"], buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self._llm_first_token = Histogram(
            "cockpit_turn_first_token_seconds", "From the words to the first token of a turn that the model answered.",
            ["task"], buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self._turns = Counter(
            "cockpit_turns", "Turns that have ended, by what decided them and how; again where one is re-opened.",
            ["task", "decided_by", "outcome"], registry=registry,
        )  # fmt: skip
        self._calls = Counter(
            "cockpit_tool_calls", "Calls to the car, by what came of them.", ["tool", "outcome"], registry=registry
        )
        self._denied = Counter(
            "cockpit_tool_denied", "Calls that were not done, by the reason.", ["reason"], registry=registry
        )
        self._failures = Counter(
            "cockpit_stage_failures", "Messages that a stage failed on.", ["stage"], registry=registry
        )
        for stage in STAGES:  # there before the first failure: a counter that appears with 1 has not increased
            self._failures.labels(stage)
        ProcessCollector(registry=registry)

    def show(self, live: Live) -> None:
        """From now on also what `live` reads. Once."""
        self._live = live
        self._registry.register(live)  # type: ignore[arg-type]

    def text(self, accept: str) -> tuple[bytes, str]:
        """Prometheus' text, or OpenMetrics where `accept` prefers it; and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    # --- as an observer ----------------------------------------------------------------------------------------------
    def failed(self, stage: str, turn_id: int, error: Exception) -> None:
        self._failures.labels(stage).inc()

    def ended(self, record: TurnRecord) -> None:
        task = task_label(record.task)
        outcome = "failed" if record.failed else "interrupted" if record.interrupted else "answered"
        self._turns.labels(task, record.decided_by or "none", outcome).inc()
        for name, stage in _TIMED.items():
            taken_ms = record.ms[name]
            if taken_ms is not None:
                self._stage.labels(stage, task).observe(taken_ms / 1e3)
        for histogram, taken_ms in (
            (self._first_audio, record.ms["first_audio"]),
            (self._llm_first_token, record.ms["llm_ttft"]),
        ):
            if taken_ms is not None:
                histogram.labels(task).observe(taken_ms / 1e3)
        for result in record.tool_results:
            self._calls.labels(result.call.name, result.status).inc()
            if result.status != "done":
                self._denied.labels(result.reason or "unknown").inc()
