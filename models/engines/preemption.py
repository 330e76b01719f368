"""Ending a run of a model for somebody more urgent: between two of its nodes, a few milliseconds after the order.

    with SWITCH.over_runs():        # the thread that computes
        while True:
            try:
                run(lambda options: session.run_with_iobinding(binding, options))
                break
            except RunEnded:
                lease.boundary(0)   # waits; then the run is done again

A run that was ended has left nothing behind but what the same run writes again (a text's keys and values, a cache's
rows), so doing it again gives the same result. A thread whose runs were ended MOST_ENDED times in a row does the next
one to its end: nobody is kept from working for ever. ONNX Runtime looks at `RunOptions.terminate` before each node.
On the CPU only: a device's work is queued, and whoever waits there waits for its kernels.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import onnxruntime as ort

from models.engines.base import Audio

T = TypeVar("T")
MOST_ENDED = 4
_NO_AUDIO: Audio = np.zeros(0, np.float32)


class RunEnded(Exception):
    """Somebody more urgent wants the cores: the run gave nothing. Wait where that is due, then do it again."""


class RunSwitch:
    """Ends the runs of the threads inside `over_runs` while it is closed. Thread-safe.

    closed: a plain attribute read. ended: runs that were ended on the way; lost_ns: the time they had taken.
    """

    __slots__ = ("_lock", "_running", "closed", "ended", "lost_ns")

    def __init__(self) -> None:
        self.closed = False
        self.ended = 0
        self.lost_ns = 0
        self._lock = threading.Lock()
        self._running: set[ort.RunOptions] = set()

    def close(self) -> None:
        """End what runs, and let nothing begin until `open`. Returns at once."""
        self.closed = True
        with self._lock:
            for options in self._running:
                options.terminate = True

    def open(self) -> None:
        self.closed = False

    @contextmanager
    def over_runs(self) -> Iterator[None]:
        """For the body, runs of this thread end while the switch is closed. May be nested with other switches."""
        before = enter(self)
        try:
            yield
        finally:
            leave(before)

    def began(self, options: ort.RunOptions) -> None:
        """A run is about to begin."""
        with self._lock:
            self._running.add(options)

    def over(self, options: ort.RunOptions, lost_ns: int) -> None:
        """It is over. lost_ns: what it had taken when it was ended, 0 for one that went through or never began."""
        with self._lock:
            self._running.discard(options)
            self.ended += lost_ns > 0
            self.lost_ns += lost_ns


class _Thread(threading.local):
    switches: tuple[RunSwitch, ...] = ()
    ended_in_a_row = 0


_THREAD = _Thread()
Switches = tuple[RunSwitch, ...]


def enter(switch: RunSwitch) -> Switches:
    """Put this thread's runs under `switch` too; what comes back is for `leave`, in the same thread."""
    before = _THREAD.switches
    if switch not in before:
        _THREAD.switches = (*before, switch)
    return before


def leave(before: Switches) -> None:
    """Undo an `enter`."""
    _THREAD.switches = before


def run(work: Callable[[ort.RunOptions | None], T]) -> T:
    """One run of a session, with the options that it is given. Raises RunEnded where a switch of this thread is closed,
    before it or meanwhile.
    """
    switches = _THREAD.switches
    if not switches or _THREAD.ended_in_a_row >= MOST_ENDED:
        _THREAD.ended_in_a_row = 0
        return work(None)
    options = ort.RunOptions()
    for switch in switches:
        switch.began(options)
    lost_ns = 0
    try:
        if any(switch.closed for switch in switches):
            raise RunEnded
        start_ns = time.monotonic_ns()
        try:
            result = work(options)
        except Exception as error:  # ONNX Runtime's exceptions have no base class of their own
            if not options.terminate:
                raise
            lost_ns = time.monotonic_ns() - start_ns
            raise RunEnded from error
        _THREAD.ended_in_a_row = 0
        return result
    except RunEnded:
        _THREAD.ended_in_a_row += 1
        raise
    finally:
        for switch in switches:
            switch.over(options, lost_ns)


def redone(work: Callable[[], T]) -> Generator[Audio, None, T]:
    """For a voice: do `work`, and yield a chunk without samples each time its run was ended, so that whoever takes the
    chunks can wait, and lend the voice out, before it is done again.
    """
    while True:
        try:
            return work()
        except RunEnded:
            yield _NO_AUDIO
