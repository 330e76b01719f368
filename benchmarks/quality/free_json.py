"""Commands without grammar and words: the language model sees the tools in the prompt and writes JSON freely."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from benchmarks.quality.scoring import Command
from hil.judge import Verdict, judge, prepare
from models.engines.llm.causal_lm import CausalLM
from pipeline.dialogue.manager import DialogueManager
from pipeline.dialogue.plan import Plan
from pipeline.frames import Language, ToolCall
from pipeline.vehicle.schemas import BY_ACTION, SIMPLE
from pipeline.vehicle.signals import EmbeddedTree

MOST_TOKENS = 80


class FreeJson:
    """Greedy, unconstrained; what does not parse as one call is no call."""

    def __init__(self, lm: CausalLM) -> None:
        self._lm = lm
        self._session = lm.open_session()
        self._system = (
            "You control a car. Answer what the driver says with one JSON object "
            '{"name": TOOL, "arguments": {...}} for one of these tools, or {"name": "chat", "arguments": {}}:\n'
            + _tools()
        )

    def calls(self, text: str) -> tuple[ToolCall, ...]:
        """The call the model wrote, if it is one."""
        messages = [{"role": "system", "content": self._system}, {"role": "user", "content": text or "..."}]
        tokenizer = self._lm.tokenizer
        self._session.set_tokens(tokenizer.encode(self._lm.chat.render(messages)))
        written = tokenizer.decode(list(self._session.generate(max_new_tokens=MOST_TOKENS)))
        start, end = written.find("{"), written.rfind("}")
        try:
            parsed: Any = json.loads(written[start : end + 1])
        except ValueError:
            return ()
        if (
            not isinstance(parsed, dict)
            or parsed.get("name") == "chat"
            or not isinstance(parsed.get("arguments"), dict)
        ):
            return ()
        return (ToolCall(str(parsed.get("name")), parsed["arguments"]),)


def acting_freely(
    free: FreeJson, dialogue: DialogueManager, tree: EmbeddedTree
) -> Callable[[Command, str, Language, float], Verdict]:
    """The same without grammar and words: whatever JSON the model writes is tried."""

    def act(command: Command, text: str, language: Language, logprob: float) -> Verdict:
        before = prepare(tree, command.expect)
        calls = free.calls(text)
        plan = Plan(text, language, calls, chat=not calls)
        results = dialogue.execute(plan, 2)
        reply = "(talk)" if plan.chat else dialogue.reply(plan, results, language)
        verdict = judge(command.expect, before, tree.snapshot(), plan, results, reply)
        dialogue.roll_back(2)
        return verdict

    return act


def _tools() -> str:
    lines = []
    for name, shapes in BY_ACTION.items():
        lines.append(f"{name}({_arguments(shapes['set'], action='set|change')})")
    lines += [f"{name}({_arguments(schema)})" for name, schema in SIMPLE.items()]
    return "\n".join(lines)


def _arguments(schema: dict[str, Any], **known: str) -> str:
    parts = []
    for key, rule in schema["properties"].items():
        choices = rule.get("enum", [])
        kind = known.get(key) or ("|".join(choices[:12]) if choices else rule["type"])
        parts.append(f"{key}: {kind}")
    return ", ".join(parts)
