"""Lets the language model choose one of a few calls, under a grammar that allows exactly these.

What all candidates share is forced and costs no decision; the model decides only where they part, usually at the name.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from models.engines.base import never_cancelled
from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.grammar import Grammar
from models.engines.llm.session import LmSession
from pipeline.dialogue.llm_steps import UNSCHEDULED, LlmScheduler, fill
from pipeline.frames import Task, ToolCall

_SYSTEM = (
    "You turn what a person in a car says into one JSON tool call. Tools: set_temperature(zone, action, value), "
    "set_fan(zone, action, value), set_window(zone, action, value), set_seat_heating(zone, action, value), "
    "set_defrost(area, on), set_air_conditioning(on), set_recirculation(on), set_volume(target, action, value), "
    "set_wipers(mode), navigate_to(place, avoid)."
)
_EXAMPLES = (
    ("It is cold", ToolCall("set_temperature", {"zone": "all", "action": "change", "value": 2.0})),
    ("我看不清后面", ToolCall("set_defrost", {"area": "rear", "on": True})),
    ("make the music louder", ToolCall("set_volume", {"target": "media", "action": "change", "value": 10.0})),
)
HEARD_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen call; `ttft_ms`: until the first token after the person's words."""

    call: ToolCall
    ttft_ms: float


class Chooser:
    """Owned by the understanding stage's thread. Its session always starts with the same static prefix."""

    def __init__(self, lm: CausalLM, session: LmSession) -> None:
        self._lm = lm
        self.session = session

    def warm_up(self, scheduler: LlmScheduler = UNSCHEDULED) -> None:
        """Compute the static prefix and run one choice."""
        self.choose(
            "the windows are foggy",
            [ToolCall("set_defrost", {"area": area, "on": True}) for area in ("front", "rear")],
            scheduler=scheduler,
            ahead=True,
        )
        self.session.keep_beginning()

    def choose(
        self,
        text: str,
        calls: Sequence[ToolCall],
        *,
        cancelled: Callable[[], bool] = never_cancelled,
        scheduler: LlmScheduler = UNSCHEDULED,
        ahead: bool = False,
        task: Task = "dialogue",
    ) -> Choice | None:
        """The call the model writes when only `calls` are allowed; None when it was cancelled before it was written."""
        start = time.perf_counter()
        tokenizer = self._lm.tokenizer
        by_text = {call_text(call): call for call in calls}
        most_tokens = max(len(written.encode()) for written in by_text)
        constraint = Grammar.compile(_any_of(list(by_text)), tokenizer).start()
        prompt = self._lm.chat.encode(_messages(text), tokenizer)
        steps = scheduler.on(self.session, ahead=ahead, task=task)
        fill(self.session, prompt, steps, cancelled=cancelled)
        ttft_ms = 0.0
        written: list[int] = []
        for token in self.session.generate(
            max_new_tokens=most_tokens, constraint=constraint, cancelled=cancelled, at_boundary=steps.at_token
        ):
            ttft_ms = ttft_ms or (time.perf_counter() - start) * 1e3
            written.append(token)
        chosen = by_text.get(tokenizer.decode(written).strip())
        if chosen is None and not cancelled():
            raise RuntimeError(f"the grammar let through what is no call: {tokenizer.decode(written)!r}")
        return None if chosen is None else Choice(chosen, ttft_ms)


def _messages(text: str) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": _SYSTEM}]
    for said, call in _EXAMPLES:
        messages += [{"role": "user", "content": said}, {"role": "assistant", "content": call_text(call)}]
    return [*messages, {"role": "user", "content": text[:HEARD_CHARACTERS]}]


def call_text(call: ToolCall) -> str:
    """The call as the model writes it."""
    return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)


def _any_of(texts: list[str]) -> str:
    return "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
