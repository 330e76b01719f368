"""Where: the zone words of a clause as one zone of the tools."""

from __future__ import annotations

from pipeline.nlu.evidence import Evidence


def _driver_meant(evidence: Evidence) -> bool:
    """False for "my wife would like it on the passenger side": "my" alone is no place beside a named one."""
    said = [
        " ".join(evidence.words[match.start : match.end])
        for match in evidence.of("zone")
        if "zone.driver" in match.tags
    ]
    return any(phrase not in ("my", "for me") for phrase in said) or "my and" in evidence.text.lower()


def seat_zone(evidence: Evidence, default: str) -> str:
    """One of the tools' zones; `default` when none was said. Left is the driver's side."""
    zones = set(evidence.names("zone"))
    if len(zones) > 1 and not _driver_meant(evidence):
        zones.discard("driver")
    if not zones:
        return default
    if "rear_left" in zones and "rear_right" in zones:
        return "rear"
    for name in ("rear_left", "rear_right"):
        if name in zones:
            return name
    if "front_left" in zones and "front_right" in zones:
        return "front"
    if "front_left" in zones:
        return "driver"
    if "front_right" in zones:
        return "passenger"
    left, right = bool(zones & {"left", "driver"}), bool(zones & {"right", "passenger"})
    if "rear" in zones:
        if left == right:
            return "all" if "front" in zones else "rear"
        return "rear_left" if left else "rear_right"
    if left and right:
        return "front"
    if left:
        return "driver"
    if right:
        return "passenger"
    if "front" in zones:
        return "front"
    return "all"
