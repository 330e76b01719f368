"""The language head: a quick product over the vocabulary shortlists, exact rows decide. Its contract: llm_graph.py."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from models.build.llm_emit import Emitter
from models.build.llm_gguf import DecoderShape
from models.build.llm_graph import Table, lookup
from models.build.llm_quant import Packed

TOP = 64
"""Candidates that the quick head shortlists; the exact rows then decide among them."""
WHOLE_TOP = 512
"""The same where probabilities are asked for: what is left to the quick head then weighs next to nothing."""
MODE_PLAIN, MODE_FEW, MODE_MANY, MODE_SCORE, MODE_FULL = range(5)
"""PLAIN: best of the vocabulary. FEW: best of `allowed`, whose head rows alone are read. MANY: best of `allowed`, over
the quick head. SCORE: `allowed` (R,) holds one target per row, `values` (R, 1) its log-probability. FULL: `values` (R,
vocab) all logits, the best of them exact. models/engines/llm/head.py repeats these numbers: run time does not import
the builder."""


Branch = tuple[Emitter, list[str]]
"""One side of an If: what it emits, and the names of its (ids, values)."""


class HeadGraph:
    """Emits the head. quick: 4-bit matrix that shortlists, or None to multiply with `table` itself."""

    def __init__(self, shape: DecoderShape, quick: Packed | None, table: Table, emitter: Emitter) -> None:
        self.shape = shape
        self.quick = quick
        self.table = table
        self.e = emitter

    def emit(self) -> onnx.ModelProto:
        """hidden (R, hidden) -> ids, values, by `mode`."""
        table, quick, hidden = self.table, self.quick, "hidden"
        few = self.e.branch("few_")
        exact = self._rescored(few, table, hidden, "allowed")
        values, index = few.op("TopK", exact, self._top(few, "allowed"), outputs=2, axis=1)
        few_out = [few.op("Gather", "allowed", index), values]

        rest = self.e.branch("rest_")
        if quick is None:
            logits = rest.op("Gemm", hidden, rest.weight("same" if self.shape.tied else "head", table.rows), transB=1)
        else:
            logits = rest.packed_matmul(hidden, quick, "quick_head")
        plain = rest.branch("plain_")
        plain_out = self._shortlist(plain, table, hidden, logits)
        other = rest.branch("other_")
        many = other.branch("many_")
        among = many.op("Gather", logits, "allowed", axis=1)
        _, index = many.op("TopK", among, self._top(many, "allowed"), outputs=2, axis=1)
        many_out = self._sorted(many, table, hidden, many.op("Gather", "allowed", index))
        whole = other.branch("whole_")
        ids, values = self._shortlist(whole, table, hidden, logits, WHOLE_TOP)
        full = whole.op("ScatterElements", logits, ids, values, axis=1)
        score = whole.branch("score_")
        targets = score.op("Unsqueeze", "allowed", score.ints(1))
        exact = self._rescored(score, table, hidden, targets)
        total = score.op("ReduceLogSumExp", full, score.ints(1), keepdims=1)
        score_out = [score.op("Identity", targets), score.op("Sub", exact, total)]
        dump = whole.branch("dump_")
        dump_out = [dump.op("Identity", ids), dump.op("Identity", full)]
        whole_out = self._either(whole, MODE_SCORE, (score, score_out), (dump, dump_out))
        other_out = self._either(other, MODE_MANY, (many, many_out), (whole, whole_out))
        rest_out = self._either(rest, MODE_PLAIN, (plain, plain_out), (other, other_out))
        final = self._either(self.e, MODE_FEW, (few, few_out), (rest, rest_out))
        for source, name in zip(final, ("ids", "values"), strict=True):
            self.e.op("Identity", source, name=name)
        info = helper.make_tensor_value_info
        inputs = [
            info("hidden", TensorProto.FLOAT, ["rows", self.shape.hidden]),
            info("mode", TensorProto.INT64, [1]),
            info("allowed", TensorProto.INT64, ["allowed_ids"]),
        ]
        outputs = [info("ids", TensorProto.INT64, [None, None]), info("values", TensorProto.FLOAT, [None, None])]
        return self.e.model("head", inputs, outputs)

    def _top(self, e: Emitter, allowed: str) -> str:
        top: str = e.op("Min", e.op("Shape", allowed), e.ints(TOP))
        return top

    def _shortlist(self, e: Emitter, table: Table, hidden: str, logits: str, top: int = TOP) -> list[str]:
        _, ids = e.op("TopK", logits, e.ints(top), outputs=2, axis=1)
        return self._sorted(e, table, hidden, ids)

    def _sorted(self, e: Emitter, table: Table, hidden: str, ids: str) -> list[str]:
        """ids (R, C) with their exact logits, best first."""
        exact = self._rescored(e, table, hidden, ids)
        values, index = e.op("TopK", exact, e.op("Shape", ids, start=1, end=2), outputs=2, axis=1)
        return [e.op("GatherElements", ids, index, axis=1), values]

    def _rescored(self, e: Emitter, table: Table, hidden: str, ids: str) -> str:
        """Exact logits (R, C) of ids (R, C) or, the same for every row, (C,)."""
        name = "same" if self.shape.tied else "head"
        if ids == "allowed":
            rows = lookup(e, table, ids, name, lead=[-1], width=self.shape.hidden)
            out: str = e.op("Gemm", hidden, rows, transB=1)
            return out
        rows = lookup(e, table, ids, name, lead=[0, -1], width=self.shape.hidden)
        column = e.op("Unsqueeze", hidden, e.ints(2))
        out = e.op("Squeeze", e.op("MatMul", rows, column), e.ints(2))
        return out

    def _either(
        self, e: Emitter, mode: int, then: tuple[Emitter, list[str]], other: tuple[Emitter, list[str]]
    ) -> list[str]:
        def graph(branch: tuple[Emitter, list[str]], name: str) -> onnx.GraphProto:
            kinds = (TensorProto.INT64, TensorProto.FLOAT)
            outputs = [helper.make_tensor_value_info(o, k, [None, None]) for o, k in zip(branch[1], kinds, strict=True)]
            return helper.make_graph(branch[0].nodes, name, [], outputs)

        chosen = e.op("Equal", "mode", e.ints(mode))
        out: list[str] = e.op(
            "If", chosen, outputs=2, then_branch=graph(then, f"then_{mode}"), else_branch=graph(other, f"else_{mode}")
        )
        return out
