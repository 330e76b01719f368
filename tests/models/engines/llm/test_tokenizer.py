"""tokenizer.json made from GGUF metadata, against what transformers made of the same file."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from models.build.llm_gguf import Checkpoint
from models.build.llm_tokenizer import merges_from_scores, write_tokenizer
from models.errors import InputError
from models.store.store import Store
from tests.support import transformers_reference as reference


@pytest.mark.parametrize("name", reference.CHECKPOINTS)
def test_equal_to_transformers(name: str, model_store: Store, tmp_path: Path) -> None:
    model_store.fetch(name)
    write_tokenizer(Checkpoint.open(model_store.source(name, reference.CHECKPOINTS[name])), tmp_path)
    ours = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    theirs = reference.recorded()[name]["encoded"]
    assert [each["text"] for each in theirs] == list(reference.TEXTS), "record them again"
    for each in theirs:
        ids = ours.encode(each["text"], add_special_tokens=False).ids
        assert ids == each["ids"], each["text"]
        assert ours.decode(ids) == each["decoded"], each["text"]


def test_merges_follow_the_scores() -> None:
    vocab = {"a": 0, "b": 1, "ab": 2, "aba": 3}
    assert merges_from_scores(vocab, [0.0, 0.0, -2.0, -1.0]) == [("ab", "a"), ("a", "b")]


def test_unknown_kind_is_refused(tmp_path: Path) -> None:
    class Foreign:
        path = Path("foreign.gguf")

        def field(self, name: str) -> object:
            return "bert" if name == "tokenizer.ggml.model" else []

    with pytest.raises(InputError, match="bert"):
        write_tokenizer(Foreign(), tmp_path)  # type: ignore[arg-type]
