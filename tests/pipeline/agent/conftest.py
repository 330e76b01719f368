"""The language model of the default profile, loaded once for the tests of the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.session import LmSession
from pipeline.agent.setup import AgentSetup
from pipeline.dialogue.manager import DialogueManager


@pytest.fixture(scope="package")
def qwen(model_dir: Callable[[str], Path]) -> CausalLM:
    return CausalLM.load(model_dir("qwen2.5-coder-0.5b-instruct"), context_tokens=2048)


@pytest.fixture(scope="package")
def prompted(qwen: CausalLM) -> Iterator[LmSession]:
    """A session of the loop with its static prompt: the others copy what they share with it (5 s of computing)."""
    dialogue = DialogueManager.create(lm=qwen, agent=AgentSetup())
    assert dialogue.agent is not None
    dialogue.agent.loop.warm_up()
    yield dialogue.agent.loop.session
    dialogue.close()
