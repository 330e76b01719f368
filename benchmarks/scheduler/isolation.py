"""Does navigation feel a dialogue beside it? Latency of a navigation burst alone and beside loads, case by case.

    python -m benchmarks isolation [--device cuda|cpu] [--seconds S] [--quick] [--json]

`ratio_p99` is against navigation alone on the whole device, measured in the same run at the same duty cycle.
`dialogue_throughput_kept` is against the same load alone in the same lane; `kept_of_whole` against it alone on the
whole device without gates. cuda: navigation is a burst of 8 tokens of a 4B-shaped decoder; cpu: a small network.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.harness.report import command_line
from benchmarks.scheduler.contention import CaseSet, measure, reach, table
from models.errors import CockpitError

LOADS = ("dialogue", "decode", "matrix", "bandwidth")


def open_cases(device: str, quick: bool, loads: Sequence[str]) -> CaseSet:
    """The cases of a device, which stays open until `close`. Raises DeviceUnavailable."""
    if device == "cpu":
        from benchmarks.scheduler.isolation_cpu import cpu_cases

        return cpu_cases(quick)
    from benchmarks.scheduler.isolation_gpu import gpu_cases

    return gpu_cases(quick, loads)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line(__name__, __doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each load's rate alone")
    parser.add_argument("--quick", action="store_true", help="fewer samples and cases")
    parser.add_argument("--loads", help=f"cuda: which loads run beside, comma-separated; all: {','.join(LOADS)}")
    options = parser.parse_args(arguments)
    loads = LOADS if options.loads is None else tuple(options.loads.split(","))
    if options.device == "cpu" and options.loads is not None:
        parser.error("--loads goes with --device cuda: there is one load on a CPU")
    if unknown := set(loads) - set(LOADS):
        parser.error(f"unknown loads {', '.join(sorted(unknown))}; known: {', '.join(LOADS)}")
    if "dialogue" not in loads:
        parser.error("--loads must hold dialogue: the answer is read from its row")
    try:
        cases = open_cases(options.device, options.quick, loads)
        rows = measure(cases.cases, cases.idle_ms, options.seconds)
        answer = next(row for row in rows if row["case"] == cases.answer[0] and row["load"] == cases.answer[1])
        report: dict[str, Any] = {
            "device": cases.device,
            "driver": cases.driver,
            "date": time.strftime("%Y-%m-%d"),
            "command": " ".join(sys.orig_argv),
            "navigation": cases.navigation,
            "answer": cases.answer,
            **{key: answer.get(key) for key in ("p50_ms", "p99_ms", "ratio_p99", "std_ms", "dialogue_throughput_kept")},
            "reach": reach(answer),
            "rows": rows,
        }
        cases.close()
    except CockpitError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(report) if options.json else table(report))
    return 0
