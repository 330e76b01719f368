"""The spoken reply to what tools said: their own sentences, failures by name, and which place is meant."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline import json_codec
from pipeline.agent.loop import AgentAnswer
from pipeline.agent.tools import ToolOutcome, Toolset
from pipeline.frames import Language
from pipeline.nlg.actions import spoken_name
from pipeline.vehicle.places import Place

Phrase = Callable[[str, str, Language], str]
"""The model's words for (the question, what a tool said as JSON); empty when it has none that may be spoken."""
_FAILED: Mapping[str, Mapping[Language, str]] = {
    "failed": {"en": "{name} did not work.", "zh": "{name}没有成功。"},
    "timed_out": {"en": "{name} did not answer in time.", "zh": "{name}没有及时回应。"},
    "busy": {"en": "{name} is still busy with an earlier question.", "zh": "{name}还在处理之前的请求。"},
}
_UNCONFIRMED: Mapping[Language, str] = {
    "en": "{name} did not confirm it, so it may not have been done.",
    "zh": "{name}没有确认，可能没有完成。",
}
_CONFIRMED: Mapping[Language, str] = {"en": "{name} confirmed it.", "zh": "{name}已确认。"}
_MOST_SPOKEN = 6
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_EN_NUMBERS = re.compile(
    r"\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|forty|fifty|hundred|thousand|half)\b",
    re.IGNORECASE,
)
_ZH_NUMBERS = re.compile(r"[二两三四五六七八九十百千万半]")


def say_outcomes(
    answer: AgentAnswer, tools: Toolset, question: str, language: Language, phrase: Phrase | None = None
) -> str:
    """One sentence per outcome that no other call took up; what failed is said by name."""
    said = [
        sentence
        for number, outcome in enumerate(answer.outcomes)
        if outcome.status != "done" or number not in answer.consumed
        for sentence in (say_outcome(outcome, tools, question, language, phrase),)
    ]
    return ("" if language == "zh" else " ").join(dict.fromkeys(said))


def say_outcome(
    outcome: ToolOutcome, tools: Toolset, question: str, language: Language, phrase: Phrase | None = None
) -> str:
    """What came of one call. A call that acts is only said to be done when its tool confirmed it."""
    if outcome.call.name not in tools:
        name = spoken_name(outcome.call.name)
        return _sentence(_FAILED["failed"][language].format(name=name))
    tool = tools[outcome.call.name]
    name = tool.names[language]
    if outcome.status != "done":
        table = _UNCONFIRMED if tool.acts and outcome.status == "failed" else _FAILED[outcome.status]
        return _sentence(table[language].format(name=name))
    if tool.say is not None:
        return tool.say(outcome.call.arguments, outcome.result, language)
    if tool.acts:
        return _sentence(_CONFIRMED[language].format(name=name))
    data = json_codec.dumps_text(outcome.result)
    spoken = "" if phrase is None else phrase(question, data, language)
    return spoken if spoken and keeps_to(spoken, f"{data} {question}") else read_out(name, outcome.result, language)


def keeps_to(text: str, data: str) -> bool:
    """True when every number in `text` stands in `data`; numbers in words are not trusted at all."""
    if _EN_NUMBERS.search(text) or _ZH_NUMBERS.search(text):
        return False
    known = {float(number) for number in _NUMBER.findall(data)}
    return all(float(number) in known for number in _NUMBER.findall(text))


def read_out(name: str, result: Mapping[str, Any], language: Language) -> str:
    """The values of a result as they are, each with its name: nothing is added."""
    parts = [f"{spoken_name(key.replace('_', ' '))} {value}" for key, value in _leaves(result)][:_MOST_SPOKEN]
    if not parts:
        return f"{name}没有结果。" if language == "zh" else _sentence(f"{name} has no result.")
    listed = ("，" if language == "zh" else ", ").join(parts)
    return f"{name}：{listed}。" if language == "zh" else _sentence(f"{name}: {listed}.")


def which_one(places: Sequence[Place], language: Language) -> str:
    """Asks which of several places is meant."""
    names = [spoken_name(place.name(language)) for place in places]
    if language == "zh":
        return f"您要去哪一个：{'、'.join(names[:-1])}还是{names[-1]}？" if len(names) > 1 else f"是{names[0]}吗？"
    return f"Which one: {', '.join(names[:-1])} or {names[-1]}?" if len(names) > 1 else f"Do you mean {names[0]}?"


def _leaves(value: Any, key: str = "") -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        return [leaf for name, part in value.items() for leaf in _leaves(part, str(name))]
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in _leaves(part, key)]
    text = {True: "yes", False: "no", None: ""}.get(value, value) if isinstance(value, bool | None) else value
    shown = spoken_name(str(text)) if isinstance(text, str) else str(text)
    return [(key, shown)] if shown else []


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
