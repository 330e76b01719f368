"""What it costs and brings that the language model's threads spin between operators, on free cores and on shared ones.

    python -m benchmarks spinning [--json] [--model NAME] [--neighbours N]

Runs of 1, 8 and 32 tokens; the limits take turns, so that whatever else the machine does strikes all alike.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.harness.report import command_line, head
from models.engines.llm.cpu import SPIN_US, CpuLm
from models.store.store import Store

LIMITS_US = (0, SPIN_US, 100, 1000)
"""0: threads sleep at once. 1000: about ONNX Runtime's own."""
ROWS = {1: 12, 8: 3, 32: 2}
"""Tokens of a run, and runs in a row."""
THREADS = 2


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """So many programs that never leave a core."""
    burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in burning:
            one.kill()
            one.wait()


def measure(model: str, repeats: int) -> list[dict[str, Any]]:
    """A row for each limit and length: wall and processor time of a run, ms."""
    folder = Store.open().ensure(model)
    shape = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    cache = (1, shape["kv_heads"], 512, shape["head_dim"])
    bodies = {
        limit: CpuLm.load(folder, threads=THREADS, layers=shape["layers"], cache_shape=cache, spin_us=limit).open_body()
        for limit in LIMITS_US
    }
    spent: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for repeat in range(repeats + 1):
        for limit, body in bodies.items():
            for rows, runs in ROWS.items():
                tokens = [100 + (row * 37 + repeat * 101) % 20000 for row in range(rows)]
                for _ in range(runs):
                    wall_s, processor_s = time.perf_counter(), time.process_time()
                    body.run(tokens, 1, every_row=False)
                    took = (time.perf_counter() - wall_s) * 1e3, (time.process_time() - processor_s) * 1e3
                    if repeat:  # the first warms up
                        spent[rows, limit].append(took)
    return [
        {
            "rows": rows,
            "spin_us": limit,
            "wall_ms": round(statistics.median(wall for wall, _ in took), 1),
            "processor_ms": round(statistics.median(processor for _, processor in took), 1),
        }
        for (rows, limit), took in sorted(spent.items())
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = command_line(__name__, __doc__)
    parser.add_argument("--model", default="qwen2.5-coder-0.5b-instruct")
    parser.add_argument("--neighbours", type=int, default=0, help="programs that never leave a core (0)")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    with neighbours(options.neighbours):
        rows = measure(options.model, options.repeats)
        load = os.getloadavg()[0]
    if options.json:
        print(json.dumps({"machine": head(), "model": options.model, "load_average": load, "rows": rows}))
        return 0
    print(f"{options.model}, load average {load:.1f}\n{'tokens':>7}{'spin us':>9}{'wall ms':>9}{'processor ms':>14}")
    for row in rows:
        print(f"{row['rows']:7}{row['spin_us']:9}{row['wall_ms']:9.1f}{row['processor_ms']:14.1f}")
    return 0
