"""Full-precision exports against transformers on the same dequantised weights."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest

from models.engines.llm.causal_lm import CausalLM
from models.store.store import Store
from tests.support import transformers_reference as reference
from tests.support.batches import together

LOGIT_DIFFERENCE = 2e-3


@pytest.mark.parametrize("name", list(reference.CHECKPOINTS))
def test_export_equals_transformers(name: str, model_dir: Callable[[str], Path], model_store: Store) -> None:
    """Greedy, five texts in each run: every token must be transformers', and so must the logits behind a long text."""
    lm = CausalLM.load(model_dir(name + "-f32"), context_tokens=1024, threads=2, slots=1, batch=len(reference.PROMPTS))
    theirs = reference.recorded()[name]
    assert reference.sha256(model_store.source(name, theirs["file"])) == theirs["sha256"], "record it again"
    batch = lm.open_batch()
    sessions = [batch.open() for _ in reference.PROMPTS]
    prompts = [lm.tokenizer.encode(prompt, add_special=True) for prompt in reference.PROMPTS]
    assert prompts == [greedy["prompt"] for greedy in theirs["greedy"]]
    for session, ids in zip(sessions, prompts, strict=True):
        session.set_tokens(ids)
    ours = together(batch, sessions, reference.NEW_TOKENS)
    batch.close()
    assert all(ours)
    assert ours == [list(takewhile(lambda id_: id_ not in lm.stop_ids, each["tokens"])) for each in theirs["greedy"]]

    text = lm.tokenizer.encode(reference.LONG_TEXT, add_special=True)[: reference.LONG_TOKENS[name]]
    assert text == theirs["long"]["tokens"]
    logits = lm.head.logits(lm.open_session().hidden_rows(text)[-reference.LONG_ROWS :])
    np.testing.assert_allclose(reference.sampled(logits), theirs["long"]["columns"], atol=LOGIT_DIFFERENCE)
    np.testing.assert_allclose(reference.summed(logits), theirs["long"]["sums"], atol=LOGIT_DIFFERENCE)


def test_transformers_says_what_is_recorded(model_store: Store) -> None:
    """The file is what this version of transformers says: asked about the smallest checkpoint."""
    name = reference.LIVE
    model_store.fetch(name)
    live, file = reference.Reference(name, model_store.source(name, reference.CHECKPOINTS[name])), reference.recorded()
    assert live.encoded() == file[name]["encoded"]
    for greedy in file[name]["greedy"]:
        assert live.gaps(greedy["prompt"], greedy["tokens"]).min() > reference.TIE / 2
    logits = live.logits(file[name]["long"]["tokens"])[-reference.LONG_ROWS :]
    np.testing.assert_allclose(reference.sampled(logits), file[name]["long"]["columns"], atol=LOGIT_DIFFERENCE)
    np.testing.assert_allclose(reference.summed(logits), file[name]["long"]["sums"], atol=LOGIT_DIFFERENCE)
