"""Served builds against their full-precision exports: how often they agree on the next token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.llm.decode import TEXT, compare
from models.engines.llm.causal_lm import CausalLM

LATENCY_BASELINES = {"qwen2.5-coder-0.5b-instruct": 0.94, "smollm2-135m-instruct": 0.90, "gemma-3-270m": 0.92}
"""Share of positions with the same arg-max over the benchmark's text, a few points under what was measured."""


@pytest.mark.parametrize("name", list(LATENCY_BASELINES))
def test_served_build_agrees(name: str, model_dir: Callable[[str], Path]) -> None:
    served, full = (CausalLM.load(model_dir(name + suffix), context_tokens=1024) for suffix in ("", "-f32"))
    tokens = served.tokenizer.encode(TEXT, add_special=True)
    logits = [lm.head.logits(lm.open_session().hidden_rows(tokens)) for lm in (full, served)]
    agreement, divergence = compare(*logits)
    print(f"{name}: agreement {agreement:.2%}, KL {divergence:.4f} nats over {len(tokens)} tokens")
    assert agreement >= LATENCY_BASELINES[name]
    assert divergence < 0.05
