"""Where a model's time goes, node by node: ONNX Runtime's own profile of a run on this machine's CPU."""

from __future__ import annotations

import gc
import json
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cockpit.lifecycle.questions import ASKED, opened
from models.engines.placement import CpuPlacement
from models.errors import InputError, StartupError
from models.store.registry import ModelEntry

_TIME = re.compile(r"_\d{4}-\d\d-\d\d_\d\d-.*$")
_NODE, _ENDING = "Node", "_kernel_time"
_CONTAINERS = {"If", "Loop", "Scan"}
"""Operators whose time is that of nodes which are listed themselves."""
_HALF_BYTES = {21, 22}
"""onnx.TensorProto.UINT4, INT4."""
COPY_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class Layer:
    """One node of a graph. total_us: of all runs but the first; median_us: of one run. moved_bytes: its inputs, weights
    and outputs, once. share_of_bound: the time that moving them takes at the measured bandwidth, of median_us; above 1
    where they came from a cache.
    """

    graph: str
    name: str
    operator: str
    runs: int
    total_us: float
    median_us: float
    moved_bytes: int
    share_of_bound: float


def profile_layers(entry: ModelEntry, folder: Path, phonemes: Path, *, times: int) -> tuple[list[Layer], float]:
    """(nodes by falling total_us, GB/s of copying on this machine). The model's question is asked `times` times.

    Raises InputError for a model that runs no graph of ONNX Runtime, StartupError without the `onnx` package, and what
    loading the model raises.
    """
    weights = {path.stem: weight_bytes(path) for path in folder.rglob("*.onnx")}
    bytes_per_s = copy_bandwidth()
    with tempfile.TemporaryDirectory(prefix="cockpit-profile-") as kept:
        CpuPlacement.profiles = Path(kept)
        try:
            with opened(entry, folder, phonemes, "cpu") as ask:
                question = entry.known_answers[0].ask if entry.known_answers else ASKED[entry.kind]
                for _ in range(times):
                    ask(question)
            del ask
            gc.collect()  # a session writes its profile when it goes
        finally:
            CpuPlacement.profiles = None
        layers = [layer for path in sorted(Path(kept).iterdir()) for layer in _layers(path, weights, bytes_per_s)]
    if not layers:
        raise InputError(f"{entry.name} runs no graph of ONNX Runtime that could be profiled")
    return sorted(layers, key=lambda layer: -layer.total_us), bytes_per_s / 1e9


def copy_bandwidth() -> float:
    """Bytes a second that one thread reads and writes while it copies, the best of five."""
    source, target = np.ones(COPY_BYTES, np.uint8), np.empty(COPY_BYTES, np.uint8)
    best_s = float("inf")
    for _ in range(5):
        start_s = time.perf_counter()
        np.copyto(target, source)
        best_s = min(best_s, time.perf_counter() - start_s)
    return 2 * COPY_BYTES / best_s


def weight_bytes(path: Path) -> dict[str, int]:
    """Node -> bytes of its weights: ONNX Runtime's profile leaves out those that a kernel has packed for itself."""
    try:
        import onnx
    except ModuleNotFoundError as error:
        remedy = 'pip install "cockpit-voice[build]"'
        raise StartupError(f"the sizes of weights are read by onnx, which is not installed: {remedy}") from error
    found: dict[str, int] = {}
    waiting = [onnx.load(str(path), load_external_data=False).graph]
    while waiting:
        graph = waiting.pop()
        sizes = {item.name: _tensor_bytes(item) for item in graph.initializer}
        for node in graph.node:
            found[node.name] = sum(sizes.get(name, 0) for name in node.input)
            waiting += [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    return found


def _tensor_bytes(tensor: Any) -> int:
    from onnx import helper

    width = 0.5 if tensor.data_type in _HALF_BYTES else helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return int(np.prod(tensor.dims, dtype=np.int64) * width)


def _layers(path: Path, weights: dict[str, dict[str, int]], bytes_per_s: float) -> Iterator[Layer]:
    """Of one session's file, `<graph>_<time>.json`. The first run of a node is left out where there are more."""
    graph = _TIME.sub("", path.stem)
    runs: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for event in json.loads(path.read_text(encoding="utf-8") or "[]"):
        if event.get("cat") == _NODE and str(event.get("name")).endswith(_ENDING):
            said: dict[str, Any] = event["args"]
            if said.get("op_name") in _CONTAINERS:
                continue
            key = (str(event["name"]).removesuffix(_ENDING), str(said.get("op_name")))
            packed = weights.get(graph, {}).get(key[0], 0)
            moved = int(said.get("activation_size") or 0) + int(said.get("output_size") or 0)
            moved += max(packed, int(said.get("parameter_size") or 0))
            runs.setdefault(key, []).append((float(event["dur"]), moved))
    for (name, operator), seen in runs.items():
        warm = seen[1:] or seen
        median_us = statistics.median(took for took, _ in warm)
        moved = round(statistics.median(size for _, size in warm))
        bound_us = moved / bytes_per_s * 1e6
        total_us = sum(took for took, _ in warm)
        yield Layer(graph, name, operator, len(warm), total_us, median_us, moved, bound_us / max(median_us, 1.0))
