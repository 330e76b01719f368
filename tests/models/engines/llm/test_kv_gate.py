"""The gate of a KV cache: what stays, at which positions, and that nothing else changes for a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.cpu import CpuBody
from models.engines.llm.kv.gate import KvGate, first_turn, key_difference, key_norm, last_turns
from models.engines.llm.kv.position_input import with_positions
from models.engines.llm.session import LmSession
from models.engines.placement import CpuPlacement
from models.errors import InputError, ModelDamaged
from tests.support.batches import together

MODEL = "smollm2-135m-instruct-f32"
GATE = KvGate(0.6, block=32, recent=16, last_turns=24)
NEVER = replace(GATE, block=10_000)


@pytest.fixture(scope="module")
def gated(model_dir: Callable[[str], Path]) -> CausalLM:
    return CausalLM.load(model_dir(MODEL), context_tokens=240, slots=8, batch=4, gate=GATE)


@pytest.fixture(scope="module")
def text(gated: CausalLM) -> list[int]:
    said = " ".join(f"At stop {i} the train waits for {i * 7 % 11} minutes." for i in range(20))
    turns = [{"role": "system", "content": "You answer briefly."}, {"role": "user", "content": said}]
    return gated.tokenizer.encode(gated.chat.render(turns))[:180]


def rows(session: LmSession) -> np.ndarray:
    assert isinstance(session.body, CpuBody)
    return session.body.rows[:, :, : session.rows].copy()


def grown(lm: CausalLM, tokens: Sequence[int], gate: KvGate = GATE) -> LmSession:
    session = lm.open_session()
    assert isinstance(session.body, CpuBody)
    assert session.body.gate is not None
    session.body.gate.policy = gate
    session.set_tokens(tokens, chunk=48)
    return session


def continued(session: LmSession, count: int = 6) -> list[int]:
    return list(session.generate(max_new_tokens=count))


# --- what stays ----------------------------------------------------------------------------------------------------
def test_what_scores_highest_stays_by_layer_and_head() -> None:
    values = np.random.default_rng(1).standard_normal((4, 3, 32, 8)).astype(np.float32)
    kept = GATE.choose(values)
    assert kept.shape == (4, 3, 19)
    for layer in range(2):
        assert np.array_equal(kept[2 * layer], kept[2 * layer + 1])  # keys and values of the same tokens
        for head in range(3):
            scores = key_difference(values[0::2], values[1::2])[layer, head]
            assert set(kept[2 * layer, head]) == set(np.argsort(-scores)[:19])
    assert (np.diff(kept, axis=-1) > 0).all()
    assert not np.array_equal(kept[0, 0], kept[2, 0])


def test_scores_follow_their_definitions() -> None:
    keys = np.zeros((1, 1, 4, 2), np.float32)
    keys[0, 0] = [[3, 0], [3, 0], [3, 0], [0, 1]]
    assert key_difference(keys, keys)[0, 0].argmax() == 3  # it points elsewhere
    assert key_norm(keys, keys)[0, 0].argmax() == 3  # it is the shortest


@pytest.mark.parametrize(
    ("tokens", "first", "last"),
    [([5, 6, 7, 8, 9, 1, 2, 9, 3, 9, 4], 5, 5), ([1, 2, 3, 4, 5, 6], 4, 6), ([], 0, 0), ([9, 1], 2, 1)],
)
def test_first_and_last_turns_are_pinned(tokens: list[int], first: int, last: int) -> None:
    assert first_turn(tokens, {9}) == first
    assert last_turns(tokens, {9}, 8) == last


def test_a_gate_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"outside 0\.\.1"):
        KvGate(0.0)
    with pytest.raises(InputError, match="no score"):
        replace(GATE, score="luck")
    with pytest.raises(InputError, match="on the CPU only"):
        CausalLM.load(tmp_path, placements={"only": CpuPlacement(1)}, gate=GATE)
    assert [*attention(tmp_path, -1).graph.node[0].input][6:] == ["total_len", "", "", "positions"]
    with pytest.raises(InputError, match="window only"):
        attention(tmp_path, 512)
    with pytest.raises(ModelDamaged, match="no GroupQueryAttention"):
        attention(tmp_path, -1, "Gelu")


def attention(folder: Path, window: int, operator: str = "GroupQueryAttention") -> onnx.ModelProto:
    """A graph of one layer, after `with_positions`."""
    names = ["query", "key", "value", "past_key", "past_value", "seqlens_k", "total_len"]
    node = onnx.helper.make_node(operator, names, ["out"], domain="com.microsoft", local_window_size=window, scale=0.5)
    graph = onnx.helper.make_graph([node], "one", [], [])
    onnx.save(onnx.helper.make_model(graph), folder / "model.onnx")
    return onnx.load_from_string(with_positions(folder / "model.onnx"))


# --- a text --------------------------------------------------------------------------------------------------------
def test_a_gate_that_drops_nothing_changes_nothing(
    model_dir: Callable[[str], Path], gated: CausalLM, text: list[int]
) -> None:
    """The graph with positions as an input computes what that on disk does."""
    plain = CausalLM.load(model_dir(MODEL), context_tokens=240, slots=1).open_session()
    plain.set_tokens(text[:60], chunk=48)
    other = grown(gated, text[:60], NEVER)
    assert other.rows == 60
    assert np.array_equal(rows(plain), rows(other))
    assert continued(plain) == continued(other)


def test_dropped_rows_keep_their_neighbours_and_positions(gated: CausalLM, text: list[int]) -> None:
    """Equal to attention over the kept keys alone: a token's row and position differ, its key does not."""
    session = gated.open_session()
    session.set_tokens(text[:100])  # one run: its rows are those of a whole cache
    before = rows(session)
    assert session.rows == 100
    session.set_tokens(text[:104])
    span = session.span
    assert span is not None
    assert span.start == first_turn(text, gated.stop_ids)
    blocks = (span.stop - span.start) // GATE.block
    assert blocks > 0
    assert session.rows == 104 - span.dropped == 104 - blocks * (GATE.block - GATE.kept_of_block)
    after = rows(session)
    assert np.array_equal(after[:, :, : span.start], before[:, :, : span.start])
    tail = 98 - span.stop  # the last two are computed again: see LmSession.begin
    assert np.array_equal(after[:, :, span.stop - span.dropped :][:, :, :tail], before[:, :, span.stop : 98])
    for block in range(blocks):
        begin = span.start + block * GATE.block
        kept = GATE.choose(before[:, :, begin : begin + GATE.block])
        stays = np.take_along_axis(before[:, :, begin : begin + GATE.block], kept[..., None], axis=2)
        place = span.start + block * GATE.kept_of_block
        assert np.array_equal(after[:, :, place : place + GATE.kept_of_block], stays)


def test_a_token_after_dropped_ones_has_its_true_position(gated: CausalLM, text: list[int]) -> None:
    """In the first layer a key depends on its token and position alone: it must be that of a whole cache."""
    plain, session = grown(gated, text, NEVER), grown(gated, text)
    span = session.span
    assert span is not None
    assert span.dropped > 30
    assert plain.span is None
    mine, whole = rows(session)[0], rows(plain)[0]
    assert np.allclose(mine[:, span.stop - span.dropped :], whole[:, span.stop :], atol=1e-4)


def test_a_dialogue_goes_on_and_a_cut_into_the_span_is_computed_anew(gated: CausalLM, text: list[int]) -> None:
    session = grown(gated, text)
    span = session.span
    assert span is not None
    kept_rows = rows(session)[:, :, : session.rows - 2]
    assert session.begin([*text, 7, 8, 9]) == len(text)  # goes on where it was
    assert session.span == span
    assert np.array_equal(rows(session)[:, :, : kept_rows.shape[2]], kept_rows)
    inside = [*text[: span.stop - 5], 7, 8, 9]
    assert session.begin(inside) == span.start
    assert session.span is None
    session.set_tokens(inside, chunk=48)
    assert continued(session) == continued(grown(gated, inside))


def test_parked_and_restored_it_goes_on_as_it_was(gated: CausalLM, text: list[int]) -> None:
    session = grown(gated, text)
    parked, before = session.park(), rows(session)
    assert parked.rows.shape[2] == session.rows < len(text)
    expected = continued(session)
    for used in ([], [3] * 110):  # whatever the cache held before
        other = gated.open_session()
        if used:
            other.set_tokens(used, chunk=48)
        assert other.restore(parked, text) == len(text)
        assert np.array_equal(rows(other), before)
        assert continued(other) == expected
        other.close()
    span = parked.span
    assert span is not None
    other = gated.open_session()
    assert other.restore(parked, [*text[: span.stop - 1], 5]) == span.start  # a part of the span is of no use
    assert other.span is None


def test_others_take_over_what_lies_before_the_span(gated: CausalLM, text: list[int]) -> None:
    session, other = grown(gated, text), gated.open_session()
    span = session.span
    assert span is not None
    assert session.shares(text) == len(text)
    assert session.lends(text) == other.adopt(session, text) == span.start
    assert other.span is None
    assert np.array_equal(rows(other), rows(session)[:, :, : span.start])


def test_a_shared_beginning_is_never_dropped_from(gated: CausalLM, text: list[int]) -> None:
    session = gated.open_session()
    session.set_tokens(text[:96])
    shared = session.share(96)
    assert shared == 96 // 16 * 16
    other = gated.open_session()
    assert other.restore(session.park(96), text) == 96
    before = rows(session)
    other.set_tokens(text, chunk=48)
    span = other.span
    assert span is not None
    assert span.start >= shared
    assert other.shown == shared
    assert np.array_equal(rows(session), before)
    assert other.kv_bytes > other.bytes_of(other.rows)  # booked: the cache while it was whole


def test_a_batch_drops_as_a_text_alone_does(gated: CausalLM, text: list[int]) -> None:
    """Texts with and without dropped tokens in one run, one of them past a block while it is decoded."""
    alone = [continued(grown(gated, text[:n]), 6) for n in (180, 60, 130)]
    batch = gated.open_batch()
    sessions = [batch.open() for _ in alone]
    for session, count in zip(sessions, (180, 60, 130), strict=True):
        session.set_tokens(text[:count], chunk=48)
    before = sessions[0].span
    assert before is not None
    assert together(batch, sessions, 6) == alone
    after = sessions[0].span
    assert after is not None
    assert after.dropped > before.dropped
    moved = rows(sessions[0])
    batch.bring_to_front(sessions[0], sessions[2])  # a change of slots moves rows, not tokens
    assert np.array_equal(rows(sessions[0]), moved)
    assert sessions[0].span == after
    batch.close()


def test_memory_goes_back_with_what_is_dropped(gated: CausalLM, text: list[int]) -> None:
    session = grown(gated, text)
    body = session.body
    assert isinstance(body, CpuBody)
    values = body.rows
    whole = -(-session.rows // 16) * 16
    assert values[:, :, whole + 16 : 160].any() == np.False_  # given back: they read as zeros
    assert session.bytes_of(session.rows) < 0.8 * session.bytes_of(len(text))
