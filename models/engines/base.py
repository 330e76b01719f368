"""What a stage may expect of an engine. One file per model family implements one of these."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Audio = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One recognised utterance. Empty `text` means that no speech was found, or none that can be believed: `unclear`
    tells the two apart (True where something was said, but its words are a guess).

    avg_logprob: mean log-probability per text token, nats. no_speech: probability in [0, 1]. number_margin: nats by
    which the least certain number is likelier than the one that it is easily mistaken for (nineteen, ninety); infinite
    where there is none.
    """

    text: str
    language: str
    avg_logprob: float
    no_speech: float
    tokens: tuple[int, ...] = ()
    unclear: bool = False
    number_margin: float = math.inf


def never_cancelled() -> bool:
    """The hook of a request that is always wanted."""
    return False


class SpeechRecognizer(Protocol):
    """Speech to text on one engine. Not thread-safe: one stage owns it."""

    def transcribe(
        self,
        samples: Audio,
        *,
        languages: Sequence[str],
        hotwords: Sequence[str] = (),
        cancelled: Callable[[], bool] = never_cancelled,
    ) -> Hypothesis:
        """samples: float32 (n,) at 16 kHz, any n >= 0, read only. Returns the best hypothesis in one of `languages`.

        hotwords: phrases to favour, of any language. cancelled: asked between steps of the model; once it returns True
        the work stops and an empty hypothesis comes back.
        """
        ...

    def warm_up(self) -> None:
        """Run every graph once at its usual sizes so that the first real request is as fast as the tenth."""
        ...


class TokenConstraint(Protocol):
    """A grammar over token ids, advanced token by token. One instance serves one generation."""

    def allowed(self) -> NDArray[np.int64] | None:
        """Token ids that may come next, ascending; None when every id may. Never empty while not `done`."""
        ...

    def forced(self) -> list[int]:
        """Token ids that must come next (may be empty): they need no model step and are fed in one prefill."""
        ...

    def possible(self, tokens: Sequence[int]) -> int:
        """How many of `tokens`, from the first on, may come one after the other. Changes nothing."""
        ...

    def advance(self, token: int) -> None:
        """Take `token` as generated. Raises ValueError if it is not allowed."""
        ...

    @property
    def done(self) -> bool:
        """True when the text is complete and nothing more may follow."""
        ...


class Voice(Protocol):
    """Text to speech on one engine. Not thread-safe: one stage owns it."""

    sample_rate_hz: int

    def synthesise(self, text: str) -> Iterator[Audio]:
        """Yield float32 (n,) chunks in [-1, 1] for one normalised clause; yields nothing for text without sound.

        A chunk without samples: a run was ended for somebody more urgent (see models.engines.preemption), and the next
        chunk is made from there on.
        """
        ...

    def warm_up(self) -> None:
        """Synthesise once so that the first clause is as fast as the tenth."""
        ...
