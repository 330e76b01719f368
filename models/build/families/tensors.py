"""Tensors of a Hugging Face checkpoint by the names that the graphs use (llama.cpp's), from files or random."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes  # noqa: F401  (registers bfloat16 with numpy)
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from models.build.families.config import Config, decoder_shape, layer_kinds, rope_factors
from models.build.llm_gguf import F32, Checkpoint, DecoderShape
from models.errors import InputError

_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_WHOLE_HYBRID = {
    "token_embd.weight": "backbone.embeddings.weight",
    "output_norm.weight": "backbone.norm_f.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GGUF_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class Tensors(Protocol):
    """Where values come from. Names are the checkpoint's own."""

    def has(self, name: str) -> bool: ...

    def values(self, name: str) -> F32:
        """In float32. Raises InputError where there is none."""
        ...


class FamilyCheckpoint(Checkpoint):
    """A checkpoint's tensors, asked for by llama.cpp's names; Nemotron's by its own. Rows are half-split already."""

    def __init__(self, path: Path, config: Config, tensors: Tensors) -> None:
        super().__init__(path, _NoReader())
        self.config = config
        self.tensors = tensors
        self._shape = decoder_shape(config)
        self._factors = rope_factors(config)

    @property
    def architecture(self) -> str:
        return self._shape.architecture

    def shape(self) -> DecoderShape:
        return self._shape

    def has(self, name: str) -> bool:
        if name == "rope_freqs.weight":
            return self._factors is not None
        return self.tensors.has(self.own_name(name))

    def kind(self, name: str) -> str:
        return "F32"

    def values(self, name: str) -> F32:
        if name == "rope_freqs.weight" and self._factors is not None:
            return self._factors
        return np.ascontiguousarray(self.tensors.values(self.own_name(name)), dtype=np.float32)

    def row_order(self, name: str, shape: DecoderShape) -> None:
        return None

    def own_name(self, name: str) -> str:
        """llama.cpp's name of a tensor -> the checkpoint's; other names stay."""
        whole = _WHOLE_HYBRID if self.architecture == "nemotron_h" else _WHOLE
        if name in whole:
            return whole[name]
        found = _GGUF_LAYER.fullmatch(name)
        return name if found is None else f"model.layers.{found[1]}.{_LAYER[found[2]]}.{found[3]}"


class _NoReader:
    tensors: tuple[Any, ...] = ()


class FileTensors:
    """One safetensors file, or the shards that its index (`*.index.json`) names beside it. A context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = ExitStack()
        self._where: dict[str, Any] = {}

    def __enter__(self) -> FileTensors:
        try:
            if self._path.suffix == ".json":
                index = json.loads(self._path.read_text(encoding="utf-8"))["weight_map"]
                shards = sorted({self._path.parent / shard for shard in index.values()})
            else:
                shards = [self._path]
            for shard in shards:
                file = self._files.enter_context(safe_open(shard, "numpy"))
                self._where |= dict.fromkeys(file.keys(), file)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            self._files.close()
            raise InputError(f"{self._path} cannot be read as safetensors ({error}); fetch it again") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def _stored(self, name: str) -> str:
        """Some of Nemotron's files say `model.` where others say `backbone.`."""
        other = re.sub("^backbone\\.", "model.", name)
        return name if name in self._where else other

    def has(self, name: str) -> bool:
        return self._stored(name) in self._where

    def values(self, name: str) -> F32:
        stored = self._stored(name)
        if stored not in self._where:
            raise InputError(f"{self._path} has no tensor {name}; the checkpoint is not whole")
        return np.asarray(self._where[stored].get_tensor(stored)).astype(np.float32)


class RandomTensors:
    """Values drawn by a tensor's name and `seed`, for a shape without weights: norms near one, matrices so small that
    activations keep their size.
    """

    def __init__(self, config: Config, seed: int = 0) -> None:
        self._shapes = dict(tensor_shapes(config))
        self._seed = seed

    def has(self, name: str) -> bool:
        return name in self._shapes

    def values(self, name: str) -> F32:
        if name not in self._shapes:
            raise InputError(f"a checkpoint of this config has no tensor {name}")
        return drawn(name, self._shapes[name], self._seed)


def drawn(name: str, shape: tuple[int, ...], seed: int) -> F32:
    """The values of one tensor, the same for ever: (seed, name) decides."""
    random = np.random.default_rng([seed, *name.encode()])
    values: NDArray[Any] = random.standard_normal(shape, np.float32)
    if name.endswith("A_log"):
        return np.log(1.0 + 15.0 * random.random(shape)).astype(np.float32)
    if (len(shape) == 1 and "norm" in name) or name.endswith(".D"):
        return (1.0 + 0.1 * values).astype(np.float32)
    if len(shape) == 1:
        return (0.1 * values).astype(np.float32)
    scale = 1.0 if "embed" in name else 1.0 / math.sqrt(shape[-1])
    return (values * np.float32(scale)).astype(np.float32)


# --- what a checkpoint of a config holds ------------------------------------------------------------------------------
def tensor_shapes(config: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, shape) of every tensor of a checkpoint with this config, by Hugging Face's names."""
    s = decoder_shape(config)
    hybrid = s.architecture == "nemotron_h"
    names = _WHOLE_HYBRID if hybrid else _WHOLE
    yield names["token_embd.weight"], (s.vocab, s.hidden)
    if not s.tied:
        yield names["output.weight"], (s.vocab, s.hidden)
    yield names["output_norm.weight"], (s.hidden,)
    for layer in range(len(layer_kinds(config)) if hybrid else s.layers):
        for name, shape in (_hybrid_layer if hybrid else _dense_layer)(config, s, layer):
            yield f"{'backbone' if hybrid else 'model'}.layers.{layer}.{name}", shape


Shapes = Iterator[tuple[str, tuple[int, ...]]]


def _dense_layer(config: Config, s: DecoderShape, _: int) -> Shapes:
    inner, query, kv = int(config["intermediate_size"]), s.heads * s.head_dim, s.kv_heads * s.head_dim
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield f"{norm}.weight", (s.hidden,)
    for part, rows in (("q", query), ("k", kv), ("v", kv)):
        yield f"self_attn.{part}_proj.weight", (rows, s.hidden)
        if s.architecture == "qwen2":
            yield f"self_attn.{part}_proj.bias", (rows,)
        if s.architecture == "qwen3" and part != "v":
            yield f"self_attn.{part}_norm.weight", (s.head_dim,)
    yield "self_attn.o_proj.weight", (s.hidden, query)
    yield "mlp.gate_proj.weight", (inner, s.hidden)
    yield "mlp.up_proj.weight", (inner, s.hidden)
    yield "mlp.down_proj.weight", (s.hidden, inner)


def _hybrid_layer(config: Config, s: DecoderShape, layer: int) -> Shapes:
    kind = layer_kinds(config)[layer]
    yield "norm.weight", (s.hidden,)
    if kind == "full_attention":
        for part, rows in (("q", s.heads), ("k", s.kv_heads), ("v", s.kv_heads)):
            yield f"mixer.{part}_proj.weight", (rows * s.head_dim, s.hidden)
        yield "mixer.o_proj.weight", (s.hidden, s.heads * s.head_dim)
    elif kind == "mlp":
        yield from _mlp("mixer", int(config["intermediate_size"]), s.hidden)
    elif kind == "moe":
        yield from _experts(config, s)
    else:
        heads, groups = int(config["mamba_num_heads"]), int(config["n_groups"])
        width = heads * int(config["mamba_head_dim"])
        convolved = width + 2 * groups * int(config["ssm_state_size"])
        yield "mixer.in_proj.weight", (width + convolved + heads, s.hidden)
        yield "mixer.conv1d.weight", (convolved, 1, int(config["conv_kernel"]))
        if config.get("use_conv_bias", True):
            yield "mixer.conv1d.bias", (convolved,)
        for name in ("A_log", "D", "dt_bias"):
            yield f"mixer.{name}", (heads,)
        yield "mixer.norm.weight", (width,)
        yield "mixer.out_proj.weight", (s.hidden, width)


def _mlp(prefix: str, inner: int, hidden: int) -> Shapes:
    yield f"{prefix}.up_proj.weight", (inner, hidden)
    yield f"{prefix}.down_proj.weight", (hidden, inner)


def _experts(config: Config, s: DecoderShape) -> Shapes:
    count, inner = int(config["n_routed_experts"]), int(config["moe_intermediate_size"])
    latent = config.get("moe_latent_size")
    width = int(latent or s.hidden)
    yield "mixer.gate.weight", (count, s.hidden)
    yield "mixer.gate.e_score_correction_bias", (count,)
    for expert in range(count):
        yield from _mlp(f"mixer.experts.{expert}", inner, width)
    yield from _mlp("mixer.shared_experts", int(config["moe_shared_expert_intermediate_size"]), s.hidden)
    if latent:
        yield "mixer.fc1_latent_proj.weight", (width, s.hidden)
        yield "mixer.fc2_latent_proj.weight", (s.hidden, width)


def check_whole(config: Mapping[str, Any], tensors: Tensors) -> None:
    """Raises InputError naming the first tensors that a checkpoint of this config must have and has not."""
    missing = [name for name, _ in tensor_shapes(config) if not tensors.has(name)]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise InputError(f"the checkpoint lacks {', '.join(missing[:3])}{more}; it is not of this config.json")
