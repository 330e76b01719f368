"""The language model's steps as the dialogue sees them: before each, a scheduler may make the thread wait or stop it.

    with scheduler.block(give_up):       # one transcript
        steps = scheduler.on(session)
        fill(session, prompt, steps)
        for token in session.generate(..., at_boundary=steps.at_token): ...
    if scheduler.stopped: ...            # why the model was cut short

Words that leave one meaning need no model step, so they never wait. Who shares out the device stands in
cockpit/scheduling/llm_lease.py; `UnscheduledLlm` is for a model that has it to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from models.engines.base import never_cancelled
from models.engines.llm.session import DEFAULT_CHUNK, LmSession
from pipeline.frames import Task


class LlmSteps(Protocol):
    """The steps on one session, for the thread that owns it."""

    @property
    def chunk_tokens(self) -> int:
        """Most tokens of prompt to compute before the next `at_prefill`. May change there: read it again."""
        ...

    def at_prefill(self) -> None:
        """Before a chunk of prompt is computed. May wait; may make the session forget what it cached."""
        ...

    def at_token(self) -> None:
        """Before the next token is computed. May do the same."""
        ...


class LlmScheduler(Protocol):
    """Who decides when the model may compute. One thread uses it."""

    stopped: str
    """Why the model had to stop in the last block; empty while it may go on. The steps set it and never raise."""

    def block(self, give_up: Callable[[], bool]) -> AbstractContextManager[None]:
        """Around everything that may run the model for one transcript. `give_up`: asked a few times a second while a
        step waits; True ends the wait and sets `stopped`.
        """
        ...

    def on(self, session: LmSession, *, ahead: bool = False, task: Task = "dialogue") -> LlmSteps:
        """The steps that come next on `session`. Cheap: waiting is left to the first step.

        ahead: nobody waits for them yet, so they never wait either: where they would have to, they set `stopped`.
        task: what they are for. Raises ValueError when another session has the same name.
        """
        ...

    def pause(self) -> None:
        """Something else than the model is waited for: give the lane back, the next step asks for it again."""
        ...


class UnscheduledLlm:
    """The model has the device to itself: nothing waits, nothing stops. It serves as its own steps."""

    stopped = ""
    chunk_tokens = DEFAULT_CHUNK

    def block(self, give_up: Callable[[], bool]) -> AbstractContextManager[None]:
        return nullcontext()

    def on(self, session: LmSession, *, ahead: bool = False, task: Task = "dialogue") -> UnscheduledLlm:
        return self

    def pause(self) -> None:
        return None

    def at_prefill(self) -> None:
        return None

    def at_token(self) -> None:
        return None


UNSCHEDULED = UnscheduledLlm()
"""It holds nothing, so one serves all."""


def fill(
    session: LmSession,
    tokens: Sequence[int],
    steps: LlmSteps,
    *,
    at_most: int | None = None,
    cancelled: Callable[[], bool] = never_cancelled,
) -> None:
    """Make the session's text `tokens`, in chunks as long as `steps` allows at that moment and `at_most`.

    When `cancelled` it stops at the next chunk; what is missing is computed when it is next needed.
    """

    def chunk_now() -> int:
        return steps.chunk_tokens if at_most is None else min(at_most, steps.chunk_tokens)

    while True:
        chunk = chunk_now()
        changed = False

        def stop(of: int = chunk) -> bool:
            nonlocal changed
            if cancelled():
                return True
            changed = chunk_now() != of
            return changed

        session.set_tokens(tokens, chunk=chunk, cancelled=stop, at_boundary=steps.at_prefill)
        if not changed:
            return
