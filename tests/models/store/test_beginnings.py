"""A beginning that was kept on disk is what would have been computed; one that is damaged or foreign is not used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.session import LmSession
from models.store.beginnings import Beginnings, key_of


@pytest.fixture(scope="module")
def model(model_dir: Callable[[str], Path]) -> CausalLM:
    return CausalLM.load(model_dir("qwen2.5-coder-0.5b-instruct"), context_tokens=256, slots=3)


@pytest.fixture
def text(model: CausalLM) -> list[int]:
    return list(
        model.tokenizer.encode("You are the voice of a car. Answer in one sentence and never make numbers up. " * 3)
    )


def named(model: CausalLM) -> LmSession:
    session = model.open_session()
    session.name = "chat"
    return session


def test_the_next_start_reads_what_it_would_compute(model: CausalLM, text: list[int], tmp_path: Path) -> None:
    beginnings = Beginnings(tmp_path / "made", "key")
    first, second = named(model), named(model)
    try:
        assert beginnings.bring(first) == 0, "nothing is kept yet"
        first.set_tokens(text)
        computed = first.body.read_rows(first.cached)
        assert beginnings.keep(first)
        assert Beginnings(tmp_path / "made", "key").bring(second) == first.cached
        assert second.tokens == first.tokens[: first.cached]
        np.testing.assert_array_equal(second.body.read_rows(second.cached), computed)
        question = [*text, *model.tokenizer.encode(" Why is the sky blue?")]
        for session in (first, second):
            session.set_tokens(question)
        answers = [list(session.generate(max_new_tokens=12)) for session in (first, second)]
        assert answers[0] == answers[1]
        written = (tmp_path / "made" / "chat.kv").stat().st_mtime_ns
        second.forget()
        beginnings.bring(second)
        assert beginnings.keep(second)
        assert (tmp_path / "made" / "chat.kv").stat().st_mtime_ns == written, "what is there is not written again"
    finally:
        first.close()
        second.close()


def test_a_file_that_cannot_be_trusted_is_as_good_as_none(
    model: CausalLM, text: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    beginnings = Beginnings(tmp_path, "key")
    session = named(model)
    try:
        session.set_tokens(text)
        beginnings.keep(session)
        session.forget()
        path = tmp_path / "chat.kv"
        whole = path.read_bytes()
        assert Beginnings(tmp_path, "other").bring(session) == 0, "another model or runtime made it"
        flipped = bytearray(whole)
        flipped[-1000] ^= 1
        for damaged in (bytes(flipped), whole[:-7], whole[:40], b"", b"{}\n", b"[1]\n", whole.replace(b"<f", b"<q", 1)):
            path.write_bytes(damaged)
            assert beginnings.bring(session) == 0
            assert session.cached == 0
        session.set_tokens(text)
        assert beginnings.keep(session), "it is made anew"
        session.forget()
        assert beginnings.bring(session) > 0
        (tmp_path / ".chat.killed.part").write_bytes(b"half")
        beginnings.sweep()
        assert [file.name for file in tmp_path.iterdir()] == ["chat.kv"]
    finally:
        session.close()


def test_a_folder_that_cannot_be_written_costs_only_time(
    model: CausalLM, text: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    session = named(model)
    try:
        session.set_tokens(text)
        assert not Beginnings(tmp_path / "file", "key").keep(session)
        assert "computes it again" in caplog.text
    finally:
        session.close()


def test_the_key_is_of_the_model_as_it_was_built(model_dir: Callable[[str], Path], tmp_path: Path) -> None:
    built = model_dir("qwen2.5-coder-0.5b-instruct")
    assert key_of([built]) == key_of([built])
    assert key_of([built]) != key_of([model_dir("espeak-ng")])
    assert key_of([tmp_path]) != key_of([built])
