"""Every family, built from safetensors, against what transformers said of the same weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.harness import families_reference as reference
from models.build.families.build import build_family
from models.build.families.config import rope_factors
from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.grammar import Grammar
from models.errors import InputError, TokenizerMismatch
from tests.support.batches import together

LOGIT_DIFFERENCE = 1e-4
"""Seen: 6e-6 of logits up to 5; of tied embeddings 2e-5 of 50."""


@pytest.mark.parametrize("name", list(reference.CONFIGS))
def test_equal_to_transformers(name: str, tmp_path: Path) -> None:
    """One text alone, and three texts of unlike length in one run each token."""
    reference.write_checkpoint(name, tmp_path)
    build_family(tmp_path / "config.json", tmp_path / "out", quant="f32", weights=tmp_path / "model.safetensors")
    lm = CausalLM.load(tmp_path / "out", context_tokens=128, threads=1, slots=1, batch=3)
    theirs, texts = reference.recorded()[name], reference.texts()
    alone = lm.open_session()
    for text, logits in zip(texts, theirs["logits"], strict=True):
        ours = lm.head.logits(alone.hidden_rows(text))[-1]
        np.testing.assert_allclose(ours, logits, atol=LOGIT_DIFFERENCE)
    batch = lm.open_batch()
    sessions = [batch.open() for _ in texts]
    for session, text in zip(sessions, texts, strict=True):
        session.set_tokens(text)
    assert together(batch, sessions, reference.NEW_TOKENS) == theirs["tokens"]
    batch.close()


def test_no_family_is_left_out() -> None:
    assert set(reference.recorded()) == set(reference.CONFIGS)


@pytest.mark.parametrize("name", ["qwen3", "nemotron-3-latent"])
def test_a_config_alone_makes_a_served_model(name: str, tmp_path: Path) -> None:
    config = reference.CONFIGS[name]
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    build_family(tmp_path / "config.json", tmp_path / "out", seed=1)
    lm = CausalLM.load(tmp_path / "out", context_tokens=128, threads=1, slots=1, batch=1)
    session = lm.open_session()
    session.set_tokens(lm.tokenizer.encode("打开车窗, please"))
    assert len(list(session.generate(max_new_tokens=4))) == 4
    choice = Grammar.compile('start: "yes" | "no"', lm.tokenizer).start()  # 520 ids are 17 words of 32 bits
    assert lm.tokenizer.decode(list(session.generate(max_new_tokens=4, constraint=choice))) in ("yes", "no")
    assert lm.chat.encode([{"role": "user", "content": "hi"}], lm.tokenizer)
    assert lm.stop_ids  # <|im_end|> of the vocabulary of bytes


def edited(change: Callable[[dict[str, object]], object], tmp_path: Path, name: str = "llama") -> Path:
    config = dict(reference.CONFIGS[name])
    change(config)
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return tmp_path / "config.json"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "mamba"}, "known: llama, qwen2, qwen3, nemotron_h"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "'yarn'"),
        ({"vocab_size": 300}, "512"),
        ({"hidden_size": 72}, "multiple of 64"),
        ({"intermediate_size": 100}, r"mlp\.down_proj\.weight has rows of 100"),
    ],
)
def test_what_is_not_computed_is_refused(change: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        build_family(edited(lambda config: config.update(change), tmp_path), tmp_path / "out")


def test_a_checkpoint_of_another_config_is_refused(tmp_path: Path) -> None:
    reference.write_checkpoint("llama", tmp_path)
    config = edited(lambda config: config.update({"num_hidden_layers": 4}), tmp_path)
    with pytest.raises(InputError, match=r"lacks model\.layers\.3\.input_layernorm\.weight"):
        build_family(config, tmp_path / "out", weights=tmp_path / "model.safetensors")


def test_a_cut_off_file_is_refused(tmp_path: Path) -> None:
    reference.write_checkpoint("llama", tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(InputError, match="cannot be read as safetensors"):
        build_family(tmp_path / "config.json", tmp_path / "out", weights=file)


def test_a_tokenizer_that_loses_text_is_refused(tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerMismatch, match="comes back from its ids"):
        build_family(edited(dict, tmp_path), tmp_path / "out", tokenizer=tmp_path / "tokenizer.json")


@pytest.mark.parametrize(("said", "expected"), [({}, True), ({"add_prefix_space": False}, False)])
def test_a_space_before_a_text_is_what_the_checkpoint_says(
    said: dict[str, bool], expected: bool, tmp_path: Path
) -> None:
    """tokenizer_config.json wins over tokenizer.json; with the space on a text does not come back: refused."""
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    spaced = Tokenizer(models.BPE(vocab=letters, merges=[]))
    spaced.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    spaced.decoder = decoders.ByteLevel()
    spaced.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said), encoding="utf-8")
    words, settings = tmp_path / "tokenizer.json", tmp_path / "tokenizer_config.json"
    config, out = edited(dict, tmp_path), tmp_path / "out"
    if expected:
        with pytest.raises(TokenizerMismatch, match="' Set the"):
            build_family(config, out, tokenizer=words, tokenizer_config=settings)
    else:
        build_family(config, out, tokenizer=words, tokenizer_config=settings)


def test_llama_3_stretches_only_long_waves() -> None:
    factors = rope_factors(reference.CONFIGS["llama-3"])
    assert factors is not None
    assert factors[0] == 1.0
    assert factors[-1] == pytest.approx(8.0)
    assert (np.diff(factors) >= 0).all()
