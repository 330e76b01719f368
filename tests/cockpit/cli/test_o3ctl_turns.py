"""`o3ctl` shows how many turns were decided by what, the most first."""

from __future__ import annotations

from cockpit.api.app import Services
from cockpit.api.grants import Grants
from cockpit.cli.o3ctl import decided_text


def test_stats_hold_the_counts_and_the_line_shows_them() -> None:
    counts = {"manual": 2, "model": 5, "rule": 0}
    services = Services({}, None, Grants({}, {}), dict, decided=lambda: counts)
    assert services.stats()["turns"] == {"decided_by": counts}
    assert decided_text({"api": services.stats()}) == "model 5, manual 2"


def test_before_the_first_turn_there_is_no_line() -> None:
    assert decided_text({}) == ""
    assert decided_text({"api": {"turns": {"decided_by": {}}}}) == ""
