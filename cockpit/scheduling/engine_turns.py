"""Who uses a speech engine: the voice chain and API requests share one recogniser and one voice of each language.

An engine has one user at a time. The chain is the urgent one: a request gives its engine up at the next step of the
model and starts anew when the chain is done, so that a person who speaks waits for one step at most. A voice also
changes hands between two chunks of a clause: then guidance comes first.

Each run of an engine is a request of a task to the arbiter, whose lane is held meanwhile. Leases come before engines:
only the chain waits for an engine while it holds a lane, and whoever has the engine then needs no other lane.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from cockpit.scheduling.dispatcher import Dispatcher, Lease, Refused
from cockpit.scheduling.tasks import speech_name_of
from models.engines.base import Audio, Hypothesis, SpeechRecognizer, Voice, never_cancelled
from models.engines.preemption import RunSwitch
from pipeline.engine_runs import UNSCHEDULED_RUNS, EngineRuns
from pipeline.frames import Task

Cancelled = Callable[[], bool]
Stop = Callable[[], bool]
"""Asked between steps of a model: parks while somebody more urgent runs; True when the work must stop."""


class EngineTurns:
    """Who uses one engine. Thread-safe."""

    def __init__(self) -> None:
        self.wanted = False
        """Whether the chain waits for the engine: whoever else has it gives it up."""
        self.for_guidance = RunSwitch()
        """Closed while guidance waits for the engine: the run that has it is ended."""
        self._lock = threading.Lock()
        self._nobody_first = threading.Event()
        self._nobody_first.set()

    @contextmanager
    def first(self) -> Iterator[None]:
        """For guidance: nobody else takes the engine before it, and whoever has it gives it up between two nodes."""
        self._nobody_first.clear()
        self.for_guidance.close()
        try:
            with self._lock:
                self.for_guidance.open()
                self._nobody_first.set()
                yield
        finally:
            self.for_guidance.open()
            self._nobody_first.set()

    @contextmanager
    def urgent(self) -> Iterator[None]:
        """For the chain."""
        self._nobody_first.wait()
        self.wanted = True
        try:
            with self._lock, self.for_guidance.over_runs():
                self.wanted = False
                yield
        finally:
            self.wanted = False

    def wait_free(self, cancelled: Cancelled) -> bool:
        """For the others: True when the engine was free a moment ago, False when `cancelled` before."""
        while not cancelled():
            self._nobody_first.wait(0.1)
            if not self.wanted and self._nobody_first.is_set() and self._lock.acquire(timeout=0.1):
                self._lock.release()
                return True
        return False

    @contextmanager
    def at_once(self) -> Iterator[bool]:
        """For the others: True when the engine is theirs, False when somebody has it. Never waits."""
        mine = not self.wanted and self._nobody_first.is_set() and self._lock.acquire(blocking=False)
        try:
            with self.for_guidance.over_runs():
                yield mine
        finally:
            if mine:
                self._lock.release()


class TaskLeases(Protocol):
    """Leases by the arbiter's name of a task."""

    def hold(self, task: str, cancelled: Cancelled, *, redoes: bool = True) -> AbstractContextManager[Stop | None]:
        """Hold a lane of `task`; None when `cancelled` while it waited. redoes: see `Lease.take`. Raises Refused."""
        ...


class NoLeases:
    """Nothing shares the device."""

    def hold(self, task: str, cancelled: Cancelled, *, redoes: bool = True) -> AbstractContextManager[Stop | None]:
        return nullcontext(cancelled)


class LaneLeases:
    """ran: told of the task after each lease."""

    def __init__(self, dispatcher: Dispatcher, ran: Callable[[str], None]) -> None:
        self._dispatcher = dispatcher
        self._ran = ran

    @contextmanager
    def hold(self, task: str, cancelled: Cancelled, *, redoes: bool = True) -> Iterator[Stop | None]:
        """See TaskLeases."""
        lease = Lease(self._dispatcher, task)
        try:
            lease.take(give_up=cancelled, redoes=redoes)
        except Refused:
            if not cancelled():
                raise
            yield None
            return
        try:
            yield lambda: cancelled() or not lease.boundary(0)
        finally:
            lease.give_back()
            self._ran(task)


class ChainRuns:
    """The chain's runs of recognition and voices. See pipeline.engine_runs.EngineRuns.

    tasks: those that the profile names. model_holds: the task whose lane the chain's language model holds: a profile
    without speech_task lets a turn's voice run in the lane that the turn has already.
    """

    def __init__(self, leases: TaskLeases, tasks: Collection[str], model_holds: Callable[[], str]) -> None:
        self._leases = leases
        self._tasks = tasks
        self._model_holds = model_holds

    @contextmanager
    def around(self, task: Task | None, cancelled: Cancelled) -> Iterator[bool]:
        """See EngineRuns. Recognition that has begun (None) is neither parked nor ended: somebody waits for it. A
        voice's run may be ended.
        """
        name = speech_name_of(self._tasks, task)
        if name == self._model_holds():
            yield True
            return
        with self._leases.hold(name, cancelled, redoes=task is not None) as stop:
            yield stop is not None


class ChainRecognizer:
    """The chain's side of a recogniser that it shares. See models.engines.base.SpeechRecognizer."""

    def __init__(self, engine: SpeechRecognizer, turns: EngineTurns, runs: EngineRuns = UNSCHEDULED_RUNS) -> None:
        self._engine = engine
        self._turns = turns
        self._runs = runs

    def transcribe(
        self,
        samples: Audio,
        *,
        languages: Sequence[str],
        hotwords: Sequence[str] = (),
        cancelled: Cancelled = never_cancelled,
    ) -> Hypothesis:
        """Raises Refused for a run that got no lane."""
        self._turns.wanted = True  # before it waits for a lane: who has the engine would be parked with it
        try:
            with self._runs.around(None, cancelled) as mine:
                if not mine:
                    return Hypothesis("", languages[0], 0.0, 1.0)
                with self._turns.urgent():
                    return self._engine.transcribe(samples, languages=languages, hotwords=hotwords, cancelled=cancelled)
        finally:
            self._turns.wanted = False

    def warm_up(self) -> None:
        with self._turns.urgent():
            self._engine.warm_up()


class ChainVoice:
    """The chain's side of a voice that it shares, taken for each chunk. See models.engines.base.Voice."""

    def __init__(self, engine: Voice, turns: EngineTurns) -> None:
        self.sample_rate_hz = engine.sample_rate_hz
        self._engine = engine
        self._turns = turns

    def synthesise(self, text: str) -> Iterator[Audio]:
        yield from _chunks(self._engine, text, self._turns.urgent)

    def warm_up(self) -> None:
        with self._turns.urgent():
            self._engine.warm_up()


class GuidanceVoice:
    """Guidance's side of a voice that it shares. See models.engines.base.Voice."""

    def __init__(self, engine: Voice, turns: EngineTurns) -> None:
        self.sample_rate_hz = engine.sample_rate_hz
        self._engine = engine
        self._turns = turns

    def synthesise(self, text: str) -> Iterator[Audio]:
        yield from _chunks(self._engine, text, self._turns.first)

    def warm_up(self) -> None:
        with self._turns.first():
            self._engine.warm_up()


def _chunks(engine: Voice, text: str, turn: Callable[[], AbstractContextManager[None]]) -> Iterator[Audio]:
    """A clause on a voice that others may use between two chunks: nobody waits for whoever plays them. A chunk without
    samples is handed on: whoever takes it may have to wait for a lane before the next.
    """
    chunks = iter(engine.synthesise(text))
    while True:
        with turn():
            chunk = next(chunks, None)
        if chunk is None:
            return
        yield chunk
