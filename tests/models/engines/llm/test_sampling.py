"""Choosing tokens by chance: the same seed, the share that counts, and probabilities that are right."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from models.engines.llm.sampling import Sampler, Sampling
from models.errors import InputError

LOGITS = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))


class FixedHead:
    """Always the same four tokens."""

    def logits(self, hidden: Any) -> Any:
        return LOGITS[None]


def draws(sampling: Sampling, count: int = 2000, allowed: Any = None) -> list[int]:
    sampler = Sampler(FixedHead(), sampling)  # type: ignore[arg-type]
    return [sampler.choose(None, allowed) for _ in range(count)]


def test_temperature_one_draws_by_the_models_own_shares() -> None:
    counts = Counter(draws(Sampling(1.0, seed=1)))
    for token, share in enumerate((0.5, 0.3, 0.15, 0.05)):
        assert counts[token] / 2000 == pytest.approx(share, abs=0.04)


def test_the_same_seed_is_the_same_text_and_another_is_not() -> None:
    assert draws(Sampling(1.0, seed=7), 50) == draws(Sampling(1.0, seed=7), 50)
    assert draws(Sampling(1.0, seed=7), 50) != draws(Sampling(1.0, seed=8), 50)


def test_top_p_leaves_out_the_tail() -> None:
    assert set(draws(Sampling(1.0, 0.79, seed=1))) == {0, 1}
    assert set(draws(Sampling(2.0, 0.01, seed=1))) == {0}


def test_only_what_the_grammar_allows() -> None:
    assert set(draws(Sampling(1.5, 0.9, seed=1), allowed=np.array([1, 3]))) == {1, 3}
    assert set(draws(Sampling(0.0, alternatives=0), 3, allowed=np.array([2, 3]))) == {2}


def test_chances_are_of_the_whole_vocabulary_at_temperature_one() -> None:
    sampler = Sampler(FixedHead(), Sampling(0.0, alternatives=2))  # type: ignore[arg-type]
    sampler.choose(None, None)
    (chance,) = sampler.take()
    assert chance.token == 0
    assert chance.logprob == pytest.approx(np.log(0.5), abs=1e-5)
    assert [token for token, _ in chance.alternatives] == [0, 1]
    assert sampler.take() == ()


@pytest.mark.parametrize("wrong", [{"temperature": -0.1}, {"temperature": 2.1}, {"top_p": 0.0}, {"alternatives": 21}])
def test_values_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="outside"):
        Sampling(**wrong)
