"""What transformers says about the checkpoints, kept in `tests/data/transformers.json`.

`python -m tests.support.transformers_reference` records the file again (4 minutes): after a checkpoint of the registry,
a text below or transformers changed. Reading a large vocabulary costs transformers a minute, so every run of the tests
compares the exports with the file, and asks transformers itself about one checkpoint (LIVE).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import gguf
import numpy as np

from models.build.llm_gguf import MappedReader
from models.store.store import Store
from tests.support.paths import ROOT

FILE = ROOT / "tests" / "data" / "transformers.json"
CHECKPOINTS = {
    "smollm2-135m-instruct": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "qwen2.5-coder-0.5b-instruct": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "gemma-3-270m": "gemma-3-270m-q4_k_m.gguf",
}
LIVE = "smollm2-135m-instruct"
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "今天天气很好,我们",
    "请把空调调到二十四度,然后",
    "Once upon a time there was a car that",
)
NEW_TOKENS = 64
TIE = 1e-3
"""Logits closer than this may change places between two float32 implementations; no recorded token is that close."""
LONG_TEXT = "Keep right at the fork, then 前方两公里有事故,预计晚到十五分钟。" * 60
LONG_TOKENS = {"smollm2-135m-instruct": 300, "qwen2.5-coder-0.5b-instruct": 300, "gemma-3-270m": 700}
"""Several chunks of prompt; past Gemma's window of 512, so that sliding and full layers differ."""
LONG_ROWS = 8
COLUMNS_APART = 509
"""Of a row of logits, the file keeps the column of every so many-th token; each row begins at another one."""
# Without numerals that are no digits ("½"): transformers loses SmolLM2's step that sets them apart.
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
    "<bos><unused7><|endoftext|></s><pad>\r\n \r\n\t\tEIN Straßenschild: 50km/h  ﬁ e\u0301 é",
    "한국어 日本語ひらがな Ελληνικά עברית 👨‍👩‍👧‍👦🇩🇪 \ufeff\u00a0\u3000 end ",
    "1234567890 0x1F 1e-9 192.168.0.1 https://example.org/a?b=c&d=%20 __init__ CamelCaseWord",
)


class Reference:
    """transformers' model and tokenizer of one GGUF file."""

    def __init__(self, name: str, path: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        torch.set_num_threads(1)  # its threads spin: beside other work two of them cost seven times one
        self.name, self.path = name, path
        with _read_once():
            self.tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).backend_tokenizer
            model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
        self.model = model.eval()

    def logits(self, tokens: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        import torch

        with torch.inference_mode():
            return np.asarray(self.model(torch.tensor([tokens])).logits[0].numpy())

    def encoded(self) -> list[dict[str, Any]]:
        """Ids of TEXTS, and what they are decoded to."""
        ids = [self.tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
        return [
            {"text": text, "ids": each, "decoded": self.decoded(each)} for text, each in zip(TEXTS, ids, strict=True)
        ]

    def decoded(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids))

    def greedy(self, prompt: list[int]) -> list[int]:
        """NEW_TOKENS tokens, past any that ends a text."""
        import torch

        with torch.inference_mode():
            made = self.model.generate(
                torch.tensor([prompt]), do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=-1, pad_token_id=0
            )
        return [int(token) for token in made[0, len(prompt) :]]

    def gaps(self, prompt: list[int], continuation: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """How far each token of `continuation` is before the best other one, in logits; negative: another is better."""
        rows = self.logits(prompt + continuation)[len(prompt) - 1 : -1].copy()
        steps = np.arange(len(continuation))
        own = rows[steps, continuation]
        rows[steps, continuation] = -np.inf
        return np.asarray(own - rows.max(axis=1))


def sampled(logits: np.ndarray[Any, np.dtype[np.float32]]) -> list[float]:
    """Some columns of each row, other ones in every row, row after row; to four digits after the point."""
    first = [row * COLUMNS_APART // LONG_ROWS for row in range(len(logits))]
    return [round(float(x), 4) for at, row in zip(first, logits, strict=True) for x in row[at::COLUMNS_APART]]


def summed(logits: np.ndarray[Any, np.dtype[np.float32]]) -> list[float]:
    """The sum of each row with signs at random, over the root of the number of columns: every column counts."""
    weights = np.random.default_rng(5).integers(0, 2, logits.shape[1]) * 2 - 1
    return [float(value) for value in logits.astype(np.float64) @ weights / np.sqrt(logits.shape[1])]


def recorded() -> dict[str, Any]:
    """What the file holds of each checkpoint, by name."""
    models: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))["models"]
    return models


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _read_once() -> Iterator[None]:
    """transformers parses a file's fields three times, and makes its table of tensor names once for each module."""
    with (
        mock.patch.object(gguf, "GGUFReader", cache(MappedReader)),
        mock.patch.object(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map)),
    ):
        yield


def record(name: str, store: Store) -> dict[str, Any]:
    store.fetch(name)
    reference = Reference(name, store.source(name, CHECKPOINTS[name]))
    # as the model is asked in the tests: with the start token, where the checkpoint wants one
    start = [reference.model.config.bos_token_id] if "gemma" in name else []
    prompts = [start + reference.tokenizer.encode(prompt, add_special_tokens=False).ids for prompt in PROMPTS]
    continued = [reference.greedy(prompt) for prompt in prompts]
    for prompt, ids, made in zip(PROMPTS, prompts, continued, strict=True):
        gap = reference.gaps(ids, made).min()
        if gap < TIE:
            raise SystemExit(f"{name}, {prompt!r}: two tokens are {gap:.5f} apart; choose another prompt")
    long = (start + reference.tokenizer.encode(LONG_TEXT, add_special_tokens=False).ids)[: LONG_TOKENS[name]]
    rows = reference.logits(long)[-LONG_ROWS:]
    return {
        "file": CHECKPOINTS[name],
        "sha256": sha256(reference.path),
        "encoded": reference.encoded(),
        "greedy": [{"prompt": ids, "tokens": made} for ids, made in zip(prompts, continued, strict=True)],
        "long": {"tokens": long, "columns": sampled(rows), "sums": summed(rows)},
    }


def main() -> None:
    store = Store.open()
    made_by = {name: version(name) for name in ("transformers", "torch", "tokenizers", "gguf")}
    models = {}
    for name in CHECKPOINTS:
        models[name] = record(name, store)
        print(f"{name}: recorded")
    text = {"command": "python -m tests.support.transformers_reference", "versions": made_by, "models": models}
    FILE.write_text(json.dumps(text, ensure_ascii=True, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
