"""Wishes only implied: "it is freezing in here", "I can't see through the rear window"."""

from __future__ import annotations

import re

from pipeline.frames import ToolCall
from pipeline.nlu.evidence import Evidence
from pipeline.nlu.intents.devices import CallCandidate, level_calls, make_call
from pipeline.nlu.slots import amount_of, seat_zone

OPEN_NATS = 2.0
"""A reading this much less likely than the best is not left to the model."""
_ORDERED = re.compile(
    "[来点要买叫订喝吃上加][了]?[一两二三四几半]?(?:份|道|碗|杯|盘|瓶|串|盒|锅|笼|根)|想[吃喝]|外卖|打包"
)
"""Food is ordered by the dish, the bowl, the cup."""


def feeling_calls(evidence: Evidence) -> list[CallCandidate]:
    """Calls that grant the wish, likeliest first; several where the words leave it open."""
    zone = seat_zone(evidence, "all")
    step = 1.0 if evidence.has("amount.little") and evidence.has("verb.down", "verb.up") else 2.0
    warmer = make_call("set_temperature", zone=zone, action="change", value=step)
    cooler = make_call("set_temperature", zone=zone, action="change", value=-step)
    seat = make_call("set_seat_heating", zone="driver", action="set", value=50.0)
    rear = make_call("set_defrost", area="rear", on=True)
    front = make_call("set_defrost", area="front", on=True)
    sound = "navigation" if evidence.has("device.nav", "device.nav_voice") else "media"
    options: dict[str, list[tuple[ToolCall, float]]] = {
        "cold_hands": [(make_call("set_steering_wheel_heating", action="set", value=50.0), 0.0), (warmer, -3.0)],
        "cold_seat": [(seat, 0.0), (warmer, -4.0)],
        "fog_rear": [(rear, 0.0), (make_call("set_defrost", area="all", on=True), -4.0)],
        "fog": [(front, 0.0), (rear, -4.0)],
        "stuffy": [
            (make_call("set_recirculation", on=False), 0.0),
            (make_call("set_fan", zone="all", action="change", value=20.0), -0.5),
            (make_call("set_window", zone="driver", action="change", value=20.0), -1.0),
        ],
        "smell": [
            (make_call("set_recirculation", on=True), 0.0),
            (make_call("set_fan", zone="all", action="change", value=20.0), -4.0),
        ],
        "loud": [(make_call("set_volume", target=sound, action="change", value=-10.0), 0.0)],
        "quiet_media": [(make_call("set_volume", target=sound, action="change", value=10.0), 0.0)],
        "dark": [(make_call("set_interior_light", on=True), 0.0)],
        "sun": [(make_call("set_sunshade", action="set", value=0.0), 0.0)],
        "rain": [
            (make_call("set_wipers", mode="medium"), 0.0),
            (make_call("set_window", zone="all", action="set", value=0.0), -2.0),
        ],
        "low_battery": [
            (make_call("navigate_to", place="charging_station", avoid=[]), 0.0),
            (make_call("ask_distance", place="charging_station"), -2.0),
        ],
        "cold": [(warmer, 0.0), (seat, -4.0)],
        "hot": [(cooler, 0.0), (make_call("set_air_conditioning", on=True), -3.0)],
    }
    if evidence.has("verb.warmer") and not evidence.has("feel.hot"):
        return level_calls("set_temperature", evidence, amount_of(evidence), zone=zone)
    if evidence.has("verb.cooler") and not evidence.has("feel.cold"):
        return level_calls("set_temperature", evidence, amount_of(evidence), zone=zone)
    if evidence.has("verb.louder", "verb.quieter"):
        return level_calls("set_volume", evidence, amount_of(evidence), target="media")
    for name, calls in options.items():
        if evidence.has("feel." + name) and not _of_a_thing(name, evidence):
            return [CallCandidate(call, prior) for call, prior in calls if prior > -OPEN_NATS]
    return []


def _of_a_thing(name: str, evidence: Evidence) -> bool:
    """Whether the word of feeling is part of a thing's name and tells nothing of the car: "a hot dog", 来一碗热干面."""
    if name not in ("cold", "hot"):
        return False
    if evidence.language == "zh":
        return _ORDERED.search(evidence.text) is not None
    known = {at for match in evidence.matches for at in range(match.start, match.end)}
    felt = [match for match in evidence.matches if "feel." + name in match.tags]
    return bool(felt) and all(
        match.start > 0
        and evidence.words[match.start - 1] in ("a", "an", "some", "one")
        and match.end < len(evidence.words)
        and match.end not in known
        for match in felt
    )
