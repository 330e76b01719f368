"""Clauses that name a thing of the car: one small rule per device."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipeline.frames import ToolCall
from pipeline.nlu.evidence import Evidence
from pipeline.nlu.slots import Amount, seat_zone

STEP = {"set_temperature": 2.0, "set_fan": 20.0, "set_volume": 10.0, "set_brightness": 20.0}
DEFAULT_STEP = 25.0
ON_VALUE = {"set_fan": 40.0, "set_seat_heating": 50.0, "set_seat_ventilation": 50.0, "set_seat_massage": 50.0,
            "set_steering_wheel_heating": 50.0}  # fmt: skip
"""What "on" means for a thing with levels, in percent."""
LEVELS = {"set_fan": 5, "set_seat_heating": 3, "set_seat_ventilation": 3, "set_seat_massage": 3,
          "set_steering_wheel_heating": 3}  # fmt: skip
"""How many levels people count for a thing VSS holds in percent; a level beyond them lands beyond 100 % and is
refused.
"""
HIGHEST_BARE_LEVEL = 9
"""A bare number up to here is a level of such a thing: nobody asks for three percent of wind."""


@dataclass(frozen=True, slots=True)
class CallCandidate:
    """One call the words support. `prior`: how well, in nats; only differences count."""

    call: ToolCall
    prior: float = 0.0


def make_call(name: str, **arguments: Any) -> ToolCall:
    """A call by name and arguments."""
    return ToolCall(name, arguments)


def only(call: ToolCall | None) -> list[CallCandidate]:
    """The one candidate, or none."""
    return [] if call is None else [CallCandidate(call)]


def refusal(reason: str, what: str) -> ToolCall:
    """The call that says no."""
    return make_call("refuse", reason=reason, what=what[:80])


def direction_of(evidence: Evidence) -> int:
    """1 for more, -1 for less, 0 when neither was said."""
    if evidence.has("verb.up", "verb.warmer", "verb.louder"):
        return 1
    if evidence.has("verb.down", "verb.cooler", "verb.quieter"):
        return -1
    return 0


def switched(evidence: Evidence) -> bool | None:
    """True for on, False for off, None when neither was said; a lone "on" or "off" counts."""
    words = evidence.words
    if evidence.has("verb.off") or ("off" in words):
        return False
    if evidence.has("verb.on", "verb.open") or ("on" in words):
        return True
    if evidence.has("verb.close", "verb.stop", "verb.cancel"):
        return False
    return None


def level_calls(name: str, evidence: Evidence, amount: Amount, **common: Any) -> list[CallCandidate]:
    """Calls of a tool that sets or changes a level, from amount, direction and on/off."""
    direction = direction_of(evidence)
    if name == "set_seat_ventilation" and evidence.has("verb.warmer", "verb.cooler"):
        direction = -direction
    temperature = name == "set_temperature"
    if amount.unit in ("fahrenheit", "kelvin", "other") or amount.unit == ("percent" if temperature else "celsius"):
        return only(refusal("wrong_unit", amount.unit))
    value = amount.value
    counted = amount.unit is None and name in LEVELS and value is not None and 1 <= value <= HIGHEST_BARE_LEVEL
    if value is not None and not temperature and (amount.unit == "level" or counted):
        value = round(value * 100 / LEVELS.get(name, 10), 0)
    if value is not None:
        unsaid_to = evidence.language == "en" and not amount.by and abs(value) >= (12 if temperature else 35)
        absolute = amount.to or direction == 0 or unsaid_to
        if absolute:
            return only(make_call(name, **common, action="set", value=value))
        return only(make_call(name, **common, action="change", value=direction * value))
    if amount.word in ("max", "min"):
        highest = 30.0 if temperature else 100.0
        lowest = 16.0 if temperature else 10.0 if name == "set_brightness" else 0.0 if name == "set_volume" else 20.0
        return only(make_call(name, **common, action="set", value=highest if amount.word == "max" else lowest))
    if direction:
        step = STEP.get(name, DEFAULT_STEP)
        step *= 0.5 if amount.word == "little" else 2 if amount.word == "lot" else 1
        step = step if temperature else float(round(step))
        return only(make_call(name, **common, action="change", value=direction * step))
    return []


def temperature_calls(evidence: Evidence, amount: Amount) -> list[CallCandidate]:
    """Set or change the temperature of a zone."""
    zone = seat_zone(evidence, "all")
    calls = level_calls("set_temperature", evidence, amount, zone=zone)
    if calls:
        return calls
    is_on = switched(evidence)
    if is_on:
        return only(make_call("set_temperature", zone=zone, action="change", value=2.0))
    if is_on is False:
        return only(make_call("set_fan", zone=zone, action="set", value=0.0))
    return []


def _fan(evidence: Evidence, amount: Amount) -> list[CallCandidate]:
    zone = seat_zone(evidence, "all")
    return levelled("set_fan", evidence, amount, zone=zone)


def levelled(name: str, evidence: Evidence, amount: Amount, **common: Any) -> list[CallCandidate]:
    """Calls of a thing that has levels and is also switched on and off."""
    is_on = switched(evidence)
    if is_on is False and amount.value is None:
        return only(make_call(name, **common, action="set", value=0.0))
    if amount.value is None and amount.word == "little" and is_on:
        return only(make_call(name, **common, action="set", value=20.0 if name == "set_fan" else 33.0))
    calls = level_calls(name, evidence, amount, **common)
    if calls:
        return calls
    if is_on or name.startswith("set_seat") or name.startswith("set_steering"):
        return only(make_call(name, **common, action="set", value=ON_VALUE[name]))
    return []


_WIDER = re.compile(r"大[一点些]|开大|再开|(?:open|down) (?:a bit |a little )?(?:more|further|wider)")
_NARROWER = re.compile(r"小[一点些]|[关开]小|再关")


_HEIGHT = re.compile(r"\b(?:up|rais(?:e|ing)|ris(?:e|ing)|higher|down|lower(?:ing)?|drop)\b|[高升低降上下]")
"""A window goes up to close; any other word of increase or decrease means how far it stands open."""


def _opening(name: str, evidence: Evidence, amount: Amount, **common: Any) -> list[CallCandidate]:
    """Windows and shades: open, close, a position, a bit."""
    if amount.unit in ("celsius", "fahrenheit", "kelvin", "other", "level"):
        return only(refusal("wrong_unit", amount.unit))
    more = evidence.has("verb.up", "verb.down") and not _HEIGHT.search(evidence.text.lower())
    wider = more or _WIDER.search(evidence.text) or _NARROWER.search(evidence.text)
    if more:
        opens: bool | None = evidence.has("verb.up") and not evidence.has("verb.close", "verb.off")
    elif wider:
        opens = _WIDER.search(evidence.text) is not None
    elif evidence.has("verb.close", "verb.off") or evidence.has("verb.up"):
        opens = False
    elif evidence.has("verb.open", "verb.on", "verb.down", "verb.set", "verb.tilt") or (
        amount.value is not None and (amount.to or amount.unit == "percent")
    ):
        opens = True
    else:
        words = evidence.words
        opens = True if "open" in words or "开" in words else False if "关" in words else None
    if opens is None:
        return []
    if amount.value is not None:
        partly = amount.by and not amount.to
        if partly:
            return only(make_call(name, **common, action="change", value=amount.value if opens else -amount.value))
        value = amount.value
        return only(make_call(name, **common, action="set", value=value))
    if amount.word == "little" or wider:
        return only(make_call(name, **common, action="change", value=20.0 if opens else -20.0))
    if amount.word == "min" and opens:
        return only(make_call(name, **common, action="set", value=0.0))
    return only(make_call(name, **common, action="set", value=100.0 if opens else 0.0))


def _window(evidence: Evidence, amount: Amount) -> list[CallCandidate]:
    plural = "windows" in evidence.words
    closing = evidence.has("verb.close", "verb.off", "verb.up")
    default = "all" if plural or (closing and evidence.language == "zh") else "driver"
    zone = seat_zone(evidence, default)
    if amount.word == "max" and "全部打开" in evidence.text:
        zone = seat_zone(evidence, "all")
    return _opening("set_window", evidence, amount, zone=zone)


def _sunroof(evidence: Evidence, amount: Amount) -> list[CallCandidate]:
    if evidence.has("verb.tilt"):
        return only(make_call("set_sunroof", position="tilted"))
    if (amount.value is not None and amount.value not in (0.0, 100.0)) or amount.word == "little":
        return only(refusal("unsupported", "sunroof_position"))
    is_on = switched(evidence)
    if evidence.has("verb.close") or is_on is False:
        return only(make_call("set_sunroof", position="closed"))
    if is_on or evidence.has("verb.open", "verb.set"):
        return only(make_call("set_sunroof", position="open"))
    return []


def switch(name: str) -> Callable[[Evidence, Amount], list[CallCandidate]]:
    """The rule of a thing that is on or off."""

    def calls(evidence: Evidence, amount: Amount) -> list[CallCandidate]:
        is_on = switched(evidence)
        if is_on is None and name == "set_recirculation":
            is_on = True
        if is_on is None:
            return []
        return only(make_call(name, on=is_on))

    return calls


_MORE_AIR = re.compile(r"[大小强弱]|\b(?:up|down|crank|more|less)\b")
_DEGREES_MEANT = re.compile(r"[高低暖热凉冷温度]|warm|cool|cold|hot|degree")


def _ac(evidence: Evidence, amount: Amount) -> list[CallCandidate]:
    """Air conditioning: on and off; with degrees the temperature, with levels or "up" alone the fan."""
    percent = amount.unit in ("level", "percent")
    if percent or amount.word in ("max", "min") or (direction_of(evidence) and amount.value is None):
        degrees = _DEGREES_MEANT.search(evidence.text.lower()) and not percent
        if not degrees and (percent or amount.word in ("max", "min") or _MORE_AIR.search(evidence.text.lower())):
            return _fan(evidence, amount)
        return temperature_calls(evidence, amount)
    if amount.value is not None or amount.word in ("little", "lot"):
        return temperature_calls(evidence, amount)
    return switch("set_air_conditioning")(evidence, amount)


def _defrost(area: str) -> Callable[[Evidence, Amount], list[CallCandidate]]:
    def calls(evidence: Evidence, amount: Amount) -> list[CallCandidate]:
        where = area
        if where == "any":
            zones = set(evidence.names("zone")) | ({"rear"} if "后" in evidence.words else set())
            where = "rear" if zones & {"rear"} else "all" if zones & {"all"} else "front"
        return only(make_call("set_defrost", area=where, on=switched(evidence) is not False))

    return calls


def _volume(evidence: Evidence, amount: Amount) -> list[CallCandidate]:
    return _volume_of("media", evidence, amount)


def _call_volume(evidence: Evidence, amount: Amount) -> list[CallCandidate]:
    calls = _volume_of("call", evidence, amount)
    return calls if all(found.call.name == "set_volume" for found in calls) else []


def _volume_of(target: str, evidence: Evidence, amount: Amount) -> list[CallCandidate]:
    if evidence.has("verb.unmute"):
        return only(make_call("restore_volume", target=target))
    if evidence.has("verb.mute"):
        return only(make_call("set_volume", target=target, action="set", value=0.0))
    calls = level_calls("set_volume", evidence, amount, target=target)
    if calls:
        return calls
    is_on = switched(evidence)
    if is_on is False:
        return only(make_call("set_volume", target=target, action="set", value=0.0))
    if is_on:
        return only(make_call("restore_volume", target=target))
    return []


def _navigation_voice(evidence: Evidence, amount: Amount) -> list[CallCandidate]:
    if evidence.has("verb.unmute") or (evidence.has("verb.mute") and evidence.has("verb.cancel", "verb.off")):
        return only(make_call("set_navigation_voice", state="UNMUTED"))
    if evidence.has("verb.mute"):
        return only(make_call("set_navigation_voice", state="MUTED"))
    if amount.value is not None or amount.word or direction_of(evidence):
        return _volume_of("navigation", evidence, amount)
    is_on = switched(evidence)
    if is_on is None:
        return []
    return only(make_call("set_navigation_voice", state="UNMUTED" if is_on else "MUTED"))


def _media_device(evidence: Evidence, amount: Amount) -> list[CallCandidate]:
    """ "Music louder", "turn off the music": only what media_call left open."""
    if evidence.has("verb.mute"):
        return only(make_call("set_volume", target="media", action="set", value=0.0))
    if evidence.has("verb.unmute"):
        return only(make_call("restore_volume", target="media"))
    if amount.value is not None or direction_of(evidence) or amount.word:
        return _volume_of("media", evidence, amount)
    is_on = switched(evidence)
    if evidence.has("verb.close", "verb.stop", "verb.cancel") or is_on is False:
        return only(make_call("control_media", action="stop"))
    if is_on:
        return only(make_call("control_media", action="play"))
    return []


def _nav_device(evidence: Evidence, amount: Amount) -> list[CallCandidate]:
    if _DROP.search(evidence.text.lower()) and amount.value is None:
        return only(make_call("cancel_navigation"))
    if evidence.has("verb.unmute") or (evidence.has("verb.mute") and evidence.has("verb.cancel", "verb.off")):
        return only(make_call("set_navigation_voice", state="UNMUTED"))
    if evidence.has("verb.mute"):
        return only(make_call("set_navigation_voice", state="MUTED"))
    if evidence.has("verb.louder", "verb.quieter") or (direction_of(evidence) and not evidence.has("verb.cancel")):
        return _volume_of("navigation", evidence, amount)
    if evidence.has("verb.cancel", "verb.off", "verb.stop", "verb.close") or switched(evidence) is False:
        return only(make_call("cancel_navigation"))
    return []


_DROP = re.compile(r"\b(?:drop|dump|scrap|forget|ditch)\b")


def _light(evidence: Evidence, amount: Amount) -> list[CallCandidate]:
    return switch("set_interior_light")(evidence, amount)


def _wipers(evidence: Evidence, amount: Amount) -> list[CallCandidate]:
    if switched(evidence) is False:
        return only(make_call("set_wipers", mode="off"))
    if amount.word == "max" or evidence.has("verb.up") or evidence.has("forbid.accelerate"):
        return only(make_call("set_wipers", mode="fast"))
    if amount.word == "min" or evidence.has("verb.down"):
        return only(make_call("set_wipers", mode="slow"))
    if switched(evidence) or evidence.has("verb.set"):
        return only(make_call("set_wipers", mode="medium"))
    return []


def lock_calls(evidence: Evidence, amount: Amount) -> list[CallCandidate]:
    """Lock or unlock doors."""
    zone = seat_zone(evidence, "all")
    if evidence.has("verb.unlock") or (evidence.has("verb.lock") and evidence.has("verb.on", "verb.open")):
        return only(make_call("set_door_locks", locked=False, zone=zone))
    if evidence.has("verb.lock"):
        return only(make_call("set_door_locks", locked=True, zone=zone))
    if evidence.has("verb.close", "verb.off"):
        return only(refusal("unsupported", "door"))
    return []


_RAISED = re.compile("升|抬|掀")
"""Up is open for a tailgate, and closed for a window."""


def _trunk(evidence: Evidence, amount: Amount) -> list[CallCandidate]:
    if evidence.has("verb.close") and _RAISED.search(evidence.text):
        return only(make_call("set_trunk", open=True))
    if evidence.has("verb.close", "verb.off", "verb.lock"):
        return only(make_call("set_trunk", open=False))
    if evidence.has("verb.open", "verb.on", "verb.unlock"):
        return only(make_call("set_trunk", open=True))
    return []


def _seat(evidence: Evidence, amount: Amount) -> list[CallCandidate]:
    name = "set_seat_ventilation" if evidence.has("verb.cooler") else "set_seat_heating"
    return levelled(name, evidence, amount, zone=seat_zone(evidence, "driver"))


def _seat_tool(name: str) -> Callable[[Evidence, Amount], list[CallCandidate]]:
    return lambda evidence, amount: levelled(name, evidence, amount, zone=seat_zone(evidence, "driver"))


DEVICES: list[tuple[str, Callable[[Evidence, Amount], list[CallCandidate]]]] = [
    ("call_volume", _call_volume),
    ("rear_defrost", _defrost("rear")),
    ("front_defrost", _defrost("front")),
    ("defrost", _defrost("any")),
    ("seat_heating", _seat_tool("set_seat_heating")),
    ("seat_ventilation", _seat_tool("set_seat_ventilation")),
    ("wheel_heating", lambda e, a: levelled("set_steering_wheel_heating", e, a)),
    ("seat", _seat),
    ("recirculation", switch("set_recirculation")),
    ("fresh_air", lambda e, a: only(make_call("set_recirculation", on=switched(e) is False))),
    ("nav_voice", _navigation_voice),
    ("sunshade", lambda e, a: _opening("set_sunshade", e, a)),
    ("sunroof", _sunroof),
    ("window", _window),
    ("trunk", _trunk),
    ("door", lock_calls),
    ("dome_light", _light),
    ("headlight", switch("set_headlights")),
    ("light", _light),
    ("wiper", _wipers),
    ("fan", _fan),
    ("temperature", temperature_calls),
    ("ac", _ac),
    ("nav", _nav_device),
    ("volume", _volume),
    ("media", _media_device),
]
"""From the most telling word to the least."""
