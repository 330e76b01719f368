"""Texts beside each other in one arena, whose next tokens are computed in one run of the model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from models.engines.llm.session import Body, Head, Hidden, LmSession, Step
from models.errors import InputError


class BatchRuntime(Protocol):
    """What a batch needs of the place where the model runs."""

    def step(self, steps: Sequence[Step], others: Sequence[Step]) -> Hidden:
        """Compute one token of each text. Returns their hidden states in the order of `steps`; `others`: what may be
        computed for texts whose slots lie between theirs. On a device the slots span at most the width that
        `CausalLM.open_batch` was given.
        """
        ...

    def swap(self, one: Body, other: Body, counts: tuple[int, int]) -> None:
        """Let two bodies change slots. counts: the positions of each that are cached."""
        ...


class TextBatch:
    """The sessions of one block of slots. The first `width` slots may share runs; a text elsewhere keeps its cache and
    is brought to the front before it goes on.

    Several threads may drive texts of one batch, each its own: `lock` is held while anything of the block is written.
    """

    def __init__(
        self,
        runtime: BatchRuntime,
        head: Head,
        bodies: Sequence[Body],
        width: int,
        open_session: Callable[[Body], LmSession],
    ) -> None:
        self.width = min(width, len(bodies))
        self.head = head
        self.lock = threading.RLock()
        self.steps = 0
        self.rows = 0
        self._runtime = runtime
        self._open_session = open_session
        self._front = bodies[0].slot if bodies else 0
        self._free = list(reversed(bodies))
        self._sessions: list[LmSession] = []

    def open(self) -> LmSession:
        """One more text, in the first free slot. Raises InputError when there is none."""
        if not self._free:
            raise InputError(f"all {len(self._sessions)} texts of this batch are open")
        session = self._open_session(self._free.pop())
        session.exclusive = self.lock
        self._sessions.append(session)
        return session

    def in_front(self, session: LmSession) -> bool:
        """Whether the text may share runs where it is."""
        return session.body.slot < self._front + self.width

    def bring_to_front(self, session: LmSession, instead: LmSession) -> None:
        """Let `session` have the slot of `instead`, a text in front that does not go on now. Both keep their caches."""
        with self.lock:
            self._runtime.swap(session.body, instead.body, (session.cached, instead.cached))
            for moved in (session, instead):
                moved.note_move()

    def step(self, sessions: Sequence[LmSession]) -> Hidden:
        """Compute the one missing token of each text, in one run. Returns their hidden states, a row for each.

        Raises RunEnded (see models.engines.preemption): every text still lacks its token.
        """
        with self.lock:
            steps = [session.next_step() for session in sessions]
            for session in sessions:
                session.note_step()
            taking_part = {id(session) for session in sessions}
            others = [session.idle_step() for session in self._sessions if id(session) not in taking_part]
            hidden = self._runtime.step(steps, others)
        for index, session in enumerate(sessions):
            session.stepped(self.head.row(hidden, index))
        self.steps += 1
        self.rows += len(sessions)
        return hidden

    def close(self) -> None:
        """Give every slot back. Safe to call twice."""
        for session in self._sessions:
            session.close()
        for body in self._free:
            body.close()
        self._sessions.clear()
        self._free.clear()
