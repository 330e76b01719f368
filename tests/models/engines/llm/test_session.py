"""The running text: prefix reuse, stopping, yielding, scoring, streaming, and memory that does not grow."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.chat import ChatTemplate
from models.engines.llm.cpu import CpuBody
from models.engines.preemption import RunSwitch
from models.errors import InputError, ModelMissing
from tests.support.dispatchers import EveryOther

QUESTION = "What is the capital of France? 用中文回答。"


@pytest.fixture(scope="module")
def smollm2(model_dir: Callable[[str], Path]) -> CausalLM:
    lm = CausalLM.load(model_dir("smollm2-135m-instruct"), context_tokens=640)
    lm.warm_up()
    return lm


@pytest.fixture(scope="module")
def smollm2_f32(model_dir: Callable[[str], Path]) -> CausalLM:
    """Without int8 activations, whose rounding turns a last-bit difference between kernels into another token."""
    return CausalLM.load(model_dir("smollm2-135m-instruct-f32"), context_tokens=640)


def prompt(lm: CausalLM, question: str = QUESTION) -> list[int]:
    return lm.tokenizer.encode(lm.chat.render([{"role": "user", "content": question}]))


def test_prefix_reuse_changes_nothing(smollm2_f32: CausalLM) -> None:
    smollm2 = smollm2_f32
    ids = prompt(smollm2)
    fresh = smollm2.open_session()
    assert fresh.set_tokens(ids) == 0
    expected = list(fresh.generate(max_new_tokens=24))

    used = smollm2.open_session()
    used.set_tokens(prompt(smollm2, "What is the capital of Italy? And then a longer question follows."))
    list(used.generate(max_new_tokens=5))
    reused = used.set_tokens(ids)
    assert 0 < reused < len(ids)
    assert used.cached == len(ids)
    assert list(used.generate(max_new_tokens=24)) == expected
    assert used.set_tokens(ids) == len(ids)  # rewinding to a text that is wholly cached
    assert list(used.generate(max_new_tokens=24)) == expected


@pytest.mark.parametrize("chunk", [1, 3, 16, 1000])
def test_chunks_change_nothing(smollm2_f32: CausalLM, chunk: int) -> None:
    ids = prompt(smollm2_f32)
    session = smollm2_f32.open_session()
    session.set_tokens(ids[:7], chunk=chunk)
    session.prefill(ids[7:], chunk=chunk)
    assert session.tokens == tuple(ids)
    whole = smollm2_f32.open_session()
    whole.set_tokens(ids)
    logits = [smollm2_f32.head.logits(s.hidden()) for s in (session, whole)]
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-3)


def test_stops_at_end_of_turn(smollm2: CausalLM) -> None:
    session = smollm2.open_session()
    session.set_tokens(prompt(smollm2, "Say only: yes"))
    out = list(session.generate(max_new_tokens=200))
    assert len(out) < 200
    assert not smollm2.stop_ids & set(out)
    end = smollm2.tokenizer.inner.token_to_id("<|im_end|>")
    assert end in smollm2.stop_ids


def test_cancel_and_boundaries(smollm2_f32: CausalLM) -> None:
    smollm2 = smollm2_f32
    session = smollm2.open_session()
    calls: list[int] = []
    ids = smollm2.tokenizer.encode("Once upon a time there was a car that drove. " * 12)
    session.set_tokens(ids, chunk=32, at_boundary=lambda: calls.append(session.cached))
    assert calls == list(range(0, len(ids), 32))
    calls.clear()
    stream = session.generate(max_new_tokens=50, cancelled=lambda: len(calls) >= 3, at_boundary=lambda: calls.append(1))
    assert len(list(stream)) == 3  # the first was ready, the third boundary stops
    session.set_tokens(ids[:1])
    session.set_tokens(ids, chunk=32, cancelled=lambda: session.cached >= 64)
    assert session.cached < len(ids)
    assert session.tokens == tuple(ids)
    first = next(session.generate(max_new_tokens=1))  # what was cancelled is made up for
    session.set_tokens(ids)
    assert next(session.generate(max_new_tokens=1)) == first


def test_score_prefers_what_the_model_says_and_keeps_the_text(smollm2_f32: CausalLM) -> None:
    smollm2 = smollm2_f32
    session = smollm2.open_session()
    ids = prompt(smollm2)
    session.set_tokens(ids)
    said = list(session.generate(max_new_tokens=6))
    session.set_tokens(ids)
    other = smollm2.tokenizer.encode("Banana banana.")
    best, worse = session.score([said, other])
    assert best > worse
    assert best <= 0
    assert session.tokens == tuple(ids)
    assert session.cached == len(ids)
    assert list(session.generate(max_new_tokens=6)) == said
    hidden = session.hidden_rows([*ids, *said])[len(ids) - 1 : -1]
    logits = smollm2.head.logits(hidden).astype(np.float64)
    logs = (
        logits
        - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
        - logits.max(1, keepdims=True)
    )
    assert best == pytest.approx(sum(logs[i, t] for i, t in enumerate(said)), abs=1e-2)


def test_runs_that_are_ended_and_done_again_change_nothing(smollm2: CausalLM) -> None:
    ids = prompt(smollm2)
    said, scored = [], []
    for switch in (RunSwitch(), EveryOther()):
        session = smollm2.open_session()
        boundaries: list[int] = []

        def at_boundary(seen: list[int] = boundaries) -> None:
            seen.append(1)

        with switch.over_runs():
            session.set_tokens(ids, chunk=16, at_boundary=at_boundary)
            said.append(list(session.generate(max_new_tokens=6, at_boundary=at_boundary)))
            assert session.redone in (0, len(boundaries) / 2), "a boundary before a run and before it is done again"
            scored.append(session.score([ids[:4]]))
        assert session.redone == switch.ended
    assert said[0] == said[1]
    assert scored[0] == scored[1]
    assert session.redone > 6


def test_what_does_not_fit_is_refused(smollm2: CausalLM) -> None:
    session = smollm2.open_session()
    with pytest.raises(InputError, match="context of 640"):
        session.set_tokens([5] * 641)
    with pytest.raises(InputError, match="at least one token"):
        session.set_tokens([])
    session.set_tokens([5] * 638)
    assert len(list(session.generate(max_new_tokens=10))) <= 2


def test_long_use_takes_no_memory(smollm2: CausalLM) -> None:
    session = smollm2.open_session()
    ids = prompt(smollm2)

    def turns(count: int) -> None:
        for i in range(count):
            session.set_tokens(ids[: 8 + i % 8])
            list(session.generate(max_new_tokens=12))

    turns(10)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    turns(40)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096  # KiB


def test_kv_is_written_in_place(smollm2: CausalLM) -> None:
    """ONNX Runtime must use the bound buffers, not copies of them."""
    session = smollm2.open_session()
    assert isinstance(session.body, CpuBody)
    rows = session.body.rows
    session.set_tokens(prompt(smollm2)[:9])
    written = np.abs(rows).sum(axis=(1, 3))
    assert (written[:, :9] > 0).all()
    assert (written[:, 9:] == 0).all()


@pytest.mark.parametrize("text", ["温度23.5℃,打开👩‍👩‍👧座椅加热🚗", "naïve café", "a", "  two  spaces\n", "𠮷野家"])
def test_stream_never_shows_half_a_character(smollm2: CausalLM, text: str) -> None:
    stream = smollm2.tokenizer.stream()
    pieces = [stream.push(token) for token in smollm2.tokenizer.encode(text)]
    assert "".join(pieces) + stream.finish() == text
    assert not any("�" in piece for piece in pieces)


def test_stream_says_so_when_a_character_stays_broken(smollm2: CausalLM) -> None:
    stream = smollm2.tokenizer.stream()
    tokens = smollm2.tokenizer.encode("𠮷")
    assert [stream.push(token) for token in tokens[:-1]] == [""] * (len(tokens) - 1)
    assert stream.finish() == "�"


def test_chat_template_is_the_checkpoints(smollm2: CausalLM) -> None:
    text = smollm2.chat.render([{"role": "system", "content": "S"}, {"role": "user", "content": "你好 <b>"}])
    assert text == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n你好 <b><|im_end|>\n<|im_start|>assistant\n"


def test_a_base_model_speaks_its_familys_template(model_dir: Callable[[str], Path]) -> None:
    lm = CausalLM.load(model_dir("gemma-3-270m"), context_tokens=64)
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": " hi<end_of_turn> "},
        {"role": "assistant", "content": "yes"},
        {"role": "tool", "content": "{}"},
    ]
    assert lm.chat.render(messages) == (
        "<bos><start_of_turn>user\nS\n\nhi<end_of_turn><end_of_turn>\n<start_of_turn>model\nyes<end_of_turn>\n"
        "<start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n"
    )
    ids = lm.chat.encode(messages, lm.tokenizer)
    assert ids.count(lm.tokenizer.encode("<end_of_turn>")[0]) == 3, "what stands in a message is no mark"
    assert lm.config.bos_id is not None
    assert ids.count(lm.config.bos_id) == 1
    shorter = lm.chat.encode(messages[:3], lm.tokenizer, add_generation_prompt=False)
    assert ids[: len(shorter)] == shorter, "a dialogue's beginning stays as it is cached"
    assert lm.config.stop_ids == (1, 106)
    with pytest.raises(InputError, match="unknown role"):
        lm.chat.render([{"role": "driver", "content": "hi"}])


def test_a_family_without_a_template_says_so(tmp_path: Path) -> None:
    template = ChatTemplate.load(tmp_path, architecture="llama", bos_token="", eos_token="")
    with pytest.raises(InputError, match="no chat template"):
        template.render([{"role": "user", "content": "hi"}])


def test_wrong_folder_or_context_is_refused(model_dir: Callable[[str], Path], tmp_path: Path) -> None:
    folder = model_dir("smollm2-135m-instruct")
    with pytest.raises(ModelMissing, match="cockpit models fetch --build"):
        CausalLM.load(tmp_path)
    with pytest.raises(InputError, match="context_tokens"):
        CausalLM.load(folder, context_tokens=1_000_000)
