"""Gemma 3 270M's real weights in the decode kernels: is the text the float32 reference's, and how fast is it.

    python -m benchmarks gpu_checkpoint [--checkpoint FOLDER] [--gguf FILE] [--context 1024] [--torch] [--json]

FOLDER: what benchmarks/gemma/weights.py wrote (default: written to the model cache when first needed); FILE: the GGUF
it was made from (default: the model store's, if there). Exit code 1 when a token is wrong; 3 without a GPU or without
the weights.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gemma.checkpoint import Checkpoint, load_checkpoint
from benchmarks.gemma.reference import F32, GemmaReference, KernelFolder
from benchmarks.gemma.session import (
    DecodeKernels,
    DecodeSession,
    DecodeShape,
    Format,
    build_decode_kernels,
    tuned,
)
from benchmarks.harness.gpu import CAPACITY, bandwidth_gb_s, kernel_us, open_lanes, token_ms
from benchmarks.harness.report import command_line, gpu
from cockpit.device.cuda.device import CudaDevice
from cockpit.device.cuda.driver import BoundDriver
from models.errors import DeviceUnavailable, StartupError

MODEL = "gemma-3-270m"
GGUF = "gemma-3-270m-q4_k_m.gguf"
CONTINUED = 32
EPSILON: dict[Format, float] = {"fp16": 0.02, "bf16": 0.15}
"""A choice between two tokens whose reference logits are closer than this may fall either way. Rounding the weights to
fp16 (bf16) and the cache to fp16 moved the gap between the best two by at most 0.005 (0.05) in numpy."""
TOLERANCE: dict[Format, float] = {"fp16": 4e-3, "bf16": 3e-2}
"""Relative error of the logits against float32 from the GGUF file; numpy with the same rounding: 1e-3 (8e-3)."""
BOS = 2
SENTENCES = (
    (21481, 1053, 22303, 784, 3446, 236764, 532, 528, 506, 5597, 506, 4284, 531, 506, 53676, 691, 60447, 236761),
    (669, 40916, 1451, 711, 5264, 1680, 37170, 236761),
    (8512, 56458, 2302, 35033, 657, 506, 13818, 607, 9479, 699, 506, 8710, 236761),
    (24944, 31167, 1116, 3273, 10911, 532, 10636, 496, 15049, 236761),
    (53705, 580, 506, 52209, 7261, 1056, 506, 6573, 1093, 7266, 236761),
    (562, 4799, 57120, 1208, 506, 13606, 28383, 506, 4408, 236761),
    (2640, 1774, 506, 19974, 29405, 532, 506, 20596, 82701, 236761),
)
"""" Rain had fallen all night, and in the morning the road to the harbour was flooded." and six more, as token ids."""


def prompts() -> dict[str, list[int]]:
    """Two texts as token ids: a short one, and one longer than the sliding window (512), sentences in new orders."""
    turns = [SENTENCES[turn % 7 :] + SENTENCES[: turn % 7] for turn in range(8)]
    long = [token for turn in turns for sentence in turn for token in sentence]
    return {"cities": [BOS, 818, 1806, 7488, 9979, 528, 9405, 659], "harbour": [BOS, *long]}


def find(folder: Path | None) -> tuple[Path | None, str]:
    """The folder with the kernels' weights, or why there is none."""
    if folder is not None:
        return folder, ""
    try:
        from benchmarks.gemma.weights import built

        return built(MODEL, GGUF), ""
    except ModuleNotFoundError as error:
        return None, f"the model store needs {error.name}, which is not installed; pass --checkpoint FOLDER"
    except StartupError as error:
        return None, str(error)


def find_gguf() -> Path | None:
    """The GGUF file in the model store, if it is there and can be read here."""
    try:
        import gguf  # noqa: F401

        from models.store.store import Store

        return Store.open().source(MODEL, GGUF)
    except (ModuleNotFoundError, StartupError):
        return None


def reference(folder: Path, gguf: Path | None) -> tuple[GemmaReference, str]:
    """Float32 from the GGUF file if there is one; else float32 arithmetic on the 16-bit weights, which judges less."""
    own = KernelFolder(folder)
    if gguf is None:
        return GemmaReference(own, own.shape), "float32 arithmetic on the kernels' own weights"
    from benchmarks.gemma.weights import kernel_shape
    from models.build.llm_gguf import Checkpoint as Gguf

    opened = Gguf.open(gguf)
    shape: Any = kernel_shape(opened)
    return GemmaReference(opened, DecodeShape(**shape)), "float32 from the GGUF file"


def continue_text(session: DecodeSession, prompt: list[int], count: int, vocab: int) -> tuple[list[int], F32]:
    """Greedy tokens, and the logits (count, vocab) each was chosen from."""
    session.prefill(prompt)
    rows = np.empty((count, vocab), np.float32)
    for step in range(count):
        if step:
            session.replay()
        raw = session.driver.read(session.buffers["logits"], 4 * vocab, session.stream)
        rows[step] = np.frombuffer(raw, np.float32)
    return list(session.tokens(len(prompt) - 1, count)), rows


def agreement(got: list[int], rows: F32, wanted: F32, epsilon: float) -> dict[str, Any]:
    """wanted: the reference's logits given the same text, token for token. A different choice counts as wrong unless
    the reference's logits of the two tokens are closer than `epsilon`."""
    best = wanted.argmax(axis=1)
    at = np.arange(len(got))
    behind = wanted[at, best] - wanted[at, got]
    errors = np.linalg.norm(rows - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
    errors = np.where(np.isfinite(errors), errors, np.inf)
    return {
        "equal": int((behind == 0).sum()),
        "near_ties": int(((behind > 0) & (behind < epsilon)).sum()),
        "wrong": int((behind >= epsilon).sum()),
        "own_argmax": int((rows.argmax(axis=1) == got).sum()),
        "rel_error": float(errors.max()),
    }


def check_checkpoint(device: CudaDevice, driver: BoundDriver, folder: Path, gguf: Path | None) -> dict[str, Any]:
    """32 tokens after each prompt, from weights loaded once, in a small lane and in one of nearly all SMs."""
    lanes = ("navigation:1", "dialogue:2")
    loaded = load_checkpoint(driver, folder, device.lanes[lanes[0]].stream, CAPACITY)
    shape, format = loaded.weights.shape, loaded.weights.format
    kernels = build_decode_kernels(driver, device.facts.capability, shape, format, tuned(shape, format))
    judging, source = reference(folder, gguf)
    result: dict[str, Any] = {"ok": True, "reference": source, "format": format, "epsilon": EPSILON[format]}
    sessions = {name: _open(driver, device, name, kernels, loaded) for name in lanes}
    for name, prompt in prompts().items():
        answers = {lane: continue_text(session, prompt, CONTINUED, shape.vocab) for lane, session in sessions.items()}
        (got, rows), (other, _) = answers.values()
        found = agreement(got, rows, judging.logits([*prompt, *got[:-1]], CONTINUED), EPSILON[format])
        ok = found["wrong"] == 0 and found["rel_error"] < TOLERANCE[format] and found["own_argmax"] == CONTINUED
        found |= {"prompt_tokens": len(prompt), "lanes_agree": got == other, "tokens": got[:8]}
        result["ok"] &= ok and got == other
        result[name] = found
    for session in sessions.values():
        session.close()
    loaded.close()
    return result


def _open(
    driver: BoundDriver, device: CudaDevice, lane: str, kernels: DecodeKernels, loaded: Checkpoint
) -> DecodeSession:
    chosen = device.lanes[lane]
    session = DecodeSession(driver, kernels, loaded.weights, chosen.stream, chosen.units, CAPACITY)
    return session.open(want_logits=True)


def measure_checkpoint(
    driver: BoundDriver, device: CudaDevice, stream: int, folder: Path, context: int, copy_gb_s: float
) -> dict[str, Any]:
    """Milliseconds per token and share of the bandwidth bound, over block sizes on the whole device and in lanes."""
    loaded = load_checkpoint(driver, folder, stream, CAPACITY)
    shape, format = loaded.weights.shape, loaded.weights.format
    moved = shape.weight_bytes(format) + shape.kv_bytes(context + 20)
    bound_ms = moved / copy_gb_s / 1e6
    base = tuned(shape, format)
    candidates = [base, replace(base, early=False), *(replace(base, block=block) for block in (256, 768, 1024))]
    candidates += [replace(base, splits=splits) for splits in (8, 32)]
    rows: list[dict[str, Any]] = []

    def run(kernels: DecodeKernels, stream: int, sms: int) -> float:
        session = DecodeSession(driver, kernels, loaded.weights, stream, sms, CAPACITY).open()
        ms = token_ms(session, context)
        session.close()
        return ms

    built = []
    for tuning in candidates:
        built.append(build_decode_kernels(driver, device.facts.capability, shape, format, tuning))
        rows.append({"tuning": asdict(tuning), "ms": run(built[-1], stream, device.units)})
    kernels = built[min(range(len(rows)), key=lambda index: rows[index]["ms"])]
    ms = run(kernels, stream, device.units)
    session = DecodeSession(driver, kernels, loaded.weights, stream, device.units, CAPACITY).open()
    parts = kernel_us(driver, session, shape, copy_gb_s)
    session.close()
    lanes = {}
    for name in ("navigation:2", "dialogue:1", "navigation:1"):
        lane = device.lanes[name]
        lane_ms = run(kernels, lane.stream, lane.units)
        lanes[name] = {"sms": lane.units, "ms": lane_ms, "share": bound_ms / lane_ms}
    loaded.close()
    result = {"model": json.loads((folder / "kernels.json").read_text())["architecture"], "folder": folder.name}
    return result | {
        "format": format,
        "ms_per_token": ms,
        "tokens_per_s": 1000 / ms,
        "bytes": moved,
        "bound_ms": bound_ms,
        "share": bound_ms / ms,
        "tuning": asdict(kernels.tuning),
        "sweep": rows,
        "kernels": parts,
        "lanes": lanes,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, measure and print."""
    parser = command_line(__name__, __doc__)
    parser.add_argument("--checkpoint", type=Path, help="folder with the kernels' weights")
    parser.add_argument("--gguf", type=Path, help="the GGUF file that they were made from")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument(
        "--torch", action="store_true", help="also time torch (compiled layers, static cache, CUDA graph)"
    )
    options = parser.parse_args(arguments)
    folder, reason = find(options.checkpoint)
    if folder is None:
        print(reason, file=sys.stderr)
        return 3
    try:
        driver = BoundDriver()
        device = open_lanes(driver)
    except DeviceUnavailable as error:
        print(error, file=sys.stderr)
        return error.exit_code
    stream = driver.whole_device_stream()
    copy_gb_s = bandwidth_gb_s(driver, device, stream)["copy"]
    check = check_checkpoint(device, driver, folder, options.gguf or find_gguf())
    result = measure_checkpoint(driver, device, stream, folder, options.context, copy_gb_s)
    result |= {"gpu": gpu(), "copy_gb_s": copy_gb_s, "context": options.context, "check": check}
    if options.torch:
        result["torch"] = torch_row(folder, options.context, result["bound_ms"])
    device.close()
    print(json.dumps(result) if options.json else table(result))
    return 0 if check["ok"] else 1


def torch_row(folder: Path, context: int, bound_ms: float) -> dict[str, Any]:
    """The same weights in torch."""
    from benchmarks.harness.random_model import checkpoint_model
    from benchmarks.peers.torch import torch_decode

    row: dict[str, Any] = torch_decode(checkpoint_model(folder, CAPACITY), context, CAPACITY)
    return row | {"share": bound_ms / row["ms_per_token"]}


def table(result: dict[str, Any]) -> str:
    """The results for people."""
    lines = [
        f"{result['gpu']}; copy {result['copy_gb_s']:.0f} GB/s; context {result['context']}; {result['folder']} "
        f"{result['format']}; text: {'pass' if result['check']['ok'] else 'FAIL'} ({result['check']['reference']})",
        "| where | ms/token | tokens/s | share of bound |",
        "|---|---|---|---|",
    ]
    rows = {"whole device": result} | ({result["torch"]["how"]: result["torch"]} if "torch" in result else {})
    rows |= {f"lane {name} ({lane['sms']} SMs)": lane for name, lane in result["lanes"].items()}
    for label, row in rows.items():
        ms = row.get("ms_per_token", row.get("ms"))
        lines.append(f"| {label} | {ms:.3f} | {1000 / ms:.0f} | {100 * row['share']:.1f} % |")
    return "\n".join(lines)
