"""onnxruntime-genai decoding the shape of gpu_decode. Timing only: all layers read the same random numbers of one file.

genai loads weights from files alone. Each layer's weights are tensors of their own on the device, so a token moves as
many bytes as with 34 different layers, while the file holds one layer and the embedding (1.6 GB instead of 7.8 GB).
It runs in a process of its own: it brings a second ONNX Runtime, and two of them cannot share the CUDA provider.

    python -m benchmarks.peers.ort_genai CONTEXT TOKENS ROUNDS
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.gemma.session import DecodeShape
from benchmarks.peers.ort_graph import GraphPlan, external, genai_graph, weight_shapes

FILE = "weights.bin"
ALIGN = 4096


def write_model(folder: Path, shape: DecodeShape, capacity: int, kind: str) -> None:
    """model.onnx and its weights."""
    # On CUDA, ONNX Runtime fuses norms that stand apart and then refuses the node that it made. The CPU only has these.
    plan = GraphPlan(rows=True, fused_norms=kind == "fp16", kind=kind)
    model = genai_graph(shape, plan, capacity)
    place = _write_weights(folder / FILE, shape, plan, capacity)
    stored = [tensor for tensor in model.graph.initializer if tensor.data_location != onnx.TensorProto.EXTERNAL]
    for name, sizes in weight_shapes(shape, plan, capacity).items():
        stored.append(external(name, sizes, kind, FILE, place[_role(name)]))
    del model.graph.initializer[:]
    model.graph.initializer.extend(stored)
    (folder / "model.onnx").write_bytes(model.SerializeToString())


def _role(name: str) -> str:
    return name.rpartition(".")[2]


def _write_weights(path: Path, shape: DecodeShape, plan: GraphPlan, capacity: int) -> dict[str, int]:
    """One tensor per role. Returns where each begins."""
    random = np.random.default_rng(1)
    place: dict[str, int] = {}
    with path.open("wb") as file:
        for name, sizes in weight_shapes(shape, plan, capacity).items():
            role = _role(name)
            if role in place:
                continue
            file.seek(-(-file.tell() // ALIGN) * ALIGN)
            place[role] = file.tell()
            _values(role, sizes, random, np.float16 if plan.kind == "fp16" else np.float32).tofile(file)
            file.seek(0, 2)
    return place


def _values(role: str, sizes: tuple[int, ...], random: np.random.Generator, kind: Any) -> Any:
    if role.startswith("norm"):
        return np.ones(sizes, kind)
    if role.startswith(("cos", "sin")):
        angles = np.outer(np.arange(sizes[0]), 10_000.0 ** -np.linspace(0, 1, sizes[1]))
        return (np.cos(angles) if role.startswith("cos") else np.sin(angles)).astype(kind)
    # One block of random numbers over and over: making 0.8 G of them would take longer than everything else.
    block = random.standard_normal(1 << 20, dtype=np.float32) * sizes[1] ** -0.5
    return np.resize(block.astype(kind), sizes)


def write_config(folder: Path, shape: DecodeShape, capacity: int, provider: dict[str, Any]) -> None:
    """genai_config.json. provider: {"cuda": {options}}, or empty for the CPU."""
    options = [provider] if provider else []
    config = {
        "model": {
            "type": "llama",  # only names the state machine: a decoder with one cache per layer
            "bos_token_id": 2,
            "eos_token_id": shape.vocab - 1,
            "pad_token_id": 0,
            "context_length": capacity,
            "vocab_size": shape.vocab,
            "decoder": {
                "filename": "model.onnx",
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": options},
                "head_size": 256,
                "hidden_size": shape.hidden,
                "num_attention_heads": shape.q_heads,
                "num_hidden_layers": shape.layers,
                "num_key_value_heads": shape.kv_heads,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
        },
        "search": {
            "do_sample": False,
            "num_beams": 1,
            "max_length": capacity,
            "min_length": capacity,
            "past_present_share_buffer": True,
            "top_k": 1,
        },
    }
    (folder / "genai_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


CAPTURED = {"cuda": {"enable_cuda_graph": "1"}}
PLAIN = {"cuda": {"enable_cuda_graph": "0"}}


def genai_decode(
    shape: DecodeShape,
    context: int,
    tokens: int,
    rounds: int,
    say: Callable[[str], None],
    *,
    capacity: int = 2048,
    kind: str = "fp16",
    providers: tuple[dict[str, Any], ...] = (CAPTURED, PLAIN),
) -> dict[str, Any]:
    """ms per token on the wall, with the first of `providers` that runs. Raises RuntimeError when none does."""
    folder = Path(tempfile.mkdtemp(prefix="genai-"))
    reasons: list[str] = []
    try:
        began = time.perf_counter()
        write_model(folder, shape, capacity, kind)
        say(f"genai: model written in {time.perf_counter() - began:.1f} s")
        for provider in providers:
            write_config(folder, shape, capacity, provider)
            try:
                row = _decode(folder, shape, context, tokens, rounds, capacity, say)
            except (RuntimeError, ValueError) as error:
                reasons.append(f"{provider}: {error}")
                say(f"genai: {reasons[-1]}")
                continue
            return {**row, "how": f"{row['how']}, {json.dumps(provider)}", "refused": reasons}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    raise RuntimeError("; ".join(reasons))


def _decode(
    folder: Path,
    shape: DecodeShape,
    context: int,
    tokens: int,
    rounds: int,
    capacity: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Every round: a prompt of `context` random tokens, 8 tokens to warm up and capture, then `tokens` timed ones."""
    import onnxruntime_genai as og

    began = time.perf_counter()
    model = og.Model(str(folder))
    say(f"genai: loaded in {time.perf_counter() - began:.1f} s")
    prompt = np.random.default_rng(2).integers(3, shape.vocab - 1, context).astype(np.int32)
    times = []
    for _ in range(rounds + 1):
        params = og.GeneratorParams(model)
        params.set_search_options(do_sample=False, max_length=capacity, min_length=capacity, batch_size=1)
        generator = og.Generator(model, params)
        generator.append_tokens(prompt)
        for _ in range(8):
            generator.generate_next_token()
        began = time.perf_counter()
        for _ in range(tokens):
            generator.generate_next_token()
        int(np.asarray(generator.get_next_tokens()).reshape(-1)[0])
        times.append((time.perf_counter() - began) * 1000 / tokens)
        del generator, params
    how = f"onnxruntime-genai {og.__version__}, wall time with its choice of the token"
    return {"how": how, "ms_per_token": statistics.median(times[1:]), "rounds_ms": times}


def genai_apart(context: int, tokens: int, rounds: int, limit_s: float) -> dict[str, Any]:
    """`genai_decode` of the default shape in a child process. Raises RuntimeError with the last lines it said."""
    command = [sys.executable, "-m", "benchmarks.peers.ort_genai", *map(str, (context, tokens, rounds))]
    paths = [*_library_folders(), os.environ.get("LD_LIBRARY_PATH", "")]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(path for path in paths if path)}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"not done within {limit_s:.0f} s") from error
    sys.stderr.write(done.stderr)
    if done.returncode:
        raise RuntimeError("; ".join(done.stderr.strip().splitlines()[-3:]) or f"exit code {done.returncode}")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def _library_folders() -> list[str]:
    """Where pip puts CUDA's libraries."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec is not None else []
    return [str(folder) for root in roots for folder in sorted(root.glob("*/lib"))]


def main() -> None:
    def say(text: str) -> None:
        sys.stderr.write(text + "\n")

    context, tokens, rounds = map(int, sys.argv[1:4])
    print(json.dumps(genai_decode(DecodeShape(), context, tokens, rounds, say)))


if __name__ == "__main__":
    main()
