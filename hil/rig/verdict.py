"""What a turn should have come to, and what it did: faults in words, limits in milliseconds, one outcome."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from hil.rig.scenario import Expected, Scenario

Outcome = Literal["PASS", "MARGINAL", "DEGRADED-AS-EXPECTED", "SKIPPED", "FAIL", "ERROR", "TIMEOUT"]
"""DEGRADED-AS-EXPECTED: faults were on, and what came of them is what was expected. SKIPPED: this machine or device
under test cannot have the fault."""
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
BAD: tuple[Outcome, ...] = ("FAIL", "ERROR", "TIMEOUT")
_WORDS = re.compile(r"[^\W_]+", re.UNICODE)


@dataclass(slots=True)
class Repetition:
    """One run of a scenario. turns: as `cockpit say --json` gives them. changed: signal -> (before, after)."""

    turns: list[dict[str, Any]]
    changed: dict[str, tuple[Any, Any]]
    after: Mapping[str, Any]
    faults: list[str] = field(default_factory=list)
    near: list[str] = field(default_factory=list)
    proofs: list[str] = field(default_factory=list)
    """What shows that each injected fault was on."""
    modes: dict[str, str] = field(default_factory=dict)
    """What the process said that it lacked meanwhile, and why."""
    recovered_s: float | None = None
    """From the end of the last fault until everything was well again; None: it was not, or there was none."""
    later: Repetition | None = None
    """The stimulus said once more, after the faults."""

    def as_json(self) -> dict[str, Any]:
        changed = {path: {"before": before, "after": after} for path, (before, after) in self.changed.items()}
        told: dict[str, Any] = {"turns": self.turns, "changed": changed, "faults": self.faults, "near": self.near}
        if self.proofs:
            told |= {"proofs": self.proofs, "modes": self.modes, "recovered_s": self.recovered_s}
        if self.later is not None:
            told["later"] = self.later.as_json()
        return told

    def longest(self, stage: str) -> float | None:
        """Milliseconds of a stage, the longest of its turns; None where it did not run."""
        found = [turn["ms"][stage] for turn in self.turns if turn["ms"].get(stage) is not None]
        return max(found, default=None)


def judge(scenario: Scenario, repetition: Repetition) -> None:
    """Fill `faults` and `near` in."""
    repetition.faults = [*_meaning(scenario.expect, repetition), *_degraded(scenario.expect, repetition)]
    if scenario.after is not None and repetition.later is not None:
        repetition.faults += [f"afterwards: {fault}" for fault in _meaning(scenario.after, repetition.later)]
    for stage, limit in scenario.limits.items():
        took = repetition.longest(stage)
        if took is None:
            repetition.faults.append(f"{stage} has a limit of {limit}, but did not run")
        elif took > limit.ms:
            repetition.faults.append(f"{stage} took {took:.0f} ms, limit {limit.ms:.0f} ms")
        elif took > limit.ms * (1.0 - scenario.margin):
            repetition.near.append(f"{stage} took {took:.0f} ms of {limit.ms:.0f} ms")


def outcome_of(repetitions: Sequence[Repetition]) -> Outcome:
    """FAIL where any repetition has a fault: what acts wrongly once in twenty is wrong."""
    if any(repetition.faults for repetition in repetitions):
        return "FAIL"
    if any(repetition.near for repetition in repetitions):
        return "MARGINAL"
    return "DEGRADED-AS-EXPECTED" if any(repetition.proofs for repetition in repetitions) else "PASS"


def _degraded(expect: Expected, repetition: Repetition) -> list[str]:
    """The named mode while the fault is on, and an end to it in time."""
    faults = []
    if expect.mode is not None and expect.mode not in repetition.modes:
        faults.append(f"it never said {expect.mode}; it said {', '.join(repetition.modes) or 'that all is well'}")
    if expect.recovers is not None:
        took = repetition.recovered_s
        if took is None:
            faults.append(f"it was not well again within {expect.recovers}")
        elif took > expect.recovers.seconds:
            faults.append(f"it was well again after {took:.1f} s, limit {expect.recovers}")
    return faults


def _meaning(expect: Expected, repetition: Repetition) -> list[str]:
    faults = []
    if expect.turns is not None and len(repetition.turns) != expect.turns:
        return [f"{len(repetition.turns)} turns came of it, not {expect.turns}: {_heard(repetition)!r}"]
    if not repetition.turns and expect.turns is None and not expect.unheard:
        return ["nothing was heard as speech"]
    failed = [turn["failed"] for turn in repetition.turns if turn["failed"] not in (None, expect.failed)]
    faults += [f"the stage {name} failed" for name in failed]
    heard = _heard(repetition)
    if expect.transcript is not None and _words(heard) != _words(expect.transcript):
        faults.append(f"heard {heard!r}, not {expect.transcript!r}")
    calls = [{call["name"]: call["arguments"]} for turn in repetition.turns for call in turn["tool_calls"]]
    if expect.calls is not None and calls != list(expect.calls):
        faults.append(f"called {calls or 'nothing'}, not {list(expect.calls) or 'nothing'}")
    if expect.may_call is not None:
        wrong = [call for call in calls if call not in expect.may_call and next(iter(call)) != "refuse"]
        faults += [f"called {call}, which is none of {list(expect.may_call)}" for call in wrong]
    for path, wanted in expect.state.items():
        if not _equal(repetition.after.get(path), wanted):
            faults.append(f"{path} is {repetition.after.get(path)!r}, not {wanted!r}")
    if expect.unchanged and not expect.may_call and (expect.state or not expect.calls):
        stray = sorted(repetition.changed.keys() - expect.state.keys())
        faults += [f"{path} changed from {_pair(repetition.changed[path])}" for path in stray]
    reply = " ".join(turn["reply"] for turn in repetition.turns)
    faults += [f"the reply {reply!r} lacks {word!r}" for word in expect.reply if word.lower() not in reply.lower()]
    faults += [f"the reply {reply!r} holds {word!r}" for word in expect.not_reply if word.lower() in reply.lower()]
    return faults


def _heard(repetition: Repetition) -> str:
    return " ".join(turn["transcript"] for turn in repetition.turns)


def _pair(values: tuple[Any, Any]) -> str:
    return f"{values[0]!r} to {values[1]!r}"


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(text)]


def _equal(value: Any, wanted: Any) -> bool:
    if isinstance(value, bool) or isinstance(wanted, bool) or isinstance(value, str) or isinstance(wanted, str):
        return bool(value == wanted)
    return value is not None and abs(float(value) - float(wanted)) < 1e-6
