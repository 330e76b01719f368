"""All devices and their rules, and the calls of the most telling one that a clause names."""

from __future__ import annotations

from pipeline.nlu.evidence import Evidence
from pipeline.nlu.intents.devices import DEVICES, CallCandidate, only
from pipeline.nlu.intents.further_devices import FURTHER_DEVICES, Rule, screen, seat_move
from pipeline.nlu.slots import amount_of

DEVICE_RULES: list[tuple[str, Rule]] = [*FURTHER_DEVICES, *DEVICES, ("screen", screen)]
"""From the most telling word to the least: the first that yields a call decides."""
_COMFORT = frozenset(("unit.celsius", "feel.cold", "feel.cold_seat", "feel.hot", "verb.warmer", "verb.cooler"))
"""What is said of a seat that shall be warm or cool, and not moved."""


def device_calls(evidence: Evidence, is_question: bool) -> list[CallCandidate]:
    """Calls of the most telling device named; none for a question."""
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
    if "seat" in heard and amount.unit in ("celsius", "fahrenheit"):
        heard = {"temperature"}
    move = seat_move(evidence) if heard == {"seat"} and not _COMFORT & evidence.tags else None
    if move is not None:
        return only(move)
    for name, rule in DEVICE_RULES:
        if name in heard:
            calls = rule(evidence, amount)
            if calls:
                return calls
    return []
