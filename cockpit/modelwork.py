"""The understanding stage's model steps as a task of the arbiter: a lane asked for when a step comes, given back after.

    with work.block(give_up):            # one transcript
        for piece in chat(at_boundary=work.at_prefill, at_token=work.at_token): ...
    if work.stopped: ...                 # why the model was cut short

Words that leave one meaning need no model step, so they never wait for a lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Protocol

from cockpit.device.base import Device
from cockpit.lease import Dispatcher, Lease, Refused


class ModelWork(Protocol):
    """What the understanding stage tells whoever shares out the device. One thread uses it."""

    stopped: str
    """Why the model had to stop in the last block; empty while it may go on."""

    def block(self, give_up: Callable[[], bool]) -> AbstractContextManager[None]:
        """Around everything that may run the model for one transcript. `give_up`: asked while waiting for a lane."""
        ...

    def at_prefill(self) -> None:
        """Before a chunk of prompt is computed. May wait; sets `stopped` instead of raising."""
        ...

    def at_token(self) -> None:
        """Before the next token is computed. May wait; sets `stopped` instead of raising."""
        ...

    def beat(self) -> None:
        """Now and then while nothing happens."""
        ...


class Unshared:
    """Nobody else uses the device: nothing waits, nothing stops."""

    stopped = ""

    def block(self, give_up: Callable[[], bool]) -> AbstractContextManager[None]:
        return nullcontext()

    def at_prefill(self) -> None:
        return None

    def at_token(self) -> None:
        return None

    def beat(self) -> None:
        return None


def anywhere(_lane: str) -> None:
    """For models that run wherever their thread does."""


class LaneWork:
    """Runs under leases of one task.

    bind: whether the thread is bound to its lane. ran: called after each block that used the lane. beat: the process's
    housekeeping, where no other thread does it. on_lane: told the lane's name before the model runs there.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        device: Device,
        task: str,
        *,
        bind: bool,
        ran: Callable[[], None],
        beat: Callable[[], None],
        on_lane: Callable[[str], None] = anywhere,
    ) -> None:
        self.stopped = ""
        self.beat = beat
        self._dispatcher = dispatcher
        self._device = device
        self._task = task
        self._bind = bind
        self._ran = ran
        self._on_lane = on_lane
        self._give_up: Callable[[], bool] = bool
        self._lease: Lease | None = None
        self._leased = ExitStack()
        self._placed = ExitStack()
        self._lane = -1

    @contextmanager
    def block(self, give_up: Callable[[], bool]) -> Iterator[None]:
        """See ModelWork. The lane is given back at the end, whatever happened."""
        self.stopped = ""
        self._give_up = give_up
        try:
            yield
        finally:
            if self._lease is not None:
                self._lease = None
                self._placed.close()
                self._leased.close()
                self._ran()

    def at_prefill(self) -> None:
        self._boundary(0)

    def at_token(self) -> None:
        self._boundary(1)

    def _boundary(self, new_tokens: int) -> None:
        if self.stopped:
            return
        lease = self._lease
        if lease is None:
            try:
                lease = self._leased.enter_context(self._dispatcher.lease(self._task, give_up=self._give_up))
            except Refused as error:
                self.stopped = str(error)
                return
            self._lease = lease
            self._lane = -1
        elif not lease.boundary(new_tokens):
            self.stopped = lease.stopped
            return
        if self._bind and lease.request.lane != self._lane:
            self._place(lease)

    def _place(self, lease: Lease) -> None:
        """Bind this thread to the lane, which may have changed while it was parked."""
        self._placed.close()
        self._lane = lease.request.lane
        self._placed.enter_context(self._device.enter(lease.lane))
        self._on_lane(lease.lane)
