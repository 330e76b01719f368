"""All devices and their rules, and the calls of the most telling one that a clause names."""

from __future__ import annotations

from pipeline.nlu.evidence import Evidence
from pipeline.nlu.intents.devices import DEVICES, CallCandidate
from pipeline.nlu.intents.further_devices import FURTHER_DEVICES, Rule, screen
from pipeline.nlu.slots import amount_of

DEVICE_RULES: list[tuple[str, Rule]] = [*FURTHER_DEVICES, *DEVICES, ("screen", screen)]
"""From the most telling word to the least: the first that yields a call decides."""


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
    for name, rule in DEVICE_RULES:
        if name in heard:
            calls = rule(evidence, amount)
            if calls:
                return calls
    return []
