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


def test_faults_are_expected_or_not() -> None:
    expect = {"mode": "no_microphone", "recovers": "2s", "failed": "microphone", "calls": []}
    more = {"faults": [{"microphone": "lost"}]}

    def degraded(modes: dict[str, str], recovered_s: float | None) -> Repetition:
        run = repetition({}, failed="microphone")
        run.proofs, run.modes, run.recovered_s = ["microphone lost: withheld"], modes, recovered_s
        return run

    as_expected = degraded({"no_microphone": "unplugged"}, 1.0)
    assert faults(expect, as_expected, **more) == []
    assert outcome_of([as_expected]) == "DEGRADED-AS-EXPECTED"
    assert faults(expect, degraded({}, 1.0), **more) == ["it never said no_microphone; it said that all is well"]
    assert faults(expect, degraded({"no_microphone": ""}, 3.0), **more) == ["it was well again after 3.0 s, limit 2s"]
    assert faults(expect, degraded({"no_microphone": ""}, None), **more) == ["it was not well again within 2s"]


def test_what_is_said_afterwards_is_judged_too() -> None:
    run = repetition({})
    run.later = repetition({})
    fault = faults({}, run, faults=[{"vehicle": "gone"}], after={"state": {WINDOW: 40}})
    assert fault == [f"afterwards: {WINDOW} is 50.0, not 40"]


def test_torn_words_may_be_understood_and_not_misunderstood() -> None:
    assert faults({"may_call": [CALL]}, repetition({ROOF: (0, 100)}, (CALL,))) == []
    assert faults({"may_call": [CALL]}, repetition({})) == []
    wrong = {"set_sunroof": {"position": "tilted"}}
    assert "none of" in faults({"may_call": [CALL]}, repetition({}, (wrong,)))[0]
    assert faults({"turns": 0}, Repetition([], {}, {})) == []
    assert "1 turns came of it" in faults({"turns": 0}, repetition({}))[0]
    assert faults({"unheard": True}, Repetition([], {}, {})) == []
