"""The language model of the default profile, loaded once for the tests of the loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from models.engines.llm.causal_lm import CausalLM


@pytest.fixture(scope="package")
def qwen(model_dir: Callable[[str], Path]) -> CausalLM:
    return CausalLM.load(model_dir("qwen2.5-coder-0.5b-instruct"), context_tokens=2048)
