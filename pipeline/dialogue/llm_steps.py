"""What a stage tells, before every step of the language model, whoever shares out the device: which text, which step.

steps = sharer.on(session)
fill(session, prompt, steps)
for token in session.generate(..., at_boundary=steps.at_token): ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from models.engines.base import never_cancelled
from models.engines.llm.session import DEFAULT_CHUNK, LmSession


class Steps(Protocol):
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


class Sharer(Protocol):
    """Who shares out the device."""

    def on(self, session: LmSession, *, ahead: bool = False) -> Steps:
        """The steps that come next on `session`. Cheap: waiting is left to the first step.

        ahead: nobody waits for them yet.
        """
        ...


class Unshared:
    """Nobody else uses the device: nothing waits."""

    chunk_tokens = DEFAULT_CHUNK

    def on(self, session: LmSession, *, ahead: bool = False) -> Unshared:
        return self

    def at_prefill(self) -> None:
        return None

    def at_token(self) -> None:
        return None


UNSHARED = Unshared()
"""It holds nothing, so one serves all."""


def fill(
    session: LmSession,
    tokens: Sequence[int],
    steps: Steps,
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
