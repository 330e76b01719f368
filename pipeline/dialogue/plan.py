"""What a transcript means: the calls to be executed, or talk, or a reply that is known already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.agent.memory import Offer
from pipeline.agent.reply import which_one
from pipeline.agent.selection import Selection
from pipeline.agent.tools import AgentCall, ToolOutcome
from pipeline.frames import Language, Status, Task, ToolCall, ToolResult
from pipeline.manual.manual import ManualAnswer
from pipeline.nlg.questions import ask
from pipeline.nlu.asking import Answer, Question
from pipeline.nlu.interpreter import Clause
from pipeline.vehicle.places import Place

DecidedBy = Literal["rule", "manual", "model", "head"]


NAVIGATION_CALLS = frozenset(("navigate_to", "set_route_options", "cancel_navigation", "ask_distance"))


def task_of(clauses: Sequence[Clause]) -> Task:
    """What a transcript is for: the most urgent task among its commands, dialogue where there is none."""
    return task_of_calls([candidate.call for clause in clauses for candidate in clause.candidates])


def task_of_calls(calls: Sequence[ToolCall]) -> Task:
    """The same, of calls."""
    names = {call.name for call in calls} - {"refuse"}
    if names & NAVIGATION_CALLS:
        return "navigation"
    return "vehicle" if names else "dialogue"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a transcript means. Either `calls` are to be executed in order, or `chat` is True, or neither (no words).

    `decided_by`: "rule" when the rules left one choice, "manual" when the owner's manual answers, "model" when the
    parser's model read it (also where the rules read the same) or the language model chose or answers. `confidence`:
    of the parser's model, calibrated; None where it was not asked. `cut`: the model's choice was cancelled, so
    nothing is to be done. Times in ms; `llm_ttft_ms` is 0 when no model step was needed.
    `said`: the reply of what was looked up already; `read`: what tools said. `acts`: an integrator's tools to be called
    once the turn is over. `offer`: what the next turns may refer to. `asks`: what the next turn's answer completes;
    `said` then is the question. `from_manual`: what it says in a talk.
    """

    text: str
    language: Language
    calls: tuple[ToolCall, ...] = ()
    chat: bool = False
    decided_by: DecidedBy = "rule"
    llm_ttft_ms: float = 0.0
    llm_ms: float = 0.0
    cut: bool = False
    task: Task = "dialogue"
    said: str = ""
    read: tuple[ToolOutcome, ...] = ()
    acts: tuple[AgentCall, ...] = ()
    offer: Offer | None = None
    confidence: float | None = None
    asks: Question | None = None
    from_manual: ManualAnswer | None = None

    @property
    def empty(self) -> bool:
        """True when nothing was said."""
        return not (self.calls or self.chat or self.said or self.acts)

    @property
    def not_understood(self) -> bool:
        """True where nothing comes of the words but that they were not understood."""
        reasons = [call.arguments["reason"] for call in self.calls if call.name == "refuse"]
        return bool(reasons) and len(reasons) == len(self.calls) and set(reasons) <= {"not_understood", "unclear"}


def plan_of_choice(chosen: Selection, text: str, language: Language, key_of: Callable[[Place], str]) -> Plan:
    """The trip to a place that was chosen, its distance, or the question which one. key_of: see Toolbox.show."""
    if chosen.verb == "declined":
        return Plan(text, language, (ToolCall("refuse", {"reason": "declined", "what": text.strip()[:80]}),))
    if chosen.place is None:
        offer = Offer(0, "asked", chosen.offer.places, chosen.offer.call)
        return Plan(text, language, said=which_one(offer.places, language), offer=offer)
    key = key_of(chosen.place)
    call = ToolCall(chosen.offer.call.name, {**chosen.offer.call.arguments, "place": key})
    if chosen.verb == "distance":
        call = ToolCall("ask_distance", {"place": key})
    return Plan(text, language, (call,), task="navigation")


def plan_of_question(question: Question, text: str, language: Language, confidence: float | None = None) -> Plan:
    """Nothing is done; the person is asked."""
    decided_by: DecidedBy = "model" if question.slot == "confirm" else "rule"
    said, task = ask(question, language), task_of_calls(question.calls)
    return Plan(text, language, decided_by=decided_by, said=said, confidence=confidence, asks=question, task=task)


def plan_of_answer(answer: Answer, text: str, language: Language) -> Plan:
    """The call that waited, or that it is left alone."""
    if not answer.calls:
        return Plan(text, language, (ToolCall("refuse", {"reason": "declined", "what": text.strip()[:80]}),))
    return Plan(text, language, answer.calls, task=task_of_calls(answer.calls))


def asked_about(results: Sequence[ToolResult]) -> Offer | None:
    """The offer of "did you mean ...?": a place that nobody knew, with others like it."""
    for result in results:
        if result.reason == "unknown_place" and result.detail.get("similar_places"):
            return Offer(0, "asked", tuple(result.detail["similar_places"]), result.call)
    return None


def as_result(outcome: ToolOutcome) -> ToolResult:
    """What a tool of the agent said, for the log of turns."""
    call = ToolCall(outcome.call.name, dict(outcome.call.arguments))
    status: Status = "done" if outcome.status == "done" else "failed"
    return ToolResult(call, status, None, None, None if status == "done" else outcome.status)
