"""Lets the language model choose one of a few calls, under a grammar that allows exactly these."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from models.engines.causal_lm import CausalLM
from models.engines.lm_session import LmSession
from models.grammar import Grammar
from pipeline.frames import ToolCall
from pipeline.parse_rules import Candidate
from pipeline.vehicle.lexicon import phrase_table  # noqa: F401  (kept close: the words decide first)

_SYSTEM = (
    "You turn what a person in a car says into one JSON tool call. Tools: set_temperature(zone, action, value), "
    "set_fan(zone, action, value), set_window(zone, action, value), set_seat_heating(zone, action, value), set_defrost(area, on), "
    "set_air_conditioning(on), set_recirculation(on), set_volume(target, action, value), set_wipers(mode), navigate_to(place, avoid)."
)
_EXAMPLES = (
    ("It is cold", '{"name": "set_temperature", "arguments": {"zone": "all", "action": "change", "value": 2.0}}'),
    ("我看不清后面", '{"name": "set_defrost", "arguments": {"area": "rear", "on": true}}'),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen call; `ttft_ms`: until the model's first decision."""

    call: ToolCall
    ttft_ms: float


class Chooser:
    """Owned by the understanding stage's thread. Its session always starts with the same static prefix."""

    def __init__(self, lm: CausalLM, session: LmSession) -> None:
        self._lm = lm
        self._session = session

    def warm_up(self) -> None:
        """Compute the static prefix and run one choice."""
        first = ToolCall("set_defrost", {"area": "front", "on": True})
        second = ToolCall("set_defrost", {"area": "rear", "on": True})
        self.choose("the windows are foggy", (Candidate(first), Candidate(second)))

    def choose(
        self, text: str, candidates: Sequence[Candidate], *, cancelled: Callable[[], bool] = lambda: False
    ) -> Choice:
        """The call the model finds likeliest, weighed with the words' own leaning. Falls to the first when cancelled."""
        start = time.perf_counter()
        tokenizer = self._lm.tokenizer
        self._session.set_tokens(tokenizer.encode(self._prompt(text)), cancelled=cancelled)
        if cancelled():
            return Choice(candidates[0].call, 0.0)
        texts = [call_text(candidate.call) for candidate in candidates]
        self._check(texts)
        scores = self._session.score([tokenizer.encode(line) for line in texts])
        ttft_ms = (time.perf_counter() - start) * 1e3
        totals = [score + candidate.prior for score, candidate in zip(scores, candidates, strict=True)]
        return Choice(candidates[max(range(len(totals)), key=totals.__getitem__)].call, ttft_ms)

    def _check(self, texts: Sequence[str]) -> None:
        Grammar.compile(
            "start: " + " | ".join(json.dumps(line, ensure_ascii=False) for line in texts), self._lm.tokenizer
        )

    def _prompt(self, text: str) -> str:
        messages = [{"role": "system", "content": _SYSTEM}]
        for said, call in _EXAMPLES:
            messages += [{"role": "user", "content": said}, {"role": "assistant", "content": call}]
        messages.append({"role": "user", "content": text[:200]})
        return self._lm.chat.render(messages)


def call_text(call: ToolCall) -> str:
    """The call as the model writes it."""
    return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
