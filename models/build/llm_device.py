"""The head as devices run it: no branches and constant shapes, so that its run for one row can be captured.

head.onnx. hidden float16 or float32 (R, hidden) -> logits float32 (R, vocab); best int64 (R, 1): each row's arg-max.
choose.onnx. logits float32 (1, vocab), allowed int64 (A,) -> id int64 (1,): the best of `allowed`.
score.onnx. logits float32 (R, vocab), targets int64 (R,) -> log_probabilities float32 (R,): of each row's target, nats.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from models.build.llm_emit import Emitter
from models.build.llm_gguf import DecoderShape
from models.build.llm_graph import Table


class DeviceHead:
    """Emits the head: one product with the table itself, then the arg-max. table: whole rows, not packed."""

    def __init__(self, shape: DecoderShape, table: Table, emitter: Emitter) -> None:
        self.shape = shape
        self.table = table
        self.e = emitter

    def emit(self) -> onnx.ModelProto:
        """hidden (R, hidden) -> logits, best."""
        rows = self.e.weight("same" if self.shape.tied else "head", self.table.rows)
        half = self.table.rows.dtype == np.float16
        logits = self.e.op("Gemm", "hidden", rows, transB=1, name="product" if half else "logits")
        if half:
            logits = self.e.op("Cast", logits, to=TensorProto.FLOAT, name="logits")
        self._arg_max(logits)
        info = helper.make_tensor_value_info
        kind = helper.np_dtype_to_tensor_dtype(self.table.rows.dtype)
        inputs = [info("hidden", kind, ["rows", self.shape.hidden])]
        outputs = [
            info("logits", TensorProto.FLOAT, ["rows", self.shape.vocab]),
            info("best", TensorProto.INT64, ["rows", 1]),
        ]
        return self.e.model("head", inputs, outputs)

    def _arg_max(self, logits: str) -> None:
        """In two steps, because TopK gives each row to one block of threads: the best of each group, then of those."""
        groups = near_root(self.shape.vocab)
        width = self.shape.vocab // groups
        split = self.e.op("Reshape", logits, self.e.ints(-1, groups, width))
        values, inner = self.e.op("TopK", split, self.e.ints(1), outputs=2, axis=-1)
        values, inner = (self.e.op("Reshape", each, self.e.ints(-1, groups)) for each in (values, inner))
        _, group = self.e.op("TopK", values, self.e.ints(1), outputs=2, axis=-1)
        inside = self.e.op("GatherElements", inner, group, axis=1)
        self.e.op("Add", self.e.op("Mul", group, self.e.ints(width)), inside, name="best")


def choose(shape: DecoderShape, e: Emitter) -> onnx.ModelProto:
    """logits (1, vocab), allowed (A,) -> id (1,)."""
    among = e.op("Gather", "logits", "allowed", axis=1)
    _, index = e.op("TopK", among, e.ints(1), outputs=2, axis=1)
    e.op("Gather", "allowed", e.op("Reshape", index, e.ints(1)), name="id")
    info = helper.make_tensor_value_info
    inputs = [
        info("logits", TensorProto.FLOAT, [1, shape.vocab]),
        info("allowed", TensorProto.INT64, ["allowed_ids"]),
    ]
    return e.model("choose", inputs, [info("id", TensorProto.INT64, [1])])


def score(shape: DecoderShape, e: Emitter) -> onnx.ModelProto:
    """logits (R, vocab), targets (R,) -> log_probabilities (R,)."""
    logs = e.op("LogSoftmax", "logits", axis=1)
    picked = e.op("GatherElements", logs, e.op("Unsqueeze", "targets", e.ints(1)), axis=1)
    e.op("Squeeze", picked, e.ints(1), name="log_probabilities")
    info = helper.make_tensor_value_info
    inputs = [
        info("logits", TensorProto.FLOAT, ["rows", shape.vocab]),
        info("targets", TensorProto.INT64, ["rows"]),
    ]
    return e.model("score", inputs, [info("log_probabilities", TensorProto.FLOAT, ["rows"])])


def near_root(count: int) -> int:
    """The divisor of `count` nearest below its square root (1 for a prime)."""
    return next(d for d in range(int(count**0.5), 0, -1) if count % d == 0)
