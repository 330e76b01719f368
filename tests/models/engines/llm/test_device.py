"""The graphs for GPUs, in float32 through placements on the CPU: the same tokens as the reference, slots and lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from models.build.llm import build_llm
from models.build.llm_device import near_root
from models.build.llm_gguf import Checkpoint, DecoderShape
from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.device import DeviceLm
from models.engines.llm.grammar import Grammar
from models.engines.llm.memory import LOGIT_ROWS
from models.engines.placement import CpuPlacement
from models.errors import InputError, ModelMissing

NAME = "smollm2-135m-instruct"
QUESTIONS = ("What is the capital of France?", "Count from one to twelve.", "请用中文说你好")
LONGEST = 24
"""Tokens of the longest answer that is compared."""
SLOTS = 3
DRAFTS = (4,)


class CountingPlacement(CpuPlacement):
    """Notes what was opened and allocated in it, and which graphs of steps ran."""

    def __init__(self) -> None:
        super().__init__(2)
        self.opened: list[str] = []
        self.graph_ids: list[int] = []
        self.weights_loaded = 0

    def open(self, graph: Path, **options: Any) -> Any:
        self.opened.append(graph.name)
        session = super().open(graph, **options)
        run = session.run

        def noted(binding: Any, *, graph_id: int = -1) -> None:
            self.graph_ids.append(graph_id)
            run(binding)

        session.run = noted  # type: ignore[method-assign]
        return session

    def load_weights(self, folder: Path) -> dict[str, Any]:
        self.weights_loaded += 1
        return super().load_weights(folder)


@pytest.fixture(scope="module")
def lanes() -> dict[str, CountingPlacement]:
    return {"front": CountingPlacement(), "back": CountingPlacement()}


@pytest.fixture(scope="module")
def shared(model_dir: Callable[[str], Path], lanes: dict[str, CountingPlacement]) -> CausalLM:
    lm = CausalLM.load(
        model_dir(NAME + "-f32-device"), context_tokens=512, placements=lanes, slots=SLOTS, drafts=DRAFTS
    )
    lm.warm_up()
    return lm


@pytest.fixture
def device(shared: CausalLM) -> Iterator[CausalLM]:
    """The model with every slot free, in its first lane."""
    yield shared
    shared.use("front")
    for session in list(shared._open):
        session.close()


@pytest.fixture(scope="module")
def reference(model_dir: Callable[[str], Path]) -> CausalLM:
    return CausalLM.load(model_dir(NAME + "-f32"), context_tokens=512)


def prompt(lm: CausalLM, question: str) -> list[int]:
    return lm.tokenizer.encode(lm.chat.render([{"role": "user", "content": question}]))


Expected = Callable[[str, int], list[int]]


@pytest.fixture(scope="module")
def expected(reference: CausalLM) -> Expected:
    """The first tokens with which the reference answers a question, computed once for every test."""
    answers: dict[str, list[int]] = {}

    def first(question: str, count: int) -> list[int]:
        assert count <= LONGEST
        if question not in answers:
            answers[question] = greedy(reference, question, LONGEST)
        return answers[question][:count]

    return first


def greedy(lm: CausalLM, question: str, count: int) -> list[int]:
    session = lm.open_session()
    session.set_tokens(prompt(lm, question), chunk=16)
    out = list(session.generate(max_new_tokens=count))
    assert session.tokens[-len(out) :] == tuple(out)
    session.close()
    return out


# --- what is computed ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("question", QUESTIONS)
def test_same_tokens_as_the_reference(device: CausalLM, expected: Expected, question: str) -> None:
    answer = expected(question, LONGEST)
    assert len(answer) > 3
    assert greedy(device, question, LONGEST) == answer
    device.use("back")
    assert greedy(device, question, LONGEST) == answer


def test_one_text_may_change_lanes_between_tokens(device: CausalLM, expected: Expected) -> None:
    session = device.open_session()
    session.set_tokens(prompt(device, QUESTIONS[1]))
    out = []
    for i, token in enumerate(session.generate(max_new_tokens=12)):
        out.append(token)
        device.use(("front", "back")[i % 2])
    assert out == expected(QUESTIONS[1], 12)


def test_texts_take_turns_without_mixing(device: CausalLM, expected: Expected) -> None:
    sessions = [device.open_session() for _ in QUESTIONS]
    for session, question in zip(sessions, QUESTIONS, strict=True):
        session.set_tokens(prompt(device, question))
    streams = [session.generate(max_new_tokens=8) for session in sessions]
    out: list[list[int]] = [[] for _ in streams]
    for _ in range(8):
        for written, stream in zip(out, streams, strict=True):
            written += [token for token in [next(stream, None)] if token is not None]
    assert out == [expected(question, 8) for question in QUESTIONS]


def test_a_beginning_is_copied_between_slots_and_comes_back_from_host_memory(
    device: CausalLM, expected: Expected
) -> None:
    ids = prompt(device, QUESTIONS[0])
    donor, heir = device.open_session(), device.open_session()
    donor.set_tokens(ids)
    assert heir.adopt(donor, ids) == len(ids)
    heir.set_tokens(ids)
    assert list(heir.generate(max_new_tokens=8)) == expected(QUESTIONS[0], 8)
    parked = donor.park()
    assert parked.size_bytes == donor.bytes_of(len(ids))
    donor.set_tokens(prompt(device, QUESTIONS[1]))
    donor.forget()
    device.use("back")
    assert donor.restore(parked, ids) == len(ids)
    donor.set_tokens(ids)
    assert list(donor.generate(max_new_tokens=8)) == expected(QUESTIONS[0], 8)
    assert donor.kv_bytes == donor.body.kv_bytes, "a slot is held whole"


def test_logits_and_rows_equal_the_reference(device: CausalLM, reference: CausalLM) -> None:
    text = prompt(device, "Tell me about Paris, please, " * 8)
    assert len(text) > 2 * LOGIT_ROWS
    theirs = reference.head.logits(reference.open_session().hidden_rows(text))
    hidden = device.open_session().hidden_rows(text)
    ours = device.head.logits(hidden)
    np.testing.assert_allclose(ours, theirs, atol=2e-3)
    assert (device.head.best_rows(hidden) == ours.argmax(axis=1)).all()
    assert device.head.best(hidden) == ours[-1].argmax()


def test_float16_graphs_say_nearly_the_same(model_dir: Callable[[str], Path], reference: CausalLM) -> None:
    """What a GPU runs, kernels aside: every type fits, nothing overflows, rounding seldom changes the best token."""
    half = CausalLM.load(model_dir(NAME + "-f16"), context_tokens=128, placements={"a": CpuPlacement(2)}, slots=1)
    text = prompt(half, QUESTIONS[1] + " " + QUESTIONS[0])
    session = half.open_session()
    ours = half.head.logits(session.hidden_rows(text))
    theirs = reference.head.logits(reference.open_session().hidden_rows(text))
    assert np.abs(ours - theirs).max() < 0.5
    assert (ours.argmax(axis=1) == theirs.argmax(axis=1)).mean() > 0.93
    c = half.config
    assert session.kv_bytes == 2 * c.layers * c.kv_heads * c.head_dim * 128 * 2
    session.set_tokens(text)
    assert list(session.generate(max_new_tokens=4)) == greedy(reference, QUESTIONS[1] + " " + QUESTIONS[0], 4)


def test_constrained_choice_is_the_best_allowed_token(device: CausalLM) -> None:
    session = device.open_session()
    session.set_tokens(prompt(device, QUESTIONS[0]))
    hidden = session.hidden()
    logits = device.head.logits(hidden)[0]
    rng = np.random.default_rng(3)
    for count in (1, 2, 100, device.vocab_size):
        allowed = np.sort(rng.choice(device.vocab_size, count, replace=False)).astype(np.int64)
        assert device.head.best(hidden, allowed) == allowed[logits[allowed].argmax()]


def test_grammar_and_score_equal_the_reference(device: CausalLM, reference: CausalLM) -> None:
    written, scores = [], []
    for lm in (device, reference):
        session = lm.open_session()
        ids = prompt(lm, "What colour is the sky? One word.")
        session.set_tokens(ids)
        constraint = Grammar.compile('start: "The sky is " ("red" | "blue" | "green") "."', lm.tokenizer).start()
        written.append(list(session.generate(max_new_tokens=24, constraint=constraint)))
        session.set_tokens(ids)
        candidates = [written[0], written[0][:1], lm.tokenizer.encode("Banana, apple and pear." * 10)]
        scores.append(session.score(candidates))
        assert session.cached == len(ids)
        assert list(session.generate(max_new_tokens=4)) == greedy(lm, "What colour is the sky? One word.", 4)
    assert written[0] == written[1]
    assert scores[0] == pytest.approx(scores[1], abs=2e-2)


# --- memory ----------------------------------------------------------------------------------------------------------
def test_slots_never_share_memory(device: CausalLM) -> None:
    runtime = device._runtime
    assert isinstance(runtime, DeviceLm)
    heads = [buffer for slot in range(SLOTS) for buffer in runtime.arena.heads(slot, 0, device.context_tokens)]
    spans = sorted((buffer.address, buffer.address + buffer.size_bytes) for buffer in heads)
    assert len(spans) == SLOTS * 2 * device.config.layers * device.config.kv_heads
    assert all(start % 256 == 0 for start, _ in spans)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert len({id(buffer.owner) for buffer in heads}) == 1
    c = device.config
    session = device.open_session()
    assert session.kv_bytes == 2 * c.layers * c.kv_heads * c.head_dim * 512 * 4
    assert device.weights_bytes > 500_000_000


def test_slots_run_out_and_come_back(device: CausalLM) -> None:
    sessions = [device.open_session() for _ in range(SLOTS)]
    assert len({session.name for session in sessions}) == SLOTS
    with pytest.raises(InputError, match="close one, or load the model with more slots"):
        device.open_session()
    sessions[1].set_tokens(prompt(device, QUESTIONS[1]))
    sessions[1].close()
    sessions[1].close()
    with pytest.raises(InputError, match="closed"):
        sessions[1].set_tokens([5])
    again = device.open_session()
    assert again.body is sessions[1].body
    del sessions[1]
    assert again.cached == 0
    with pytest.raises(InputError, match="close one"):
        device.open_session()
    del again  # whoever drops a session without closing it gives its slot back too
    device.open_session()


def test_forgotten_text_is_computed_anew(device: CausalLM, reference: CausalLM, expected: Expected) -> None:
    for lm in (device, reference):
        session = lm.open_session()
        session.set_tokens(prompt(lm, QUESTIONS[1]))
        first = list(session.generate(max_new_tokens=8))
        before = session.tokens
        session.forget()
        assert session.cached == 0
        assert session.tokens == before
        rest = list(session.generate(max_new_tokens=8))
        assert first + rest == expected(QUESTIONS[1], 16)


def test_weights_are_loaded_once_and_every_step_captured(device: CausalLM, lanes: dict[str, CountingPlacement]) -> None:
    assert [lane.weights_loaded for lane in lanes.values()] == [1, 0]
    for lane in lanes.values():
        assert sorted(lane.opened) == ["choose.onnx", "head.onnx", "model.onnx", "score.onnx"]
        assert all(lane.graph_ids.count(graph) >= 4 for graph in range(SLOTS * (1 + len(DRAFTS))))
    session = device.open_session()
    session.set_tokens(prompt(device, QUESTIONS[1]))
    ran = lanes["front"].graph_ids
    ran.clear()
    list(session.generate(max_new_tokens=5))
    assert ran == [0] * 9  # the head after prefill, then body and head for each token


def test_lanes_are_known_by_name(device: CausalLM, reference: CausalLM) -> None:
    for lm in (device, reference):
        with pytest.raises(KeyError, match="nowhere"):
            lm.use("nowhere")


def test_warm_up_makes_open_texts_forget(model_dir: Callable[[str], Path]) -> None:
    placements = {"only": CpuPlacement(2)}
    lm = CausalLM.load(model_dir(NAME + "-f32-device"), context_tokens=64, placements=placements, slots=2)
    session = lm.open_session()
    ids = prompt(lm, QUESTIONS[0])[:24]
    session.set_tokens(ids)
    expected = list(session.generate(max_new_tokens=6))
    session.set_tokens(ids)
    lm.warm_up()
    assert session.cached == 0
    assert list(session.generate(max_new_tokens=6)) == expected


# --- drafts ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("drafts", "question"), [(1, QUESTIONS[1]), (4, QUESTIONS[2]), (9, "Repeat three times: the cat sat on the mat.")]
)
def test_drafts_change_nothing(
    device: CausalLM, reference: CausalLM, expected: Expected, drafts: int, question: str
) -> None:
    for lm in (device, reference):
        session = lm.open_session()
        session.draft_tokens = drafts
        session.set_tokens(prompt(lm, question))
        assert list(session.generate(max_new_tokens=LONGEST)) == expected(question, LONGEST)
        assert session.cached <= len(session.tokens)
        assert 0 <= session.accepted <= session.drafted


def test_drafts_are_accepted_and_may_be_abandoned(device: CausalLM) -> None:
    text = device.tokenizer.encode("one two three four five six seven, " * 5 + "one two three")
    plain = device.open_session()
    plain.set_tokens(text)
    expected = list(plain.generate(max_new_tokens=24))
    session = device.open_session()
    session.draft_tokens = 6
    session.set_tokens(text)
    runs: list[int] = []
    stream = session.generate(max_new_tokens=24, at_boundary=lambda: runs.append(session.cached))
    got = [next(stream) for _ in range(9)]
    stream.close()  # type: ignore[attr-defined]  # in the middle of what one run verified
    assert session.accepted > 4
    assert len(runs) < 9
    assert session.tokens == (*text, *expected[:9])
    assert session.cached <= len(session.tokens)
    stream = session.generate(max_new_tokens=15)
    got.append(next(stream))
    session.forget()  # an owner may be told to between any two tokens
    got += list(stream)
    assert got == expected


def test_verifying_drafts_replays_graphs(device: CausalLM, lanes: dict[str, CountingPlacement]) -> None:
    _first, second = device.open_session(), device.open_session()  # the second slot tells slots and graphs apart
    text = device.tokenizer.encode("one two three four five six seven, " * 5 + "one two three")
    second.set_tokens(text)
    second.draft_tokens = DRAFTS[0]
    ran = lanes["front"].graph_ids
    ran.clear()
    out = list(second.generate(max_new_tokens=11))
    assert len(out) == 11
    assert second.accepted == 8
    assert ran == [1, SLOTS + 1, SLOTS, SLOTS + 1, SLOTS]  # one head after prefill, then twice body and head


# --- what is refused -------------------------------------------------------------------------------------------------
def test_graphs_of_the_other_kind_are_refused(
    model_dir: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=f"holds graphs for a GPU.*use {NAME} on the CPU"):
        CausalLM.load(model_dir(NAME + "-f32-device"))
    with pytest.raises(InputError, match=f"holds graphs for the CPU.*use {NAME}-f16"):
        CausalLM.load(model_dir(NAME), placements={"a": CpuPlacement()})
    with pytest.raises(InputError, match=r"drafts \[40\] are not all in 1\.\.31"):
        CausalLM.load(model_dir(NAME + "-f32-device"), placements={"a": CpuPlacement()}, drafts=[40])
    with pytest.raises(InputError, match="at least one lane"):
        CausalLM.load(model_dir(NAME + "-f32-device"), placements={})
    with pytest.raises(ModelMissing, match="cockpit models fetch --build"):
        CausalLM.load(tmp_path, placements={"a": CpuPlacement()})
    shape = DecoderShape("gemma3", 18, 640, 4, 1, 256, 262_144, 32_768, 1e-6, 1e6, 512, True)
    monkeypatch.setattr(Checkpoint, "open", lambda path: SimpleNamespace(shape=lambda: shape))
    with pytest.raises(InputError, match="exceed float16"):
        build_llm(tmp_path / "gemma.gguf", tmp_path / "out", quant="f16")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("count", "groups"), [(151_936, 128), (49_152, 192), (7, 1), (262_144, 512)])
def test_groups_of_the_arg_max(count: int, groups: int) -> None:
    assert near_root(count) == groups
    assert count % groups == 0
