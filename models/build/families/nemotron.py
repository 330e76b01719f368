"""Nemotron-H and Nemotron 3: one mixer a layer (Mamba-2, attention without RoPE, MLP, mixture of experts).

Beside the body's inputs and outputs of llm_graph.py, float32, for the i-th Mamba layer:
  past_conv.i / present_conv.i (texts, kernel - 1, channels): the convolution's last inputs;
  past_ssm.i / present_ssm.i (texts, heads, state, head_dim): the recurrence's state.

Mamba-2 is com.microsoft.LinearAttention: q = C, k = B, v = dt x, decay = dt A. dt is clamped to time_step_min in every
run, as the reference's chunked path does; its single-token path does not, so that its decode differs from its prefill.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from models.build.families.config import layer_kinds
from models.build.families.tensors import FamilyCheckpoint
from models.build.llm_emit import MS
from models.build.llm_graph import DecoderGraph, lookup
from models.errors import InputError


def states_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the engine must know of recurrent states: how many layers have them and one text's shapes; else {}."""
    if config["model_type"] != "nemotron_h":
        return {}
    heads, width = int(config["mamba_num_heads"]), int(config["mamba_head_dim"])
    state = int(config["ssm_state_size"])
    channels = heads * width + 2 * int(config["n_groups"]) * state
    return {
        "state_layers": layer_kinds(config).count("linear_attention"),
        "state_shapes": {"conv": [int(config["conv_kernel"]) - 1, channels], "ssm": [heads, state, width]},
    }


class NemotronGraph(DecoderGraph):
    """Emits the body of one hybrid."""

    checkpoint: FamilyCheckpoint

    def body(self) -> onnx.ModelProto:
        """The model, read top to bottom."""
        s, config = self.shape, self.checkpoint.config
        hidden = lookup(
            self.e, self.weights.embedding(), "input_ids", "same" if s.tied else "embed", lead=[0, 0], width=s.hidden
        )
        residual, seen = "", {"linear_attention": 0, "full_attention": 0}
        for layer, kind in enumerate(layer_kinds(config)):
            prefix = f"backbone.layers.{layer}."
            normed, residual = self._add_norm(hidden, residual, f"{prefix}norm.weight")
            if kind in seen:
                mixer = self._mamba if kind == "linear_attention" else self._plain_attention
                hidden = mixer(normed, f"{prefix}mixer.", seen[kind])
                seen[kind] += 1
            elif kind == "mlp":
                hidden = self._mlp(normed, f"{prefix}mixer.")
            else:
                hidden = self._experts(normed, f"{prefix}mixer.")
        flat = self.e.op("Reshape", self.e.op("Add", hidden, residual), self.e.ints(-1, s.hidden))
        last = self.e.op("Gather", flat, "rows", axis=0)
        self.e.op("Identity", self._norm(last, "output_norm.weight"), name="hidden")
        return self._with_states(self._body_model())

    # --- mixers -----------------------------------------------------------------------------------------------------
    def _mamba(self, x: str, prefix: str, number: int) -> str:
        c, e = self.checkpoint.config, self.e
        heads, width, groups = int(c["mamba_num_heads"]), int(c["mamba_head_dim"]), int(c["n_groups"])
        state, inner = int(c["ssm_state_size"]), int(c["mamba_num_heads"]) * int(c["mamba_head_dim"])
        convolved = inner + 2 * groups * state
        projected = self._linear(x, [f"{prefix}in_proj.weight"])
        gate, mixed, dt = e.op("Split", projected, e.ints(inner, convolved, heads), outputs=3, axis=-1)
        mixed = self._convolution(mixed, prefix, number)
        x, keys, queries = e.op("Split", mixed, e.ints(inner, groups * state, groups * state), outputs=3, axis=-1)
        dt = e.op("Softplus", e.op("Add", dt, self._vector(f"{prefix}dt_bias")))
        dt = e.op("Max", dt, e.weight("time_step_min", np.array([float(c.get("time_step_min", 0.001))], self.dtype)))
        decay = e.op("Mul", dt, e.weight(f"{prefix}A", -np.exp(self.checkpoint.values(f"{prefix}A_log"))))
        by_head = e.op("Reshape", x, e.ints(0, 0, heads, width))
        values = e.op("Mul", by_head, e.op("Unsqueeze", dt, e.ints(3)))
        values = e.op("Reshape", values, e.ints(0, 0, inner))
        scanned = e.op(
            "LinearAttention",
            queries,
            self._for_each_head(keys, heads, groups, state),
            values,
            f"past_ssm.{number}",
            decay,
            domain=MS,
            outputs=2,
            name=f"scan.{number}",
            update_rule="gated",
            scale=1.0,
            q_num_heads=groups,
            kv_num_heads=heads,
        )
        e.nodes[-1].output[1] = f"present_ssm.{number}"
        skip = e.op("Mul", by_head, e.weight(f"{prefix}D.column", self.checkpoint.values(f"{prefix}D")[:, None]))
        y = e.op("Add", scanned[0], e.op("Reshape", skip, e.ints(0, 0, inner)))
        return self._linear(self._gated_norm(y, gate, prefix, groups, inner), [f"{prefix}out_proj.weight"])

    def _convolution(self, x: str, prefix: str, number: int) -> str:
        """Causal, a kernel for each channel, then SiLU."""
        biased = self.checkpoint.config.get("use_conv_bias", True)
        names = [f"{prefix}conv1d.weight", *([f"{prefix}conv1d.bias"] if biased else [])]
        weight, bias = [*map(self._vector, names), ""][:2]
        out = self.e.op(
            "CausalConvWithState",
            x,
            weight,
            bias,
            f"past_conv.{number}",
            domain=MS,
            outputs=2,
            name=f"convolution.{number}",
            activation="silu",
            channels_last=1,
        )
        self.e.nodes[-1].output[1] = f"present_conv.{number}"
        return str(out[0])

    def _for_each_head(self, keys: str, heads: int, groups: int, state: int) -> str:
        """Heads of one group share its keys (texts, tokens, groups x state); the operator wants each its own."""
        split = self.e.op("Reshape", keys, self.e.ints(0, 0, groups, 1, state))
        spread = self.e.op("Expand", split, self.e.ints(1, 1, groups, heads // groups, state))
        return str(self.e.op("Reshape", spread, self.e.ints(0, 0, heads * state)))

    def _gated_norm(self, y: str, gate: str, prefix: str, groups: int, inner: int) -> str:
        """The gate first, then RMSNorm over each group."""
        gated = self.e.op("Mul", y, self.e.op("QuickGelu", gate, domain=MS, alpha=1.0))
        split = self.e.op("Reshape", gated, self.e.ints(0, 0, groups, inner // groups))
        ones = self.e.weight(f"ones_{inner // groups}", np.ones(inner // groups, self.dtype))
        normed = self.e.op("SimplifiedLayerNormalization", split, ones, axis=-1, epsilon=self.shape.rms_epsilon)
        flat = self.e.op("Reshape", normed, self.e.ints(0, 0, inner))
        return str(self.e.op("Mul", flat, self._vector(f"{prefix}norm.weight")))

    def _plain_attention(self, x: str, prefix: str, number: int) -> str:
        """Grouped queries without positions."""
        s = self.shape
        packed = self._linear(x, [f"{prefix}{part}_proj.weight" for part in "qkv"])
        outputs = [f"attention.{number}", f"present_key.{number}", f"present_value.{number}"]
        past = [f"past_key.{number}", f"past_value.{number}", "seqlens_k", "total_len"]
        self.e.nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [packed, "", "", *past],
                outputs,
                name=f"attention.{number}",
                domain=MS,
                num_heads=s.heads,
                kv_num_heads=s.kv_heads,
                do_rotary=0,
            )
        )
        return self._linear(f"attention.{number}", [f"{prefix}o_proj.weight"])

    def _mlp(self, x: str, prefix: str) -> str:
        """down(relu(up(x))^2)."""
        inner = self.e.op("Relu", self._linear(x, [f"{prefix}up_proj.weight"]))
        return self._linear(self.e.op("Mul", inner, inner), [f"{prefix}down_proj.weight"])

    # --- experts ----------------------------------------------------------------------------------------------------
    def _experts(self, x: str, prefix: str) -> str:
        """The shared expert of every token, and each routed expert over the tokens that chose it."""
        c, e = self.checkpoint.config, self.e
        flat = e.op("Reshape", x, e.ints(-1, self.shape.hidden))
        chosen = self._routed(flat, prefix)
        latent = bool(c.get("moe_latent_size"))
        inside = self._linear(flat, [f"{prefix}fc1_latent_proj.weight"]) if latent else flat
        total = e.op("Mul", inside, e.weight("zero", np.zeros(1, self.dtype)))
        for expert in range(int(c["n_routed_experts"])):
            share = e.op("Gather", chosen, e.ints(expert), axis=1)
            tokens = e.op("Reshape", e.op("Gather", e.op("NonZero", share), e.ints(0), axis=0), e.ints(-1))
            made = self._mlp(e.op("Gather", inside, tokens, axis=0), f"{prefix}experts.{expert}.")
            made = e.op("Mul", made, e.op("Gather", share, tokens, axis=0))
            total = e.op("ScatterND", total, e.op("Unsqueeze", tokens, e.ints(1)), made, reduction="add")
        if latent:
            total = self._linear(total, [f"{prefix}fc2_latent_proj.weight"])
        routed = e.op("Reshape", total, e.op("Shape", x))
        return str(e.op("Add", routed, self._mlp(x, f"{prefix}shared_experts.")))

    def _routed(self, flat: str, prefix: str) -> str:
        """Each expert's weight for each token (tokens, experts), 0 where it was not chosen. The choice is by biased
        scores within the best groups, the weight is the score without bias.
        """
        c, e = self.checkpoint.config, self.e
        experts, groups = int(c["n_routed_experts"]), int(c.get("n_group", 1))
        router = self.checkpoint.values(f"{prefix}gate.weight").astype(np.float32)
        scores = e.op("Sigmoid", e.op("MatMul", flat, e.weight(f"{prefix}gate.weight", router.T)))
        choice = e.op("Add", scores, self._vector(f"{prefix}gate.e_score_correction_bias"))
        if groups > 1:
            choice = self._within_best_groups(choice, groups, experts // groups, int(c.get("topk_group", 1)))
        _, index = e.op("TopK", choice, e.ints(int(c["num_experts_per_tok"])), outputs=2, axis=-1)
        weights = e.op("GatherElements", scores, index, axis=1)
        if c.get("norm_topk_prob", True):
            total = e.op("ReduceSum", weights, e.ints(1), keepdims=1)
            weights = e.op("Div", weights, e.op("Add", total, e.weight("tiny", np.array([1e-20], self.dtype))))
        scale = e.weight(f"{prefix}scale", np.array([float(c.get("routed_scaling_factor", 1.0))], self.dtype))
        nothing = e.op("Mul", scores, e.weight("zero", np.zeros(1, self.dtype)))
        return str(e.op("ScatterElements", nothing, index, e.op("Mul", weights, scale), axis=1))

    def _within_best_groups(self, choice: str, groups: int, each: int, best: int) -> str:
        """Scores outside the groups whose two best experts have the greatest sum become -inf."""
        e = self.e
        split = e.op("Reshape", choice, e.ints(-1, groups, each))
        top, _ = e.op("TopK", split, e.ints(2), outputs=2, axis=-1)
        _, index = e.op("TopK", e.op("ReduceSum", top, e.ints(2), keepdims=0), e.ints(best), outputs=2, axis=-1)
        sums = e.op("ReduceSum", top, e.ints(2), keepdims=0)
        out = e.op(
            "Add",
            e.op("Mul", sums, e.weight("zero", np.zeros(1, self.dtype))),
            e.weight("lowest", np.array([-np.inf], self.dtype)),
        )
        in_zeros = e.op("Mul", e.op("Cast", index, to=TensorProto.FLOAT), e.weight("zero", np.zeros(1, self.dtype)))
        mask = e.op("ScatterElements", out, index, in_zeros, axis=1)
        kept = e.op("Add", split, e.op("Unsqueeze", mask, e.ints(2)))
        return str(e.op("Reshape", kept, e.ints(-1, groups * each)))

    # --- the file ---------------------------------------------------------------------------------------------------
    def _with_states(self, model: onnx.ModelProto) -> onnx.ModelProto:
        info, kind = helper.make_tensor_value_info, helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        said = states_of(self.checkpoint.config)
        if not said["state_layers"] or not self.shape.layers:
            raise InputError("config.json: a hybrid without Mamba or without attention layers is not built here")
        for layer in range(said["state_layers"]):
            for name, shape in said["state_shapes"].items():
                model.graph.input.append(info(f"past_{name}.{layer}", kind, ["texts", *shape]))
                model.graph.output.append(info(f"present_{name}.{layer}", kind, ["texts", *shape]))
        return model
