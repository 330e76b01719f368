"""The agent of one dialogue: its tools, its loop, and what it keeps in mind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.session import LmSession
from pipeline.agent.car_tools import car_tools, places_in
from pipeline.agent.loop import AgentAnswer, AgentLoop
from pipeline.agent.memory import Offer, TaskMemory
from pipeline.agent.question import InfoQuestion, lists_places, question_of
from pipeline.agent.reply import Phrase, say_outcome, say_outcomes
from pipeline.agent.runner import ToolRunner
from pipeline.agent.setup import AgentSetup
from pipeline.agent.tools import AgentCall, ToolOutcome, Toolset
from pipeline.dialogue.llm_steps import LlmScheduler
from pipeline.frames import Language, ToolCall
from pipeline.nlu.interpreter import Clause, Parse
from pipeline.nlu.lexicon import Lexicon
from pipeline.vehicle.tools import Toolbox

_TRIPS = frozenset(("navigate_to", "ask_distance"))
_CHARGE_ITEMS = frozenset(("battery", "range"))
_TOLD_BY: Mapping[str, str] = {"ask_vehicle": "vehicle"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A question for the loop. kept: clauses of the same turn that the parse decides."""

    question: InfoQuestion
    kept: tuple[Clause, ...]


@dataclass(slots=True)
class Agent:
    """Owned by the understanding stage's thread. `close` may be called from any."""

    toolbox: Toolbox
    lexicon: Lexicon
    runner: ToolRunner
    loop: AgentLoop
    own: frozenset[str]
    """Names of the car's own tools."""
    memory: TaskMemory

    @classmethod
    def create(
        cls,
        lm: CausalLM,
        session: LmSession,
        toolbox: Toolbox,
        lexicon: Lexicon,
        memory: TaskMemory,
        setup: AgentSetup,
    ) -> Agent:
        """Raises InputError for tools that cannot be: two of one name, a time to live for one that acts."""
        own = car_tools(toolbox)
        tools = Toolset([*own, *setup.tools])
        runner = ToolRunner(tools, max_parallel=setup.max_parallel, timeout_s=setup.tool_timeout_s, ttl_s=setup.ttl_s)
        loop = AgentLoop(
            lm, session, runner, toolbox.show, max_rounds=setup.max_rounds, max_parallel=setup.max_parallel
        )
        return cls(toolbox, lexicon, runner, loop, frozenset(tool.name for tool in own), memory)

    def wanted(self, text: str, language: Language, parse: Parse) -> Wanted | None:
        """What of the turn the loop is to answer; None where the parse decides all of it, or no tool could help."""
        known = self.memory.latest()
        refs = tuple(f"#{number}" for number in range(1, len(known.places) + 1)) if known is not None else ()
        question = question_of(text, language, self.lexicon, self.toolbox.places, self.runner.tools, refs)
        if question is None:
            return None
        if lists_places(question):
            kept = tuple(clause for clause in parse.clauses if clause.call.name not in _TRIPS)
            told = {_TOLD_BY.get(clause.call.name) for clause in kept}
            left = {name: schema for name, schema in question.offered.items() if name not in told}
            return Wanted(replace(question, offered=left), kept)
        calls = [clause.call for clause in parse.clauses]
        if not calls:
            return None if parse.half_heard else Wanted(question, ())
        if "reach" in question.offered and all(map(_about_charge, calls)):
            return Wanted(question, ())
        others = any(name not in self.own and self.runner.tools[name].words for name in question.offered)
        return Wanted(question, ()) if others and all(call.name == "refuse" for call in calls) else None

    def answer(self, question: InfoQuestion, *, cancelled: Callable[[], bool], scheduler: LlmScheduler) -> AgentAnswer:
        """Ask the tools; nothing is changed."""
        known = self.memory.latest()
        return self.loop.answer(
            question, () if known is None else known.places, cancelled=cancelled, scheduler=scheduler
        )

    def act(self, calls: Sequence[AgentCall]) -> list[ToolOutcome]:
        """Call the integrator's tools that act, one after another: the turn is over, and asked for them."""
        return [outcome for call in calls for outcome in self.runner.run([call]) or ()]

    def said(self, answer: AgentAnswer, question: str, language: Language, phrase: Phrase) -> str:
        """The reply of what was read."""
        return say_outcomes(answer, self.runner.tools, question, language, phrase)

    def said_of(self, outcomes: Sequence[ToolOutcome], language: Language) -> str:
        """The reply of what was done."""
        sentences = [say_outcome(outcome, self.runner.tools, "", language) for outcome in outcomes]
        return ("" if language == "zh" else " ").join(sentences)

    def found(self, answer: AgentAnswer, turn_id: int) -> Offer | None:
        """What the next turns may refer to: the places found, else those that were compared."""
        done = [outcome for outcome in answer.outcomes if outcome.status == "done"]
        lists = [places_in(outcome.result) for outcome in done if outcome.result.get("places")]
        places = lists[-1] if lists else [place for outcome in done for place in places_in(outcome.result)]
        unique = tuple({(place.id, place.latitude, place.longitude): place for place in places}.values())
        return Offer(turn_id, "found", unique, ToolCall("navigate_to", {"place": "", "avoid": []})) if unique else None

    def close(self) -> None:
        """End the threads of the tools."""
        self.runner.close()


def _about_charge(call: ToolCall) -> bool:
    return call.name == "ask_distance" or (call.name == "ask_vehicle" and call.arguments["item"] in _CHARGE_ITEMS)
