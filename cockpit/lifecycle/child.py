"""The fresh process in which models are validated: `python -m cockpit.lifecycle.child`.

Standard input: one JSON object (`Work`). Standard output: one JSON line a model, as soon as it is done, so that a model
that takes the process with it is known by what is missing.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from models.errors import CockpitError, ModelUnusable, StartupError
from models.store.registry import ModelEntry
from models.store.validation import Answer


@dataclass(frozen=True, slots=True)
class Outcome:
    """What validating one model gave. fault: why it failed; cannot: why it could not be tried here; "" for neither."""

    model: str
    answers: tuple[Answer, ...] = ()
    load_ms: float = 0.0
    first_result_ms: float = 0.0
    peak_memory_mb: float = 0.0
    fault: str = ""
    cannot: str = ""

    @classmethod
    def of_json(cls, said: Mapping[str, Any]) -> Outcome:
        """Of a line of the child."""
        return cls(**{**said, "answers": tuple(Answer(**answer) for answer in said["answers"])})


def main() -> None:
    """Validate every model of the work on standard input."""
    with open(os.dup(1), "w", encoding="utf-8") as results:
        os.dup2(2, 1)  # what libraries print is no result
        work = json.load(sys.stdin)
        fix_seeds(work["seed"])
        for outcome in outcomes(work):
            results.write(json.dumps(asdict(outcome)) + "\n")
            results.flush()


def fix_seeds(seed: int) -> None:
    """Of everything that draws numbers: voices do."""
    import numpy as np
    import onnxruntime as ort

    random.seed(seed)
    np.random.seed(seed)
    ort.set_seed(seed)


def outcomes(work: Mapping[str, Any]) -> Iterator[Outcome]:
    """work: {"models": [{"entry": registry entry, "folder", "device"}], "phonemes": folder of espeak-ng, "cold"}."""
    for item in work["models"]:
        entry, folder = ModelEntry.model_validate(item["entry"]), Path(item["folder"])
        give_back()
        if work["cold"]:
            forget_pages(folder)
        try:
            yield _outcome(entry, folder, Path(work["phonemes"]), item["device"])
        except ModelUnusable as error:
            yield Outcome(entry.name, fault=str(error))
        except StartupError as error:  # no GPU, a library that is not installed: says nothing about the model
            yield Outcome(entry.name, cannot=str(error))
        except CockpitError as error:
            yield Outcome(entry.name, fault=str(error))
        except Exception as error:  # whatever a graph that is wrong may raise
            traceback.print_exc()
            yield Outcome(entry.name, fault=f"{type(error).__name__}: {error}")


def _outcome(entry: ModelEntry, folder: Path, phonemes: Path, device: Any) -> Outcome:
    from cockpit.lifecycle.questions import ASKED, opened, same

    known = {item.ask: item.answer for item in entry.known_answers} or {ASKED[entry.kind]: ""}
    answers: list[Answer] = []
    before = memory_bytes("VmRSS")
    reset_peak()
    first_ms, start_s = 0.0, time.perf_counter()
    with ExitStack() as opening:
        ask = opening.enter_context(opened(entry, folder, phonemes, device))
        load_ms = (time.perf_counter() - start_s) * 1000
        for question, expected in known.items():
            start_s = time.perf_counter()
            got = ask(question)
            first_ms = first_ms or (time.perf_counter() - start_s) * 1000
            wanted = expected or ask(question)
            answers.append(Answer(question, expected, got, bool(got) and same(entry.kind, wanted, got)))
        peak = max(0, memory_bytes("VmHWM") - before)
    wrong = next((answer for answer in answers if not answer.ok), None)
    return Outcome(
        entry.name,
        tuple(answers),
        round(load_ms, 1),
        round(first_ms, 1),
        round(peak / 2**20, 1),
        fault="" if wrong is None else _wrong(wrong),
    )


def _wrong(answer: Answer) -> str:
    if not answer.got:
        return f"{answer.ask!r} got no answer"
    if not answer.expected:
        return f"{answer.ask!r} asked twice got two answers"
    return f"{answer.ask!r}: expected {answer.expected!r}, got {answer.got!r}"


def memory_bytes(field: str) -> int:
    """VmRSS (now) or VmHWM (the most since `reset_peak`) of this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return 0


def give_back() -> None:
    """Return what the last model held to the system, so that the next one's memory is seen to rise."""
    gc.collect()
    with suppress(OSError, AttributeError):  # a C library other than glibc
        ctypes.CDLL(None).malloc_trim(0)


def reset_peak() -> None:
    """VmHWM counts from here on (proc(5), clear_refs); where that is not allowed, from the start of the process."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def forget_pages(folder: Path) -> None:
    """Put the files of `folder` out of the page cache, as after a boot."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


if __name__ == "__main__":
    main()
