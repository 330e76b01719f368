"""Choosing the next token by chance instead of by rank, and what each token's probability was."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from models.engines.llm.head import F32, Ids
from models.engines.llm.session import Head, Hidden
from models.errors import InputError

MOST_ALTERNATIVES = 20
_SORTED = 1024
"""Likely tokens that are sorted at first; together they nearly always have all of the share that counts."""


@dataclass(frozen=True, slots=True)
class TokenChance:
    """One generated token, its log-probability (nats, over the whole vocabulary at temperature 1), and the likeliest
    tokens at its place with theirs, best first.
    """

    token: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. temperature: 0 takes the likeliest, 2 is the most. top_p: only the likeliest tokens that
    together have this share. seed: the same one gives the same text; None a new one each time. alternatives: how many
    likely tokens each `TokenChance` lists; None keeps none.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    alternatives: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= 2.0:
            raise InputError(f"temperature {self.temperature:g} is outside 0..2")
        if not 0.0 < self.top_p <= 1.0:
            raise InputError(f"top_p {self.top_p:g} is outside (0, 1]")
        if self.alternatives is not None and not 0 <= self.alternatives <= MOST_ALTERNATIVES:
            raise InputError(f"{self.alternatives} alternatives a token are outside 0..{MOST_ALTERNATIVES}")

    @property
    def plain(self) -> bool:
        """The likeliest token, and nobody asks how likely it was: the head alone can tell."""
        return self.temperature == 0.0 and self.alternatives is None


@dataclass(slots=True)
class Sampler:
    """Chooses for one generation: hand `choose` to `LmSession.generate`."""

    head: Head
    sampling: Sampling
    _chances: list[TokenChance] = field(default_factory=list)
    _random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.sampling.seed)

    def choose(self, hidden: Hidden, allowed: Ids | None) -> int:
        """The next token, among `allowed` (ids int64, not empty) when given."""
        logits = self.head.logits(hidden)[-1]
        values = logits if allowed is None else logits[allowed]
        position = int(np.argmax(values)) if self.sampling.temperature == 0.0 else self._drawn(values)
        token = position if allowed is None else int(allowed[position])
        if self.sampling.alternatives is not None:
            logprobs = logits - _log_sum(logits)
            self._chances.append(TokenChance(token, float(logprobs[token]), self._likeliest(logprobs)))
        return token

    def take(self) -> tuple[TokenChance, ...]:
        """The chances of what was chosen since the last call; tokens that a grammar forced are not among them."""
        taken, self._chances = tuple(self._chances), []
        return taken

    def _drawn(self, logits: F32) -> int:
        """A position in `logits` (n,) by chance. Only the likeliest are sorted, unless their share is too small.

        One number is drawn per token and looked up in the running sum of shares, likeliest first: logits that differ in
        their last bits (from another chunking of the prompt) give the same token nearly always.
        """
        scaled = logits / self.sampling.temperature
        total = _log_sum(scaled)
        share = self._random.random()
        for count in (min(_SORTED, len(scaled)), len(scaled)):
            kept = np.argpartition(-scaled, count - 1)[:count]
            kept = kept[np.argsort(-scaled[kept], kind="stable")]
            sums = np.cumsum(np.exp(scaled[kept] - total, dtype=np.float64))
            if sums[-1] >= self.sampling.top_p:
                break
        last = min(int(np.searchsorted(sums, self.sampling.top_p)), len(kept) - 1)
        return int(kept[np.searchsorted(sums[:last], share * sums[last], side="right")])

    def _likeliest(self, logprobs: F32) -> tuple[tuple[int, float], ...]:
        count = self.sampling.alternatives or 0
        if not count:
            return ()
        best = np.argpartition(-logprobs, count)[:count]
        best = best[np.argsort(-logprobs[best], kind="stable")]
        return tuple((int(token), float(logprobs[token])) for token in best)


def _log_sum(values: F32) -> float:
    most = float(values.max())
    return most + float(np.log(np.exp(values - most).sum()))
