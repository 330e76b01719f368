"""Model and rules together: what a turn does where they agree, and where they do not.

The model reads the whole sentence and knows scope (statements, conditions, what is taken back); the rules know numbers,
ranges and sounds, and what must never be done. Where both read the same, it is done. Where the model is sure that the
sentence is no command now, nothing is done whatever the rules found. Where they read different commands, the model's is
done only if it is very sure and every guard passes; else the person is asked, or the rules decide where the model is
not sure of anything. The thresholds were chosen on the dev set (docs/results/parser-cpu.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pipeline.frames import ToolCall
from pipeline.nlu.evidence import Evidence
from pipeline.nlu.interpreter import Parse
from pipeline.nlu.parser.compare import (
    amount_of_rules,
    both_places,
    not_known,
    out_of_range,
    part_of,
    shorter_name,
    targets,
    writes,
)
from pipeline.nlu.parser.guards import (
    READS,
    contrast_kept,
    correction_kept,
    exception_kept,
    guard_fault,
    known_by_sound,
    lacks_only,
    leaves_out,
    mostly_unknown,
    opposite,
    read_past,
    speaks_of_more,
    unit_alone,
)
from pipeline.nlu.parser.labels import ACT
from pipeline.nlu.parser.reader import Program
from pipeline.nlu.parser.scope import (
    asks_politely,
    asks_state,
    contrasted_at,
    corrected_at,
    may_turn,
    only_contrasted,
    only_corrected,
    only_told,
    taken_back,
    tells_taste,
    turned,
    turns,
)
from pipeline.nlu.parser.unmeant import other_sense, stops_doing, unmeant

Kind = Literal["rules", "agreed", "program", "nothing", "ask"]
REFUSING = ("forbidden", "unsupported", "delayed", "condition")
"""Reasons that are said also where the rules found nothing: the talk of a language model must not answer them."""
_NO_SENSE = ("unsupported", "not_understood", "none_talk")
_NEVER = ("forbidden", "schema", "number", "empty", "correction", "other", "contrast", "exception", "name")
"""Faults of a program that no yes mends."""
_SCOPES = ("statement", "hypothetical", "delayed", "condition", "taken_back", "forbidden", "how_to")
"""Reasons that hold whatever the thing is that a sentence speaks of."""
_ACTING = ("rules", "agreed", "program")
_NO_QUESTION = ("how_to", "hypothetical", "condition")
"""What rules may take for a question about the car's state."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Confidences from which the model decides. refuse: nothing is done although rules would act; answer: a refusal
    where rules found nothing; act: its program where rules found nothing; override: its program against theirs; doubt:
    ask where it reads something else; read_past: its program where it leaves out a negation or a number; scope: its
    program where a word of scope stands, which the rules do not see; untold: no answer about the car's state where it
    reads no question about that; sound: it makes no sense of words that the rules know by sound; unheard: its program
    of closed values where no word of the car's lexicon names the thing ("toasty wheel"); beside: what it would do
    beside something that the car lacks; amount: of several calls, its amounts against one in words that the rules read;
    against: its program where a negation stands, a wish may be taken back, or the rules read the opposite; named: its
    program with a name in it, where the rules found nothing; unknown: its program where the rules found only what they
    do not know; offer: ask whether its program is meant, where the rules found nothing.
    """

    refuse: float = 0.5
    answer: float = 0.7
    act: float = 0.6
    override: float = 0.92
    doubt: float = 0.7
    read_past: float = 0.9
    scope: float = 0.7
    differs: float = 0.6
    untold: float = 0.9
    sound: float = 0.95
    unheard: float = 0.9
    beside: float = 0.9
    amount: float = 0.97
    against: float = 0.95
    named: float = 0.85
    unknown: float = 0.8
    offer: float = 0.4


@dataclass(frozen=True, slots=True)
class Decision:
    """kind: `rules` go on as the rules read it; `agreed` the same, and the model reads it too; `program` these calls;
    `nothing` is done, for `reason` (see labels.REASONS) about `what`; `ask` the person to say it again. `agreed` with a
    reason: the calls are not all that was wished, `what` is missing; `rules` with one: what the model takes it for.
    offered: of `ask`, what a yes may do.
    """

    kind: Kind
    confidence: float | None = None
    calls: tuple[ToolCall, ...] = ()
    reason: str = ""
    what: str = ""
    fault: str = ""
    offered: tuple[ToolCall, ...] = ()

    @property
    def rests_on_detail(self) -> bool:
        """True for a program with a number or free text, which misheard is as good as the one that was meant."""
        return any({"value", "query", "place"} & call.arguments.keys() for call in self.calls)


@dataclass(frozen=True, slots=True)
class _Ruled:
    """What the rules read. writes: calls that change something; decided: what talk may not answer instead."""

    calls: tuple[ToolCall, ...]

    @property
    def writes(self) -> bool:
        return any(map(writes, self.calls))

    @property
    def decided(self) -> bool:
        return any(call.name != "refuse" or call.arguments["reason"] == "forbidden" for call in self.calls)


@dataclass(frozen=True, slots=True)
class Judge:
    """Decides. same_place: whether a name in the sentence is the place that a call names (by key). learned: the tools
    that the model was trained for, None for all: of another one (an OEM's, or one newer than the adapter) it can tell
    the scope of a sentence alone.
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    same_place: Callable[[str, str], bool] = lambda said, key: said == key
    learned: frozenset[str] | None = None

    def decide(self, program: Program, parse: Parse, last_call: ToolCall | None) -> Decision:
        """What the turn does. A reading of the rules that may have missed the sentence's scope is not acted on."""
        ruled, sure = _Ruled(tuple(clause.call for clause in parse.clauses)), program.reason_confidence
        if any(map(_wrong_unit, ruled.calls)):
            return Decision("rules", sure)  # whose reply names the unit
        if self.learned is not None and any(call.name not in self.learned for call in ruled.calls if writes(call)):
            return self._unlearned(program, parse, ruled)
        decision = self._decide(program, parse, ruled, last_call)
        done = decision.calls if decision.kind == "program" else ruled.calls
        player = bool(done) and all(call.name == "control_media" for call in done)
        spoken = [clause.evidence for clause in parse.clauses] or [parse.whole]
        certain = program.reason == ACT and program.confidence >= self.thresholds.override
        more = any(speaks_of_more(clause, certain=certain) for clause in spoken)
        listed = any(map(_of_a_list, done))
        more = (more or (listed and leaves_out(done, parse.whole))) and not (listed and certain)
        if player and decision.kind in _ACTING and more and not any(map(_of_favourites, done)):
            return Decision("nothing", sure, reason="none_talk", fault="evidence")
        acting = decision.kind in _ACTING and _Ruled(done).writes
        if acting and _only_reads(program) and program.confidence >= self.thresholds.differs:
            return Decision("program", program.confidence, tuple(read.call for read in program.calls))
        if acting and asks_state(parse.whole.text):
            return Decision("ask", sure, fault="question")
        what = other_sense(done, parse.whole) if acting else ""
        if what:
            return Decision("nothing", sure, reason="unsupported", what=what)
        if acting and unmeant(done, parse.whole):
            offered = self._offered(program, parse)
            return Decision("ask", sure, fault="scope", offered=() if unmeant(offered, parse.whole) else offered)
        tells = tells_taste(parse.whole.text) or only_told(parse.whole.text)
        if acting and tells and not any(call.name == "play_media" for call in done):
            return Decision("nothing", sure, reason="statement", fault="evidence")
        if not ruled.writes:
            return decision
        ends = any(call.name == "cancel_navigation" for call in done)
        if ends and acting and stops_doing(parse.whole):
            return Decision("ask", sure, fault="evidence", offered=self._offered(program, parse))
        if decision.kind in ("rules", "agreed") and unit_alone(ruled.calls, parse.whole):
            return Decision("ask", sure, fault="number")
        if decision.kind == "rules":
            if may_turn(parse.whole.text):
                return Decision("ask", sure, fault="scope", offered=self._offered(program, parse))
            fault = self._doubt(program, parse, ruled, last_call)
            if fault:
                return Decision("ask", sure, fault=fault, offered=self._offered(program, parse))
        if decision.kind == "agreed" and turned(parse.whole.text):
            kept = only_corrected(parse.whole.text) and correction_kept(ruled.calls, parse.whole)
            apart = certain and only_contrasted(parse.whole.text) and contrast_kept(ruled.calls, parse.whole)
            return decision if kept or apart else Decision("ask", sure, fault="scope")
        return decision

    def _unlearned(self, program: Program, parse: Parse, ruled: _Ruled) -> Decision:
        """What the rules read of a tool that the model does not know."""
        sure = program.reason_confidence
        if program.reason in _SCOPES and sure >= self.thresholds.refuse:
            return Decision("nothing", sure, reason=program.reason, what=program.what)
        if may_turn(parse.whole.text):
            return Decision("ask", sure, fault="scope")
        return (
            Decision("ask", sure, fault="left out") if leaves_out(ruled.calls, parse.whole) else Decision("rules", sure)
        )

    def _doubt(self, program: Program, parse: Parse, ruled: _Ruled, last_call: ToolCall | None) -> str:
        """Why what the rules alone read is asked about first: half of the sentence is left out, the model reads another
        act, or too much of it is in nobody's words. Empty: it may be done.
        """
        if leaves_out(ruled.calls, parse.whole):
            return "left out"
        read = [call.call for call in program.calls]
        differs = program.reason == ACT and _Ruled(tuple(read)).writes and targets(read) != targets(ruled.calls)
        if differs and program.confidence >= self.thresholds.differs:
            fault = guard_fault(program, parse.whole, last_call, by_feeling=bool(ruled.calls))
            if not _rules_know(read, ruled, parse.whole, fault):
                return "differs"
        named = any({"query", "place"} & call.arguments.keys() for call in ruled.calls)
        return "" if named or not mostly_unknown(parse.whole) else "unknown words"

    def _offered(self, program: Program, parse: Parse) -> tuple[ToolCall, ...]:
        """What the person may be asked about: a program that no guard forbids and that the rules do not read, too."""
        if program.reason != ACT or leaves_out([read.call for read in program.calls], parse.whole):
            return ()
        if guard_fault(program, parse.whole, None) in _NEVER or self._agree(program, parse):
            return ()
        return tuple(read.call for read in program.calls)

    def _decide(self, program: Program, parse: Parse, ruled: _Ruled, last_call: ToolCall | None) -> Decision:
        if program.reason != ACT:
            return self._no_command(program, parse, ruled)
        if ruled.calls and self._agree(program, parse):
            read = tuple(call.call for call in program.calls)
            if program.confidence >= self.thresholds.override and shorter_name(read, ruled.calls):
                return Decision("program", program.confidence, read)
            return Decision("agreed", program.confidence)
        return self._against(program, ruled, parse.whole, last_call)

    def _no_command(self, program: Program, parse: Parse, ruled: _Ruled) -> Decision:
        sure, least = program.reason_confidence, self.thresholds
        named = program.calls and not lacks_only(program.what, parse.whole)
        asks = program.calls and guard_fault(program, parse.whole, None) == "question"
        if program.reason == "unsupported" and named and not asks and self._agree(program, parse):
            return Decision("agreed", sure, reason=program.reason, what=program.what)
        if program.reason == "unsupported" and named and self._beside(program, parse.whole):
            calls = tuple(read.call for read in program.calls)
            return Decision("program", sure, calls, reason=program.reason, what=program.what)
        misread = program.reason in _NO_SENSE and known_by_sound(parse.whole) and sure < least.sound
        if ruled.writes and program.calls and self._confirmed(program, parse):
            return Decision("agreed", program.calls[0].confidence)
        if (
            (ruled.writes and sure >= least.refuse and not misread)
            or (ruled.calls and not ruled.writes and program.reason in _NO_QUESTION and sure >= least.untold)
            or (not ruled.decided and program.reason in REFUSING and sure >= least.answer)
            or (not ruled.writes and program.reason == "forbidden" and sure >= least.sound)
        ):
            return Decision("nothing", sure, reason=program.reason, what=program.what)
        return Decision("rules", sure, reason=program.reason)

    def _confirmed(self, program: Program, parse: Parse) -> bool:
        """Whether the model would make the rules' calls, and its reason to make none is weak: how to do it, in a polite
        request; talk, of a feeling in a few words.
        """
        if program.reason_confidence >= self.thresholds.answer + 0.15 or may_turn(parse.whole.text):
            return False
        polite = program.reason == "how_to" and asks_politely(parse.whole.text)
        felt = program.reason in _NO_SENSE and all(clause.implied for clause in parse.clauses)
        return (polite or (felt and not mostly_unknown(parse.whole))) and self._agree(program, parse)

    def _beside(self, program: Program, whole: Evidence) -> bool:
        """Whether what would be done beside a thing that the car lacks is sure enough, and no guard forbids it."""
        least = min(program.reason_confidence, *(read.confidence for read in program.calls))
        acting = any(writes(read.call) for read in program.calls)
        if any(read.words is not None for read in program.calls) and least < self.thresholds.amount:
            return False  # any word may be a name
        if not acting or least < self.thresholds.beside or may_turn(whole.text) or read_past(program, whole):
            return False
        return not self._fault(program, whole, None, least)

    def _fault(self, program: Program, whole: Evidence, last_call: ToolCall | None, sure: float, **how: bool) -> str:
        """The guards' fault. That no word of the lexicon names the thing is none where the model is sure of it and
        nothing speaks against: no name, no negation, no other device, nothing known by sound alone.
        """
        fault = guard_fault(program, whole, last_call, **how)
        if fault != "evidence" or sure < self.thresholds.unheard or whole.has("mark.negate") or known_by_sound(whole):
            return fault
        read = [call.call for call in program.calls]
        turned_from = contrasted_at(whole.text) is not None or corrected_at(whole.text) is not None
        other = leaves_out(read, whole) and not turned_from
        named = any(call.words is not None for call in program.calls)
        return fault if other or named else ""

    def _against(self, program: Program, ruled: _Ruled, whole: Evidence, last_call: ToolCall | None) -> Decision:
        sure, read = program.confidence, [read.call for read in program.calls]
        needed = self.thresholds.override if ruled.calls else self.thresholds.act
        if ruled.calls and all(map(not_known, ruled.calls)):
            needed = self.thresholds.unknown
        if turns(whole.text) and not whole.has("mark.negate"):
            needed = min(needed, self.thresholds.scope)
        elif read_past(program, whole):
            needed = max(needed, self.thresholds.read_past)
        if not ruled.calls and _only_reads(program):
            needed = self.thresholds.act
        if not ruled.calls and any(call.words is not None for call in program.calls):
            needed = max(needed, self.thresholds.named)
        if whole.has("mark.negate") or opposite(read, ruled.calls) or taken_back(whole.text):
            needed = max(needed, self.thresholds.against)
        fault = self._fault(program, whole, last_call, sure, by_feeling=bool(ruled.calls))
        if not fault and correction_kept(read, whole) is False:
            fault = "correction"
        if not fault and not contrast_kept(read, whole):
            fault = "contrast"
        if not fault and not exception_kept(read, whole):
            fault = "exception"
        single = len(read) == len(ruled.calls) == 1
        scoped = turned(whole.text) and sure >= self.thresholds.override
        amount = (single or sure < self.thresholds.amount) and amount_of_rules(read, ruled.calls, whole) and not scoped
        if sure >= needed and not fault and not amount and not part_of(read, ruled.calls, whole):
            return Decision("program", sure, tuple(read))
        if _rules_know(read, ruled, whole, fault):
            return Decision("rules", sure, fault=fault)
        if not ruled.calls and not fault and sure >= self.thresholds.offer and _Ruled(tuple(read)).writes:
            return Decision("ask", sure, offered=tuple(read))
        if ruled.writes and sure >= self.thresholds.doubt and read:
            return Decision("ask", sure, fault=fault, offered=() if fault in _NEVER else tuple(read))
        return Decision("rules", sure, fault=fault)

    def _agree(self, program: Program, parse: Parse) -> bool:
        """Whether every call of the model is one that its clause of the rules leaves open."""
        if len(program.calls) != len(parse.clauses):
            return False
        return all(
            any(self._same(read.call, candidate.call) for candidate in clause.candidates)
            for read, clause in zip(program.calls, parse.clauses, strict=True)
        )

    def _same(self, read: ToolCall, ruled: ToolCall) -> bool:
        if read.name != ruled.name or read.arguments.keys() != ruled.arguments.keys():
            return False
        for name, value in read.arguments.items():
            other = ruled.arguments[name]
            if name == "place":
                if not self.same_place(str(value), str(other)):
                    return False
            elif name == "query":
                if str(value).casefold().strip() not in str(other).casefold():  # a name is taken whole
                    return False
            elif isinstance(value, float) and not isinstance(other, bool):
                if abs(value - float(other)) > 0.51:
                    return False
            elif name == "avoid":
                if sorted(value) != sorted(other):
                    return False
            elif value != other:
                return False
        return True


def _only_reads(program: Program) -> bool:
    """Whether the program asks how something is, and nothing else: an answer harms nobody."""
    return program.reason == ACT and bool(program.calls) and all(read.call.name in READS for read in program.calls)


def _of_a_list(call: ToolCall) -> bool:
    """Whether the order of the player's list is meant, in words that are said of other things, too."""
    return call.arguments.get("action") in ("shuffle", "repeat", "in_order")


def _of_favourites(call: ToolCall) -> bool:
    return call.arguments.get("action") in ("add_favourite", "play_favourites")


def _wrong_unit(call: ToolCall) -> bool:
    return call.name == "refuse" and call.arguments["reason"] == "wrong_unit"


def _rules_know(read: Sequence[ToolCall], ruled: _Ruled, whole: Evidence, fault: str) -> bool:
    """Whether it is the model that misread, or the rules' reply says what is wrong: an amount, a value out of range, a
    device that only the model left out, words that were misheard.
    """
    if amount_of_rules(read, ruled.calls, whole) or any(map(out_of_range, ruled.calls)):
        return True
    if not ruled.writes or leaves_out(ruled.calls, whole):
        return False
    if part_of(read, ruled.calls, whole) or both_places(read, ruled.calls, whole):
        return True
    titled = any(call.name == "play_media" for call in read)  # a title may name a device
    return (not titled and leaves_out(read, whole)) or (fault == "evidence" and known_by_sound(whole))
