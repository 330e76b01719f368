"""Meanings that stand in no single phrase: "the fan is too strong", "I can't see out the back", "no seat heating any
more". They are read off the parts and added to the evidence as tags.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pipeline.nlu.lexicon import Match
from pipeline.nlu.numbers import Number
from pipeline.nlu.phonetics import is_cjk, readings

_TOO_MUCH = re.compile(
    r"\b(?:too|so|bit|very) (?:loud|high|strong|fast|hard|hot|warm|bright|powerful|much)\b"
    r"|(?:太|有点|过|好|这么)[大高强吵响亮快热猛]"
)
_TOO_LITTLE = re.compile(
    r"\b(?:too|so|bit|very) (?:low|weak|slow|quiet|cold|dim|dark|soft|cool|little|gentle)\b"
    r"|\bnot (?:very )?(?:loud|high|strong|fast|hot|warm|bright|powerful) enough\b"
    r"|(?:太|有点|过|好|这么)[小低弱暗轻慢冷]|不够[大高强响亮快热]"
)
_LEVELLED = ("fan", "temperature", "volume", "media", "nav_voice", "screen", "seat_heating", "seat_ventilation")
_BLIND = re.compile(
    r"\b(?:can't|cannot|can not|can hardly|can barely|couldn't|hard to|unable to) see\b|看不[清见到]|没法看|看不太清"
)
_REAR = re.compile(r"\b(?:back|rear|behind)\b|[后後]")
_GLASS = re.compile(
    r"\b(?:window|windows|windshield|windscreen|glass|out|through|behind|front|road)\b|[窗玻挡前后路面]"
)
_FOG = re.compile(r"\b(?:fog|fogg|mist|steam|frost|ice|icy|frozen)\w*|雾|霜|冰|水汽|模糊")
_WHEEL = re.compile(r"\b(?:hands?|fingers?|(?:steering )?wheel)\b|手|方向盘")
_SEAT = re.compile(r"\b(?:seats?|bum|bottom|butt)\b|座|屁股|椅|垫")
_NO_LONGER = re.compile(
    r"\b(?:don't|do not|doesn't|no longer) (?:need|want|require)\b.*\b(?:any ?more|any longer|now)\b"
    r"|\bno longer (?:need|want|require)|\bno more\b|(?:不用|不需要|不想要|不要)了"
)
_CLEARED = re.compile(r"\b(?:get rid of|remove|clear|wipe)\b|去掉|清[除掉理]|除|弄掉|吹掉")
_MANOEUVRES = re.compile(
    r"[变换].{0,2}道|(?<![关灭熄去除停])掉.{0,2}头(?![发顶上枕])|调.{0,2}头(?![顶上枕])|超.{0,2}车|踩.{0,3}(?:刹车|油门|离合)|[左右].{0,2}[转拐]弯?"
    r"|靠.{0,2}边.{0,2}停|倒.{0,2}车(?!影)|刹.{0,2}车|停.{1,2}车(?!场|位|点)|挂.{0,2}[挡档]"
)
"""Forbidden acts whose Chinese verb and object stand apart: 变个道. The 掉 of 关掉 is none of them."""
_WARM_UP = re.compile(r"\b(?:warm|heat) (?!seat)(?:\w+ ){1,4}up\b")
_COOL_DOWN = re.compile(r"\bcool (?!seat)(?:\w+ ){1,4}down\b")
_WISHED = re.compile(
    r"\b(?:make|get|keep|want|need|like|have) (?:it|this|things|the (?:car|cabin|inside))(?: \w+){0,4}? "
    r"(?:(?P<warm>warm|hot|toasty|cosy|cozy)|cool|cold|chilly)\b"
    r"|(?:弄|搞)(?:得)?(?:(?P<zh_warm>暖|热)|凉|冷)"
)
"""How it shall become: "make it nice and warm" is no complaint that it is warm."""
_NOT_WISHED = re.compile(r"\b(?:too|so|less|not|never|no|from|stop)\b|n't|[太好别不]")
_SPEED_SET = re.compile(
    r"\b(?:set|increase|reduce|keep|hold|raise|lower|bring)\b(?: \w+)? (?:our|my|the|vehicle|car|driving|car's) speed\b"
    r"|\b(?:drive|go) (?:at|to) \w+(?: \w+)? (?:kilomet|miles|km)|(?:时速|车速).{0,4}[提加降减调升设]"
)
_CLOSED_MISHEARD = re.compile(r"^[^开打]掉|^[^开打马]上(?:所有|全部)?(?:车?窗|天窗)")
"""关掉 and 关上 with their first syllable misheard: only what follows tells."""
_SEAT_ZONES = {"zone.driver", "zone.passenger", "zone.rear", "zone.rear_left", "zone.rear_right"}
_OWN_SEAT = re.compile(r"\b(?:my|driver'?s?|passenger'?s?|the) seat\b")
_NOT_BEFORE = re.compile(
    r"(?:\bnot|n't|\bno longer|\bnever|不|没|没有|别|不是|并不|不算)"
    r"\s*(?:too|so|that|very|really|太|怎么|那么|很|是很|特别)?\s*$"
)
_ACTING = ("on", "open", "play", "set", "close", "warmer", "cooler", "go")


def compose(
    text: str, matches: Sequence[Match], numbers: Sequence[Number], spans: Sequence[tuple[int, int]], *, by_sound: bool
) -> list[Match]:
    """The matches with what they mean together; `text` in lower case and simple characters, `spans` of its tokens."""
    kept = [_unit_of_number(match, numbers, text, spans) for match in matches]
    kept = [match for match in kept if not _denied(match, text, spans)]
    names = {tag for match in kept for tag in match.tags}
    added = set(_feelings(text, names)) | set(_direction(text, names))
    if direction := _wished(text):
        added.add(direction)
        kept = [match for match in kept if not match.has("feel")] or kept
    if _SPEED_SET.search(text) and not names & {"device.fan", "device.wiper", "verb.play"}:
        added.add("forbid.accelerate")
    if _MANOEUVRES.search(text) and not _named(names, "forbid"):
        added.add("forbid.manoeuvre")
    if "device.temperature" in names and _OWN_SEAT.search(text) and not numbers:
        added.add("device.seat_heating")
    if re.search(r"\bventilat", text) and "device.seat" in names:
        added.add("device.seat_ventilation")
    if re.search("通风", text) and names & _SEAT_ZONES and _named(names, "verb"):
        added.add("device.seat_ventilation")
    if by_sound and not names & {"verb.up", "verb.down"} and (_named(names, "device") or _named(names, "zone")):
        added |= set(_homophone(text, numbers, spans))
    if by_sound and _CLOSED_MISHEARD.search(text) and _named(names, "device") and not _named(names, "verb"):
        added.add("verb.off")
    if re.search(r"\bwindows?\b", text) and not _named(names, "device") and names & {"verb.open", "verb.close"}:
        added.add("device.window")
    if _NO_LONGER.search(text) and _named(names, "device") and not names & {f"verb.{verb}" for verb in _ACTING}:
        added.add("verb.off")
        kept = [match for match in kept if "mark.negate" not in match.tags]
    if not added or not kept:
        return kept
    steering = "forbid.steering" if added & {"feel.cold_hands"} else ""
    kept = [match for match in kept if steering not in match.tags or match.tags == kept[0].tags]
    first = kept[0]
    kept[0] = Match(first.start, first.end, (first.tags - {steering}) | added, first.cost)
    return kept


def _wished(text: str) -> str:
    """verb.warmer or verb.cooler where the words say how it shall become; empty otherwise."""
    if _WARM_UP.search(text) or _COOL_DOWN.search(text):
        return "verb.warmer" if _WARM_UP.search(text) else "verb.cooler"
    wish = _WISHED.search(text)
    if wish is None or _NOT_WISHED.search(text):
        return ""
    return "verb.warmer" if wish["warm"] or wish["zh_warm"] else "verb.cooler"


def _homophone(text: str, numbers: Sequence[Number], spans: Sequence[tuple[int, int]]) -> Iterable[str]:
    """The verb of a change is one syllable that is often misheard: "深一度" for 升一度, "将两度" for 降两度."""
    if not numbers or not numbers[-1].start:
        return
    low, high = spans[numbers[-1].start - 1]
    before = text[low:high]
    if len(before) != 1 or not is_cjk(before):
        return
    if readings(before)[1] & readings("升")[1]:
        yield "verb.up"
    elif readings(before)[0] & readings("降")[0]:
        yield "verb.down"


def _unit_of_number(match: Match, numbers: Iterable[Number], text: str, spans: Sequence[tuple[int, int]]) -> Match:
    """ "Forty five degrees in here": after a number "degrees" is its unit, not the beginning of a question."""
    if not match.has("ask") or not any(number.end == match.start for number in numbers):
        return match
    low, high = spans[match.start]
    if not text[low:high].startswith(("degree", "度")):
        return match
    return Match(match.start, match.start + 1, frozenset({"unit.celsius"}), 0.0)


def _denied(match: Match, text: str, spans: Sequence[tuple[int, int]]) -> bool:
    """ "I'm not cold" is no wish."""
    return match.has("feel") and _NOT_BEFORE.search(text[: spans[match.start][0]]) is not None


def _named(names: Iterable[str], group: str) -> list[str]:
    return [name.split(".", 1)[1] for name in names if name.startswith(group + ".")]


def _feelings(text: str, names: set[str]) -> Iterable[str]:
    blind = _BLIND.search(text) and _GLASS.search(text)
    misted = _FOG.search(text) and (
        "device.window" in names or re.search(r"glass|windscreen|windshield|[窗玻挡]", text)
    )
    if misted and _CLEARED.search(text):
        yield "device.rear_defrost" if _REAR.search(text) else "device.front_defrost"
    elif (blind or misted) and not _named(names, "verb"):
        yield "feel.fog_rear" if _REAR.search(text) else "feel.fog"
    if "feel.fog" in names and re.search(r"\b(?:back|rear|behind)\b|后", text):
        yield "feel.fog_rear"
    if "feel.cold" in names and _WHEEL.search(text):
        yield "feel.cold_hands"
    if "feel.cold" in names and _SEAT.search(text) and not re.search(r"\bback seats?\b|后[排座]", text):
        yield "feel.cold_seat"


def _direction(text: str, names: set[str]) -> Iterable[str]:
    """ "The fan is too strong" wishes for less; with a verb of its own the wish is said."""
    if not any(f"device.{device}" in names for device in _LEVELLED) or _named(names, "verb"):
        return
    if _TOO_MUCH.search(text):
        yield from ("verb.down", "feel.too")
    elif _TOO_LITTLE.search(text):
        yield from ("verb.up", "feel.too")
