"""What counts as a fault of the car."""

from __future__ import annotations

from typing import Any

import pytest

from hil.rig.scenario import Scenario
from hil.rig.verdict import Repetition, judge, outcome_of

WINDOW = "Vehicle.Cabin.Door.Row1.DriverSide.Window.Position"
ROOF = "Vehicle.Cabin.Sunroof.Position"
CALL = {"set_sunroof": {"position": "open"}}


def repetition(
    changed: dict[str, tuple[Any, Any]] | None = None,
    calls: tuple[dict[str, dict[str, Any]], ...] = (),
    reply: str = "The driver window is open by 50 percent.",
    first_audio: float | None = 500.0,
    failed: str | None = None,
) -> Repetition:
    turn = {
        "transcript": "Open the driver window, halfway.",
        "tool_calls": [{"name": name, "arguments": args} for call in calls for name, args in call.items()],
        "reply": reply,
        "failed": failed,
        "ms": {"first_audio": first_audio, "asr": None},
    }
    changed = {WINDOW: (0, 50)} if changed is None else changed
    return Repetition([turn], changed, {WINDOW: 50.0, ROOF: 0} | {path: after for path, (_, after) in changed.items()})


def faults(expect: dict[str, Any], run: Repetition, **more: Any) -> list[str]:
    judge(Scenario.model_validate({"id": "one-two", "stimulus": {"wav": "en05.wav"}, "expect": expect, **more}), run)
    return run.faults


@pytest.mark.parametrize(
    ("expect", "run", "fault"),
    [
        ({"state": {WINDOW: 50}}, repetition(), ""),
        ({"transcript": "open the driver window halfway"}, repetition({}), ""),
        ({"transcript": "open the window"}, repetition({}), "heard"),
        ({"state": {WINDOW: 40}}, repetition(), "is 50, not 40"),
        ({"state": {WINDOW: 50}}, repetition({WINDOW: (0, 50), ROOF: (0, 100)}), f"{ROOF} changed from 0 to 100"),
        ({"state": {WINDOW: 50}, "unchanged": False}, repetition({WINDOW: (0, 50), ROOF: (0, 100)}), ""),
        ({}, repetition(), "changed"),
        ({}, repetition({}), ""),
        ({"calls": []}, repetition({}, (CALL,)), "called"),
        ({"calls": [CALL]}, repetition({ROOF: (0, 100)}, (CALL,)), ""),
        ({"calls": [CALL]}, repetition({}), "not [{'set_sunroof'"),
        ({"reply": ["50 PERCENT"], "state": {WINDOW: 50}}, repetition(), ""),
        ({"reply": ["closed"], "state": {WINDOW: 50}}, repetition(), "lacks 'closed'"),
        ({"not_reply": ["open"], "state": {WINDOW: 50}}, repetition(), "holds 'open'"),
        ({"state": {WINDOW: 50}}, repetition(failed="tts"), "the stage tts failed"),
        ({"state": {WINDOW: 50}}, Repetition([], {}, {}), "nothing was heard"),
    ],
)
def test_faults(expect: dict[str, Any], run: Repetition, fault: str) -> None:
    found = faults(expect, run)
    assert (not found) if not fault else any(fault in one for one in found), found


def test_limits_and_their_margin() -> None:
    limits = {"limits": {"first_audio": "500ms"}, "margin": 0.1}
    slow, near, good = (repetition({}, first_audio=ms) for ms in (501.0, 470.0, 449.0))
    assert faults({}, slow, **limits) == ["first_audio took 501 ms, limit 500 ms"]
    assert faults({}, near, **limits) == []
    assert near.near == ["first_audio took 470 ms of 500 ms"]
    assert faults({}, good, **limits) == []
    assert not good.near
    assert faults({}, repetition({}), limits={"asr": "1s"}) == ["asr has a limit of 1s, but did not run"]
    assert [outcome_of(runs) for runs in ([good], [good, near], [near, slow])] == ["PASS", "MARGINAL", "FAIL"]
