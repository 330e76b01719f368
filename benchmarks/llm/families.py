"""Every model family at one small shape with random weights: prefill, decode, memory, and how far from transformers.

    python -m benchmarks families [--json] [--layers N] [--hidden N]

Served (8-bit) builds from a config alone, at about the size of SmolLM2-135M. The difference from transformers is that
of the f32 build of the tiny checkpoints that `benchmarks/harness/families_reference.py` records.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import families_reference as reference
from benchmarks.harness.report import command_line, head
from cockpit.lifecycle.child import memory_bytes
from models.build.families.build import build_family
from models.engines.llm.causal_lm import CausalLM

PROMPT, DECODED = 256, 24


def _shape(name: str, layers: int, hidden: int) -> dict[str, Any]:
    """The family's tiny config at the size that is asked for."""
    config = dict(reference.CONFIGS[name]) | {
        "vocab_size": 32_768,
        "hidden_size": hidden,
        "intermediate_size": hidden * 8 // 3 // 64 * 64,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 192,
        "head_dim": 64,
        "max_position_embeddings": 2048,
    }
    if config["model_type"] != "nemotron_h":
        return config | {"num_hidden_layers": layers}
    kinds = reference.CONFIGS[name]["layers_block_type"]
    return (
        config
        | {
            "layers_block_type": [kinds[layer % len(kinds)] for layer in range(layers)],
            "mamba_num_heads": 2 * hidden // 64,
            "mamba_head_dim": 64,
            "ssm_state_size": 128,
            "n_groups": 2,
            "moe_intermediate_size": hidden // 64 * 64,
            "moe_shared_expert_intermediate_size": hidden // 64 * 64,
        }
        | ({"moe_latent_size": 256} if "moe_latent_size" in config else {})
    )


def difference(name: str, folder: Path) -> float:
    """The greatest of the last token's logits against transformers, over three texts."""
    reference.write_checkpoint(name, folder)
    build_family(folder / "config.json", folder / "tiny", quant="f32", weights=folder / "model.safetensors")
    session = (lm := CausalLM.load(folder / "tiny", context_tokens=128, threads=1, slots=1, batch=1)).open_session()
    theirs = reference.recorded()[name]["logits"]
    ours = [lm.head.logits(session.hidden_rows(text))[-1] for text in reference.texts()]
    return float(np.abs(np.array(ours) - np.array(theirs)).max())


def measure(name: str, layers: int, hidden: int) -> dict[str, Any]:
    """Built here, run in a process of its own, whose memory holds nothing of the building."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        error = difference(name, folder)
        (folder / "config.json").write_text(json.dumps(_shape(name, layers, hidden)), encoding="utf-8")
        build_family(folder / "config.json", folder / "out")
        with ProcessPoolExecutor(1, get_context("spawn")) as alone:
            figures = alone.submit(run, folder / "out").result()
    return {"family": name} | figures | {"logit_difference_f32": float(f"{error:.2g}")}


def run(built: Path) -> dict[str, Any]:
    """Load, read a prompt, and decode."""
    before = memory_bytes("VmRSS")
    lm = CausalLM.load(built, context_tokens=1024, threads=2, slots=1, batch=1)
    session = lm.open_session()
    text = np.random.default_rng(0).integers(0, 32_768, PROMPT).tolist()
    session.set_tokens(text[:32])
    session.forget()
    start = time.perf_counter()
    session.set_tokens(text)
    prefill = time.perf_counter() - start
    steps = []
    for token in session.tokens[:DECODED]:
        session.extend([token])
        start = time.perf_counter()
        lm.head.best(session.hidden())
        steps.append(time.perf_counter() - start)
    return {
        "weights_mb": round(lm.weights_bytes / 1e6, 1),
        "prefill_tokens_per_s": round(PROMPT / prefill, 1),
        "decode_ms_median": round(1e3 * statistics.median(steps), 2),
        "decode_ms_p99": round(1e3 * float(np.percentile(steps, 99)), 2),
        "token_bytes": lm.token_bytes,
        "state_bytes": sum(int(np.prod(s)) * 4 for s in lm.config.state_shapes.values()) * lm.config.state_layers,
        "memory_rise_mb": round((memory_bytes("VmHWM") - before) / 1e6, 1),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line("families", __doc__)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=576)
    options = parser.parse_args(arguments)
    rows = [measure(name, options.layers, options.hidden) for name in reference.CONFIGS]
    if options.json:
        said = {"layers": options.layers, "hidden": options.hidden, "prompt": PROMPT, "rows": rows}
        print(json.dumps(head() | said, indent=1))
        return 0
    for row in rows:
        print(" ".join(f"{key}={value}" for key, value in row.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
