"""ONNX Runtime sessions on CUDA streams: what may be captured when, and what may never run elsewhere."""

from __future__ import annotations

import threading
import weakref

import onnxruntime as ort

PROVIDER = "CUDAExecutionProvider"
HEAVY = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm", "MatMulNBits", "Attention", "GroupQueryAttention"}) | {
    "MultiHeadAttention",
    "LayerNormalization",
    "SkipLayerNormalization",
    "SimplifiedLayerNormalization",
    "SkipSimplifiedLayerNormalization",
    "FusedMatMul",
    "FusedConv",
    "QuickGelu",
    "Gelu",
    "FastGelu",
    "BiasGelu",
}
"""Work that must never run elsewhere. ONNX Runtime keeps the arithmetic of shapes on the CPU, which is right."""


class Start:
    """The time in which sessions are opened and graphs captured. `lock` is held meanwhile, `over` ends it for good."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.over = False


class CudaSession:
    """A session on a lane's stream. `uncaptured`: runs that asked for a graph which was not captured at start.

    Only replays of graphs are left to the stream. ONNX Runtime gives the page-locked memory of any other run back when
    the run is waited for: unwaited, it would grow with every run, and be given back from a callback when the session
    ends, where CUDA lets nobody free memory and the process would abort.
    """

    def __init__(self, inner: ort.InferenceSession, start: Start, captures: bool) -> None:
        self.inner = inner
        self.uncaptured = 0
        self._start = start
        self._captures = captures
        self._captured: set[int] = set()
        self._bindings: list[weakref.ref[ort.IOBinding]] = []
        self._options: dict[int, ort.RunOptions] = {}

    def binding(self) -> ort.IOBinding:
        made = self.inner.io_binding()
        self._bindings.append(weakref.ref(made))
        return made

    def close(self) -> None:
        """End the session. Bindings keep it and what was bound to them alive, so they are emptied: none may be used."""
        for reference in self._bindings:
            binding = reference()
            if binding is not None:
                vars(binding).clear()
        self._bindings.clear()
        self.inner = None

    def run(self, binding: ort.IOBinding, *, graph_id: int = -1) -> None:
        """See Session. ONNX Runtime warms up and captures within the first run of a `graph_id`."""
        if not self._captures or graph_id < 0 or graph_id in self._captured:
            self.inner.run_with_iobinding(binding, self._run_options(graph_id))
        elif self._start.over:
            self.uncaptured += 1
            self.inner.run_with_iobinding(binding, self._run_options(-1))
        else:
            with self._start.lock:
                self.inner.run_with_iobinding(binding, self._run_options(graph_id))
            self._captured.add(graph_id)

    def _run_options(self, graph_id: int) -> ort.RunOptions:
        known = self._options.get(graph_id)
        if known is None:
            known = self._options[graph_id] = ort.RunOptions()
            if self._captures and graph_id >= 0:
                known.add_run_config_entry("disable_synchronize_execution_providers", "1")
            if self._captures:  # 0 is what a run without an id would get
                known.add_run_config_entry("gpu_graph_id", str(graph_id + 1) if graph_id >= 0 else "-1")
        return known


def nodes_elsewhere(session: ort.InferenceSession) -> dict[str, int]:
    """Op type -> how many nodes of it are not on CUDA. The session was opened by a CudaPlacement."""
    counts: dict[str, int] = {}
    for part in session.get_provider_graph_assignment_info():
        if part.ep_name != PROVIDER:
            for node in part.get_nodes():
                counts[node.op_type] = counts.get(node.op_type, 0) + 1
    return counts
