"""What benchmarks share: command-line options, results written as they come, progress on stderr, a limit on time."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


def command_line(module: str, about: str | None) -> argparse.ArgumentParser:
    """The parser of a benchmark: its name is the last part of `module`. Every benchmark knows `--json` and `--help`."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks {module.rpartition('.')[2]}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def report_options(parser: argparse.ArgumentParser, budget_s: float) -> None:
    """The options of a benchmark that writes its report as it goes."""
    parser.add_argument(
        "--budget-s", type=float, default=budget_s, help=f"begin nothing more after so many seconds ({budget_s:g})"
    )
    parser.add_argument("--out", type=Path, help="write results here as they come")


class Report:
    """A JSON object that is written to `out` after every `put`, so that a run cut short leaves what it measured."""

    def __init__(self, out: Path | None, budget_s: float) -> None:
        self.out = out
        self.budget_s = budget_s
        self.values: dict[str, Any] = {}
        self._began_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def over(self, share: float = 1.0) -> bool:
        """Whether `share` of the time is spent."""
        return self.elapsed_s > self.budget_s * share

    def say(self, text: str) -> None:
        sys.stderr.write(f"[{self.elapsed_s:6.1f} s] {text}\n")
        sys.stderr.flush()

    def put(self, **values: Any) -> None:
        self.values.update(values)
        self.values["elapsed_s"] = round(self.elapsed_s, 1)
        if self.out is not None:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            part = self.out.with_suffix(".part")
            part.write_text(json.dumps(self.values, ensure_ascii=False, indent=1, default=_plain), encoding="utf-8")
            part.replace(self.out)

    def attempt(self, name: str, part: Any) -> bool:
        """Run one part; when the device or a model refuses, note why under `failed` and go on with the others."""
        self.say(name)
        try:
            self.put(**{name: part()})
        except Exception as error:  # the edge of a part: recorded and counted; ONNX Runtime's errors have no base
            reason = f"{type(error).__name__}: {error}"
            self.say(f"{name} FAILED: {reason}")
            self.put(failed={**self.values.get("failed", {}), name: reason})
            return False
        return True


def _plain(value: Any) -> Any:
    """numpy's numbers and arrays as JSON has them."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"a report cannot hold a {type(value).__name__}")


def percentiles(values: list[float], shares: tuple[int, ...] = (50, 99)) -> dict[str, float]:
    """{"p50": ..., "p99": ...}; empty without values."""
    return {f"p{share}": round(float(np.percentile(values, share)), 2) for share in shares} if values else {}


def head() -> dict[str, Any]:
    """Machine, versions, date and command: what every result file begins with."""
    import onnxruntime

    return {
        "processor": _processor(),
        "gpu": gpu(),
        "onnxruntime": onnxruntime.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(sys.orig_argv),
    }


def gpu() -> str:
    """ "NVIDIA H200, driver 580.1"; empty where there is none."""
    if shutil.which("nvidia-smi") is None:
        return ""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    return lines[0].strip().replace(",", ", driver") if lines else ""


def gpu_driver() -> str:
    """The version of the GPU's driver; empty where there is none."""
    return gpu().rpartition(", driver ")[2]


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores"
