"""The parser's model beside the rules, as a turn's plan sees them: what it decides, and what is said where nothing is
done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from models.engines.parser import ParserEngine
from pipeline.dialogue.plan import Plan, task_of_calls
from pipeline.frames import Language, ToolCall
from pipeline.nlu.evidence import Evidence, evidence_of
from pipeline.nlu.intents.questions import place_key
from pipeline.nlu.interpreter import Interpreter, Parse
from pipeline.nlu.lexicon import Lexicon, build_lexicon
from pipeline.nlu.parser.decision import Decision, Judge, Thresholds
from pipeline.nlu.parser.parts import parts_of
from pipeline.nlu.parser.reader import ParserReader, Program, ProgramCall
from pipeline.nlu.parser.several import Part, may_be_several, of_parts
from pipeline.vehicle.places import Place, Places

REFUSED: Final = {
    "delayed": "only_now",
    "condition": "no_condition",
    "taken_back": "declined",
    "forbidden": "forbidden",
    "unsupported": "unsupported",
    "not_understood": "not_understood",
    "statement": "nothing_done",
    "hypothetical": "nothing_done",
}
"""Why a sentence is no command now -> what the refusal says. Talk, and how something is done, are answered."""


@dataclass(slots=True)
class Understanding:
    """Owned by the dialogue's thread."""

    reader: ParserReader
    place_of: Callable[[str, Language], str]
    """Words that name a place -> the argument of a call: a known place or kind, else the words themselves."""
    rules: Interpreter
    """Reads the parts of a sentence."""
    judge: Judge = field(default_factory=Judge)
    _latest: tuple[str, Language, ToolCall | None, Decision] | None = None
    """The last sentence and its decision: whether a turn is complete is asked right before what it means."""

    @classmethod
    def create(
        cls,
        engine: ParserEngine,
        lexicon: Lexicon,
        places: Places,
        resolve: Callable[[str], Place | None],
        thresholds: Thresholds | None = None,
    ) -> Understanding:
        """lexicon: the rules' own, with sound. resolve: the place that a call names, by key or name; None for none."""

        def same_place(said: str, key: str) -> bool:
            if said.casefold() == key.casefold():
                return True
            found, wanted = resolve(said), resolve(key)
            return found is not None and wanted is not None and found.id == wanted.id

        def place_of(said: str, language: Language) -> str:
            evidence = evidence_of(said, lexicon, language)
            named = [match for match in evidence.matches if match.has("place") or match.has("kind")]
            return place_key(evidence, named[-1]) if named else said.strip()

        spelt = build_lexicon(places, by_sound=False)
        reader = ParserReader(engine, spelt)
        judge = Judge(thresholds or Thresholds(), same_place, frozenset(reader.space.tools))
        return cls(reader, place_of, Interpreter(lexicon), judge)

    def decide(self, text: str, language: Language, parse: Parse, last_call: ToolCall | None) -> Decision:
        """What the turn does; `parse` is the rules' of the same. What the model does not read is left to them."""
        if self._latest is None or self._latest[:3] != (text, language, last_call):
            self._latest = (text, language, last_call, self._decided(text, language, parse, last_call))
        return self._latest[3]

    def _decided(self, text: str, language: Language, parse: Parse, last_call: ToolCall | None) -> Decision:
        program = self.read(text, language, last_call)
        if program is None:
            return Decision("rules")
        decision = self.judge.decide(program, parse, last_call)
        if may_be_several(program, parse, decision):
            kept = [read.words for read in program.calls if read.words is not None]
            kept += _named_whole(program.what, parse.whole)
            parts = parts_of(parse.whole, self.rules.lexicon, kept)
            if len(parts) > 1:
                return of_parts(decision, parse, program, self._of_each(parts, language, last_call))
        return decision

    def _of_each(self, parts: Sequence[str], language: Language, last_call: ToolCall | None) -> list[Part]:
        """What would be done if the parts were sentences of their own."""
        done: list[Part] = []
        for text in parts:
            parse, program = self.rules.parse(text, language, last_call), self.read(text, language, last_call)
            decision = Decision("rules") if program is None else self.judge.decide(program, parse, last_call)
            done.append(Part.of(decision, parse))
            last_call = None
        return done

    def read(self, text: str, language: Language, last_call: ToolCall | None) -> Program | None:
        """The model's program, its places as calls name them; None for a text that it does not read."""
        program = self.reader.read(text, last_call)
        if program is None:
            return None
        return replace(program, calls=tuple(self._settled(read, language) for read in program.calls))

    def _settled(self, read: ProgramCall, language: Language) -> ProgramCall:
        place = read.call.arguments.get("place")
        if not isinstance(place, str):
            return read
        arguments = {**read.call.arguments, "place": self.place_of(place, language)}
        return replace(read, call=ToolCall(read.call.name, arguments))


def _named_whole(what: str, whole: Evidence) -> list[tuple[int, int]]:
    """The characters that name what the car lacks ("the call volume"), unless another wish begins among them."""
    begin = whole.text.find(what) if what else -1
    end = begin + len(what)
    verbs = [  # 到 alone says to what, and begins nothing
        whole.tokens[match.start].start for match in whole.of("verb") if whole.words[match.start : match.end] != ("到",)
    ]
    return [(begin, end)] if begin >= 0 and not any(begin < verb < end for verb in verbs) else []


def plan_of_decision(decision: Decision, text: str, language: Language, *, explained: bool) -> Plan | None:
    """The plan of a decision that needs no rules; None where the rules go on. explained: the manual has an answer."""
    sure = decision.confidence
    if decision.kind == "ask":
        return Plan(text, language, (_refusal("unclear", text),), decided_by="model", confidence=sure)
    if decision.kind == "program":
        task = task_of_calls(decision.calls)
        calls = (*decision.calls, *([_refusal("unsupported", decision.what)] if decision.reason else []))
        return Plan(text, language, calls, decided_by="model", confidence=sure, task=task)
    if decision.kind != "nothing":
        return None
    refused = REFUSED.get(decision.reason)
    if refused is None:
        return Plan(text, language, chat=True, decided_by="manual" if explained else "model", confidence=sure)
    what = decision.what if refused == "unsupported" else text
    return Plan(text, language, (_refusal(refused, what),), decided_by="model", confidence=sure)


def with_decision(plan: Plan, decision: Decision) -> Plan:
    """The rules' plan, told who decided; what the car lacks of the wishes is refused by name after what it does."""
    if plan.cut or decision.kind != "agreed":
        return replace(plan, confidence=decision.confidence)
    calls = plan.calls
    if decision.reason:
        calls = (*calls, _refusal("unsupported", decision.what))
    return replace(plan, calls=calls, decided_by="model", confidence=decision.confidence)


def _refusal(reason: str, what: str) -> ToolCall:
    return ToolCall("refuse", {"reason": reason, "what": what.strip()[:80]})
