"""Evidence of one clause to the calls that its words support. Several calls mean: the words leave it open, the model
chooses.
"""

from __future__ import annotations

import re

from pipeline.frames import ToolCall
from pipeline.nlu.evidence import Evidence
from pipeline.nlu.intents.device_table import DEVICE_RULES, device_calls
from pipeline.nlu.intents.devices import (
    CallCandidate,
    direction_of,
    lock_calls,
    make_call,
    only,
    refusal,
    switched,
    temperature_calls,
)
from pipeline.nlu.intents.further_devices import eco_mode, player_list, radio_station, seat_move
from pipeline.nlu.intents.implied import feeling_calls
from pipeline.nlu.intents.navigation_media import media_call, navigation_call, trip_there
from pipeline.nlu.intents.questions import asked, asked_further
from pipeline.nlu.lexicon import Lexicon
from pipeline.nlu.slots import Amount, amount_of

THINGS = frozenset(("engine", "the engine", "motor", "发动机", "引擎", "马达", "airbag", "安全气囊"))
"""Forbidden only together with a verb: "the engine sounds strange" is talk."""
WEAK_FORBID = {
    "faster",
    "slower",
    "speed up",
    "slow down",
    "加速",
    "减速",
    "steering wheel",
    "方向盘",
    "stop",
    "root",
    "motor",
    "first gear",
    "erase",
}


def candidates_of(
    evidence: Evidence, last_call: ToolCall | None = None, lexicon: Lexicon | None = None
) -> list[CallCandidate]:
    """Calls the clause supports, best first; empty when it is no command. `last_call`: what "it" means."""
    found = _supported(evidence, last_call, lexicon) if evidence.tokens else []
    valued = [candidate.call for candidate in found if "value" in candidate.call.arguments]
    # nobody asks for 4.8 percent: it was "fourteen"
    whole = ("set_temperature", "tune_radio")
    broken = any(call.name not in whole and call.arguments["value"] % 1 for call in valued)
    if valued and (evidence.doubtful_number or broken):
        return only(refusal("not_understood", evidence.text.strip()))
    return found


def _supported(evidence: Evidence, last_call: ToolCall | None, lexicon: Lexicon | None) -> list[CallCandidate]:
    question = asked(evidence)
    if _OFFERED.search(evidence.text) and evidence.of("music"):
        return only(make_call("play_media", query=evidence.names("music")[0]))
    if question.explain:
        return []
    if question.call is not None:
        return only(question.call)
    forbidden = _forbidden(evidence)
    if forbidden is not None and not question.is_question:
        return only((seat_move(evidence) if forbidden.arguments["what"] == "seat_position" else None) or forbidden)
    eco = None if question.is_question or _declined(evidence) else eco_mode(evidence)
    if eco is not None:
        return only(eco)
    if _declined(evidence):
        return only(refusal("declined", evidence.text.strip()))
    if _to_be_told(evidence) and not question.is_question:
        return only(refusal("unsupported", evidence.names("unsupported")[0]))
    navigation = trip_there(evidence, last_call) or navigation_call(evidence)
    if navigation is not None:
        return only(navigation)
    unsupported = evidence.names("unsupported")
    if unsupported and not (evidence.of("device") and not question.is_question):
        return only(refusal("unsupported", unsupported[0]))
    media = player_list(evidence) or radio_station(evidence) or media_call(evidence, lexicon)
    if media is not None and not question.is_question:
        return only(media)
    wished = evidence.of("music") and (evidence.has("verb.set") or _WISH.search(evidence.text))
    others = [name for name in evidence.names("device") if name != "media"]
    if wished and not others and not question.is_question:
        return only(make_call("play_media", query=evidence.names("music")[0]))
    device = device_calls(evidence, question.is_question)
    if device:
        return only(refusal("not_understood", evidence.text.strip())) if _only_named(evidence) else device
    if question.is_question:
        return []
    further = asked_further(evidence, last_call)
    if further is not None:
        return only(further)
    followed = _follow_up(evidence, last_call)
    if followed:
        return followed
    amount = amount_of(evidence)
    if amount.value is not None and amount.unit == "celsius" and direction_of(evidence):
        return temperature_calls(evidence, amount)
    feeling = feeling_calls(evidence)
    if feeling:
        return feeling
    return _bare_change(evidence) or only(_whole_command(evidence, lexicon)) or _unknown_command(evidence)


def _to_be_told(evidence: Evidence) -> bool:
    """ "Remind me to go to the bank": what follows is not to be done, it is to be told."""
    first = next((match for match in evidence.matches if not match.has("filler") and not match.has("mark")), None)
    if first is None or not {"unsupported.calendar", "unsupported.phone"} & first.tags:
        return False
    behind = "".join(evidence.words[first.end : first.end + 1])
    said = "".join(evidence.words[first.start : first.end])
    return behind in ("to", "that") or said == "提醒我"


def _whole_command(evidence: Evidence, lexicon: Lexicon | None) -> ToolCall | None:
    """Short commands known as a whole, however badly they were heard."""
    names = evidence.names("command")
    if not names and lexicon is not None and len(evidence.matches) <= 2:
        near = lexicon.whole(evidence.tokens, "command")
        names = [near] if near else []
    if "nav_mute" in names:
        ends = evidence.has("verb.cancel", "verb.off", "verb.unmute")
        return make_call("set_navigation_voice", state="UNMUTED" if ends else "MUTED")
    if "sunroof_open" in names:
        return make_call("set_sunroof", position="open")
    if "reverse" in names:
        return refusal("forbidden", "gear")
    return None


def _forbidden(evidence: Evidence) -> ToolCall | None:
    for match in evidence.of("forbid"):
        said = (
            "".join(evidence.words[match.start : match.end])
            if evidence.language == "zh"
            else " ".join(evidence.words[match.start : match.end])
        )
        weak = said in WEAK_FORBID or match.cost > 0.25
        name = sorted(tag for tag in match.tags if tag.startswith("forbid."))[0].removeprefix("forbid.")
        if said in THINGS and not (evidence.names("verb") or {"on", "off"} & set(evidence.words)):
            continue
        if weak and (evidence.of("device") or evidence.of("place") or evidence.of("kind")):
            continue
        if name == "suspension" and _CLIMATE.search(evidence.text):  # the eco mode of the air conditioning
            continue
        on_the_way = (evidence.of("place") or evidence.of("kind")) and evidence.has("verb.go")
        if on_the_way and name not in ("gear", "parking_brake", "engine", "assistance"):
            continue
        return refusal("forbidden", name)
    comfort = evidence.has(
        "unit.celsius", "feel.cold", "feel.cold_seat", "verb.warmer", "verb.cooler", "device.temperature"
    )
    if evidence.has("device.seat") and not comfort and evidence.names("verb"):
        return refusal("forbidden", "seat_position")
    if (
        evidence.has("device.door")
        and evidence.has("verb.open", "verb.on")
        and not evidence.has("verb.lock", "verb.unlock")
    ):
        return refusal("forbidden", "door")
    return None


def _declined(evidence: Evidence) -> bool:
    """ "Don't open the window": a command not to act."""
    negations = [match for match in evidence.matches if "mark.negate" in match.tags]
    if evidence.of("option"):
        return False
    after = [match for match in evidence.of("verb") if negations and match.start >= negations[0].end]
    object_said = any(evidence.of(group) for group in ("device", "place", "kind", "music"))
    object_said = object_said or not {"it", "that", "this", "them", "它"}.isdisjoint(evidence.words)
    if _LEAVE.search(evidence.text) and object_said and not evidence.numbers:
        return True
    return bool(negations) and object_said and (bool(after) or not evidence.of("verb"))


_CLIMATE = re.compile(r"空调|\b(?:climate|ac|air con\w*)\b", re.IGNORECASE)
_ARTICLES = frozenset(("the", "a", "an", "my", "our", "your"))


def _only_named(evidence: Evidence) -> bool:
    """ "Seat heating makes you sick": a thing alone means "on" as long as nothing unknown is said of it."""
    told = any(evidence.of(group) for group in ("verb", "amount", "feel", "zone", "unit")) or evidence.numbers
    if told or {"on", "off"} & set(evidence.words):
        return False
    end = evidence.of("device")[-1].end
    covered = {i for match in evidence.matches for i in range(match.start, match.end)}
    unknown = (evidence.words[i] for i in range(end, len(evidence.tokens)) if i not in covered)
    return sum(word not in _ARTICLES for word in unknown) >= 2


def _follow_up(evidence: Evidence, last_call: ToolCall | None) -> list[CallCandidate]:
    """ "Make it warmer", "a bit more", "close it": what was last acted on, at its place unless another is said."""
    named = None if last_call is None else _device_for(last_call)
    if last_call is None or named is None or not _about_it(evidence):
        return []
    if any(evidence.of(group) for group in ("device", "feel", "place", "kind", "music", "source", "command")):
        return []
    amount = amount_of(evidence)
    thermal = evidence.has("verb.warmer", "verb.cooler") or amount.unit in ("celsius", "fahrenheit", "kelvin")
    sound = evidence.has("verb.louder", "verb.quieter", "verb.mute", "verb.unmute")
    if sound and named not in _SOUNDING:
        return []
    if evidence.has("verb.lock", "verb.unlock") and named != "door":
        return []
    if thermal and (named not in _THERMAL or (amount.unit is not None and amount.unit != "percent")):
        named = "temperature"
    if named == "temperature" and not thermal and _cabin_value(evidence, amount):
        return []
    said = direction_of(evidence) or switched(evidence) is not None or amount.value is not None or sound
    if not said and amount.word not in ("little", "max", "min") and not evidence.has("verb.lock", "verb.unlock"):
        return []
    calls = [_at_place_of(last_call, evidence, candidate) for candidate in dict(DEVICE_RULES)[named](evidence, amount)]
    return [_further(last_call, evidence, candidate) for candidate in calls]


def _further(last_call: ToolCall, evidence: Evidence, candidate: CallCandidate) -> CallCandidate:
    """ "A bit more" after a window was closed a bit: more of the same."""
    call = candidate.call
    closed = call.name == last_call.name and float(last_call.arguments.get("value", 1)) <= 0
    if call.name not in ("set_window", "set_sunshade") or not closed or call.arguments["action"] != "change":
        return candidate
    if evidence.has("verb.open", "verb.close", "verb.on", "verb.off"):
        return candidate
    arguments = {**call.arguments, "value": -call.arguments["value"]}
    return CallCandidate(make_call(call.name, **arguments), candidate.prior)


def _cabin_value(evidence: Evidence, amount: Amount) -> bool:
    """ "The driver to 22", "车里设成21": degrees without the word."""
    where = evidence.of("zone") or (evidence.has("verb.set") and _CABIN.search(evidence.text))
    if _strange(evidence) > _FEW_STRANGE:  # a date, an age
        return False
    return amount.value is not None and bool(where) and amount.unit is None and 10 <= amount.value <= 40


def _bare_change(evidence: Evidence) -> list[CallCandidate]:
    """ "Turn it up", "mute", "22 degrees": the thing itself was not said, and nothing before."""
    amount = amount_of(evidence)
    if evidence.has("verb.mute"):
        return only(make_call("set_volume", target="media", action="set", value=0.0))
    if evidence.has("verb.unmute"):
        return only(make_call("restore_volume", target="media"))
    if evidence.has("verb.lock", "verb.unlock"):
        return lock_calls(evidence, amount)
    if _cabin_value(evidence, amount):
        return temperature_calls(evidence, amount)
    direction = direction_of(evidence)
    if (
        amount.value is not None
        and amount.unit in ("celsius", "fahrenheit", "kelvin")
        and (
            evidence.names("verb")
            or evidence.of("zone")
            or _WISH.search(evidence.text)
            or amount.to
            or _bare_number(evidence)
        )
    ):
        return temperature_calls(evidence, amount)
    if direction and not evidence.numbers and evidence.has("verb.up", "verb.down") and _about_it(evidence):
        value = float(direction)
        return [
            CallCandidate(make_call("set_volume", target="media", action="change", value=10.0 * value), 0.0),
            CallCandidate(make_call("set_temperature", zone="all", action="change", value=2.0 * value), -1.0),
            CallCandidate(make_call("set_fan", zone="all", action="change", value=20.0 * value), -2.0),
        ]
    return []


_LEAVE = re.compile(
    r"\b(?:leave|keep)\b.*\b(?:closed|open|shut|on|off|alone|as|like)\b|别动|不动|保持.*[着样]", re.IGNORECASE
)
_CABIN = re.compile(r"\b(?:cabin|the car|interior|in here)\b|车[里内]|车厢", re.IGNORECASE)
_OFFERED = re.compile(r"有没有|有.*的歌吗|\b(?:do you have|have you got|is there) (?:any|some)\b", re.IGNORECASE)
_WISH = re.compile(r"\b(?:get|have|like|want|need|prefer|fancy|love)\b|想|要|希望|喜欢", re.IGNORECASE)
_PRONOUN_WORDS = (
    "it that this them again more now a bit little too the back way to by for all up down on off actually "
    "rather instead sorry mean meant i no wait oh one please turn crank put make level dim dimmer brighter brighten "
    "darker"
)
_PRONOUNS = frozenset(_PRONOUN_WORDS.split()) | frozenset("它这个些点的了一吧再还要给我不对是哦算应该其实那")


def _about_it(evidence: Evidence) -> bool:
    """No word names anything: what is meant was said before."""
    covered = {i for match in evidence.matches for i in range(match.start, match.end)}
    covered |= {i for number in evidence.numbers for i in range(number.start, number.end)}
    return all(i in covered or word in _PRONOUNS for i, word in enumerate(evidence.words))


_FEW_STRANGE = 3


def _strange(evidence: Evidence) -> int:
    """How many words mean nothing to the car."""
    covered = {i for match in evidence.matches for i in range(match.start, match.end)}
    covered |= {i for number in evidence.numbers for i in range(number.start, number.end)}
    return sum(i not in covered and word not in _PRONOUNS for i, word in enumerate(evidence.words))


def _bare_number(evidence: Evidence) -> bool:
    covered = sum(match.end - match.start for match in evidence.matches) + sum(
        n.end - n.start for n in evidence.numbers
    )
    return covered >= len(evidence.tokens)


_DEVICE_OF_TOOL = {
    "set_temperature": "temperature",
    "set_fan": "fan",
    "set_volume": "volume",
    "set_window": "window",
    "set_sunroof": "sunroof",
    "set_seat_heating": "seat_heating",
    "set_air_conditioning": "ac",
    "set_brightness": "screen",
    "control_media": "media",
    "play_media": "media",
    "set_interior_light": "dome_light",
    "set_recirculation": "recirculation",
    "set_seat_ventilation": "seat_ventilation",
    "set_steering_wheel_heating": "wheel_heating",
    "set_sunshade": "sunshade",
    "set_wipers": "wiper",
    "set_defrost": "defrost",
    "set_door_locks": "door",
    "set_trunk": "trunk",
    "set_headlights": "headlight",
    "set_navigation_voice": "nav_voice",
    "set_media_source": "media",
    "restore_volume": "volume",
    "set_seat_massage": "seat_massage",
    "set_ambient_light": "ambient_light",
    "set_ambient_color": "ambient_light",
    "set_reading_light": "reading_light",
    "set_screen": "screen",
    "show_page": "page",
    "tune_radio": "media",
    "set_seat_position": "seat_position",
}
_THERMAL = frozenset(("temperature", "seat_heating", "seat_ventilation", "wheel_heating", "ac"))
"""Devices that can get warmer or cooler; after another one that wish is about the air at the same place."""
_SOUNDING = frozenset(("volume", "media", "nav_voice"))


_DEVICE_OF_QUESTION = {
    "windows": "window",
    "sunroof": "sunroof",
    "volume": "volume",
    "fan": "fan",
    "air_conditioning": "ac",
    "recirculation": "recirculation",
    "seat_heating": "seat_heating",
    "media": "media",
    "inside_temperature": "temperature",
    "set_temperature": "temperature",
    "lights": "light",
    "wipers": "wiper",
    "trunk": "trunk",
    "seat_massage": "seat_massage",
    "ambient_light": "ambient_light",
}
"""What "it" means after a question: "is the sunroof open? close it"."""


def kept_in_mind(call: ToolCall) -> bool:
    """True for a call that "it" or "there" may mean later."""
    if call.name == "ask_vehicle":
        return call.arguments["item"] in (*_DEVICE_OF_QUESTION, "exterior_lights")
    return call.name.startswith(("set_", "play_", "tune_", "show_", "control_", "restore_", "ask_distance"))


def _device_for(last_call: ToolCall) -> str | None:
    if last_call.arguments.get("target") == "navigation":
        return "nav_voice"
    if last_call.arguments.get("target") == "call":
        return "call_volume"
    if last_call.name == "ask_vehicle":
        return _DEVICE_OF_QUESTION.get(last_call.arguments["item"])
    if last_call.name in ("set_exterior_light", "set_climate_mode"):
        return _ONE_OF_SEVERAL[last_call.arguments.get("which") or last_call.arguments["mode"]]
    return _DEVICE_OF_TOOL.get(last_call.name)


_ONE_OF_SEVERAL = {
    "high_beam": "high_beam",
    "fog": "fog_light",
    "front_fog": "front_fog",
    "rear_fog": "rear_fog",
    "position": "position_light",
    "auto": "climate_auto",
    "eco": "climate_eco",
    "rapid_cooling": "rapid_cooling",
    "rapid_heating": "rapid_heating",
    "swing": "swing",
    "natural": "natural_wind",
}
"""Lights outside and climate modes: what "it" means after one of them."""
_PLACE_ARGUMENTS = ("zone", "area", "target")


def _at_place_of(last_call: ToolCall, evidence: Evidence, candidate: CallCandidate) -> CallCandidate:
    """The call at the place of the last one, unless a place was said."""
    if evidence.of("zone"):
        return candidate
    kept = {
        name: last_call.arguments[name]
        for name in _PLACE_ARGUMENTS
        if name in candidate.call.arguments and last_call.arguments.get(name, "any") != "any"
    }
    return CallCandidate(make_call(candidate.call.name, **{**candidate.call.arguments, **kept}), candidate.prior)


def _unknown_command(evidence: Evidence) -> list[CallCandidate]:
    """A command for a thing the car does not have: said so, never guessed."""
    strong = evidence.has("verb.on", "verb.off", "verb.open", "verb.close", "verb.set", "verb.up", "verb.down")
    if not strong:
        return []
    first = evidence.matches[0]
    leading = (
        all(match.has("filler") or match.has("verb") or match.has("mark") for match in evidence.matches[:1])
        and first.start <= 1
    )
    if not leading:
        return []
    return only(refusal("not_understood", evidence.text.strip()))
