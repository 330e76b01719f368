"""Validate built models in a fresh process and keep the result beside each build."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cockpit.lifecycle.child import Outcome
from models.errors import NotValidated
from models.store.machine import fields_sha3, machine_fields
from models.store.store import Store
from models.store.validation import Validation

SEED = 20260
LONGEST_S = 300.0
"""For one model, on a slow and busy machine; a model that takes longer has hung."""
PHONEMES = "espeak-ng"
HOME = Path(__file__).resolve().parents[2]

Run = Callable[[Mapping[str, Any]], list[Outcome]]
"""Does the work of `models` in a fresh process; what is missing in the answer failed. See `in_a_process`."""


def validatable(store: Store, names: Sequence[str]) -> list[str]:
    """Those of `names` that an engine loads and that have no fault."""
    return [name for name in dict.fromkeys(names) if store.registry.get(name).engine and store.is_built(name)]


def validate(store: Store, names: Sequence[str], *, cold: bool = False, run: Run | None = None) -> Iterator[Outcome]:
    """Validate `names`, in order, and write what came of each beside its build; yields the outcomes.

    cold: a process for each, its files out of the page cache. A model that cannot be tried here (`Outcome.cannot`)
    keeps what it had. Raises as `Store.built_all`, before anything is tried.
    """
    folders = store.built_all(names, any_device=True)
    groups = [[name] for name in names] if cold else [list(names)]
    for group in groups:
        for outcome in _tried(store, group, folders, cold, run or in_a_process):
            if not outcome.cannot:
                _keep(store, outcome, folders[outcome.model], cold)
            yield outcome


def stand_in(store: Store, name: str, *, run: Run | None = None) -> Outcome:
    """Validate the build of `name` that another version made, with the software of this one; when it passes, it serves
    until a new one is made. A build that may not stand in is not tried: `Store.may_stand_in`.
    """
    folder, wanted = store.folder(name), store.may_stand_in(name)
    if not wanted:
        return Outcome(name, cannot="it was made of other sources or with other options, or is damaged")
    (outcome,) = (run or in_a_process)(_work(store, [name], {name: folder}, cold=False))
    if not outcome.fault and not outcome.cannot:
        _keep(store, outcome, folder, cold=False, stands_in_for=wanted)
    return outcome


def accept_new(store: Store, name: str, folder: Path, *, run: Run | None = None) -> Outcome:
    """Validate a new build in `folder` before it takes the old one's place. Raises NotValidated when it fails; a build
    that cannot be tried here, or that no engine loads, is accepted as not validated.
    """
    if not store.registry.get(name).engine:
        return Outcome(name, cannot="no engine loads it")
    (outcome,) = (run or in_a_process)(_work(store, [name], {name: folder}, cold=False))
    if outcome.fault:
        raise NotValidated(f"the new build of {name} failed its validation, the old one stays: {outcome.fault}")
    if not outcome.cannot:
        _keep(store, outcome, folder, cold=False)
    return outcome


def _tried(store: Store, names: list[str], folders: Mapping[str, Path], cold: bool, run: Run) -> Iterator[Outcome]:
    """All of `names`, however many processes they take with them."""
    waiting = names
    while waiting:
        done = run(_work(store, waiting, folders, cold))
        yield from done
        waiting = waiting[len(done) :]


def _work(store: Store, names: Sequence[str], folders: Mapping[str, Path], cold: bool) -> dict[str, Any]:
    models = [
        {
            "entry": store.registry.get(name).model_dump(mode="json"),
            "folder": str(folders[name]),
            "device": store.runs_on(name),
        }
        for name in names
    ]
    return {"models": models, "phonemes": str(store.root / "built" / PHONEMES), "cold": cold, "seed": SEED}


def in_a_process(work: Mapping[str, Any]) -> list[Outcome]:
    """The outcomes of a child up to its end; the model at which it died or hung is the last one, with that fault."""
    names = [item["entry"]["name"] for item in work["models"]]
    paths = [str(HOME), *filter(None, [os.environ.get("PYTHONPATH")])]
    # -P: nothing of the working directory hides Cockpit's own packages.
    command = [sys.executable, "-P", "-m", "cockpit.lifecycle.child"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUTF8": "1"}
    child = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        lines, errors = child.communicate(json.dumps(work), timeout=LONGEST_S * len(names))
        ended = _ending(child.returncode, errors)
    except subprocess.TimeoutExpired:
        child.kill()
        lines, errors = child.communicate()
        ended = f"no answer within {LONGEST_S * len(names):g} s"
    except BaseException:
        child.kill()
        child.wait()
        raise
    done = [Outcome.of_json(json.loads(line)) for line in lines.splitlines() if line.endswith("}")]
    if len(done) < len(names):
        done.append(Outcome(names[len(done)], fault=f"its process ended: {ended}"))
    return done


def _ending(code: int, errors: str) -> str:
    last = next((line.strip() for line in reversed(errors.splitlines()) if line.strip()), "")
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return f"{how}: {last}" if last else how


def _keep(store: Store, outcome: Outcome, folder: Path, cold: bool, stands_in_for: str = "") -> None:
    machine = machine_fields(store.runs_on(outcome.model))
    Validation(
        model=outcome.model,
        content=store.content(outcome.model, folder),
        machine=machine,
        machine_sha3=fields_sha3(machine),
        answers=outcome.answers,
        load_ms=outcome.load_ms,
        first_result_ms=outcome.first_result_ms,
        peak_memory_mb=outcome.peak_memory_mb,
        seed=SEED,
        cold=cold,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        fault=outcome.fault,
        stands_in_for=stands_in_for,
    ).write(folder)
