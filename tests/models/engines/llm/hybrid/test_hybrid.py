"""A hybrid's texts: whatever way they are computed, rewound, copied or parked, the next tokens are the same."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.harness import families_reference as reference
from models.build.families.build import build_family
from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.hybrid.cpu import HybridBody
from models.engines.llm.hybrid.states import MARKED, RECENT, TextStates
from models.engines.llm.session import Hidden, LmSession

NAME = "nemotron-3"
TEXT = reference.texts()[0]
ROUNDING = 2e-5


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    folder = tmp_path_factory.mktemp("hybrid")
    (folder / "config.json").write_text(json.dumps(reference.CONFIGS[NAME]), encoding="utf-8")
    build_family(folder / "config.json", folder / "out", quant="f32", seed=reference.SEED)
    return CausalLM.load(folder / "out", context_tokens=128, threads=1, slots=4, batch=4)


@pytest.fixture(scope="module")
def expected(lm: CausalLM) -> np.ndarray:
    """Logits of every position of TEXT, from one run."""
    return np.asarray(lm.head.logits(lm.open_session().hidden_rows(TEXT)))


def last(lm: CausalLM, session: LmSession) -> np.ndarray:
    return np.asarray(lm.head.logits(session.hidden())[-1])


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 16, 64])
def test_chunks_equal_one_run(chunk: int, lm: CausalLM, expected: np.ndarray) -> None:
    """The clamp of dt is the same in a run over one token as in a longer one."""
    session = lm.open_session()
    session.set_tokens(TEXT, chunk=chunk)
    np.testing.assert_allclose(last(lm, session), expected[-1], atol=ROUNDING)
    session.close()


def test_token_by_token_in_a_batch_equals_one_run(lm: CausalLM, expected: np.ndarray) -> None:
    """Beside a text that takes no part: what is computed in its slot changes nothing."""
    batch = lm.open_batch()
    first, idle, third = (batch.open() for _ in range(3))
    for session in (first, idle, third):
        session.set_tokens(TEXT[:10])
    for at in range(10, len(TEXT)):
        for session in (first, third):
            session.extend([TEXT[at]])
        batch.step([first, third])
        for session in (first, third):
            np.testing.assert_allclose(lm.head.logits(session.last_hidden)[-1], expected[at], atol=ROUNDING)
    idle.extend(TEXT[10:])
    np.testing.assert_allclose(last(lm, idle), expected[-1], atol=ROUNDING)
    batch.bring_to_front(third, idle)
    third.forget()
    third.set_tokens(TEXT[:20])
    idle.set_tokens(TEXT)
    np.testing.assert_allclose(last(lm, third), expected[19], atol=ROUNDING)
    np.testing.assert_allclose(last(lm, idle), expected[-1], atol=ROUNDING)
    batch.close()


def test_a_rewound_text_goes_on_from_the_boundary_that_was_marked(
    lm: CausalLM, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = lm.open_session()
    session.set_tokens(TEXT[:12])
    assert session.share(12) == 0  # marked, not stored
    session.set_tokens([*TEXT[:12], 5, 6, 7, 8, 9])
    session.set_tokens([*TEXT[:12], 9, 8, 7, 6])
    session.set_tokens([*TEXT[:12], 1, 2, 3])
    calls: list[int] = []
    run = session.body.run

    def noted(tokens: list[int], position: int, *, every_row: bool) -> Hidden:
        calls.append(position)
        return run(tokens, position, every_row=every_row)

    monkeypatch.setattr(session.body, "run", noted)
    session.set_tokens(TEXT)
    assert calls[0] == 12
    np.testing.assert_allclose(last(lm, session), expected[-1], atol=ROUNDING)
    session.close()


@pytest.mark.parametrize("cut", [1, 5, 13, 39])
def test_a_rewind_to_anywhere_is_computed_again(cut: int, lm: CausalLM, expected: np.ndarray) -> None:
    session = lm.open_session()
    session.set_tokens([*TEXT[:cut], 11, 12, 13, 14])
    list(session.generate(max_new_tokens=3))
    session.set_tokens(TEXT)
    np.testing.assert_allclose(last(lm, session), expected[-1], atol=ROUNDING)
    session.close()


def test_a_copied_and_a_parked_text_go_on_as_the_first(lm: CausalLM, expected: np.ndarray) -> None:
    donor = lm.open_session()
    donor.set_tokens(TEXT[:30])
    parked = donor.park()
    assert parked.size_bytes > parked.rows.nbytes
    copied, restored = lm.open_session(), lm.open_session()
    assert copied.adopt(donor, TEXT) == 30
    assert restored.restore(parked, TEXT) == 30
    for session in (copied, restored):
        assert session.body.resumable(30) == 30
        session.set_tokens(TEXT)
        np.testing.assert_allclose(last(lm, session), expected[-1], atol=ROUNDING)
    partly = lm.open_session()
    partly.restore(parked, [*TEXT[:20], 3, 4, 5])
    partly.set_tokens([*TEXT[:20], 3, 4, 5])
    assert partly.body.resumable(23) == 23
    fresh = np.asarray(lm.head.logits(donor.hidden_rows([*TEXT[:20], 3, 4, 5]))[-1])
    np.testing.assert_allclose(last(lm, partly), fresh, atol=ROUNDING)
    for session in (donor, copied, restored, partly):
        session.close()


def test_scores_and_guesses_leave_the_state_as_it_was(lm: CausalLM) -> None:
    plain, guessing = lm.open_session(), lm.open_session()
    text = TEXT[:6] * 4
    plain.set_tokens(text)
    guessing.set_tokens(text)
    assert guessing.score([[1, 2, 3], [4, 5]]) == pytest.approx(plain.score([[1, 2, 3], [4, 5]]), abs=1e-4)
    guessing.draft_tokens = 4
    assert list(guessing.generate(max_new_tokens=20)) == list(plain.generate(max_new_tokens=20))
    plain.close()
    guessing.close()


def test_snapshots_are_few_and_counted(lm: CausalLM) -> None:
    session = lm.open_session()
    assert isinstance(session.body, HybridBody)
    states = session.body.states
    for end in range(4, 40, 4):
        session.set_tokens(TEXT[:end])
        session.share(end)
    assert len(states.marked) <= MARKED
    assert len(states.recent) <= RECENT
    assert session.body.bytes_for(10) > 10 * lm.token_bytes + states.state_bytes
    session.forget()
    assert not states.marked
    assert states.position == 0
    session.close()


def test_states_after_no_token_are_nothing() -> None:
    states = TextStates({"ssm.0": (2, 3)})
    states.advance({"ssm.0": np.ones((1, 2, 3), np.float32)}, 5)
    states.remember()
    assert states.resumable(4) == 0
    assert states.resumable(7) == 5
    states.go_to(0)
    assert not states.values["ssm.0"].any()
    assert states.resumable(7) == 0
