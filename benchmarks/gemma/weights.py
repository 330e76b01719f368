"""GGUF checkpoint -> weights.bin + kernels.json: what the project's own decode kernels read, ready to be copied up.

Layout (as benchmarks/gemma/decode.cu wants it): every matrix row-major in 16-bit floats, q, k and v stacked,
rows of gate and up alternating, the embedding serving as LM head too; norms float32 with the 1 already added (GGUF
stores them so). Sections start at multiples of 256 bytes. RoPE tables are made by the loader, for the length it serves.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from models.build.llm_gguf import F32, GEMMA_FULL_EVERY, GEMMA_LOCAL_THETA, Checkpoint
from models.errors import InputError
from models.store.store import Store

Format = Literal["fp16", "bf16"]
Progress = Callable[[str, float], None]
HEAD_DIM = 256
ALIGN_BYTES = 256


def build_kernel_weights(gguf: Path, out: Path, *, format: Format = "fp16", progress: Progress | None = None) -> None:
    """Write `out`/weights.bin and `out`/kernels.json from the GGUF file `gguf`.

    format: fp16 keeps three bits more of each weight than bf16; activations are float32 in the kernels, so that their
    size does not matter. Raises InputError: not a Gemma 3 with heads of 256, or a weight beyond fp16's range.
    """
    report = progress or (lambda step, share: None)
    checkpoint = Checkpoint.open(gguf)
    shape = kernel_shape(checkpoint)
    out.mkdir(parents=True, exist_ok=True)
    sections: dict[str, tuple[int, int]] = {}
    with (out / "weights.bin").open("wb") as file:
        for name, values in _sections(checkpoint):
            report(name, len(sections) / (6 * int(shape["layers"]) + 2))
            data = values if name.endswith("norms") or name == "final_norm" else halves(values, format, name)
            file.write(bytes(-file.tell() % ALIGN_BYTES))
            sections[name] = (file.tell(), data.nbytes)
            file.write(data.tobytes())
        size = file.tell()
    said = {
        "architecture": checkpoint.architecture,
        "format": format,
        "shape": shape,
        "context_tokens": checkpoint.shape().context,
        "bos_id": checkpoint.field("tokenizer.ggml.bos_token_id"),
        "stop_ids": checkpoint.stop_ids(),
        "size_bytes": size,
        "sections": sections,
    }
    (out / "kernels.json").write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    report("done", 1.0)


def kernel_shape(checkpoint: Checkpoint) -> dict[str, int | float]:
    """The fields of benchmarks.gemma.session.DecodeShape. Raises InputError for a model not served."""
    s = checkpoint.shape()
    factor = float(checkpoint.field("gemma3.rope.scaling.factor", 1.0))
    if not s.gemma or s.head_dim != HEAD_DIM or not s.tied:
        raise InputError(
            f"{checkpoint.path}: the decode kernels serve Gemma 3 with heads of {HEAD_DIM} and a tied head, "
            f"not {s.architecture} with heads of {s.head_dim}; build it for ONNX Runtime"
        )
    return {
        "hidden": s.hidden,
        "layers": s.layers,
        "q_heads": s.heads,
        "kv_heads": s.kv_heads,
        "ffn": int(checkpoint.field("gemma3.feed_forward_length")),
        "vocab": s.vocab,
        "window": s.window,
        "global_every": GEMMA_FULL_EVERY,
        "theta_local": GEMMA_LOCAL_THETA,
        "theta_global": s.rope_theta,
        "rope_scale_global": factor,
        "eps": s.rms_epsilon,
    }


def _sections(checkpoint: Checkpoint) -> Iterator[tuple[str, F32]]:
    """(name, values) of everything the kernels read, in the order of the file."""
    for layer in range(checkpoint.shape().layers):
        blk = f"blk.{layer}."

        def values(part: str, blk: str = blk) -> F32:
            return checkpoint.values(f"{blk}{part}.weight")

        yield blk + "qkv", np.concatenate([values(f"attn_{part}") for part in "qkv"])
        yield blk + "o", values("attn_output")
        gate, up = values("ffn_gate"), values("ffn_up")
        yield blk + "gate_up", np.stack([gate, up], axis=1).reshape(-1, gate.shape[1])
        yield blk + "down", values("ffn_down")
        norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        yield blk + "norms", np.stack([values(name) for name in norms])
        yield blk + "qk_norms", np.stack([values("attn_q_norm"), values("attn_k_norm")])
    yield "embedding", checkpoint.values("token_embd.weight")
    yield "final_norm", checkpoint.values("output_norm.weight")


def halves(values: F32, format: Format, name: str) -> NDArray[np.uint16]:
    """The nearest 16-bit floats, as bits. Raises InputError when fp16 cannot hold them."""
    if format == "bf16":
        bits = np.ascontiguousarray(values).view(np.uint32)
        return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    if float(np.abs(values).max()) > float(np.finfo(np.float16).max):
        raise InputError(f"{name} holds weights beyond fp16's range; build with format bf16")
    return values.astype(np.float16).view(np.uint16)


def built(model: str, gguf: str) -> Path:
    """The folder in the model cache with the weights of `model`, written from its file `gguf` when it is not there.

    Raises ModelMissing when the model is not fetched.
    """
    store = Store.open()
    source = store.source(model, gguf)
    folder = store.root / "benchmarks" / f"{model}-kernels"
    if not (folder / "kernels.json").is_file():  # written last
        build_kernel_weights(source, folder)
    return folder


if __name__ == "__main__":  # python -m benchmarks.gemma.weights MODEL.gguf FOLDER: a machine without the model store
    build_kernel_weights(Path(sys.argv[1]), Path(sys.argv[2]))
