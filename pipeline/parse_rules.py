"""Evidence of one clause to the calls that its words support. Several calls mean: the words leave it open, the
model chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipeline.frames import ToolCall
from pipeline.parse import Evidence
from pipeline.parse_amount import Amount, amount_of
from pipeline.parse_asks import asked
from pipeline.parse_targets import media_call, navigation_call
from pipeline.parse_zones import seat_zone
from pipeline.vehicle.lexicon import Lexicon

STEP = {"set_temperature": 2.0, "set_fan": 20.0, "set_volume": 10.0, "set_brightness": 20.0}
DEFAULT_STEP = 25.0
ON_VALUE = {"set_fan": 40.0, "set_seat_heating": 50.0, "set_seat_ventilation": 50.0, "set_steering_wheel_heating": 50.0}
"""What "on" means for a thing with levels, in percent."""
LEVELS = {"set_fan": 5, "set_seat_heating": 3, "set_seat_ventilation": 3, "set_steering_wheel_heating": 3}
"""How many levels people count for a thing VSS holds in percent; a level beyond them lands beyond 100 % and is
refused.
"""
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
OPEN_NATS = 2.0
"""A reading this much less likely than the best is not left to the model."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One call the words support. `prior`: how well, in nats; only differences count."""

    call: ToolCall
    prior: float = 0.0


def _call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments)


def _only(call: ToolCall | None) -> list[Candidate]:
    return [] if call is None else [Candidate(call)]


def refusal(reason: str, what: str) -> ToolCall:
    """The call that says no."""
    return _call("refuse", reason=reason, what=what[:80])


def candidates_of(evidence: Evidence, last_tool: str | None = None, lexicon: Lexicon | None = None) -> list[Candidate]:
    """Calls the clause supports, best first; empty when it is no command. `last_tool`: what "it" means."""
    if not evidence.tokens:
        return []
    question = asked(evidence)
    if question.explain:
        return []
    if question.call is not None:
        return _only(question.call)
    forbidden = _forbidden(evidence)
    if forbidden is not None and not question.is_question:
        return _only(forbidden)
    if _declined(evidence):
        return _only(refusal("declined", evidence.text.strip()))
    navigation = navigation_call(evidence)
    if navigation is not None:
        return _only(navigation)
    unsupported = evidence.names("unsupported")
    if unsupported and not (evidence.of("device") and not question.is_question):
        return _only(refusal("unsupported", unsupported[0]))
    media = media_call(evidence, lexicon)
    if media is not None and not question.is_question:
        return _only(media)
    device = _device_calls(evidence, question.is_question)
    if device:
        return device
    feeling = _feelings(evidence)
    if feeling:
        return feeling
    if question.is_question:
        return []
    return _bare_change(evidence, last_tool) or _only(_whole_command(evidence, lexicon)) or _unknown_command(evidence)


def _whole_command(evidence: Evidence, lexicon: Lexicon | None) -> ToolCall | None:
    """Short commands known as a whole, however badly they were heard."""
    names = evidence.names("command")
    if not names and lexicon is not None and len(evidence.matches) <= 2:
        near = lexicon.whole(evidence.tokens, "command")
        names = [near] if near else []
    if "nav_mute" in names:
        ends = evidence.has("verb.cancel", "verb.off", "verb.unmute")
        return _call("set_navigation_voice", state="UNMUTED" if ends else "MUTED")
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
        if weak and (evidence.of("device") or evidence.of("place") or evidence.of("kind")):
            continue
        on_the_way = (evidence.of("place") or evidence.of("kind")) and evidence.has("verb.go")
        if on_the_way and name not in ("gear", "parking_brake", "engine", "assistance"):
            continue
        return refusal("forbidden", name)
    comfort = evidence.has("feel.cold", "feel.cold_seat", "verb.warmer", "verb.cooler", "device.temperature")
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
    if not negations or evidence.of("option"):
        return False
    after = [match for match in evidence.of("verb") if match.start >= negations[0].end]
    return bool(after) and bool(evidence.of("device"))


# --- devices -------------------------------------------------------------------------------------------------------
def _direction(evidence: Evidence) -> int:
    if evidence.has("verb.up", "verb.warmer", "verb.louder"):
        return 1
    if evidence.has("verb.down", "verb.cooler", "verb.quieter"):
        return -1
    return 0


def _switched(evidence: Evidence) -> bool | None:
    """True for on, False for off, None when neither was said; a lone "on" or "off" counts."""
    words = evidence.words
    if evidence.has("verb.off") or ("off" in words):
        return False
    if evidence.has("verb.on", "verb.open") or ("on" in words):
        return True
    if evidence.has("verb.close", "verb.stop", "verb.cancel"):
        return False
    return None


def _level(name: str, evidence: Evidence, amount: Amount, **common: Any) -> list[Candidate]:
    """Calls of a tool that sets or changes a level, from amount, direction and on/off."""
    direction = _direction(evidence)
    temperature = name == "set_temperature"
    if amount.unit in ("fahrenheit", "kelvin", "other") or amount.unit == ("percent" if temperature else "celsius"):
        return _only(refusal("wrong_unit", amount.unit))
    value = amount.value
    if value is not None and amount.unit == "level" and not temperature:
        value = round(value * 100 / LEVELS.get(name, 10), 0)
    if value is not None:
        absolute = amount.to or direction == 0 or (not amount.by and abs(value) >= (12 if temperature else 35))
        if absolute:
            return _only(_call(name, **common, action="set", value=value))
        return _only(_call(name, **common, action="change", value=direction * value))
    if amount.word in ("max", "min"):
        highest = 30.0 if temperature else 100.0
        lowest = 16.0 if temperature else 10.0 if name == "set_brightness" else 0.0 if name == "set_volume" else 20.0
        return _only(_call(name, **common, action="set", value=highest if amount.word == "max" else lowest))
    if direction:
        step = STEP.get(name, DEFAULT_STEP)
        step *= 0.5 if amount.word == "little" else 2 if amount.word == "lot" else 1
        return _only(_call(name, **common, action="change", value=direction * step))
    return []


def _temperature(evidence: Evidence, amount: Amount) -> list[Candidate]:
    zone = seat_zone(evidence, "all")
    calls = _level("set_temperature", evidence, amount, zone=zone)
    if calls:
        return calls
    switched = _switched(evidence)
    if switched:
        return _only(_call("set_temperature", zone=zone, action="change", value=2.0))
    if switched is False:
        return _only(_call("set_fan", zone=zone, action="set", value=0.0))
    return []


def _fan(evidence: Evidence, amount: Amount) -> list[Candidate]:
    zone = seat_zone(evidence, "all")
    return _levelled("set_fan", evidence, amount, zone=zone)


def _levelled(name: str, evidence: Evidence, amount: Amount, **common: Any) -> list[Candidate]:
    switched = _switched(evidence)
    if switched is False and amount.value is None:
        return _only(_call(name, **common, action="set", value=0.0))
    if amount.value is None and amount.word == "little" and switched:
        return _only(_call(name, **common, action="set", value=20.0 if name == "set_fan" else 33.0))
    calls = _level(name, evidence, amount, **common)
    if calls:
        return calls
    if switched or name.startswith("set_seat") or name.startswith("set_steering"):
        return _only(_call(name, **common, action="set", value=ON_VALUE[name]))
    return []


def _opening(name: str, evidence: Evidence, amount: Amount, **common: Any) -> list[Candidate]:
    """Windows and shades: open, close, a position, a bit."""
    if amount.unit in ("celsius", "fahrenheit", "kelvin", "other", "level"):
        return _only(refusal("wrong_unit", amount.unit))
    if evidence.has("verb.close", "verb.off") or evidence.has("verb.up"):
        opens: bool | None = False
    elif evidence.has("verb.open", "verb.on", "verb.down", "verb.set", "verb.tilt") or amount.value is not None:
        opens = True
    else:
        words = evidence.words
        opens = True if "open" in words or "开" in words else False if "关" in words else None
    if opens is None:
        return []
    if amount.value is not None:
        partly = amount.by and not amount.to
        if partly:
            return _only(_call(name, **common, action="change", value=amount.value if opens else -amount.value))
        value = amount.value
        return _only(_call(name, **common, action="set", value=value))
    if amount.word == "little":
        return _only(_call(name, **common, action="change", value=20.0 if opens else -20.0))
    if amount.word == "min" and opens:
        return _only(_call(name, **common, action="set", value=0.0))
    return _only(_call(name, **common, action="set", value=100.0 if opens else 0.0))


def _window(evidence: Evidence, amount: Amount) -> list[Candidate]:
    plural = "windows" in evidence.words
    closing = evidence.has("verb.close", "verb.off", "verb.up")
    default = "all" if plural or (closing and evidence.language == "zh") else "driver"
    zone = seat_zone(evidence, default)
    if amount.word == "max" and "全部打开" in evidence.text:
        zone = seat_zone(evidence, "all")
    return _opening("set_window", evidence, amount, zone=zone)


def _sunroof(evidence: Evidence, amount: Amount) -> list[Candidate]:
    if evidence.has("verb.tilt"):
        return _only(_call("set_sunroof", position="tilted"))
    if (amount.value is not None and amount.value not in (0.0, 100.0)) or amount.word == "little":
        return _only(refusal("unsupported", "sunroof_position"))
    switched = _switched(evidence)
    if evidence.has("verb.close") or switched is False:
        return _only(_call("set_sunroof", position="closed"))
    if switched or evidence.has("verb.open", "verb.set"):
        return _only(_call("set_sunroof", position="open"))
    return []


def _switch(name: str) -> Callable[[Evidence, Amount], list[Candidate]]:
    def calls(evidence: Evidence, amount: Amount) -> list[Candidate]:
        switched = _switched(evidence)
        if switched is None and name == "set_recirculation":
            switched = True
        if switched is None:
            return []
        return _only(_call(name, on=switched))

    return calls


def _ac(evidence: Evidence, amount: Amount) -> list[Candidate]:
    level = amount.value is not None or amount.word in ("max", "min", "little", "lot") or _direction(evidence) != 0
    if level and amount.unit == "level":
        return _fan(evidence, amount)
    if level:
        return _temperature(evidence, amount)
    return _switch("set_air_conditioning")(evidence, amount)


def _defrost(area: str) -> Callable[[Evidence, Amount], list[Candidate]]:
    def calls(evidence: Evidence, amount: Amount) -> list[Candidate]:
        where = area
        if where == "any":
            zones = set(evidence.names("zone")) | ({"rear"} if "后" in evidence.words else set())
            where = "rear" if zones & {"rear"} else "all" if zones & {"all"} else "front"
        return _only(_call("set_defrost", area=where, on=_switched(evidence) is not False))

    return calls


def _volume(evidence: Evidence, amount: Amount) -> list[Candidate]:
    return _volume_of("media", evidence, amount)


def _volume_of(target: str, evidence: Evidence, amount: Amount) -> list[Candidate]:
    if evidence.has("verb.unmute"):
        return _only(_call("restore_volume", target=target))
    if evidence.has("verb.mute"):
        return _only(_call("set_volume", target=target, action="set", value=0.0))
    calls = _level("set_volume", evidence, amount, target=target)
    if calls:
        return calls
    switched = _switched(evidence)
    if switched is False:
        return _only(_call("set_volume", target=target, action="set", value=0.0))
    if switched:
        return _only(_call("restore_volume", target=target))
    return []


def _navigation_voice(evidence: Evidence, amount: Amount) -> list[Candidate]:
    if evidence.has("verb.unmute") or (evidence.has("verb.mute") and evidence.has("verb.cancel", "verb.off")):
        return _only(_call("set_navigation_voice", state="UNMUTED"))
    if evidence.has("verb.mute"):
        return _only(_call("set_navigation_voice", state="MUTED"))
    if amount.value is not None or amount.word or _direction(evidence):
        return _volume_of("navigation", evidence, amount)
    switched = _switched(evidence)
    if switched is None:
        return []
    return _only(_call("set_navigation_voice", state="UNMUTED" if switched else "MUTED"))


def _media_device(evidence: Evidence, amount: Amount) -> list[Candidate]:
    """ "Music louder", "turn off the music": only what media_call left open."""
    if evidence.has("verb.mute"):
        return _only(_call("set_volume", target="media", action="set", value=0.0))
    if evidence.has("verb.unmute"):
        return _only(_call("restore_volume", target="media"))
    if amount.value is not None or _direction(evidence) or amount.word:
        return _volume_of("media", evidence, amount)
    switched = _switched(evidence)
    if evidence.has("verb.close", "verb.stop", "verb.cancel") or switched is False:
        return _only(_call("control_media", action="stop"))
    if switched:
        return _only(_call("control_media", action="play"))
    return []


def _nav_device(evidence: Evidence, amount: Amount) -> list[Candidate]:
    if evidence.has("verb.unmute") or (evidence.has("verb.mute") and evidence.has("verb.cancel", "verb.off")):
        return _only(_call("set_navigation_voice", state="UNMUTED"))
    if evidence.has("verb.mute"):
        return _only(_call("set_navigation_voice", state="MUTED"))
    if evidence.has("verb.louder", "verb.quieter") or (_direction(evidence) and not evidence.has("verb.cancel")):
        return _volume_of("navigation", evidence, amount)
    if evidence.has("verb.cancel", "verb.off", "verb.stop", "verb.close") or _switched(evidence) is False:
        return _only(_call("cancel_navigation"))
    return []


def _light(evidence: Evidence, amount: Amount) -> list[Candidate]:
    return _switch("set_interior_light")(evidence, amount)


def _wipers(evidence: Evidence, amount: Amount) -> list[Candidate]:
    if _switched(evidence) is False:
        return _only(_call("set_wipers", mode="off"))
    if amount.word == "max" or evidence.has("verb.up") or evidence.has("forbid.accelerate"):
        return _only(_call("set_wipers", mode="fast"))
    if amount.word == "min" or evidence.has("verb.down"):
        return _only(_call("set_wipers", mode="slow"))
    if _switched(evidence) or evidence.has("verb.set"):
        return _only(_call("set_wipers", mode="medium"))
    return []


def _locks(evidence: Evidence, amount: Amount) -> list[Candidate]:
    zone = seat_zone(evidence, "all")
    if evidence.has("verb.unlock"):
        return _only(_call("set_door_locks", locked=False, zone=zone))
    if evidence.has("verb.lock"):
        return _only(_call("set_door_locks", locked=True, zone=zone))
    if evidence.has("verb.close", "verb.off"):
        return _only(refusal("unsupported", "door"))
    return []


def _trunk(evidence: Evidence, amount: Amount) -> list[Candidate]:
    if evidence.has("verb.close", "verb.off", "verb.lock"):
        return _only(_call("set_trunk", open=False))
    if evidence.has("verb.open", "verb.on", "verb.unlock"):
        return _only(_call("set_trunk", open=True))
    return []


def _seat(evidence: Evidence, amount: Amount) -> list[Candidate]:
    name = "set_seat_ventilation" if evidence.has("verb.cooler") else "set_seat_heating"
    return _levelled(name, evidence, amount, zone=seat_zone(evidence, "driver"))


def _seat_tool(name: str) -> Callable[[Evidence, Amount], list[Candidate]]:
    return lambda evidence, amount: _levelled(name, evidence, amount, zone=seat_zone(evidence, "driver"))


def _brightness(evidence: Evidence, amount: Amount) -> list[Candidate]:
    calls = _level("set_brightness", evidence, amount)
    return calls or (_only(refusal("unsupported", "screen")) if evidence.names("verb") else [])


DEVICES: list[tuple[str, Callable[[Evidence, Amount], list[Candidate]]]] = [
    ("rear_defrost", _defrost("rear")),
    ("front_defrost", _defrost("front")),
    ("defrost", _defrost("any")),
    ("seat_heating", _seat_tool("set_seat_heating")),
    ("seat_ventilation", _seat_tool("set_seat_ventilation")),
    ("wheel_heating", lambda e, a: _levelled("set_steering_wheel_heating", e, a)),
    ("seat", _seat),
    ("recirculation", _switch("set_recirculation")),
    ("fresh_air", lambda e, a: _only(_call("set_recirculation", on=_switched(e) is False))),
    ("nav_voice", _navigation_voice),
    ("sunshade", lambda e, a: _opening("set_sunshade", e, a)),
    ("sunroof", _sunroof),
    ("window", _window),
    ("trunk", _trunk),
    ("door", _locks),
    ("dome_light", _light),
    ("headlight", _switch("set_headlights")),
    ("light", _light),
    ("wiper", _wipers),
    ("screen", _brightness),
    ("fan", _fan),
    ("temperature", _temperature),
    ("ac", _ac),
    ("nav", _nav_device),
    ("volume", _volume),
    ("media", _media_device),
]
"""From the most telling word to the least: the first that yields a call decides."""


def _device_calls(evidence: Evidence, is_question: bool) -> list[Candidate]:
    if is_question:
        return []
    heard = set(evidence.names("device"))
    if not heard:
        return []
    if "nav" in heard and "volume" in heard:
        heard = {"nav_voice"}
    if "temperature" in heard and "seat" in heard:
        heard = {"seat"}
    amount = amount_of(evidence)
    for name, rule in DEVICES:
        if name in heard:
            calls = rule(evidence, amount)
            if calls:
                return calls
    return []


# --- wishes only implied -------------------------------------------------------------------------------------------
def _feelings(evidence: Evidence) -> list[Candidate]:
    zone = seat_zone(evidence, "all")
    warmer = _call("set_temperature", zone=zone, action="change", value=2.0)
    cooler = _call("set_temperature", zone=zone, action="change", value=-2.0)
    seat = _call("set_seat_heating", zone="driver", action="set", value=50.0)
    rear = _call("set_defrost", area="rear", on=True)
    front = _call("set_defrost", area="front", on=True)
    options: dict[str, list[tuple[ToolCall, float]]] = {
        "cold_hands": [(_call("set_steering_wheel_heating", action="set", value=50.0), 0.0), (warmer, -3.0)],
        "cold_seat": [(seat, 0.0), (warmer, -4.0)],
        "fog_rear": [(rear, 0.0), (_call("set_defrost", area="all", on=True), -4.0)],
        "fog": [(front, 0.0), (rear, -4.0)],
        "stuffy": [
            (_call("set_recirculation", on=False), 0.0),
            (_call("set_fan", zone="all", action="change", value=20.0), -0.5),
            (_call("set_window", zone="driver", action="change", value=20.0), -1.0),
        ],
        "smell": [
            (_call("set_recirculation", on=True), 0.0),
            (_call("set_fan", zone="all", action="change", value=20.0), -4.0),
        ],
        "loud": [(_call("set_volume", target="media", action="change", value=-10.0), 0.0)],
        "quiet_media": [(_call("set_volume", target="media", action="change", value=10.0), 0.0)],
        "dark": [(_call("set_interior_light", on=True), 0.0)],
        "sun": [(_call("set_sunshade", action="set", value=0.0), 0.0)],
        "rain": [
            (_call("set_wipers", mode="medium"), 0.0),
            (_call("set_window", zone="all", action="set", value=0.0), -2.0),
        ],
        "low_battery": [
            (_call("navigate_to", place="charging_station", avoid=[]), 0.0),
            (_call("ask_distance", place="charging_station"), -2.0),
        ],
        "cold": [(warmer, 0.0), (seat, -4.0)],
        "hot": [(cooler, 0.0), (_call("set_air_conditioning", on=True), -3.0)],
    }
    if evidence.has("verb.warmer") and not evidence.has("feel.hot"):
        return _level("set_temperature", evidence, amount_of(evidence), zone=zone)
    if evidence.has("verb.cooler") and not evidence.has("feel.cold"):
        return _level("set_temperature", evidence, amount_of(evidence), zone=zone)
    if evidence.has("verb.louder", "verb.quieter"):
        return _level("set_volume", evidence, amount_of(evidence), target="media")
    for name, calls in options.items():
        if evidence.has("feel." + name):
            return [Candidate(call, prior) for call, prior in calls if prior > -OPEN_NATS]
    return []


ADJUSTABLE = ("set_temperature", "set_fan", "set_volume", "set_seat_heating", "set_brightness", "set_window")


def _bare_change(evidence: Evidence, last_tool: str | None) -> list[Candidate]:
    """ "Turn it up", "a bit more", "mute": the thing itself was not said."""
    amount = amount_of(evidence)
    if evidence.has("verb.mute"):
        return _only(_call("set_volume", target="media", action="set", value=0.0))
    if evidence.has("verb.unmute"):
        return _only(_call("restore_volume", target="media"))
    if evidence.has("verb.lock", "verb.unlock"):
        return _locks(evidence, amount)
    if amount.value is not None and evidence.of("zone") and amount.unit is None and 10 <= amount.value <= 40:
        return _temperature(evidence, amount)
    direction = _direction(evidence)
    if (
        amount.value is not None
        and amount.unit in ("celsius", "fahrenheit", "kelvin")
        and (evidence.names("verb") or _bare_number(evidence))
    ):
        return _temperature(evidence, amount)
    named = _device_for(last_tool) if _about_it(evidence) else None
    if named is not None and (
        direction or amount.word == "little" or _switched(evidence) is not None or amount.value is not None
    ):
        rule = dict(DEVICES)[named]
        return rule(evidence, amount)
    if direction and evidence.has("verb.up", "verb.down") and len(evidence.tokens) <= 6:
        value = float(direction)
        return [
            Candidate(_call("set_volume", target="media", action="change", value=10.0 * value), 0.0),
            Candidate(_call("set_temperature", zone="all", action="change", value=2.0 * value), -1.0),
            Candidate(_call("set_fan", zone="all", action="change", value=20.0 * value), -2.0),
        ]
    return []


_PRONOUNS = frozenset(
    "it that this them again more now a bit little too the back way to by all up down on off".split()  # noqa: SIM905
) | frozenset("它这个些点的了一吧再还要给我")


def _about_it(evidence: Evidence) -> bool:
    """No word names anything: what is meant was said before."""
    covered = {i for match in evidence.matches for i in range(match.start, match.end)}
    covered |= {i for number in evidence.numbers for i in range(number.start, number.end)}
    return all(i in covered or word in _PRONOUNS for i, word in enumerate(evidence.words))


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
}


def _device_for(last_tool: str | None) -> str | None:
    return None if last_tool is None else _DEVICE_OF_TOOL.get(last_tool)


def _unknown_command(evidence: Evidence) -> list[Candidate]:
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
    return _only(refusal("not_understood", evidence.text.strip()))
