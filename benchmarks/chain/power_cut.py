"""A build that is cut off at every step: the old model or the new one is there afterwards, whole, never half of one.

    python -m benchmarks power_cut [--json] [--times 1000] [--operation build] [--seed 1]

For each way to fail (SIGKILL, a disk that is full from some step on, one EIO) and each operation of the store (a build
that replaces another, a rollback), `--times` child processes run the operation on a small model and fail at one step
after the other: before every open for writing, mkdir, rename, exchange, fsync and removal. After each, the model must
load, every byte as its manifest says, and be the old or the new one; then a build without a fault must succeed and
leave nothing unfinished. What this cannot show is the order in which a disk writes what was not synced.
"""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import signal
import sys
import tempfile
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.report import command_line
from models.errors import ModelUnusable
from models.store import tracks
from models.store.fetch import Origins, sha256_of
from models.store.machine import fields_sha3, machine_fields
from models.store.registry import Registry
from models.store.store import Store
from models.store.validation import Answer, Validation

MODEL, BUILDER = "small", "models.build.power_cut_small"
SIZES = {"model.onnx": 300_000, "config.json": 200, "data/table": 5_000}
FORMER, PRESENT, NEXT = 3, 4, 5
"""What the files are full of."""
WAYS = ("kill", "full", "eio")
_WRITES = ("open", "os.mkdir", "fsync")
"""What fails on a disk that is full; renaming and removing work there."""


def small_store(root: Path) -> Store:
    """A store of one model, fetched, whose builder writes SIZES full of the version that `versions` says."""
    weights = root / "weights"
    weights.write_bytes(b"weights")
    file = {"sha256": sha256_of(weights), "size_bytes": 7, "sources": [{"type": "path", "path": str(weights)}]}
    model = {
        "name": MODEL, "kind": "vad", "engine": "silero", "summary": "", "licence": "MIT", "files": {"w.bin": file},
        "build": {"builder": f"{BUILDER}:build", "arguments": {"weights": "w.bin"}},
    }  # fmt: skip
    store = Store(root / "cache", Registry.model_validate({"format": 1, "models": [model]}))
    store.fetch(MODEL, origins=Origins())
    return store


def builds(version: int) -> None:
    """From now on the builder writes this version."""

    def build(weights: Path, out: Path) -> None:
        for name, size in SIZES.items():
            (out / name).parent.mkdir(exist_ok=True)
            (out / name).write_bytes(bytes([version]) * size)

    module = types.ModuleType(BUILDER)
    module.build = build  # type: ignore[attr-defined]
    sys.modules[BUILDER] = module


def accepted(store: Store, folder: Path) -> None:
    """As if it had been validated."""
    machine = machine_fields("cpu")
    answers = (Answer("", "", "", True),)
    content = store.content(MODEL, folder)
    Validation(MODEL, content, machine, fields_sha3(machine), answers, 1, 1, 1, 1, False, "now").write(folder)


def made(store: Store) -> None:
    """A build as `cockpit models build` makes it."""
    store.build(MODEL, force=True, accept=partial(accepted, store))


def made_in_turn(store: Store, *versions: int) -> Store:
    """The same store, with one build behind the other."""
    for version in versions:
        builds(version)
        made(store)
    return store


def rolled_back(store: Store) -> None:
    """As `cockpit models rollback` does it."""
    store.rollback(MODEL)


OPERATIONS: Mapping[str, Callable[[Store], None]] = {"build": made, "rollback": rolled_back}


class Fault:
    """Fails at the step `at` of what the store does to the disk; `at` 0 counts only."""

    def __init__(self, way: str, at: int, bytes_left: int | None) -> None:
        self.way, self.at, self.bytes_left = way, at, bytes_left
        self.steps = 0

    def arm(self) -> None:
        """In this process, for good."""
        if self.bytes_left is not None:  # a file is cut off in the middle
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.bytes_left, resource.RLIM_INFINITY))
        sys.addaudithook(self._audited)
        fsync, at_once = os.fsync, tracks._renamed_at_once

        def faulty_fsync(descriptor: int) -> None:
            self.step("fsync")
            fsync(descriptor)

        def faulty_exchange(one: Path, other: Path) -> bool:
            self.step("exchange")
            done = at_once(one, other)
            self.step("exchanged")
            return done

        os.fsync = faulty_fsync  # type: ignore[assignment]
        tracks._renamed_at_once = faulty_exchange

    def _audited(self, event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and bool(int(arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR))
        if writes or event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir"):
            self.step(event)

    def step(self, what: str) -> None:
        """Before the next change of the disk."""
        self.steps += 1
        if self.way == "full" and self.at and self.steps >= self.at and what in _WRITES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.steps != self.at:
            return
        if self.way == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.way == "eio" and what != "exchanged":
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def in_a_child(work: Callable[[], object], fault: Fault) -> int:
    """Run `work` with `fault`; returns the steps of a child that ended by itself, 0 for one that was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        fault.arm()
        try:
            work()
        except OSError:
            pass
        finally:
            os.write(writing, str(fault.steps).encode())
            os._exit(0)
    os.close(writing)
    steps = os.read(reading, 32)
    os.close(reading)
    os.waitpid(child, 0)
    return int(steps or 0)


def version_of(store: Store) -> int:
    """Of the model that would be loaded. Raises ModelUnusable, and ValueError for a mixture."""
    fault = store.fault(MODEL, whole=True)
    if fault is not None:
        raise fault
    versions = {byte for name in SIZES for byte in set((store.built(MODEL) / name).read_bytes())}
    if len(versions) != 1:
        raise ValueError(f"a mixture of {versions}")
    return versions.pop()


def cut_off(store: Store, operation: str, way: str, at: int, bytes_left: int | None) -> tuple[str, str]:
    """One round: ("old" or "new", what was wrong with it, empty for nothing)."""
    made_in_turn(store, FORMER, PRESENT)
    builds(NEXT)
    in_a_child(partial(OPERATIONS[operation], store), Fault(way, at, bytes_left))
    new = NEXT if operation == "build" else FORMER
    fault, found = "", PRESENT
    try:
        found = version_of(store)
        if found not in (PRESENT, new):
            fault = f"version {found}"
    except (ModelUnusable, ValueError, OSError) as error:
        fault = str(error)
    made(store)
    if list((store.root / "building").iterdir()):
        fault = fault or "unfinished work stays"
    return "new" if found == new else "old", fault


def measure(times: int, seed: int, operations: Sequence[str] = tuple(OPERATIONS)) -> dict[str, Any]:
    """Counts by way and operation; `faults`: what was wrong, empty when nothing was."""
    chance, rows, faults = random.Random(seed), [], []
    with tempfile.TemporaryDirectory(prefix="cockpit-power-") as folder:
        store = small_store(Path(folder))
        for operation in operations:
            made_in_turn(store, FORMER, PRESENT)
            steps = in_a_child(partial(OPERATIONS[operation], store), Fault("count", 0, None))
            for way in WAYS:
                counts = {"old": 0, "new": 0}
                for number in range(times):
                    at = 1 + (number % steps if times >= steps else number * steps // times)
                    in_file = chance.randrange(max(SIZES.values())) if way == "full" and number % 2 else None
                    which, fault = cut_off(store, operation, way, at, in_file)
                    counts[which] += 1
                    faults += [f"{operation}, {way}, step {at}: {fault}"] if fault else []
                rows.append({"operation": operation, "way": way, "steps": steps, "times": times, **counts})
    return {"rows": rows, "faults": faults}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each way and operation or, with --json, one object. 1 when a model was lost or half there."""
    parser = command_line(__name__, __doc__)
    parser.add_argument("--times", type=int, default=1000, help="child processes for each way and operation")
    parser.add_argument("--operation", choices=tuple(OPERATIONS), help="only this one; without it both")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    found = measure(options.times, options.seed, [options.operation] if options.operation else tuple(OPERATIONS))
    if options.json:
        print(json.dumps(found))
    else:
        for row in found["rows"]:
            print("  ".join(f"{name} {value}" for name, value in row.items()))
        print("\n".join(found["faults"]) or "the old model or the new one was there each time, whole")
    return 1 if found["faults"] else 0
