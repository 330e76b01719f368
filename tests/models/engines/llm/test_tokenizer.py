"""tokenizer.json made from GGUF metadata, against transformers' own reading of the same file."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from models.build.llm_gguf import Checkpoint
from models.build.llm_tokenizer import merges_from_scores, write_tokenizer
from models.errors import InputError
from models.store.store import Store
from tests.support.gguf import read_once

CHECKPOINTS = {
    "qwen2.5-coder-0.5b-instruct": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "smollm2-135m-instruct": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma-3-270m": "gemma-3-270m-q4_k_m.gguf",
}
TEXTS = (
    "Set the driver temperature to 22 degrees, please!",
    "把主驾温度调到二十二度。Open 2 windows",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<start_of_turn>user\nHello<end_of_turn>\n",
    "  spaces   and\ttabs\n\nnew lines 🚗🔋 naïve café 12345 3.14",
    "def f(x):\n    return x**2  # 注释",
    " leading, it's we'll I'M",
    "𠮷野家 العربية हिन्दी \u200b zero width",
    "",
    "a" * 50,
    '{"name":"set_window","arguments":{"percent":50}}',
)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_equal_to_transformers(name: str, model_store: Store, tmp_path: Path) -> None:
    model_store.fetch(name)
    path = model_store.source(name, CHECKPOINTS[name])
    write_tokenizer(Checkpoint.open(path), tmp_path)
    ours = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    with read_once():
        theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).backend_tokenizer
    for text in TEXTS:
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ids == theirs.encode(text, add_special_tokens=False).ids, text
        assert ours.decode(ids) == theirs.decode(ids), text


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
