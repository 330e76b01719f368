"""What requests for text took, per task of the arbiter: counts, and quantiles from histograms of fixed size."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from cockpit.arbiter.requests import LatencyHistogram

_QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
NS_PER_MS = 1e6


class Timed(Protocol):
    """What is read of cockpit.api.generation.Finished. Times in ms; tpot_ms: None below two tokens."""

    @property
    def new_tokens(self) -> int: ...
    @property
    def queue_ms(self) -> float: ...
    @property
    def ttft_ms(self) -> float: ...
    @property
    def tpot_ms(self) -> float | None: ...


@dataclass(slots=True)
class _Task:
    requests: int = 0
    stopped: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    decode_tokens: int = 0
    ttft: LatencyHistogram = field(default_factory=LatencyHistogram)
    tpot: LatencyHistogram = field(default_factory=LatencyHistogram)
    queue: LatencyHistogram = field(default_factory=LatencyHistogram)
    prefill: LatencyHistogram = field(default_factory=LatencyHistogram)

    def shown(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "stopped": self.stopped,
            "refused": self.refused,
            "prompt_tokens": self.prompt_tokens,
            "reused_tokens": self.reused_tokens,
            "prefill_tokens": self.prompt_tokens - self.reused_tokens,
            "decode_tokens": self.decode_tokens,
            "prefix_hit_rate": self.reused_tokens / self.prompt_tokens if self.prompt_tokens else None,
            "ttft_ms": _quantiles(self.ttft),
            "tpot_ms": _quantiles(self.tpot),
            "queue_ms": _quantiles(self.queue),
            "prefill_ms": _quantiles(self.prefill),
        }


class TextStats:
    """Counted since the start. Any thread may call.

    requests: answered whole. stopped: cut short by their client, a deadline or the arbiter. refused: too many waited.
    prompt_tokens = reused_tokens (copied, or cached already) + prefill_tokens (computed). queue_ms: until it joined the
    batch; prefill_ms: from then to the computed prompt, beside other texts; tpot_ms: after that.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: dict[str, _Task] = {}
        self._steps: dict[int, int] = {}

    def refused(self, task: str) -> None:
        with self._lock:
            self._of(task).refused += 1

    def stopped(self, task: str) -> None:
        with self._lock:
            self._of(task).stopped += 1

    def stepped(self, texts: int) -> None:
        """One run gave a token to so many texts."""
        with self._lock:
            self._steps[texts] = self._steps.get(texts, 0) + 1

    def batches(self) -> dict[str, Any]:
        """How many texts the runs had."""
        with self._lock:
            steps, rows = sum(self._steps.values()), sum(size * count for size, count in self._steps.items())
            sizes = {str(size): count for size, count in sorted(self._steps.items())}
        return {"steps": steps, "mean_size": round(rows / steps, 3) if steps else None, "steps_by_size": sizes}

    def computed(self, task: str, prompt_tokens: int, reused_tokens: int, prefill_ms: float) -> None:
        """A prompt is in the cache, so long after its request joined."""
        with self._lock:
            counted = self._of(task)
            counted.prompt_tokens += prompt_tokens
            counted.reused_tokens += reused_tokens
            counted.prefill.add(round(prefill_ms * NS_PER_MS))

    def finished(self, task: str, answer: Timed) -> None:
        with self._lock:
            counted = self._of(task)
            counted.requests += 1
            counted.decode_tokens += answer.new_tokens
            counted.ttft.add(round(answer.ttft_ms * NS_PER_MS))
            counted.queue.add(round(answer.queue_ms * NS_PER_MS))
            if answer.tpot_ms is not None:
                counted.tpot.add(round(answer.tpot_ms * NS_PER_MS))

    def shown(self) -> Mapping[str, Any]:
        """Per task; quantiles in ms, None where nothing was counted."""
        with self._lock:
            return {name: counted.shown() for name, counted in self._tasks.items()}

    def _of(self, task: str) -> _Task:
        return self._tasks.setdefault(task, _Task())


def _quantiles(histogram: LatencyHistogram) -> dict[str, float | None]:
    if not histogram.count:
        return dict.fromkeys(_QUANTILES)
    return {name: round(histogram.quantile_ns(share) / NS_PER_MS, 3) for name, share in _QUANTILES.items()}
