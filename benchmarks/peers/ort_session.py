"""A session of gpu_ort's decoder: weights handed in from the device, buffers, steps, and the check against fp32."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch

from benchmarks.gemma.session import DecodeShape
from benchmarks.harness.random_model import HEAD_DIM, Model, Reference
from benchmarks.peers.ort_graph import NOWHERE, GraphPlan, decode_graph

TOLERANCE = 5e-2
"""Relative error of fp16 logits against fp32 over all layers."""
_TORCH = {"fp16": torch.float16, "fp32": torch.float32}


def weights_of(model: Model, plan: GraphPlan, capacity: int) -> dict[str, torch.Tensor]:
    """The model's numbers as `weight_shapes` names them, on the model's own device."""
    kind = _TORCH[plan.kind]
    out: dict[str, torch.Tensor] = {}

    def put(name: str, values: torch.Tensor, matrix: bool = False) -> None:
        turned = values.t() if matrix and not plan.rows else values
        out[name] = turned.to(kind).contiguous()

    for index, layer in enumerate(model.layers):
        at = f"layers.{index}."
        both = layer.gate_up.data.view(*layer.gate_up.shape)
        for name, values in (
            ("qkv", layer.qkv.data.view(*layer.qkv.shape)),
            ("o", layer.o.data.view(*layer.o.shape)),
            ("gate", both[0::2]),
            ("up", both[1::2]),
            ("down", layer.down.data.view(*layer.down.shape)),
        ):
            put(at + name, values, matrix=True)
        for name, values in zip(("norm_in", "norm_attention", "norm_ffn", "norm_out"), layer.norms, strict=True):
            put(at + name, values)
        for name, values in zip(("norm_q", "norm_k"), layer.qk_norms, strict=True):
            put(at + name, values)
    embedding = model.embedding.data.view(*model.embedding.shape)
    put("embedding", embedding)
    if not plan.rows:
        put("head", embedding, matrix=True)
    put("norm_final", model.final_norm)
    for flag, scope in ((False, "local"), (True, "global")):
        put(f"cos_{scope}", model.rope[flag][:capacity, :, 0])
        put(f"sin_{scope}", model.rope[flag][:capacity, :, 1])
    return out


class Stepper:
    """One session of `decode_graph` with its buffers. stream: of CUDA, None runs on the CPU (tests)."""

    def __init__(
        self,
        shape: DecodeShape,
        plan: GraphPlan,
        weights: dict[str, torch.Tensor],
        capacity: int,
        stream: int | None = None,
    ) -> None:
        self.shape = shape
        self.plan = plan
        self.capacity = capacity
        self.device = "cpu" if stream is None else "cuda"
        self._weights = weights
        self._given = {} if plan.as_inputs else {n: ort.OrtValue.from_dlpack(t) for n, t in weights.items()}
        self._stream = stream
        self._buffers: dict[str, torch.Tensor] = {}
        self.cache: tuple[torch.Tensor, torch.Tensor]
        self.session: ort.InferenceSession
        self._binding: ort.IOBinding
        self._options: dict[bool, ort.RunOptions] = {}

    def open(self) -> Stepper:
        """Load the graph, allocate and bind. Raises what ONNX Runtime raises for a graph it cannot run."""
        options = ort.SessionOptions()
        options.log_severity_level = 3
        # The graph is written fused; the optimiser would read weights from the file instead of those handed in.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        for name, value in self._given.items():
            options.add_initializer(name, value)
        providers: list[Any] = ["CPUExecutionProvider"]
        if self._stream is not None:
            chosen = {"user_compute_stream": str(self._stream), "enable_cuda_graph": "1", "use_tf32": "0"}
            providers = [("CUDAExecutionProvider", chosen)]
        graph = decode_graph(self.shape, self.plan, self.capacity).SerializeToString()
        with tempfile.TemporaryDirectory() as folder:
            # ONNX Runtime wants the file of external weights to be there even where none is read from it.
            (Path(folder) / NOWHERE).touch()
            (Path(folder) / "model.onnx").write_bytes(graph)
            self.session = ort.InferenceSession(f"{folder}/model.onnx", options, providers=providers)
        kind, s = _TORCH[self.plan.kind], self.shape
        sizes = (s.layers, 1, s.kv_heads, self.capacity, HEAD_DIM)
        self.cache = tuple(torch.zeros(sizes, dtype=kind, device=self.device) for _ in range(2))  # type: ignore[assignment]
        self._buffers = {
            "input_ids": torch.zeros((1, 1), dtype=torch.int64, device=self.device),
            "seqlens_k": torch.zeros(1, dtype=torch.int32, device=self.device),
            "logits": torch.zeros((1, s.vocab), dtype=kind, device=self.device),
        }
        self._binding = self.session.io_binding()
        for name in ("input_ids", "seqlens_k"):
            self._bind(name, self._buffers[name])
        self._bind("logits", self._buffers["logits"], output=True)
        if self.plan.choose:  # over the inputs: the next step reads what this one wrote
            self._bind("next_ids", self._buffers["input_ids"], output=True)
            self._bind("next_seqlens", self._buffers["seqlens_k"], output=True)
        for index in range(s.layers):
            for part, tensor in zip(("key", "value"), self.cache, strict=True):
                self._bind(f"past.{index}.{part}", tensor[index])
                self._bind(f"present.{index}.{part}", tensor[index], output=True)
        if self.plan.as_inputs:
            for name, tensor in self._weights.items():
                self._bind(name, tensor)
        for captured in (True, False):
            options_of_run = self._options[captured] = ort.RunOptions()
            if self.device == "cuda":
                options_of_run.add_run_config_entry("disable_synchronize_execution_providers", "1")
                options_of_run.add_run_config_entry("gpu_graph_id", "1" if captured else "-1")
        return self

    def _bind(self, name: str, tensor: torch.Tensor, output: bool = False) -> None:
        bind = self._binding.bind_output if output else self._binding.bind_input
        dtype = {torch.float16: np.float16, torch.float32: np.float32, torch.int64: np.int64, torch.int32: np.int32}
        bind(name, self.device, 0, dtype[tensor.dtype], tuple(tensor.shape), tensor.data_ptr())

    def fill(self, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Random keys and values everywhere, so that any position can be decoded from. (layers, kv, capacity, 256)."""
        generator = torch.Generator(device=self.device).manual_seed(seed)
        for cache in self.cache:
            cache.normal_(0, 1, generator=generator)
        self._settle()
        return self.cache[0][:, 0], self.cache[1][:, 0]

    def seek(self, token: int, position: int) -> None:
        self._buffers["input_ids"].fill_(token)
        self._buffers["seqlens_k"].fill_(position)
        self._settle()

    def run(self, captured: bool = True) -> None:
        """Queue one token."""
        self.session.run_with_iobinding(self._binding, self._options[captured])

    def step(self) -> torch.Tensor:
        """One token to its end: logits (vocab,) float32."""
        self.run()
        self._settle()
        return self._buffers["logits"][0].float()

    @property
    def token(self) -> int:
        self._settle()
        return int(self._buffers["input_ids"])

    @property
    def position(self) -> int:
        self._settle()
        return int(self._buffers["seqlens_k"])

    def elsewhere(self) -> dict[str, int]:
        """Op type -> nodes that are not on the provider asked for."""
        counts: dict[str, int] = {}
        for part in self.session.get_provider_graph_assignment_info():
            if part.ep_name != self.session.get_providers()[0]:
                for node in part.get_nodes():
                    counts[node.op_type] = counts.get(node.op_type, 0) + 1
        return counts

    def _settle(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def compare(stepper: Stepper, model: Model, context: int, steps: int = 2) -> dict[str, Any]:
    """Logits of `steps` tokens against fp32 over the same weights and cache."""
    keys, values = stepper.fill(time.time_ns() % 1_000_000)
    reference = Reference(model, keys.half(), values.half(), quantise=False)
    errors, token = [], 1234 % model.shape.vocab
    stepper.seek(token, context)
    for step in range(steps):
        got, want = stepper.step().double(), reference.step(token, context + step).double()
        errors.append(float((got - want).norm() / want.norm()))
        token = int(got.argmax())
        if stepper.plan.choose and stepper.token != token:
            raise AssertionError(f"the graph chose token {stepper.token}, its logits say {token}")
        if not stepper.plan.choose:
            stepper.seek(token, context + step + 1)
    if not max(errors) < TOLERANCE:
        raise ValueError(f"logits differ from fp32 by {max(errors):.2e} of their norm: not the same decoder")
    return {"rel_error": max(errors), "steps": steps}
