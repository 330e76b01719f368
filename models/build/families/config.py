"""config.json of a Hugging Face checkpoint -> the shape of its decoder. One family a function; what is not computed as
the reference computes it is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from models.build.llm_gguf import F32, DecoderShape
from models.errors import InputError

Config = Mapping[str, Any]


def read_config(path: Path) -> dict[str, Any]:
    """Raises InputError when it is no JSON object, or of a family that is not built here."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        kind = config["model_type"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is no config.json of a checkpoint ({error})") from error
    if kind not in FAMILIES:
        raise InputError(f"{path}: family {kind!r} is not built here; known: {', '.join(FAMILIES)}")
    return dict(config)


def decoder_shape(config: Config) -> DecoderShape:
    """The shape as its family reads it. Raises InputError for what the family's graph does not compute."""
    return FAMILIES[config["model_type"]](config)


# --- the families --------------------------------------------------------------------------------------------------
def _llama(config: Config) -> DecoderShape:
    """Llama and SmolLM2: pre-norm, no biases, RoPE half-split, GQA, SiLU-gated MLP."""
    _refuse(config, "llama", attention_bias=True, mlp_bias=True)
    return _dense(config, "llama", epsilon=1e-6)


def _qwen2(config: Config) -> DecoderShape:
    """As Llama, with biases on q, k and v."""
    _refuse(config, "qwen2", use_sliding_window=True)
    return _dense(config, "qwen2", epsilon=1e-6)


def _qwen3(config: Config) -> DecoderShape:
    """As Llama, with an RMSNorm over each head of q and k before RoPE; heads x head_dim need not be the width."""
    _refuse(config, "qwen3", use_sliding_window=True, attention_bias=True)
    return _dense(config, "qwen3", epsilon=1e-6)


def _nemotron_h(config: Config) -> DecoderShape:
    """Nemotron-H and Nemotron 3: one mixer a layer, attention without RoPE. See families/nemotron.py."""
    _refuse(config, "nemotron_h", attention_bias=True, mlp_bias=True, use_bias=True)
    heads = int(config["num_attention_heads"])
    return DecoderShape(
        architecture="nemotron_h",
        layers=sum(kind == "full_attention" for kind in layer_kinds(config)),
        hidden=int(config["hidden_size"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads", 8)),
        head_dim=int(config.get("head_dim", 128)),
        vocab=int(config["vocab_size"]),
        context=int(config.get("max_position_embeddings", 4096)),
        rms_epsilon=float(config.get("layer_norm_epsilon", 1e-5)),
        rope_theta=0.0,
        window=0,
        tied=bool(config.get("tie_word_embeddings", False)),
    )


FAMILIES: Final[dict[str, Callable[[Config], DecoderShape]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "nemotron_h": _nemotron_h,
}
"""By `model_type`. SmolLM2's is llama."""


def _dense(config: Config, architecture: str, *, epsilon: float) -> DecoderShape:
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    _refuse(config, architecture, hidden_act={"gelu", "relu", "gelu_pytorch_tanh"})
    return DecoderShape(
        architecture=architecture,
        layers=int(config["num_hidden_layers"]),
        hidden=hidden,
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        vocab=int(config["vocab_size"]),
        context=int(config["max_position_embeddings"]),
        rms_epsilon=float(config.get("rms_norm_eps", epsilon)),
        rope_theta=_rope_theta(config),
        window=0,
        tied=bool(config.get("tie_word_embeddings", False)),
    )


def _refuse(config: Config, family: str, **wrong: Any) -> None:
    for key, value in wrong.items():
        if config.get(key) in (value if isinstance(value, set) else {value}):
            raise InputError(f"config.json: {key}: {config[key]!r} is not computed for {family}")


# --- layers of hybrids ---------------------------------------------------------------------------------------------
_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_OLD_NAMES = {"mamba": "linear_attention", "attention": "full_attention"}


def layer_kinds(config: Config) -> list[str]:
    """Each layer's mixer: linear_attention (Mamba-2), full_attention, mlp or moe. Raises InputError for another."""
    named = config.get("layers_block_type") or config.get("layer_types")
    kinds = list(named) if named else [_LETTERS.get(c, c) for c in config.get("hybrid_override_pattern", "")]
    kinds = [_OLD_NAMES.get(kind, kind) for kind in kinds]
    unknown = sorted(set(kinds) - set(_LETTERS.values()))
    if unknown or not kinds:
        raise InputError(f"config.json: layers of kind {unknown or 'none'} are not built here")
    return kinds


# --- positions -----------------------------------------------------------------------------------------------------
def _rope(config: Config) -> Config:
    """`rope_parameters` of transformers 5, or `rope_scaling` of those before it."""
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def _rope_theta(config: Config) -> float:
    return float(_rope(config).get("rope_theta") or config.get("rope_theta", 10_000.0))


def rope_factors(config: Config) -> F32 | None:
    """What each of a head's frequencies is divided by, (head_dim / 2,); None: nothing. As GGUF's `rope_freqs.weight`.

    Raises InputError for a scaling that is not known (known: default, linear, llama3).
    """
    rope = _rope(config)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if config["model_type"] == "nemotron_h" or kind == "default":
        return None
    shape = decoder_shape(config)
    half = shape.head_dim // 2
    if kind == "linear":
        return np.full(half, float(rope["factor"]), np.float32)
    if kind != "llama3":
        raise InputError(f"config.json: rope_type {kind!r} is not known (known: default, linear, llama3)")
    factor, low, high = (float(rope[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    context = float(rope["original_max_position_embeddings"])
    wavelengths = 2 * math.pi * shape.rope_theta ** (np.arange(half) / half)
    smooth = np.clip((context / wavelengths - low) / (high - low), 0.0, 1.0)
    return (1.0 / (smooth + (1.0 - smooth) / factor)).astype(np.float32)
