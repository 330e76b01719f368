"""Rounds of calls: the model sees what was asked and what tools said, and calls, until what is known is enough.

What the model reads while it may call holds no text from outside: of results it sees numbers, truth values and the
numbers of places ("#1"). So a name or a message can order nothing, whatever stands in it. The words themselves are only
put into the reply, where nothing can be called.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from models.engines.base import never_cancelled
from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.grammar import JSON_STYLE, Grammar
from models.engines.llm.session import LmSession
from pipeline.agent.car_tools import places_in
from pipeline.agent.question import InfoQuestion
from pipeline.agent.runner import ToolRunner
from pipeline.agent.tools import AgentCall, ToolOutcome
from pipeline.dialogue.llm_steps import UNSCHEDULED, LlmScheduler, fill
from pipeline.vehicle.places import Place

ENOUGH = "answer"
"""What the model writes instead of a call."""
CALL_TOKENS = 160
HEARD_CHARACTERS = 300
_SYSTEM = (
    "You look up what a person in a car asks. Each line of your answer is one call of a tool as JSON; calls that do "
    f"not need each other stand together. When nothing more is needed, write: {ENOUGH}\nTools:\n"
)
_EXAMPLES: tuple[tuple[str, str], ...] = (
    ("what museums are there around here", '{"name": "find_places", "arguments": {"kind": "museum", "near": "here"}}'),
    (
        "is there a pharmacy near the museum",
        '{"name": "find_places", "arguments": {"kind": "pharmacy", "near": "museum"}}',
    ),
    (
        "how far is the zoo and how much battery is left",
        '{"name": "distance", "arguments": {"place": "zoo"}}\n{"name": "charge", "arguments": {}}',
    ),
    ("电量够不够开到海边", '{"name": "reach", "arguments": {"place": "beach"}}'),
    ("I like parks in the rain", ENOUGH),
    ("附近有哪些图书馆", '{"name": "find_places", "arguments": {"kind": "library", "near": "here"}}'),
)
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,23}")
_TEXT = "(text)"


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """What the loop found. outcomes: of every call, in order. acts: calls that change something: not made yet.

    consumed: outcomes whose places another call took up: they need no sentence of their own. cut: cancelled, nothing
    of it counts. places: by number, "#1" first, those of earlier turns included.
    """

    outcomes: tuple[ToolOutcome, ...] = ()
    acts: tuple[AgentCall, ...] = ()
    consumed: frozenset[int] = frozenset()
    places: tuple[Place, ...] = ()
    cut: bool = False
    rounds: int = 0
    ttft_ms: float = 0.0
    ms: float = 0.0


@dataclass(slots=True)
class _Talk:
    """One turn's rounds."""

    question: InfoQuestion
    places: list[Place]
    outcomes: list[ToolOutcome] = field(default_factory=list)
    acts: list[AgentCall] = field(default_factory=list)
    consumed: set[int] = field(default_factory=set)
    source_of: dict[str, int] = field(default_factory=dict)
    """Number of a place -> the outcome that found it."""
    messages: list[dict[str, str]] = field(default_factory=list)
    made: set[str] = field(default_factory=set)


class AgentLoop:
    """Owned by the understanding stage's thread. Its session always starts with the same static prefix.

    key_of: the key under which a place can be named in a call.
    """

    def __init__(
        self,
        lm: CausalLM,
        session: LmSession,
        runner: ToolRunner,
        key_of: Callable[[Place], str],
        *,
        max_rounds: int = 4,
        max_parallel: int = 4,
    ) -> None:
        self.runner = runner
        self._lm = lm
        self.session = session
        self._key_of = key_of
        self._max_rounds = max_rounds
        self._max_parallel = max_parallel

    def warm_up(self, scheduler: LlmScheduler = UNSCHEDULED) -> None:
        """Compute the static prefix, and keep it where that needs no copy."""
        steps = scheduler.on(self.session, ahead=True)
        fill(self.session, self._encoded([], add_generation_prompt=False), steps)
        self.session.keep_beginning()

    def answer(
        self,
        question: InfoQuestion,
        known: Sequence[Place] = (),
        *,
        cancelled: Callable[[], bool] = never_cancelled,
        scheduler: LlmScheduler = UNSCHEDULED,
    ) -> AgentAnswer:
        """Ask the tools. known: places of earlier turns, "#1" first. Changes nothing in the car."""
        start_s, ttft_ms, rounds = time.perf_counter(), 0.0, 0
        talk = _Talk(question, list(known))
        talk.messages.append({"role": "user", "content": question.text[:HEARD_CHARACTERS] + _seen(known)})
        while rounds < self._max_rounds:
            offered = self._offered(talk)
            if not offered:
                break
            rounds += 1
            calls = self._calls(talk, offered, cancelled, scheduler)
            ttft_ms = ttft_ms or (time.perf_counter() - start_s) * 1e3
            if calls is None or cancelled() or scheduler.stopped:
                return AgentAnswer(cut=True, rounds=rounds)
            fresh = [call for call in _about_each(calls, question) if call.key not in talk.made]
            if not fresh or not self._run(talk, fresh, cancelled, scheduler):
                if cancelled():
                    return AgentAnswer(cut=True, rounds=rounds)
                break
        return AgentAnswer(
            tuple(talk.outcomes),
            tuple(talk.acts),
            frozenset(talk.consumed),
            tuple(talk.places),
            False,
            rounds,
            ttft_ms,
            (time.perf_counter() - start_s) * 1e3,
        )

    def _run(
        self, talk: _Talk, calls: Sequence[AgentCall], cancelled: Callable[[], bool], scheduler: LlmScheduler
    ) -> bool:
        """Run one round's calls and write their results down for the next; False when there is to be none."""
        talk.made.update(call.key for call in calls)
        tools = self.runner.tools
        talk.acts += [call for call in calls if tools[call.name].acts]
        reads = [call for call in calls if not tools[call.name].acts]
        if not reads:
            return False
        resolved = [self._resolved(talk, call) for call in reads]
        outcomes = self.runner.run(resolved, cancelled=cancelled, on_wait=scheduler.pause)
        if outcomes is None:
            return False
        seen = []
        for call, outcome in zip(reads, outcomes, strict=True):
            talk.outcomes.append(outcome)
            seen.append({call.name: self._result(talk, outcome)})
        talk.messages.append({"role": "assistant", "content": "\n".join(call_text(call) for call in calls)})
        talk.messages.append({"role": "user", "content": "Results: " + json.dumps(seen, ensure_ascii=False)})
        return True

    def _result(self, talk: _Talk, outcome: ToolOutcome) -> Any:
        """What the model sees of a result."""
        if outcome.status != "done":
            return {"error": outcome.status}
        if not outcome.result.get("places"):
            return without_texts({key: value for key, value in outcome.result.items() if key != "place"})
        listed = []
        for place, shown in zip(places_in(outcome.result), outcome.result["places"], strict=True):
            talk.places.append(place)
            number = f"#{len(talk.places)}"
            talk.source_of[number] = len(talk.outcomes) - 1
            listed.append({"place": number, "km": shown.get("km")})
        return {"places": listed}

    def _resolved(self, talk: _Talk, call: AgentCall) -> AgentCall:
        """The call with the keys of places for their numbers."""
        arguments = dict(call.arguments)
        for name, value in call.arguments.items():
            if isinstance(value, str) and re.fullmatch(r"#\d+", value):
                arguments[name] = self._key_of(talk.places[int(value[1:]) - 1])
                if value in talk.source_of:
                    talk.consumed.add(talk.source_of[value])
        return AgentCall(call.name, arguments)

    def _calls(
        self,
        talk: _Talk,
        offered: Sequence[Mapping[str, Any]],
        cancelled: Callable[[], bool],
        scheduler: LlmScheduler,
    ) -> Sequence[AgentCall] | None:
        """What the model calls next; empty when it knows enough, None when it was cut: half a call is none."""
        constraint = Grammar.compile(self._grammar(offered), self._lm.tokenizer).start()
        steps = scheduler.on(self.session)
        fill(self.session, self._encoded(talk.messages), steps, cancelled=cancelled)
        written: list[int] = []
        for token in self.session.generate(
            max_new_tokens=CALL_TOKENS, constraint=constraint, cancelled=cancelled, at_boundary=steps.at_token
        ):
            written.append(token)
        if cancelled() or scheduler.stopped:
            return None
        return calls_in(self._lm.tokenizer.decode(written))

    def _offered(self, talk: _Talk) -> list[Mapping[str, Any]]:
        """Schemas of the calls that this turn still allows: with places found meanwhile, without calls made already."""
        found = [f"#{number}" for number in range(1, len(talk.places) + 1)]
        schemas: list[Mapping[str, Any]] = []
        for name, schema in talk.question.offered.items():
            properties = dict(_with_places(schema, found) if name == "reach" else schema)["properties"]
            if all(set(part) == {"type", "enum"} for part in properties.values()):
                choices = product(*(part["enum"] for part in properties.values()))
                calls = [dict(zip(properties, values, strict=True)) for values in choices]
                left = [one for one in calls if AgentCall(name, one).key not in talk.made]
                schemas += [_call_schema(name, {"const": one}) for one in left]
            elif not any(call.name == name for call in talk.acts):
                schemas.append(_call_schema(name, schema))
        return schemas

    def _grammar(self, offered: Sequence[Mapping[str, Any]]) -> str:
        json_calls = json.dumps({"x-guidance": JSON_STYLE, "anyOf": offered}, ensure_ascii=False)
        return (
            f'start: "{ENOUGH}" | call ("\\n" call){{0,{self._max_parallel - 1}}}\n'
            f"call: json\njson: %json {json_calls}\n"
        )

    def _encoded(self, messages: Iterable[Mapping[str, str]], *, add_generation_prompt: bool = True) -> list[int]:
        made: list[Mapping[str, str]] = [{"role": "system", "content": _SYSTEM + self._listed()}]
        for said, written in _EXAMPLES:
            made += [{"role": "user", "content": said}, {"role": "assistant", "content": written}]
        made += messages
        lm = self._lm
        if lm.config.chat_template:
            return lm.chat.encode(made, lm.tokenizer, add_generation_prompt=add_generation_prompt)
        names = {"system": "", "user": "Person: ", "assistant": "Calls: "}  # a base model: a plain transcript
        lines = "\n\n".join(names[message["role"]] + message["content"] for message in made)
        return lm.tokenizer.encode_plain(lines + ("\n\nCalls: " if add_generation_prompt else ""), add_special=True)

    def _listed(self) -> str:
        lines = []
        for tool in self.runner.tools:
            names = ", ".join(tool.parameters.get("properties", {}))
            lines.append(f"{tool.name}({names}): {tool.description}")
        return "\n".join(lines)


def calls_in(text: str) -> list[AgentCall]:
    """The calls of a whole answer; none when a line is no call: what was cut off is dropped with all the others."""
    if text.strip() == ENOUGH:
        return []
    calls = []
    for line in text.strip().splitlines():
        try:
            call = json.loads(line)
            calls.append(AgentCall(call["name"], call["arguments"]))
        except (ValueError, KeyError, TypeError):
            return []
    return calls


def call_text(call: AgentCall) -> str:
    """The call as the model writes it."""
    return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)


def without_texts(value: Any) -> Any:
    """A result as the model may see it while it can call: every text is only said to be one."""
    if isinstance(value, str):
        return _TEXT
    if isinstance(value, Mapping):
        return {
            key if _KEY.fullmatch(str(key)) else _TEXT: without_texts(part) for key, part in list(value.items())[:24]
        }
    if isinstance(value, list | tuple):
        return [without_texts(part) for part in value[:8]]
    return value


def _call_schema(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _about_each(calls: Sequence[AgentCall], question: InfoQuestion) -> list[AgentCall]:
    """The calls, and for places that are compared the same call about each."""
    made: list[AgentCall] = []
    for call in calls:
        if call.arguments.get("place") in question.compared:
            made += [AgentCall(call.name, {**call.arguments, "place": place}) for place in question.compared]
        else:
            made.append(call)
    return list({call.key: call for call in made}.values())


def _with_places(schema: Mapping[str, Any], found: Sequence[str]) -> dict[str, Any]:
    """The schema with the places found since, where a place can stand."""
    properties = dict(schema.get("properties", {}))
    for name in ("place", "near"):
        if name in properties and "enum" in properties[name]:
            allowed = list(dict.fromkeys([*properties[name]["enum"], *found]))
            properties[name] = {**properties[name], "enum": allowed}
    return {**schema, "properties": properties}


def _seen(known: Sequence[Place]) -> str:
    return f"\n(named before: #1 to #{len(known)})" if known else ""
