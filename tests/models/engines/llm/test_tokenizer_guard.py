"""A tokenizer that cuts text otherwise than the checkpoint's is refused, at build and at load."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer

from models.build.llm_gguf import CONTROL, Checkpoint
from models.build.llm_tokenizer import write_check, write_tokenizer
from models.build.tokens.reference import _BYTE_TO_CHARACTER, ReferenceTokenizer, merged
from models.engines.llm.tokenizer import TextTokenizer
from models.engines.llm.tokens import guard as tokenizer_guard
from models.errors import ModelMissing, TokenizerMismatch
from models.store.store import Store
from tests.support import transformers_reference as reference


class Vocabulary:
    """A GGUF file's tables, as far as tokenizers are concerned: bytes, a few merges and one control mark."""

    path = Path("tiny.gguf")

    def __init__(self, **fields: Any) -> None:
        merges = ["t h", "th e", "i n", "Ġ t", "Ġt h"]
        tokens = [*_BYTE_TO_CHARACTER, *(merge.replace(" ", "") for merge in merges), "<|im_start|>"]
        self.fields = {
            "model": "gpt2",
            "pre": "qwen2",
            "tokens": tokens,
            "merges": merges,
            "token_type": [1] * (len(tokens) - 1) + [CONTROL],
        } | fields

    def field(self, name: str, default: Any = None) -> Any:
        return self.fields.get(name.removeprefix("tokenizer.ggml."), default)


def spaced(**fields: Any) -> Vocabulary:
    """The same of a SentencePiece vocabulary: every single character is a token, others are bytes."""
    pieces = ["<unk>", "\u2581", "\u2581t", "th", "\u2581th", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [chr(point) for point in range(0x21, 0x7F)]
    scores = [-float(number) for number in range(len(pieces))]
    kinds = [2] + [1] * (len(pieces) - 1)
    return Vocabulary(model="llama", tokens=pieces, scores=scores, token_type=kinds, unknown_token_id=0, **fields)


@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe", "smollm"])
def test_a_made_tokenizer_passes_and_is_kept(pre: str, tmp_path: Path) -> None:
    made: Any = Vocabulary(pre=pre)
    write_tokenizer(made, tmp_path)
    write_check(made, tmp_path)
    tokenizer_guard.check(tmp_path, loaded(tmp_path))


@pytest.mark.parametrize("prefixed", [False, True])
def test_a_space_stands_before_a_text_only_where_the_file_says_so(prefixed: bool, tmp_path: Path) -> None:
    made: Any = spaced(add_space_prefix=prefixed)
    write_tokenizer(made, tmp_path)
    write_check(made, tmp_path)
    tokenizer = loaded(tmp_path)
    assert tokenizer.inner.encode("th", add_special_tokens=False).tokens == (["\u2581th"] if prefixed else ["th"])
    assert tokenizer.decode(tokenizer.encode(" th")) == " th"


def test_another_split_is_not_built(tmp_path: Path) -> None:
    """The tokenizer was made for another pre-tokenizer than the file names: digits alone, not in threes."""
    written: Any = Vocabulary(pre="smollm", merges=["1 2"], tokens=[*_BYTE_TO_CHARACTER, "12", "<|im_start|>"])
    written.fields["token_type"] = [1] * 257 + [CONTROL]
    named: Any = Vocabulary(pre="llama-bpe", merges=["1 2"], tokens=written.fields["tokens"])
    named.fields["token_type"] = written.fields["token_type"]
    write_tokenizer(written, tmp_path)
    with pytest.raises(TokenizerMismatch, match=r"'1234567890 3.*the checkpoint's ids are") as error:
        write_check(named, tmp_path)
    assert "tiny.gguf" in str(error.value)
    assert not (tmp_path / tokenizer_guard.FILE_NAME).exists()


def test_a_prefix_space_is_refused_at_load(tmp_path: Path) -> None:
    made: Any = Vocabulary()
    write_tokenizer(made, tmp_path)
    write_check(made, tmp_path)
    file = tmp_path / "tokenizer.json"
    said = json.loads(file.read_text(encoding="utf-8"))
    said["pre_tokenizer"]["pretokenizers"][-1]["add_prefix_space"] = True
    file.write_text(json.dumps(said), encoding="utf-8")
    with pytest.raises(TokenizerMismatch) as error:
        tokenizer_guard.check(tmp_path, loaded(tmp_path))
    assert repr(tokenizer_guard.CORPUS[0]) in str(error.value)
    assert f"models build --force {tmp_path.name}" in str(error.value)


@pytest.mark.parametrize("text", ["", "{}", '{"corpus": [{"text": "a"}]}'])
def test_a_build_without_readable_ids_is_refused(text: str, tmp_path: Path) -> None:
    write_tokenizer(Vocabulary(), tmp_path)  # type: ignore[arg-type]
    (tmp_path / tokenizer_guard.FILE_NAME).write_text(text, encoding="utf-8")
    with pytest.raises(ModelMissing, match="fetch --build"):
        tokenizer_guard.check(tmp_path, loaded(tmp_path))


def test_what_does_not_come_back_is_named() -> None:
    inner = SimpleNamespace(decode=lambda ids, skip_special_tokens: "other")
    tokenizer: Any = SimpleNamespace(encode=lambda text: [1], inner=inner)
    said = tokenizer_guard.first_difference(tokenizer, [[1]] * len(tokenizer_guard.CORPUS))
    assert repr(tokenizer_guard.CORPUS[0]) in said
    assert "'other'" in said


def test_equal_pairs_are_joined_from_the_left() -> None:
    assert merged([*"aaa"], lambda left, right: 0 if left + right == "aa" else None) == ["aa", "a"]


def test_the_reference_is_transformers(model_store: Store) -> None:
    """The plain reference against recorded ids, on the smallest checkpoint; the corpus of the guard is larger."""
    name = reference.LIVE
    model_store.fetch(name)
    plain = ReferenceTokenizer(Checkpoint.open(model_store.source(name, reference.CHECKPOINTS[name])))
    for each in reference.recorded()[name]["encoded"]:
        assert plain.encode(each["text"]) == each["ids"], each["text"]


def test_the_shipped_model_was_checked(model_dir: Callable[[str], Path]) -> None:
    folder = model_dir(reference.LIVE)
    rows = json.loads((folder / tokenizer_guard.FILE_NAME).read_text(encoding="utf-8"))["corpus"]
    assert [row["text"] for row in rows] == list(tokenizer_guard.CORPUS)
    tokenizer_guard.check(folder, loaded(folder))


def loaded(folder: Path) -> TextTokenizer:
    inner = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return TextTokenizer(inner, None, inner.get_vocab_size(), frozenset())
