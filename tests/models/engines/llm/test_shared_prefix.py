"""Keys and values copied between texts: the same tokens as computed anew, whatever the chunks, and never torn rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.cpu import CpuBody
from models.engines.llm.session import COPY_TOKENS, LmSession
from models.errors import InputError

SYSTEM = "You are the voice of a car. You open windows, heat seats and find the way. Answer in one short sentence. "
PAGE_BYTES = 4096
ROWS = 16
"""Of a head of 64 floats, that fill a page."""


@pytest.fixture(scope="module")
def lm(model_dir: Callable[[str], Path]) -> CausalLM:
    """Without int8 activations, whose rounding turns a last-bit difference between kernels into another token."""
    return CausalLM.load(model_dir("smollm2-135m-instruct-f32"), context_tokens=512)


def prompt(lm: CausalLM, question: str) -> list[int]:
    messages = [{"role": "system", "content": SYSTEM * 4}, {"role": "user", "content": question}]
    return lm.tokenizer.encode(lm.chat.render(messages))


def answer(session: LmSession, ids: list[int], chunk: int = 256) -> list[int]:
    session.set_tokens(ids, chunk=chunk)
    return list(session.generate(max_new_tokens=12))


@pytest.mark.parametrize("chunk", [5, 32, 1000])
def test_a_shared_beginning_changes_no_token(lm: CausalLM, chunk: int) -> None:
    """The clock at the end of either prompt differs, and spoils nothing before it."""
    first, second = prompt(lm, "Is it cold outside? It is 08:15."), prompt(lm, "Is it cold outside? It is 08:16.")
    expected = answer(lm.open_session(), second)
    donor, heir = lm.open_session(), lm.open_session()
    answer(donor, first, chunk)
    assert heir.adopt(donor, second) == donor.shares(second) > len(second) * 0.8
    assert answer(heir, second, chunk) == expected


def test_what_is_copied_is_equal_bit_for_bit(lm: CausalLM) -> None:
    ids = prompt(lm, "Hello")
    donor, heir, late = (lm.open_session() for _ in range(3))
    donor.set_tokens(ids)
    heir.set_tokens(ids[:20])
    heir.adopt(donor, ids)
    late.restore(donor.park(), ids)
    for session in (heir, late):
        assert session.cached == len(ids)
        assert session.tokens == tuple(ids)
        assert np.array_equal(rows_of(session)[:, :, 20 : len(ids)], rows_of(donor)[:, :, 20 : len(ids)])


def test_a_parked_text_goes_on_where_it_stopped(lm: CausalLM) -> None:
    ids = prompt(lm, "Count from one to nine.")
    session = lm.open_session()
    expected = answer(session, ids)
    parked = session.park()
    assert parked.size_bytes == session.cached * session.body.bytes_for(1)
    session.forget()
    assert session.restore(parked, [*ids, *expected]) == len(parked.tokens)
    assert answer(session, ids) == expected


def test_less_than_is_held_already_is_not_copied(lm: CausalLM) -> None:
    ids = prompt(lm, "Hello")
    donor, heir = lm.open_session(), lm.open_session()
    donor.set_tokens(ids[:30])
    heir.set_tokens(ids)
    assert heir.adopt(donor, ids) == len(ids)
    assert heir.cached == len(ids)


class Disturbed:
    """A body whose rows change in the midst of being copied."""

    def __init__(self, session: LmSession, at: Callable[[], object]) -> None:
        self._inner = session.body
        self._at = at

    def copy_rows(self, other: CpuBody, start: int, count: int) -> None:
        self._inner.copy_rows(other, start, count)
        self._at()

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def test_rows_that_were_overwritten_meanwhile_are_not_kept(lm: CausalLM) -> None:
    ids, other = prompt(lm, "Hello"), prompt(lm, "Bye")[::-1]
    donor, heir = lm.open_session(), lm.open_session()
    donor.set_tokens(ids)
    heir.body = Disturbed(heir, lambda: donor.set_tokens(other))  # type: ignore[assignment]
    assert heir.adopt(donor, ids) == heir.cached == 0
    donor.set_tokens(ids)
    heir.body = Disturbed(heir, donor.forget)  # type: ignore[assignment]
    assert heir.adopt(donor, ids) == heir.cached == 0


def test_a_donor_that_goes_on_after_its_prompt_disturbs_nobody(lm: CausalLM) -> None:
    ids = prompt(lm, "Hello")
    expected = answer(lm.open_session(), ids)
    donor, heir = lm.open_session(), lm.open_session()
    donor.set_tokens(ids)
    going = donor.generate(max_new_tokens=8)
    heir.body = Disturbed(heir, lambda: next(going))  # type: ignore[assignment]
    assert heir.adopt(donor, ids) == len(ids)
    assert answer(heir, ids) == expected


def test_a_long_copy_stops_at_boundaries(model_dir: Callable[[str], Path]) -> None:
    lm = CausalLM.load(model_dir("smollm2-135m-instruct"), context_tokens=COPY_TOKENS + 200)
    ids = (prompt(lm, "Hello") * 20)[: COPY_TOKENS + 100]
    donor, heir = lm.open_session(), lm.open_session()
    donor.set_tokens(ids)
    calls: list[int] = []
    assert heir.adopt(donor, ids, at_boundary=lambda: calls.append(heir.cached)) == len(ids)
    assert calls == [COPY_TOKENS]
    heir.forget()
    assert heir.adopt(donor, ids, at_boundary=heir.forget) == heir.cached == 0


def test_bodies_of_two_models_are_refused(lm: CausalLM, model_dir: Callable[[str], Path]) -> None:
    other = CausalLM.load(model_dir("gemma-3-270m"), context_tokens=256).open_session()
    donor = lm.open_session()
    donor.set_tokens([1, 2, 3])
    with pytest.raises(InputError, match="one model"):
        other.adopt(donor, [1, 2, 3])


def test_texts_of_a_batch_show_one_beginning(lm: CausalLM) -> None:
    """The same tokens as alone, while one that shows it is given another text and the one that computed it goes."""
    first, second = prompt(lm, "Hello"), prompt(lm, "Is it cold outside?")
    expected = answer(lm.open_session(), second)
    batch = lm.open_batch()
    donor, heir, late = (batch.open() for _ in range(3))
    donor.set_tokens(first)
    stored = donor.shares(second) // ROWS * ROWS
    heir.adopt(donor, second)
    assert donor.shown == heir.shown == stored > 64
    assert answer(heir, second) == expected
    assert heir.shown == stored
    heads = rows_of(heir).shape[0] * rows_of(heir).shape[1]
    assert shown_bytes(heir) == heads * stored // ROWS * PAGE_BYTES  # computing what follows wrote to none of it
    late.adopt(heir, second)
    assert lm.shared is not None
    assert lm.shared.texts == 3
    assert lm.shared.shown_bytes == 2 * stored * donor.bytes_of(1) + late.shown * donor.bytes_of(1)
    kept = heir.park(stored)
    assert kept.size_bytes == 0
    donor.set_tokens(first[:30][::-1])
    heir.forget()
    assert answer(late, second) == expected
    assert heir.restore(kept, second) == stored
    assert answer(heir, second) == expected
    batch.close()
    del kept
    assert lm.shared.bytes == 0


def test_a_forgotten_text_has_its_kept_beginning_back(lm: CausalLM) -> None:
    ids = prompt(lm, "Hello")
    session = lm.open_session()
    expected = answer(session, ids)
    session.set_tokens(ids)
    kept = session.keep_beginning()
    assert kept > len(ids) - 2 - ROWS
    seen: list[int] = []
    for wanted in (ids, ids[:100]):
        session.forget()
        assert resident_bytes(session) == 0
        session.set_tokens(wanted, chunk=4, at_boundary=lambda: seen.append(session.cached))
    again = min(kept, len(ids) - 2)
    assert seen == [0, *range(again + 4, len(ids), 4), 0]  # the first run came after what was kept
    session.forget()
    assert answer(session, ids) == expected
    session.close()
    assert lm.shared is not None
    assert lm.shared.bytes == 0


def test_a_long_context_takes_memory_only_as_it_fills(model_dir: Callable[[str], Path]) -> None:
    lm = CausalLM.load(model_dir("smollm2-135m-instruct"), context_tokens=8192)
    session = lm.open_session()
    ids = prompt(lm, "Hello")
    session.set_tokens(ids)
    heads = rows_of(session).shape[0] * rows_of(session).shape[1]
    used = len(ids) * session.body.bytes_for(1) + heads * PAGE_BYTES
    assert 0 < resident_bytes(session) <= used < session.body.kv_bytes / 16
    session.forget()
    assert resident_bytes(session) == 0
    session.set_tokens(ids)
    assert session.cached == len(ids)


def rows_of(session: LmSession) -> np.ndarray:
    assert isinstance(session.body, CpuBody)
    return session.body.rows


def resident_bytes(session: LmSession) -> int:
    """Pages of the cache that are in memory, as the kernel tells them: bit 63 of each page's entry."""
    return pages_with(session, 63) * PAGE_BYTES


def shown_bytes(session: LmSession) -> int:
    """Of these, those of the file that holds shared beginnings: bit 61."""
    return pages_with(session, 61) * PAGE_BYTES


def pages_with(session: LmSession, bit: int) -> int:
    pages = 0
    with Path("/proc/self/pagemap").open("rb") as file:
        for layer in rows_of(session):
            file.seek(layer.ctypes.data // PAGE_BYTES * 8)
            entries = np.frombuffer(file.read(layer.nbytes // PAGE_BYTES * 8), np.uint64)
            pages += int((entries >> np.uint64(bit) & np.uint64(1)).sum())
    return pages
