"""What transformers says about tiny random checkpoints of every family, kept in `tests/data/families.json`.

`python -m benchmarks.harness.families_reference` records the file again (half a minute): after CONFIGS, the way values
are drawn, or transformers changed. The tests draw the same weights and need neither torch nor transformers.
"""

from __future__ import annotations

import json
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from models.build.families.tensors import drawn, tensor_shapes

FILE = Path(__file__).resolve().parents[2] / "tests" / "data" / "families.json"
SEED = 3
LENGTHS = (40, 23, 7)
"""Tokens of the three texts of a batch."""
NEW_TOKENS = 12
_DENSE: dict[str, Any] = {
    "vocab_size": 520,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "bos_token_id": None,
    "eos_token_id": None,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_HYBRID: dict[str, Any] = {
    "model_type": "nemotron_h",
    "vocab_size": 520,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "ssm_state_size": 16,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "conv_kernel": 4,
    "chunk_size": 8,
    "time_step_min": 0.3,  # so large that the clamp acts
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
}
_EXPERTS: dict[str, Any] = {
    "layers_block_type": ["linear_attention", "moe", "full_attention", "linear_attention", "moe"],
    "n_routed_experts": 8,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 64,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "routed_scaling_factor": 2.5,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _DENSE | {"model_type": "llama", "rope_theta": 1e4},
    "llama-3": _DENSE | {"model_type": "llama", "rope_parameters": _LLAMA3},
    "smollm2": _DENSE | {"model_type": "llama", "rope_theta": 1e5, "tie_word_embeddings": True},
    "qwen2": _DENSE | {"model_type": "qwen2", "rope_theta": 1e6, "tie_word_embeddings": True},
    "qwen3": _DENSE | {"model_type": "qwen3", "rope_theta": 1e6, "head_dim": 32},
    "nemotron-h": _HYBRID | {"layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"]},
    "nemotron-3": _HYBRID | _EXPERTS,
    "nemotron-3-latent": _HYBRID | _EXPERTS | {"moe_latent_size": 32},
}


def write_checkpoint(name: str, folder: Path) -> None:
    """config.json and model.safetensors of one family."""
    config = CONFIGS[name]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({key: drawn(key, shape, SEED) for key, shape in tensor_shapes(config)}, folder / "model.safetensors")


def texts() -> list[list[int]]:
    random = np.random.default_rng(SEED)
    return [random.integers(0, _DENSE["vocab_size"], length).tolist() for length in LENGTHS]


def recorded() -> dict[str, Any]:
    """By family: `logits` of the last token of each text, and the `tokens` that follow it."""
    families: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))["families"]
    return families


def record(name: str) -> dict[str, Any]:
    """Without a cache: the whole text is computed for every token, in transformers' chunked path."""
    import torch
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(name, Path(folder))
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    out: dict[str, Any] = {"logits": [], "tokens": []}
    for text in texts():
        tokens, rows = list(text), []
        for _ in range(NEW_TOKENS):
            with torch.inference_mode():
                rows.append(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].numpy())
            second, first = np.sort(rows[-1])[-2:]
            if first - second < 1e-3:
                raise SystemExit(f"{name}: two tokens are {first - second:.6f} apart; choose another SEED")
            tokens.append(int(rows[-1].argmax()))
        out["logits"].append([round(float(value), 5) for value in rows[0]])
        out["tokens"].append(tokens[len(text) :])
    return out


def main() -> None:
    made_by = {name: version(name) for name in ("transformers", "torch", "numpy")}
    families = {name: record(name) for name in CONFIGS}
    text = {"command": "python -m benchmarks.harness.families_reference", "versions": made_by, "families": families}
    FILE.write_text(json.dumps(text, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
