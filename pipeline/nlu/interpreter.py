"""A whole transcript to one parse: cut at pauses and joining words, mend the cuts that were wrong, judge whether all is
said.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeline.endpointing.backchannel import is_backchannel
from pipeline.frames import Language, ToolCall
from pipeline.nlu.evidence import Evidence, evidence_of, pieces
from pipeline.nlu.intents.devices import CallCandidate
from pipeline.nlu.intents.questions import asked
from pipeline.nlu.intents.rules import candidates_of
from pipeline.nlu.lexicon import Lexicon, Match
from pipeline.nlu.numbers import number_span
from pipeline.nlu.slots import amount_of

COMFORT = frozenset(
    [
        "set_temperature",
        "set_fan",
        "set_air_conditioning",
        "set_window",
        "set_sunroof",
        "set_sunshade",
        "set_seat_heating",
        "set_seat_ventilation",
        "set_steering_wheel_heating",
        "set_defrost",
        "set_recirculation",
        "set_wipers",
        "set_interior_light",
        "set_seat_massage",
        "set_ambient_light",
        "set_reading_light",
        "set_climate_mode",
        "set_air_direction",
        "set_volume",
        "control_media",
    ]
)
"""A wish only implied ("it is so hot") explains such a command of the same turn and asks for nothing more."""
_HOW_TO = re.compile(
    r"^\W*(?:how (?:do|does|can|would|should)|why|what (?:happens|if|does)|should|is it (?:safe|ok|okay|legal))"
    r"|怎么|咋|为什么|如何",
    re.IGNORECASE,
)
_MOST_CALLS = 6
_KEPT_PARSES = 8
"""A candidate transcript and the final one with the same words share a parse; turns may be re-opened in between."""
_MUSIC = ToolCall("set_volume", {"target": "media"})
"""What "it" means after music was only spoken of."""


@dataclass(frozen=True, slots=True)
class Clause:
    """One wish of the turn. `implied`: nothing was asked for outright. Never without candidates."""

    evidence: Evidence
    candidates: tuple[CallCandidate, ...]
    implied: bool = False

    @property
    def call(self) -> ToolCall:
        """The likeliest call by the words alone."""
        return self.candidates[0].call


@dataclass(frozen=True, slots=True)
class Parse:
    """What one transcript says, in the light of the last call. `clauses`: its wishes in order; empty when the words
    support no tool (then it is talk). `complete`: a whole command that is unlikely to go on, so the turn may end early.
    `half_heard`: no clause, but a thing of the car is named and nothing is asked or told: what was wanted was not
    understood, and talk about it would sound like an answer. `whole`: the evidence of the uncut transcript.
    """

    clauses: tuple[Clause, ...]
    complete: bool
    whole: Evidence
    half_heard: bool = False


class Interpreter:
    """Parses transcripts. The early end of a turn and its plan ask for the same parse; it is made once."""

    def __init__(self, lexicon: Lexicon) -> None:
        self.lexicon = lexicon
        self._parses: OrderedDict[tuple[str, Language, str], Parse] = OrderedDict()

    def parse(self, text: str, language: Language, last_call: ToolCall | None = None) -> Parse:
        """The parse of `text`; `last_call`: what "it" means. Changes nothing that a caller can see."""
        key = (text, language, repr(last_call))
        parse = self._parses.get(key)
        if parse is None:
            # "Mm-hmm" sounds like "home": a backchannel is no command, whatever it is near to
            whole = evidence_of(text, self.lexicon, language)
            found = [] if is_backchannel(text) else _interpret(whole, self.lexicon, language, last_call)
            clauses = tuple(found)
            half_heard = not clauses and _is_fragment(whole)
            parse = self._parses[key] = Parse(clauses, _is_complete(text, clauses), whole, half_heard)
            while len(self._parses) > _KEPT_PARSES:
                self._parses.popitem(last=False)
        return parse


@dataclass(slots=True)
class _Piece:
    text: str
    evidence: Evidence
    candidates: list[CallCandidate]


def _interpret(evidence: Evidence, lexicon: Lexicon, language: Language, last_call: ToolCall | None) -> list[Clause]:
    """The turn's wishes in order; empty when the words support no tool (then it is talk)."""
    text = evidence.text
    parts: list[_Piece] = []
    for part in (half for whole in pieces(text, lexicon) for half in _halves(whole, lexicon, language)):
        piece = _piece(part, lexicon, language, _last_call(parts, last_call))
        if piece.evidence.tokens and not _only_filler(piece.evidence):
            parts.append(piece)
    if not parts or (_HOW_TO.search(parts[0].text) and not parts[0].candidates):
        return []
    if len(parts) == 2 and _one_question(parts[0], parts[1]):
        parts = [_Piece(text, evidence, candidates_of(evidence, last_call, lexicon))]
    parts = _spoken_of(parts)
    if not parts:
        return []
    if len(parts) > 1 and not any(part.candidates for part in parts):
        parts = [_Piece(text, evidence, candidates_of(evidence, last_call, lexicon))]
    parts = _mend(parts, lexicon, language, last_call)
    clauses = [_clause(part) for part in parts if part.candidates]
    return _tidy(clauses)[:_MOST_CALLS]


def _is_fragment(evidence: Evidence) -> bool:
    """Nothing is asked, and a thing of the car is named with half of the words at least the car's, or a number alone
    is said: "百分之五".
    """
    if evidence.numbers and not asked(evidence).is_question:
        spans = [number_span(evidence.words, number) for number in evidence.numbers]
        inside = {i for low, high in spans for i in range(low, high)}
        inside |= {i for match in evidence.of("unit") for i in range(match.start, match.end)}
        if len(inside) == len(evidence.tokens):
            return True
    if not evidence.of("device") or evidence.of("forbid") or asked(evidence).is_question:
        return False
    known = {i for match in evidence.matches for i in range(match.start, match.end)}
    known |= {i for number in evidence.numbers for i in range(number.start, number.end)}
    return 2 * len(known) >= len(evidence.tokens)


def _piece(text: str, lexicon: Lexicon, language: Language, last_call: ToolCall | None) -> _Piece:
    evidence = evidence_of(text, lexicon, language)
    return _Piece(text, evidence, candidates_of(evidence, last_call, lexicon))


def _one_question(first: _Piece, second: _Piece) -> bool:
    """ "What's it like outside, temperature wise?": the second half only says what is asked."""
    opened = asked(first.evidence)
    open_question = opened.is_question and not opened.explain and not first.candidates
    return open_question and not second.evidence.of("verb") and not second.evidence.of("feel")


def _spoken_of(parts: list[_Piece]) -> list[_Piece]:
    """Without the things a question for an explanation speaks of: "内循环|和外循环有什么区别"."""
    kept = []
    for i, part in enumerate(parts):
        neighbours = parts[max(i - 1, 0) : i] + parts[i + 1 : i + 2]
        bare = not part.evidence.of("verb") and not part.evidence.numbers and part.evidence.of("device")
        if bare and any(asked(other.evidence).explain for other in neighbours):
            continue
        kept.append(part)
    return kept


def _halves(text: str, lexicon: Lexicon, language: Language) -> list[str]:
    """Two commands said in one breath, without a pause: cut before the second verb, or before the second device."""
    evidence = evidence_of(text, lexicon, language)
    cut = _second_amount(evidence)
    if cut is not None:
        return [text[:cut], text[cut:]]
    roles: list[tuple[str, int]] = []
    for match in evidence.matches:
        role = "D" if match.has("device") else "V" if _acts(match) else ""
        if role and (not roles or roles[-1][0] != role):
            roles.append((role, evidence.tokens[match.start].start))
    if [role for role, _ in roles] not in (["V", "D", "V", "D"], ["D", "V", "D", "V"]):
        return [text]
    cut = roles[2][1]
    return [text[:cut], text[cut:]]


def _second_amount(evidence: Evidence) -> int | None:
    """Where a second thing with a number of its own begins: "the fan to 60 in the temperature to 23"."""
    if len(evidence.numbers) < 2:
        return None
    first, second = evidence.numbers[0], evidence.numbers[-1]
    for group in ("device", "zone"):
        named = evidence.of(group)
        before = [match for match in named if match.end <= first.start]
        between = [match for match in named if first.end <= match.start and match.end <= second.start]
        if before and between and between[0].tags != before[-1].tags:
            return evidence.tokens[between[0].start].start
    return None


def _acts(match: Match) -> bool:
    return any(
        "verb." + verb in match.tags for verb in ("on", "off", "open", "close", "play", "stop", "set", "up", "down")
    )


def _last_call(parts: list[_Piece], last_call: ToolCall | None) -> ToolCall | None:
    for part in reversed(parts):
        if part.candidates and part.candidates[0].call.name != "refuse":
            return part.candidates[0].call
        if part.evidence.has("device.media"):
            return _MUSIC
    return last_call


def _only_filler(evidence: Evidence) -> bool:
    covered = sum(m.end - m.start for m in evidence.matches if all(t.startswith("filler.") for t in m.tags))
    return covered == len(evidence.tokens)


def _loose(piece: _Piece) -> bool:
    """Says nothing that can be carried out on its own."""
    return not piece.candidates or _name(piece) == "not_understood"


def _name(piece: _Piece) -> str:
    call = piece.candidates[0].call
    return str(call.arguments["reason"]) if call.name == "refuse" else call.name


def _mend(parts: list[_Piece], lexicon: Lexicon, language: Language, last_call: ToolCall | None) -> list[_Piece]:
    """Join or complete pieces that say nothing alone: "the driver | and passenger temperature", "off the AC | and
    the fan".
    """
    glue = "" if language == "zh" else " and "
    done: list[_Piece] = []
    i = 0
    while i < len(parts):
        part = parts[i]
        following = parts[i + 1] if i + 1 < len(parts) else None
        if following is not None and _loose(part):
            joined = _lend(part, following, glue, lexicon, language, last_call)
            if joined is not None:
                parts[i : i + 2] = joined
                if len(joined) == 1:
                    continue
                part = parts[i]
        if done and part.candidates and not _loose(part):
            part = _borrow_verb(done[-1], part, lexicon, language, last_call)
        elif done and _loose(part):
            merged = _attach(done[-1], part, glue, lexicon, language, last_call)
            if merged is not None:
                done[-1:] = merged
                i += 1
                continue
        done.append(part)
        i += 1
    return done


def _lend(
    part: _Piece, following: _Piece, glue: str, lexicon: Lexicon, language: Language, last_call: ToolCall | None
) -> list[_Piece] | None:
    """A loose piece before another: zones lend themselves to the next device, a device takes the next verb."""
    own, other = part.evidence, following.evidence
    if own.of("zone") and not own.of("device") and not own.of("place") and other.of("device"):
        return [_piece(part.text.strip() + glue + following.text.strip(), lexicon, language, last_call)]
    if (
        own.of("device")
        and not own.of("verb")
        and other.of("device")
        and (other.of("verb") or "off" in other.words or "on" in other.words)
    ):
        switch = " off" if "off" in other.words else " on" if "on" in other.words else ""
        verbs = " ".join(other.slice_text(m.start, m.end) for m in other.of("verb"))
        completed = _piece(f"{verbs} {part.text.strip()}{switch}", lexicon, language, last_call)
        if not _loose(completed):
            return [completed, following]
    return None


def _borrow_verb(
    before: _Piece, part: _Piece, lexicon: Lexicon, language: Language, last_call: ToolCall | None
) -> _Piece:
    """ "Turn off the AC and the seat heating": the second device takes the first one's verb."""
    verbs = before.evidence.of("verb")
    if (
        part.evidence.of("verb")
        or not part.evidence.of("device")
        or not verbs
        or part.evidence.numbers
        or part.evidence.of("amount")
    ):
        return part
    if {"on", "off"} & set(part.evidence.words) or not before.evidence.of("device"):
        return part
    said = before.evidence.slice_text(verbs[0].start, verbs[0].end)
    completed = _piece(f"{said} {part.text.strip()}", lexicon, language, last_call)
    return part if _loose(completed) else completed


def _attach(
    before: _Piece, part: _Piece, glue: str, lexicon: Lexicon, language: Language, last_call: ToolCall | None
) -> list[_Piece] | None:
    """A loose piece after a command: it belongs to its query, or repeats its device for another zone, or its verb."""
    if before.candidates and _name(before) in ("play_media", "navigate_to") and not part.evidence.of("verb"):
        return [_piece(before.text.rstrip() + glue + part.text.strip(), lexicon, language, last_call)]
    devices = before.evidence.of("device")
    if not devices:
        return None
    device = before.evidence.slice_text(devices[0].start, devices[0].end)
    verbs = before.evidence.of("verb")
    verb = before.evidence.slice_text(verbs[0].start, verbs[0].end) if verbs else ""
    own = part.evidence
    if own.of("device"):
        completed = _piece(f"{verb} {part.text.strip()}", lexicon, language, last_call)
        return None if _loose(completed) else [before, completed]
    if own.of("zone") or own.numbers:
        lead = device if own.of("verb") else f"{verb} {device}"
        text = (
            f"{lead} {part.text.strip()}"
            if language == "en"
            else f"{part.text.strip()}{device}"
            if not own.numbers
            else f"{device}{part.text.strip()}"
        )
        if language == "zh" and not own.of("verb") and verb:
            text = f"{text}{verb}" if not own.numbers else text
        completed = _piece(text, lexicon, language, last_call)
        return None if _loose(completed) else [before, completed]
    return None


def _clause(part: _Piece) -> Clause:
    evidence = part.evidence
    implied = bool(evidence.of("feel")) and not evidence.of("device") and not evidence.of("verb")
    implied = implied or evidence.has("feel.too")
    return Clause(part.evidence, tuple(part.candidates), implied)


def _below_zero(call: ToolCall) -> bool:
    """Whether it is the weather that is told beside a wish: 零下五度，打开座椅加热."""
    return call.name == "set_temperature" and call.arguments["action"] == "set" and call.arguments["value"] < 0


def _tidy(clauses: list[Clause]) -> list[Clause]:
    """Fold route options into the trip, drop what was said twice and wishes that a command already grants."""
    kept: list[Clause] = []
    explicit = {clause.call.name for clause in clauses if not clause.implied}
    if any(clause.call.arguments.get("reason") == "declined" for clause in clauses):
        clauses = [clause for clause in clauses if clause.evidence.words not in (("stop",), ("停",))]
    for clause in clauses:
        if (clause.implied and explicit & COMFORT) or (len(clauses) > 1 and _below_zero(clause.call)):
            continue
        call = clause.call
        trip = next((k for k, other in enumerate(kept) if other.call.name == "navigate_to"), None)
        if call.name == "set_route_options" and trip is not None:
            kept[trip] = _with_options(kept[trip], call.arguments["avoid"])
            continue
        if call.name == "navigate_to" and kept and kept[-1].call.name == "set_route_options":
            kept[-1] = _with_options(clause, kept[-1].call.arguments["avoid"])
            continue
        asked_for = kept[-1].call if kept else None
        if trip is not None and call.name == "navigate_to" and "station" in clause.evidence.words[-1:]:
            continue
        where = asked_for.arguments["place"] if asked_for is not None and asked_for.name == "ask_distance" else None
        if call.name == "navigate_to" and where == call.arguments["place"]:
            kept[-1] = clause
            continue
        kept = [other for other in kept if not _overwritten(other.call, call)]
        if not any(other.call == clause.call for other in kept):
            kept.append(clause)
    return kept


def _overwritten(call: ToolCall, later: ToolCall) -> bool:
    """Whether `later` sets the same thing to another amount: "Open the window, halfway", "fifty, make that forty"."""
    if call.name != later.name or not call.arguments.get("action") == later.arguments.get("action") == "set":
        return False
    return {**call.arguments, "value": 0} == {**later.arguments, "value": 0}


def _with_options(clause: Clause, avoid: list[str]) -> Clause:
    merged = sorted({*clause.call.arguments["avoid"], *avoid})
    call = replace(clause.call, arguments={**clause.call.arguments, "avoid": merged})
    return replace(clause, candidates=(CallCandidate(call, clause.candidates[0].prior), *clause.candidates[1:]))


# --- is it all said? -----------------------------------------------------------------------------------------------
_OPEN_TAIL = re.compile(
    r"(?:\b(?:to|the|by|a|an|and|in|on|at|of|for|my|set|turn|open|close|with|is|then|up to|down to|some|point|or|from"
    r"|me|i|avoid|minus|please|degrees?\s+and|percent of)"
    r"|到|把|的|调|成|为|百分之|再|和|去|在|我|给|请|开|不|点|负|零下|然后|并且|打|放|听|来|首|向|主|副)\W*$",
    re.IGNORECASE,
)
_LEVELLED = frozenset(
    ("set_temperature", "set_fan", "set_volume", "set_brightness", "set_seat_heating", "set_seat_ventilation")
)
_ZONED = frozenset(("set_temperature", "set_seat_heating", "set_seat_ventilation"))


def _is_complete(text: str, clauses: Sequence[Clause]) -> bool:
    stripped = text.strip().rstrip(".。!！?？,，")
    if not stripped or _OPEN_TAIL.search(stripped) or text.rstrip().endswith((",", "，")):
        return False
    return (
        bool(clauses)
        and _closed(clauses[-1])
        and all(c.call.name != "refuse" or c.call.arguments["reason"] == "forbidden" for c in clauses)
    )


_VERB_AWAITED = frozenset(
    ("set_defrost", "set_recirculation", "set_seat_heating", "set_seat_ventilation", "set_steering_wheel_heating")
)
"""Tools whose device alone is read as "on": a verb that says otherwise may follow."""


def _half_said(call: ToolCall, evidence: Evidence) -> bool:
    """A lone word, a Chinese word cut in its midst, a device whose verb may follow."""
    if len(evidence.tokens) < 2 or call.arguments.get("what") in ("seat_position", "steering"):
        return True
    end = len(evidence.tokens)
    reached = max([m.end for m in evidence.matches] + [n.end for n in evidence.numbers], default=0)
    if evidence.language == "zh" and reached < end and call.name != "play_media":
        return True
    said = evidence.of("verb") or evidence.of("feel") or {"on", "off"} & set(evidence.words)
    return call.name in _VERB_AWAITED and not said


def _closed(clause: Clause) -> bool:
    if len(clause.candidates) > 1 and not clause.implied:
        return False
    call, evidence = clause.call, clause.evidence
    if _half_said(call, evidence):
        return False
    amount = amount_of(evidence)
    if amount.value is not None and amount.unitless_end and (amount.unit is None or amount.open_ended):
        return False
    if call.name in _LEVELLED and not clause.implied:
        if call.arguments["action"] == "change" and amount.value is None and amount.word is None:
            return False
        on_without_zone = (
            call.name in _ZONED and amount.value is None and amount.word is None and not evidence.of("zone")
        )
        return not on_without_zone
    if call.name == "play_media":
        return bool(evidence.of("music")) or evidence.words[-1] in ("歌", "乐", "曲")
    if call.name == "set_window":
        return amount.value is not None or call.arguments["value"] == 0.0 or bool(evidence.of("zone"))
    return True
