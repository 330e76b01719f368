"""SIGINT, SIGTERM and SIGHUP end the process in any phase: one line on stderr, exit code 128 + the signal's number.
A service reads its profile again on SIGHUP instead (`on_hangup`).

The handler raises `Stopped` in the main thread, so that every `finally` runs; inside `shielded()` (closing) the signal
is kept until the end of the block. A thread that the C handler wakes at once ends the process by force when that took
longer than GRACE_S: a long call into a library, or an exception that a finalizer swallowed, must not keep it alive.
Only the standard library is imported here: the handlers stand before anything slow is loaded.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_S = 10.0
"""How long an orderly end may take after the signal."""


class Stopped(BaseException):
    """The process was asked to end. Not an Exception: no stage and no library may take it for a fault."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit_code(self) -> int:
        return 128 + self.number

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.number).name}"


class _State:
    """What handler, shield and watchdog share. Written by the main thread only."""

    pending = 0
    """A signal that came inside a shield."""
    shields = 0
    raised = False
    ended = False
    hangup: Callable[[], object] | None = None
    """What SIGHUP calls instead of ending the process."""


_last_resorts: list[Callable[[], object]] = []


def install() -> None:
    """Set the handlers and start the watchdog. Once, first thing in the program. A signal that is ignored stays so."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup, or a shell's background job
            signal.signal(number, _handle)
    threading.Thread(target=_watchdog, args=(reader,), name="stop-signals", daemon=True).start()
    sys.unraisablehook = _raise_again


def end() -> None:
    """The work is done and its exit code is known: what comes from now on is too late to change it."""
    _State.ended = True
    for number in SIGNALS:
        if signal.getsignal(number) is _handle:
            signal.signal(number, signal.SIG_IGN)


def behind(error: BaseException) -> Stopped | None:
    """The `Stopped` that is `error`, or that a library turned into it: a signal that comes while an extension module
    begins is an ImportError outside.
    """
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Stopped):
            return one
        if one is not None and all(one is not other for other in seen):
            seen.append(one)
            waiting += [one.__cause__, one.__context__]
    return None


@contextmanager
def shielded() -> Iterator[None]:
    """No signal cuts this block short; one that came raises `Stopped` behind it. Main thread; may be nested."""
    _State.shields += 1
    try:
        yield
    finally:
        _State.shields -= 1
        if _State.pending and not _State.shields:
            number, _State.pending = _State.pending, 0
            _raise(number)


@contextmanager
def on_hangup(call: Callable[[], object]) -> Iterator[None]:
    """Within the block SIGHUP calls `call`, in the main thread between two instructions of whatever it does, and ends
    nothing: `call` only notes that it was asked.
    """
    _State.hangup = call
    try:
        yield
    finally:
        _State.hangup = None


@contextmanager
def last_resort(clean_up: Callable[[], object]) -> Iterator[None]:
    """Within the block, `clean_up` is called before the process is ended by force."""
    _last_resorts.append(clean_up)
    try:
        yield
    finally:
        _last_resorts.remove(clean_up)


def _handle(number: int, _frame: FrameType | None) -> None:
    if number == signal.SIGHUP and _State.hangup is not None:
        _State.hangup()
    elif _State.shields:
        _State.pending = _State.pending or number
    else:
        _raise(number)


def _raise(number: int) -> None:
    """Once: a second signal must not cut short what the first one began."""
    if not _State.raised:
        _State.raised = True
        raise Stopped(number)


def _watchdog(reader: int) -> None:
    numbers: list[int] = []
    while not numbers:
        came = os.read(reader, 64)
        reloads = _State.hangup is not None
        numbers = [number for number in came if number in SIGNALS and not (reloads and number == signal.SIGHUP)]
    time.sleep(GRACE_S)
    if _State.ended:
        return
    with suppress(Exception):
        for clean_up in list(_last_resorts):
            clean_up()
    _end_children()
    # Not sys.stderr: whoever holds its lock may be the one that hangs.
    os.write(2, f"cockpit: {Stopped(numbers[0])}\n".encode())
    os._exit(128 + numbers[0])


def _end_children() -> None:
    """Kill the child processes and wait for them."""
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, path.read_text().split()):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def _raise_again(what: sys.UnraisableHookArgs) -> None:
    """A `Stopped` that a finalizer or a library's callback swallowed is sent once more."""
    if isinstance(what.exc_value, Stopped):
        _State.raised = False
        threading.Timer(0.01, os.kill, (os.getpid(), what.exc_value.number)).start()  # not into this hook
    else:
        sys.__unraisablehook__(what)
