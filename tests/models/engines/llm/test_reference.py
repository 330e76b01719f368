"""Full-precision exports against transformers on the same dequantised weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.engines.llm.causal_lm import CausalLM
from models.store.store import Store
from tests.support.batches import together
from tests.support.gguf import read_once

MODELS = {
    "smollm2-135m-instruct": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "qwen2.5-coder-0.5b-instruct": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "gemma-3-270m": "gemma-3-270m-q4_k_m.gguf",
}
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "今天天气很好,我们",
    "请把空调调到二十四度,然后",
    "Once upon a time there was a car that",
)
NEW_TOKENS = 64
TIE = 1e-3
"""Logits closer than this may change places between two float32 implementations."""
LONG_TEXT = "Keep right at the fork, then 前方两公里有事故,预计晚到十五分钟。" * 60
LONG_TOKENS = {"smollm2-135m-instruct": 300, "qwen2.5-coder-0.5b-instruct": 300, "gemma-3-270m": 700}
"""Several chunks of prompt; past Gemma's window of 512, so that sliding and full layers differ."""


def reference(gguf: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)  # its threads spin: beside other work two of them cost seven times one
    with read_once():
        return AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32).eval()


def forward(model: Any, tokens: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    import torch

    with torch.inference_mode():
        return np.asarray(model(torch.tensor([tokens])).logits[0].numpy())


@pytest.mark.parametrize("name", list(MODELS))
def test_export_equals_transformers(name: str, model_dir: Callable[[str], Path], model_store: Store) -> None:
    """Greedy, five texts in each run: every token must be transformers' arg-max of its text, or tie with it."""
    lm = CausalLM.load(model_dir(name + "-f32"), context_tokens=1024, threads=2, slots=1, batch=len(PROMPTS))
    model = reference(model_store.source(name, MODELS[name]))
    batch = lm.open_batch()
    sessions = [batch.open() for _ in PROMPTS]
    prompts = [lm.tokenizer.encode(prompt, add_special=True) for prompt in PROMPTS]
    for session, ids in zip(sessions, prompts, strict=True):
        session.set_tokens(ids)
    for prompt, ids, ours in zip(PROMPTS, prompts, together(batch, sessions, NEW_TOKENS), strict=True):
        assert ours
        logits = forward(model, ids + ours)[len(ids) - 1 :]
        ends = len(ours) < NEW_TOKENS
        for step, token in enumerate(ours):
            gap = logits[step].max() - logits[step, token]
            assert gap < TIE, f"{prompt!r}: token {step} is {token}, transformers says {logits[step].argmax()}"
        if ends:
            assert int(logits[len(ours)].argmax()) in lm.stop_ids
    batch.close()

    text = lm.tokenizer.encode(LONG_TEXT, add_special=True)[: LONG_TOKENS[name]]
    hidden = lm.open_session().hidden_rows(text)[-8:]
    np.testing.assert_allclose(lm.head.logits(hidden), forward(model, text)[-8:], atol=2e-3)
