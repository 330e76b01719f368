"""Rules that a program of the model must pass before it may act: what must never happen, not what people may say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from pipeline.frames import ToolCall
from pipeline.nlu.evidence import Evidence
from pipeline.nlu.lexicon import Match
from pipeline.nlu.parser.reader import Program, ProgramCall
from pipeline.nlu.parser.scope import contrasted_at, corrected_at, excepted_at
from pipeline.nlu.slots import seat_zone

NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "set_temperature": ("device.temperature", "device.ac", "unit.celsius", "verb.warmer", "verb.cooler", "feel"),
    "set_fan": ("device.fan", "device.ac", "feel"),
    "set_air_conditioning": ("device.ac", "feel"),
    "set_recirculation": ("device.recirculation", "device.fresh_air", "feel"),
    "set_defrost": ("device.defrost", "device.rear_defrost", "device.front_defrost", "feel.fog", "feel.fog_rear"),
    "set_window": ("device.window", "feel"),
    "set_sunroof": ("device.sunroof", "command.sunroof_open"),
    "set_sunshade": ("device.sunshade", "feel.sun"),
    "set_seat_heating": ("device.seat_heating", "device.seat", "feel.cold_seat"),
    "set_seat_ventilation": ("device.seat_ventilation", "device.seat"),
    "set_steering_wheel_heating": ("device.wheel_heating", "feel.cold_hands", "forbid.steering"),
    "set_interior_light": ("device.dome_light", "device.light", "device.reading_light", "feel.dark"),
    "set_headlights": ("device.headlight",),
    "set_wipers": ("device.wiper", "feel.rain"),
    "set_door_locks": ("device.door", "verb.lock", "verb.unlock"),
    "set_trunk": ("device.trunk",),
    "set_brightness": ("device.screen",),
    "set_screen": ("device.screen",),
    "show_page": ("device.page", "device.screen", "verb.set"),
    "tune_radio": ("source", "unit.other", "verb.set"),
    "set_seat_massage": ("device.seat_massage",),
    "set_ambient_light": ("device.ambient_light",),
    "set_ambient_color": ("device.ambient_light",),
    "set_reading_light": ("device.reading_light",),
    "set_exterior_light": ("device.high_beam", "device.fog_light", "device.front_fog", "device.rear_fog",
                           "device.position_light"),
    "set_climate_mode": ("device.climate_auto", "device.climate_eco", "device.rapid_cooling", "device.rapid_heating",
                         "device.swing", "device.natural_wind", "device.ac",
                         "verb.cooler", "verb.warmer"),
    "set_air_direction": ("device.air_feet", "device.air_face", "device.air_windscreen", "device.fan"),
    "set_seat_position": ("device.seat_position", "device.seat"),
    "set_volume": ("device.volume", "device.media", "device.nav_voice", "device.call_volume", "verb.louder",
                   "verb.quieter", "verb.mute", "feel"),
    "restore_volume": ("device.volume", "device.media", "verb.unmute"),
    "set_navigation_voice": ("device.nav_voice", "device.nav", "command.nav_mute"),
    "control_media": ("device.media", "verb.next", "verb.previous", "verb.play", "verb.stop", "verb.rewind",
                      "verb.fast_forward", "music", "device.shuffle", "device.repeat", "device.favourites",
                      "device.add_favourite"),
    "play_media": ("verb.play", "device.media", "music"),
    "set_media_source": ("source",),
    "navigate_to": ("verb.go", "device.nav", "place", "kind", "mark.nearest"),
    "set_route_options": ("option", "verb.avoid"),
    "cancel_navigation": ("device.nav",),
}  # fmt: skip
"""What of the car's words must be heard, exactly or by sound, for a tool to act: one of these. A model that reads a
device which nobody named has misread."""
_DEVICES: Final = frozenset(tag for tags in NAMES.values() for tag in tags if tag.startswith("device."))
_ALSO: Final[Mapping[str, tuple[str, ...]]] = {
    "navigate_to": ("device.nav_voice",),
    "set_temperature": ("device.fan", "device.seat"),
    "set_fan": ("device.temperature",),
    "set_window": ("device.seat", "device.door"),
    "set_media_source": ("device.media",),
    "set_headlights": ("device.light",),
    "set_defrost": ("device.window",),
    "cancel_navigation": ("device.nav_voice",),
    "set_steering_wheel_heating": ("device.temperature", "device.fan"),
    "set_seat_massage": ("device.seat",),
    "show_page": ("device.screen", "device.nav", "device.media", "device.ac"),
    "tune_radio": ("device.media",),
    "set_ambient_light": ("device.light", "device.screen"),
    "set_ambient_color": ("device.light",),
    "set_reading_light": ("device.light", "device.screen", "device.dome_light"),
    "set_exterior_light": ("device.light", "device.headlight"),
    "set_climate_mode": ("device.ac", "device.fan", "device.temperature"),
    "set_air_direction": ("device.ac", "device.window", "device.front_defrost"),
    "set_air_conditioning": ("device.climate_auto",),
}
"""Devices that may be named beside a tool's own without another wish ("the driver's seat window")."""
_HOW: Final = re.compile(
    r"咋(?!不)|能不能[用拿]手机|[用拿]手机[^，。]{0,4}吗"
    r"|怎么|怎样|如何|[做办]得[到了]吗|[做办]不[做办]得[到了]|\bhow (?:do|can|would|should|does)\b",
    re.IGNORECASE,
)
_WARM: Final = re.compile(
    r"热|暖|烫|冷|冰|凉|冻|知觉|\bheat|\bwarm|\btoast|\bcold|\bfree?z|\bfroz|\bnumb|\bfeel my (?:hands|fingers)",
    re.IGNORECASE,
)
_COUNTED: Final = 11
_ARTICLES: Final = frozenset(("the", "a", "an", "my", "please"))
_SURE_OF_SOUND: Final = 0.99
_SMALL_WORDS: Final = (
    "a an the it this that one ones i i'm i'd me my you your we us for to of at in on up so and or is are can could "
    "would please just now again more bit little second moment minute while what let's let go get want wanna like "
    "don't do not hear heard listen here there thing stuff than with by was were before after last first been"
)
SMALL: Final = frozenset((*_SMALL_WORDS.split(), *"我你他它这那个的了吧啊呢嘛一下请给要想把就都先再还也不是"))
"""Words that name nothing."""
READS: Final = frozenset(("ask_vehicle", "ask_distance"))


def guard_fault(program: Program, whole: Evidence, last_call: ToolCall | None, *, by_feeling: bool = True) -> str:
    """Why the program may not act, empty where it may.

    forbidden: a forbidden thing is named; number: a number may be longer than it was understood; name: a road's name
    goes on behind the words that were taken for it; other: it is a mode or another screen, which the car has not;
    evidence: no word for a tool's device (a follow-up may leave it out); schema: a call is no valid one. by_feeling:
    words of feeling may stand for a device. Where the rules heard no wish in them, they are told and not meant ("it was
    cold there").
    """
    if not program.calls:
        return "empty"
    if not program.valid:
        return "schema"
    if any(not _harmless(match, program, whole) for match in whole.of("forbid")):
        return "forbidden"
    if _HOW.search(whole.text) and any(call.call.name != "navigate_to" for call in program.calls):
        return "question"
    if whole.doubtful_number:
        return "number"
    if any(_cut_short(call, whole) for call in program.calls):
        return "name"
    if any(_OTHER[name].search(whole.text) for name in {call.call.name for call in program.calls} & _OTHER.keys()):
        return "other"
    if any(call.call.name == "show_page" for call in program.calls) and not _PAGE.search(whole.text):
        return "other"
    if not all(_named(call, whole, last_call, by_feeling) for call in program.calls):
        return "evidence"
    return ""


_PAGE: Final = re.compile(
    r"\b(?:pages?|screens?|menu|home|settings?|map|view|contacts)\b|页|界面|桌面|主菜单|设置|画面|通讯录|屏",
    re.IGNORECASE,
)
"""What a page of the screen is called by: "display my lists" names none."""
_OTHER: Final = {
    "set_seat_massage": re.compile(r"模式|时长|\bmode\b|\bprogram", re.IGNORECASE),
    "set_ambient_light": re.compile(r"模式|同步|律动|提醒|\bmode\b|\bsync", re.IGNORECASE),
    "set_ambient_color": re.compile(r"模式|同步|律动|\bmode\b|\bsync", re.IGNORECASE),
    "set_exterior_light": re.compile(r"自动|智能|\bauto", re.IGNORECASE),
    "set_screen": re.compile(
        r"对着|滑|移|转|仪表|副驾|后排|娱乐|\b(?:slide|move|rotate|passenger|rear|cluster)\b", re.IGNORECASE
    ),
}
"""Words beside a thing by which something else is meant that the car has not: the massage's mode, the other screen."""


def _harmless(match: Match, program: Program, whole: Evidence) -> bool:
    """Whether a forbidden word is part of a title, or of the steering wheel that is heated, or only sounds like one in
    a sentence of which the model is quite sure.
    """
    low, high = whole.tokens[match.start].start, whole.tokens[match.end - 1].end
    if any(call.words is not None and call.words[0] <= low and high <= call.words[1] for call in program.calls):
        return True
    heats = any(call.call.name == "set_steering_wheel_heating" for call in program.calls) and _WARM.search(whole.text)
    about = {tag for tag in match.tags if tag.startswith("forbid.")}
    tools = {call.call.name for call in program.calls}
    if about == {"forbid.accelerate"} and tools == {"set_wipers"} and whole.has("device.wiper"):
        return True  # the wipers go faster, not the car
    if about == {"forbid.steering"} and tools == {"set_route_options"} and "steer clear" in whole.text.lower():
        return True
    if match.cost > 0 and program.reason_confidence >= _SURE_OF_SOUND:
        return True  # 驻车舒享 is no parking brake
    if about == {"forbid.suspension"} and all(call.call.name == "set_climate_mode" for call in program.calls):
        return True  # the eco mode of the air conditioning
    return bool(heats) and about == {"forbid.steering"}


def speaks_of_more(whole: Evidence, *, certain: bool = False) -> bool:
    """Whether words for the player are a verb alone ("next", "stop") while the sentence speaks of other things that
    nobody knows: "a jacket next wednesday", "stop wiping". A model that is `certain` may know two more of them.
    """
    if whole.has("device.media") or whole.of("music") or whole.of("source"):
        return False
    return len(unknown_words(whole)) > (2 if whole.language == "zh" else 0) + 2 * certain


def mostly_unknown(whole: Evidence) -> bool:
    """Whether so many words of the sentence are nobody's that rules, which see only theirs, may have missed its sense:
    "pick the playback up again".
    """
    return len(unknown_words(whole)) > (3 if whole.language == "zh" else 1)


def unknown_words(whole: Evidence) -> list[str]:
    """Words (of Mandarin: characters) that are neither the car's nor numbers nor small ones."""
    covered = {at for match in whole.matches for at in range(match.start, match.end)}
    covered |= {at for number in whole.numbers for at in range(number.start, number.end)}
    return [word for at, word in enumerate(whole.words) if at not in covered and word not in SMALL]


def unit_alone(calls: Sequence[ToolCall], whole: Evidence) -> bool:
    """Whether a level is spoken of that nobody understood: "second level" is not "on"."""
    levels = [call for call in calls if call.arguments.get("action") == "set" and "value" in call.arguments]
    return (
        bool(levels)
        and whole.language == "en"
        and whole.has("unit.level")
        and not whole.numbers
        and not whole.of("amount")
    )


def read_past(program: Program, whole: Evidence) -> bool:
    """Whether something is heard that the program leaves out: a negation, or a number that no call uses ("to 20, no,
    22"; inside a name it is part of the name). Then the model must be surer of what it reads.
    """
    if whole.has("mark.negate"):
        return True
    used = {round(abs(call.number.value), 3) for call in program.calls if call.number is not None}
    texts = [call.words for call in program.calls if call.words is not None]
    for number in whole.numbers:
        start, end = whole.tokens[number.start].start, whole.tokens[number.end - 1].end
        if any(low <= start and end <= high for low, high in texts):
            continue
        if round(abs(number.value), 3) not in used:
            return True
    return False


def _named(read: ProgramCall, whole: Evidence, last_call: ToolCall | None, by_feeling: bool) -> bool:
    name = read.call.name
    if name in READS or name not in NAMES:
        return name in READS
    if last_call is not None and last_call.name == name and not whole.of("device"):
        return True
    tags = (tag for tag in NAMES[name] if by_feeling or not tag.startswith("feel"))
    return any(whole.has(tag) if "." in tag else bool(whole.of(tag)) for tag in tags)


def leaves_out(calls: Sequence[ToolCall], whole: Evidence) -> bool:
    """Whether the sentence names a device, or a place, that none of the calls has to do with: half of it may have been
    dropped.
    """
    if (whole.of("place") or whole.of("kind")) and not any(
        "place" in call.arguments or call.name == "cancel_navigation" for call in calls
    ):
        return True
    served = {tag for call in calls for tag in (*NAMES.get(call.name, ()), *_ALSO.get(call.name, ()))}
    named = {f"device.{name}" for name in whole.names("device")} & _DEVICES
    return not named <= served


_ROADS: Final = re.compile(
    r"\s(?:close|drive|way|park|court|gate|row|hill|green|lane|rise|view|walk|mews|crescent|grove|street|road|avenue"
    r"|square|terrace|gardens|place|boulevard)\b(?! (?:the|my|a|all|to|me|please)\b)",
    re.IGNORECASE,
)


def _cut_short(read: ProgramCall, whole: Evidence) -> bool:
    """Whether the word behind a place belongs to its name: 14 Kestrel|Close."""
    return "place" in read.call.arguments and read.words is not None and bool(_ROADS.match(whole.text, read.words[1]))


def contrast_kept(calls: Sequence[ToolCall], whole: Evidence) -> bool:
    """Whether no call has the place or number that stands behind "not", 不是, while another one stands elsewhere."""
    span = contrasted_at(whole.text)
    if span is None:
        return True
    inside = [span[0] <= whole.tokens[match.start].start < span[1] for match in whole.matches]
    zones = []
    for wanted in (True, False):
        part = tuple(match for match, there in zip(whole.matches, inside, strict=True) if there is wanted)
        some = replace(whole, matches=part, tags=frozenset())
        zones.append(seat_zone(some, "") if some.of("zone") else "")
    if all(zones) and zones[0] != zones[1] and any(call.arguments.get("zone") == zones[0] for call in calls):
        return False
    begins = [whole.tokens[number.start].start for number in whole.numbers]
    undone = {abs(number.value) for number, at in zip(whole.numbers, begins, strict=True) if span[0] <= at < span[1]}
    meant = {abs(number.value) for number in whole.numbers} - undone
    return not (meant and any(abs(call.arguments.get("value", -1)) in undone for call in calls))


def exception_kept(calls: Sequence[ToolCall], whole: Evidence) -> bool:
    """Whether no call acts at the place that is left out ("everything save for the back right door")."""
    span = excepted_at(whole.text)
    if span is None:
        return True
    inside = [match for match in whole.matches if span[0] <= whole.tokens[match.start].start < span[1]]
    part = replace(whole, matches=tuple(inside), tags=frozenset())
    left_out = seat_zone(part, "") if part.of("zone") else ""
    return not left_out or all(call.arguments.get("zone") not in (left_out, "all") for call in calls)


def correction_kept(calls: Sequence[ToolCall], whole: Evidence) -> bool | None:
    """Whether the thing, place and number behind a correction ("no wait", 不对) are those of the calls, and no others;
    None where nothing stands there that could tell.
    """
    begin = corrected_at(whole.text)
    if begin is None:
        return None
    after = [match for match in whole.matches if whole.tokens[match.start].start >= begin]
    numbers = [number for number in whole.numbers if whole.tokens[number.start].start >= begin]
    things = {tag for match in after for tag in match.tags if tag.startswith("device.")} & _DEVICES
    turned = [OPENS[tag] for match in after for tag in match.tags if tag in OPENS]
    if not (things or numbers or turned or any(match.has("zone") for match in after)):
        return None
    if len(set(turned)) == 1 and any(opens(call) is not None and opens(call) != turned[0] for call in calls):
        return False
    if things and any(not things & {*NAMES.get(call.name, ()), *_ALSO.get(call.name, ())} for call in calls):
        return False
    part = replace(whole, matches=tuple(after), numbers=tuple(numbers), tags=frozenset())
    zones = [str(call.arguments["zone"]) for call in calls if "zone" in call.arguments]
    if part.of("zone") and zones and zones != [seat_zone(part, "")]:
        return False
    values = [abs(call.arguments["value"]) for call in calls if "value" in call.arguments]
    said = [abs(number.value) for number in numbers]
    if not (said and values):
        return True
    return any(abs(value - one) < 0.01 or one < _COUNTED for value in values for one in said)  # levels are counted


OPENS: Final = {"verb.open": True, "verb.on": True, "verb.close": False, "verb.off": False}


def opposite(read: Sequence[ToolCall], ruled: Sequence[ToolCall]) -> bool:
    """Whether one opens, or switches on, what the other closes."""
    pairs = [(opens(mine), opens(theirs)) for mine in read for theirs in ruled if mine.name == theirs.name]
    return any(None not in pair and pair[0] != pair[1] for pair in pairs)


def opens(call: ToolCall) -> bool | None:
    """Whether the call opens or switches something on; None for one that does neither."""
    arguments = call.arguments
    if call.name == "set_sunroof":
        return bool(arguments["position"] != "closed")
    if "on" in arguments or "open" in arguments:
        return bool(arguments.get("on", arguments.get("open")))
    if arguments.get("action") == "set" and call.name in ("set_window", "set_sunshade"):
        return bool(arguments["value"])
    return None


_JOINS: Final = re.compile(r"\W*(?:\band\b|和|跟|与|还有|以及|、)(?: the|\W)*", re.IGNORECASE)


def zones_joined(whole: Evidence) -> bool:
    """Whether two places stand beside each other, joined: 主驾和副驾, "driver and passenger"."""
    zones = sorted(whole.of("zone"), key=lambda match: match.start)
    return any(
        _JOINS.fullmatch(whole.text[whole.tokens[first.end - 1].end : whole.tokens[second.start].start])
        for first, second in pairwise(zones)
    )


def lacks_only(what: str, whole: Evidence) -> bool:
    """Whether every thing that the sentence names is part of what the car lacks: "the call volume"."""
    begin = whole.text.find(what) if what else -1
    named = [match for match in whole.matches if any(map(match.has, ("device", "source")))]
    named = [match for match in named if not match.has("verb")]
    spans = [(whole.tokens[match.start].start, whole.tokens[match.end - 1].end) for match in named]
    return begin >= 0 and bool(spans) and all(begin <= low < begin + len(what) for low, _ in spans)


def known_by_sound(whole: Evidence) -> bool:
    """Whether every word of the sentence is one of the car's, some only by sound: it was misheard, and the rules know
    what was meant better than who reads the letters.
    """
    known = {at for match in whole.matches for at in range(match.start, match.end)}
    known |= {at for number in whole.numbers for at in range(number.start, number.end)}
    small = {at for at, word in enumerate(whole.words) if word in _ARTICLES}
    return len(known | small) == len(whole.tokens) and any(match.cost > 0 for match in whole.matches)
