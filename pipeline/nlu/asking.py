"""What a command lacks, and what an answer adds to it: "set the temperature" - "to how many degrees?" - "22".

A question is about one call. Only a whole answer completes it: words that are no answer leave it as it is, and the
call is never made without one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pipeline.frames import Language, ToolCall
from pipeline.nlu.evidence import Evidence, evidence_of
from pipeline.nlu.intents.devices import level_calls
from pipeline.nlu.intents.questions import asked
from pipeline.nlu.interpreter import Interpreter, Parse
from pipeline.nlu.parser.scope import may_turn
from pipeline.nlu.slots import amount_of, seat_zone

Slot = Literal["value", "zone", "place", "confirm"]


@dataclass(frozen=True, slots=True)
class Question:
    """slot: what is asked for. calls: what waits for it; of `confirm` they are whole, else it is one call without that
    argument. again: it was asked a second time, and is not a third.
    """

    slot: Slot
    calls: tuple[ToolCall, ...]
    again: bool = False

    @property
    def call(self) -> ToolCall:
        return self.calls[0]


@dataclass(frozen=True, slots=True)
class Answer:
    """calls: what is to be done now; none: nothing, the person wants it no more."""

    calls: tuple[ToolCall, ...] = ()


_VALUED: Final = {
    "temperature": ("set_temperature", {"zone": "all"}),
    "fan": ("set_fan", {"zone": "all"}),
    "volume": ("set_volume", {"target": "media"}),
    "nav_voice": ("set_volume", {"target": "navigation"}),
    "screen": ("set_brightness", {}),
}
"""Things of which "set it" alone says nothing: no level is their usual one."""
_SEATED: Final = {
    "window": "set_window",
    "seat_heating": "set_seat_heating",
    "seat_ventilation": "set_seat_ventilation",
}
_DEVICE_OF: Final = {"set_temperature": ("temperature", "ac"), "set_fan": ("fan", "ac"), "set_brightness": ("screen",)}
_ONE_OF: Final = re.compile(
    r"\b(?:a|one|one of (?:the|my|our)|some|another)\s+(?:car |side )?(?:windows?|seats?)\b"
    r"|(?<![第全])[一1][个扇块只](?:车窗|窗户|窗子|窗|玻璃|座椅|座位)|(?:车窗|窗户|座椅|座位)(?:打?开|关|加热)?其?中?(?:的)?一个$",
    re.IGNORECASE,
)
""" "A window" leaves open which; "the window" is the driver's."""
_LITTLE: Final = re.compile(r"\b(?:bit|little|crack|touch|slightly)\b|一点|点儿|缝", re.IGNORECASE)
_TRIP: Final = re.compile(
    r"(?:(?:please|can you|could you|i want (?:you )?to|let's|hey|ok)[\s,]+)*"
    r"(?:navigate(?: me)?(?: somewhere| to)?|start (?:the |a )?(?:navigation|navigating|route|trip)"
    r"|take (?:me|us) (?:somewhere|to a place)|drive (?:me|us) somewhere|go somewhere|plan (?:a|the) (?:route|trip)"
    r"|(?:set|enter|choose) (?:a|the|my) (?:new )?destination)(?:[\s,]+please)?"
    r"|(?:请|帮我|给我|我要|我想|麻烦|能不能)*(?:开始导航|导航一下|导航[去到]|带我去一?个?地方|去一?个?地方"
    r"|(?:设置|设一?下|输入|选一?个?)(?:一下)?目的地|规划(?:一下|一条)?路线)(?:吧|好吗)?",
    re.IGNORECASE,
)
_LEAVE_IT: Final = re.compile(
    r"(?:(?:no|nope|oh|ok|okay|ah|please|thanks|thank you|never ?mind|forget (?:it|that)|leave it|cancel(?: that| it)?"
    r"|stop|neither|none|not now|nothing|don't|it's (?:fine|ok|okay)|doesn't matter|no thanks)[\s,.!]*)+"
    r"|(?:不用了?|不要了?|算了|取消|别了|不了|没事了?|不需要了?|不必了?|不是的?|不对|不|别|谢谢|吧|哦|啊|[，,。！!\s])+",
    re.IGNORECASE,
)
_YES: Final = re.compile(
    r"(?:(?:yes|yeah|yep|yup|right|correct|exactly|sure|ok|okay|that's (?:it|right)|please(?: do)?|do (?:it|that|so)"
    r"|go ahead|of course|indeed|i do|absolutely)[\s,.!]*)+"
    r"|(?:是的?|对的?|对啊|没错|正确|嗯|好的?|可以|行|当然|就是|要|来吧|吧|呀|啊|[，,。！!\s])+",
    re.IGNORECASE,
)
_SMALL_WORDS = (
    "mine the a an one ones to at on for of in my please it make set that just let's say maybe i'd i like want would "
    "be and um uh er well is degrees degree percent level window windows seat seats side 's also me oh ok okay yes "
    "到 吧 的 就 那 个 边 这 是 我 要 给 把 调 成 为 度 档 挡 嗯 呃 啊 请 扇 窗 座 位 椅 那边 好 了 开 都 就是"
)
_SMALL: Final = frozenset(_SMALL_WORDS.split())


def lacking(parse: Parse, program: Sequence[str] = ()) -> Question | None:
    """The question that a sentence needs before anything can be done; None where it needs none. program: the tools that
    the model surely reads in it; of another one than the question would be about, nothing is asked.
    """
    question = _lacking(parse)
    return None if question is None or (program and question.call.name not in program) else question


def _lacking(parse: Parse) -> Question | None:
    whole = parse.whole
    if whole.of("forbid") or whole.has("mark.negate") or asked(whole).is_question or may_turn(whole.text):
        return None
    if _TRIP.fullmatch(whole.text.strip(" .。!！,，")):
        return Question("place", (ToolCall("navigate_to", {"avoid": []}),))
    return _without_zone(whole) or _without_value(parse)


def _without_zone(whole: Evidence) -> Question | None:
    named = set(whole.names("device"))
    heats = bool(named & {"seat"}) and whole.has("verb.warmer", "unit.celsius")
    device = next((name for name in _SEATED if name in named), "seat_heating" if heats else "")
    said_one = all(number.value == 1 for number in whole.numbers)
    if not device or whole.of("zone") or not said_one or not _ONE_OF.search(whole.text):
        return None
    other = any(whole.of(group) for group in ("place", "kind", "music", "source", "unit"))
    if other or named - {device, "seat"} or set(whole.names("amount")) - {"little"}:
        return None
    off = whole.has("verb.close", "verb.off", "verb.stop")
    if device == "window" and _LITTLE.search(whole.text):
        return Question("zone", (ToolCall("set_window", {"action": "change", "value": -20.0 if off else 20.0}),))
    if device == "window":
        return Question("zone", (ToolCall("set_window", {"action": "set", "value": 0.0 if off else 100.0}),))
    return Question("zone", (ToolCall(_SEATED[device], {"action": "set", "value": 0.0 if off else 50.0}),))


def _without_value(parse: Parse) -> Question | None:
    whole = parse.whole
    refused = [clause.call.arguments.get("reason") for clause in parse.clauses if clause.call.name == "refuse"]
    named = [name for name in _VALUED if name in whole.names("device")]
    if len(refused) != len(parse.clauses) or not set(refused) <= {"not_understood", "unsupported"} or not named:
        return None
    told = whole.numbers or any(whole.of(group) for group in ("amount", "feel", "place", "kind", "music"))
    if told or not whole.has("verb.set") or len(set(whole.names("device"))) > 2:
        return None
    if not _known(whole, _SMALL):
        return None
    name = "nav_voice" if "nav_voice" in named else named[0]
    tool, arguments = _VALUED[name]
    zone = {"zone": seat_zone(whole, "all")} if "zone" in arguments else {}
    return Question("value", (ToolCall(tool, {**arguments, **zone}),))


def answer_of(text: str, language: Language, question: Question, rules: Interpreter) -> Answer | None:
    """What the answer comes to; None for words that are none (another command, talk)."""
    said = text.strip(" \t.。!！?？,，").replace("’", "'")
    if not said or text.rstrip().endswith(("?", "？")):
        return None
    if _LEAVE_IT.fullmatch(said):
        return Answer()
    if question.slot == "confirm":
        return Answer(question.calls) if _YES.fullmatch(said) else None
    if question.slot == "place":
        return _to_place(said, language, question.call, rules)
    evidence = evidence_of(said, rules.lexicon, language)
    if evidence.of("forbid") or evidence.doubtful_number or not _known(evidence, _SMALL):
        return None
    call = _with_value(evidence, question.call) if question.slot == "value" else _with_zone(evidence, question.call)
    return None if call is None else Answer((call,))


def _with_value(evidence: Evidence, call: ToolCall) -> ToolCall | None:
    own = _DEVICE_OF.get(call.name, ("volume", "media", "nav_voice"))
    if set(evidence.names("device")) - set(own) or len(evidence.numbers) > 1:
        return None
    arguments = dict(call.arguments)
    if evidence.of("zone") and "zone" in arguments:
        arguments["zone"] = seat_zone(evidence, str(arguments["zone"]))
    calls = level_calls(call.name, evidence, amount_of(evidence), **arguments)
    if not calls or (calls[0].call.name == "refuse" and not evidence.numbers):
        return None
    return calls[0].call


def _with_zone(evidence: Evidence, call: ToolCall) -> ToolCall | None:
    others = set(evidence.names("device")) - {"window", "seat", "seat_heating", "seat_ventilation"}
    zone = seat_zone(evidence, "") if evidence.of("zone") else "driver" if "mine" in evidence.words else ""
    if others or not zone or evidence.numbers:
        return None
    return ToolCall(call.name, {**call.arguments, "zone": zone})


def _to_place(said: str, language: Language, call: ToolCall, rules: Interpreter) -> Answer | None:
    own = rules.parse(said, language)
    if any(clause.call.name not in ("navigate_to", "refuse") for clause in own.clauses) or len(said) > 60:
        return None
    trips = [clause.call for clause in own.clauses if clause.call.name == "navigate_to"]
    if not trips:
        lead = "导航去" if language == "zh" else "navigate to "
        parse = rules.parse(lead + said, language)
        trips = [clause.call for clause in parse.clauses if clause.call.name == "navigate_to"]
        if len(trips) != len(parse.clauses):
            return None
    if len(trips) != 1:
        return None
    avoid = sorted({*call.arguments["avoid"], *trips[0].arguments["avoid"]})
    return Answer((ToolCall("navigate_to", {**trips[0].arguments, "avoid": avoid}),))


def _known(evidence: Evidence, small: frozenset[str]) -> bool:
    """Whether every word is one of the car's, a number or a small one."""
    covered = {i for match in evidence.matches for i in range(match.start, match.end)}
    covered |= {i for number in evidence.numbers for i in range(number.start, number.end)}
    return all(i in covered or word in small for i, word in enumerate(evidence.words))
