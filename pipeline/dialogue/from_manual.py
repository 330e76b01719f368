"""Which turns the owner's manual is asked in."""

from __future__ import annotations

import re

from pipeline.dialogue.plan import Plan
from pipeline.frames import Language
from pipeline.manual.manual import ManualAnswer
from pipeline.nlu.interpreter import Parse
from pipeline.nlu.parser.decision import Decision

SURE_HOW_TO = 0.7
"""The parser's confidence from which a refusal of the rules ("how do I fold the mirrors") gives way to the manual."""
_ASKED: dict[Language, re.Pattern[str]] = {
    "en": re.compile(
        r"\?|\b(?:how|what|what's|whats|why|where|which|when|who|can|may|is|are|does|do|should)\b", re.IGNORECASE
    ),
    "zh": re.compile(
        r"[?？吗]|怎么|怎样|如何|什么|为什么|为啥|啥|哪|多少|多大|多远|多久|多长|多高|多重|几|教|能不能|可不可以|是不是|要不要|会不会"
    ),
}


def may_be_absent(text: str, language: Language) -> bool:
    """Whether "that is not in the manual" answers it: only where it has the form of a question. "Tell me of dolphins"
    and 讲个故事 are talk, whatever the parser reads in them."""
    return _ASKED[language].search(text) is not None


def asks_how(decision: Decision, parse: Parse) -> bool:
    """True where the model is sure that it is asked how something is done, and nothing else is to be done or told."""
    if decision.reason != "how_to":
        return False
    refused = all(clause.call.name == "refuse" for clause in parse.clauses)
    return decision.kind == "nothing" or (refused and (decision.confidence or 0.0) >= SURE_HOW_TO)


def only_refused(decision: Decision, parse: Parse) -> bool:
    """True where nothing but a refusal would be said: the car lacks it, must not do it, or nothing was understood."""
    if decision.kind == "nothing":
        return decision.reason in ("unsupported", "forbidden", "not_understood")
    refused = bool(parse.clauses) and all(clause.call.name == "refuse" for clause in parse.clauses)
    return decision.kind in ("rules", "ask") and (refused or parse.half_heard)


def plan_of_manual(text: str, language: Language, answer: ManualAnswer, decision: Decision) -> Plan:
    """The plan of a talk that the manual answers."""
    return Plan(text, language, chat=True, decided_by="manual", confidence=decision.confidence, from_manual=answer)
