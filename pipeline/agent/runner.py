"""Runs tools beside each other, each within its own time, in threads that the runtime owns.

A thread cannot be stopped from outside: a call past its time is abandoned and its thread goes on alone. Until it ends
its tool is `busy` and not called again, and another thread takes its place, so it stands in nobody's way.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from models.errors import InputError
from pipeline import json_codec
from pipeline.agent.tools import UNCONFIRMED, AgentCall, AgentTool, Result, ToolOutcome, Toolset

log = logging.getLogger("cockpit.agent")

NS_PER_S = 1_000_000_000
POLL_S = 0.02
"""How often a wait asks whether the turn was cancelled."""
MOST_RESULT_BYTES = 16 * 1024
_KEPT_RESULTS = 64


@dataclass(slots=True)
class _Job:
    """One call on its way. `began_ns`: 0 while it waits for a thread."""

    tool: AgentTool
    call: AgentCall
    limit_ns: int
    began_ns: int = 0
    outcome: ToolOutcome | None = None
    abandoned: bool = False


@dataclass(slots=True)
class _Cache:
    """Results by call, until their time is over. The least recently kept go first."""

    _kept: OrderedDict[str, tuple[int, Result]] = field(default_factory=OrderedDict)

    def get(self, key: str, now_ns: int) -> Result | None:
        until_ns, result = self._kept.get(key, (0, {}))
        return result if now_ns < until_ns else None

    def put(self, key: str, result: Result, until_ns: int) -> None:
        self._kept[key] = (until_ns, result)
        self._kept.move_to_end(key)
        while len(self._kept) > _KEPT_RESULTS:
            self._kept.popitem(last=False)


class ToolRunner:
    """max_parallel: calls that run beside each other. timeout_s: of tools without a limit of their own. ttl_s: by tool
    name, instead of the tool's own. clock_ns: monotonic. `run` is for one thread; `close` may be called from any.
    """

    def __init__(
        self,
        tools: Toolset,
        *,
        max_parallel: int = 4,
        timeout_s: float = 2.0,
        ttl_s: Mapping[str, float] | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        for name, seconds in (ttl_s or {}).items():
            if name not in tools:
                raise InputError(f"no tool is called {name!r}; there are {', '.join(tool.name for tool in tools)}")
            if seconds and tools[name].acts:
                raise InputError(f"tool {name} acts, so its result is never used again: give it no ttl")
        self.tools = tools
        self._max_parallel = max_parallel
        self._timeout_s = timeout_s
        self._ttl_s = dict(ttl_s or {})
        self._clock_ns = clock_ns
        self._cache = _Cache()
        self._changed = threading.Condition()
        self._queue: deque[_Job] = deque()
        self._live = 0
        """Calls that run and are waited for: `max_parallel` at most."""
        self._stuck: Counter[str] = Counter()
        """Abandoned calls that still run, by tool."""
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    def run(
        self,
        calls: Sequence[AgentCall],
        *,
        cancelled: Callable[[], bool] = bool,
        on_wait: Callable[[], object] = bool,
    ) -> list[ToolOutcome] | None:
        """The outcomes, in the order of the calls; equal calls run once. None when `cancelled` before all were there.

        on_wait: called once when the tools are not done at once. Never raises for what a tool does.
        """
        jobs: dict[str, _Job | ToolOutcome] = {}
        for call in calls:
            key = call.key
            if key not in jobs:
                jobs[key] = self._begin(call, key)
        waiting = [job for job in jobs.values() if isinstance(job, _Job)]
        if waiting and not self._wait(waiting, cancelled, on_wait):
            return None
        return [self._ended(jobs[call.key]) for call in calls]

    def close(self) -> None:
        """Run nothing more. Threads that wait end; abandoned calls end when they end, and keep no process alive."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()
        for thread in tuple(self._threads):
            thread.join(POLL_S)

    def _begin(self, call: AgentCall, key: str) -> _Job | ToolOutcome:
        if call.name not in self.tools:
            return ToolOutcome(call, "failed", reason=f"no tool is called {call.name}")
        tool = self.tools[call.name]
        fault = tool.fault(call.arguments)
        if fault is not None:
            return ToolOutcome(call, "failed", reason=fault)
        if not tool.acts:
            known = self._cache.get(key, self._clock_ns())
            if known is not None:
                return ToolOutcome(call, "done", known, cached=True)
        limit_s = self._timeout_s if tool.timeout_s is None else tool.timeout_s
        job = _Job(tool, call, round(limit_s * NS_PER_S))
        with self._changed:
            if self._closed:
                return ToolOutcome(call, "failed", reason="the runtime ends")
            if self._stuck[tool.name]:
                return ToolOutcome(call, "busy", reason="an earlier call has not ended")
            self._queue.append(job)
            self._staff()
        return job

    def _staff(self) -> None:
        """A thread for what waits, while there are fewer than `max_parallel` that are not stuck."""
        if len(self._queue) > self._idle and len(self._threads) - self._stuck.total() < self._max_parallel:
            thread = threading.Thread(target=self._work, name="agent-tool", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._changed.notify_all()

    def _wait(self, jobs: Sequence[_Job], cancelled: Callable[[], bool], on_wait: Callable[[], object]) -> bool:
        told = False
        with self._changed:
            while any(job.outcome is None for job in jobs):
                if cancelled():
                    for job in jobs:
                        self._abandon(job)
                    return False
                now_ns = self._clock_ns()
                for job in jobs:
                    if job.outcome is None and job.began_ns and now_ns - job.began_ns >= job.limit_ns:
                        self._abandon(job)
                        job.outcome = ToolOutcome(job.call, "timed_out", reason=f"over {job.limit_ns / NS_PER_S:g} s")
                if not any(job.outcome is None for job in jobs):
                    break
                self._changed.wait(POLL_S)
                if not told and any(job.outcome is None for job in jobs):
                    told = True
                    on_wait()
        return True

    def _abandon(self, job: _Job) -> None:
        if job.outcome is not None:
            return
        job.abandoned = True
        if job.began_ns:
            self._live -= 1
            self._stuck[job.tool.name] += 1
            self._staff()
        else:
            self._queue.remove(job)

    def _ended(self, job: _Job | ToolOutcome) -> ToolOutcome:
        if isinstance(job, ToolOutcome):
            return job
        assert job.outcome is not None
        outcome, tool = job.outcome, job.tool
        ttl_s = self._ttl_s.get(tool.name, tool.ttl_s)
        if outcome.status == "done" and ttl_s and not tool.acts:
            self._cache.put(job.call.key, outcome.result, self._clock_ns() + round(ttl_s * NS_PER_S))
        return outcome

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while not self._closed and (not self._queue or self._live >= self._max_parallel):
                    self._changed.wait()
                self._idle -= 1
                if self._closed:
                    return
                job = self._queue.popleft()
                job.began_ns = self._clock_ns()
                self._live += 1
            outcome = _called(job)
            with self._changed:
                if job.abandoned:  # another thread has taken this one's place
                    self._stuck[job.tool.name] -= 1
                    self._threads.remove(threading.current_thread())
                    return
                self._live -= 1
                job.outcome = replace(outcome, ms=(self._clock_ns() - job.began_ns) / 1e6)
                self._changed.notify_all()


def _called(job: _Job) -> ToolOutcome:
    """The outcome of the tool's own code, whatever it does."""
    try:
        result = job.tool.run(job.call.arguments)
        size = len(json_codec.dumps(result)) if isinstance(result, Mapping) else -1
    except Exception as error:  # the edge of a tool: whatever it was, it is told aloud and the others go on
        log.warning("tool %s failed: %s: %s", job.tool.name, type(error).__name__, error)
        return ToolOutcome(job.call, "failed", reason=f"{type(error).__name__}: {error}")
    if size < 0 or size > MOST_RESULT_BYTES:
        reason = f"its result is no object of at most {MOST_RESULT_BYTES >> 10} KiB of JSON"
        log.warning("tool %s failed: %s", job.tool.name, reason)
        return ToolOutcome(job.call, "failed", reason=reason)
    if job.tool.acts and result.get("confirmed") is not True:
        return ToolOutcome(job.call, "failed", result, reason=UNCONFIRMED)
    return ToolOutcome(job.call, "done", result)
