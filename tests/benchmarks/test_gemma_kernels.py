"""The decode kernels' own code on the host, from a GGUF file to tokens; the reference that judges."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
import pytest
import torch

from benchmarks.gemma.checkpoint import load_checkpoint
from benchmarks.gemma.reference import GemmaReference, KernelFolder
from benchmarks.gemma.session import (
    SOURCE,
    DecodeKernels,
    DecodeSession,
    DecodeShape,
    DecodeTuning,
    Format,
    decode_defines,
)
from benchmarks.gemma.weights import build_kernel_weights, halves, kernel_shape
from benchmarks.harness.random_model import Reference as TorchReference
from benchmarks.harness.random_model import checkpoint_model
from benchmarks.llm.gpu_checkpoint import GGUF, SENTENCES, agreement, continue_text, prompts
from cockpit.device.cuda.driver import BoundDriver
from models.build.llm_gguf import Checkpoint as Gguf
from models.engines.llm.causal_lm import CausalLM
from models.errors import InputError, ModelMissing
from models.store.store import Store
from tests.support.cuda.cuda_host import NAMES, HostDriver, compile_for_host

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="runs CUDA C++ through the host's g++: none here"
)

LAYERS, HIDDEN, HEADS, FFN, VOCAB, WINDOW = 6, 320, 2, 512, 100, 4
"""Rows of 40 loads (one round and a quarter), both kinds of layer, a window shorter than the text."""


def write_gguf(path: Path) -> Path:
    """A Gemma 3 of random weights in float32, small enough to run thread by thread."""
    random = np.random.default_rng(5)
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_key_length(256)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_sliding_window(WINDOW)
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_token_list([f"t{index}" for index in range(VOCAB)])

    def matrix(name: str, rows: int, columns: int) -> None:
        writer.add_tensor(name + ".weight", random.normal(0, columns**-0.5, (rows, columns)).astype(np.float32))

    def norm(name: str, size: int) -> None:
        writer.add_tensor(name + ".weight", random.normal(1, 0.2, size).astype(np.float32))

    matrix("token_embd", VOCAB, HIDDEN)
    norm("output_norm", HIDDEN)
    for layer in range(LAYERS):
        blk = f"blk.{layer}."
        for part, rows, columns in (
            ("attn_q", HEADS * 256, HIDDEN),
            ("attn_k", 256, HIDDEN),
            ("attn_v", 256, HIDDEN),
            ("attn_output", HIDDEN, HEADS * 256),
            ("ffn_gate", FFN, HIDDEN),
            ("ffn_up", FFN, HIDDEN),
            ("ffn_down", HIDDEN, FFN),
        ):
            matrix(blk + part, rows, columns)
        for part in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            norm(blk + part, HIDDEN)
        norm(blk + "attn_q_norm", 256)
        norm(blk + "attn_k_norm", 256)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf")


@needs_compiler
@pytest.mark.parametrize(("format", "sms"), [("fp16", 3), ("bf16", 1)])
def test_kernels_continue_a_text_as_the_reference_does(small: Path, tmp_path: Path, format: Format, sms: int) -> None:
    build_kernel_weights(small, tmp_path, format=cast(Any, format))
    tuning = DecodeTuning(block=64, splits=2, attention_batch=2)
    folder = KernelFolder(tmp_path)
    driver = HostDriver(compile_for_host(tmp_path, decode_defines(folder.shape, format, tuning), SOURCE))
    loaded = load_checkpoint(cast(BoundDriver, driver), tmp_path, stream=9, positions=24)
    kernels = DecodeKernels(folder.shape, format, tuning, {name: name for name in NAMES})
    session = DecodeSession(cast(BoundDriver, driver), kernels, loaded.weights, 9, sms, 24).open(want_logits=True)
    prompt = [2, 17, 50, 4, 4, 99]
    got, rows = continue_text(session, prompt, 3, VOCAB)
    wanted = GemmaReference(folder, folder.shape, np.float16).logits([*prompt, *got[:-1]], 3)
    assert agreement(got, rows, wanted, 1e-4) == {
        "equal": 3,
        "near_ties": 0,
        "wrong": 0,
        "own_argmax": 3,
        "rel_error": pytest.approx(0, abs=3e-4),
    }
    session.close()
    loaded.close()
    assert driver.held == {}


def test_kernel_weights_are_the_files_tensors(small: Path, tmp_path: Path) -> None:
    build_kernel_weights(small, tmp_path, format="fp16")
    folder, checkpoint = KernelFolder(tmp_path), Gguf.open(small)
    said = json.loads((tmp_path / "kernels.json").read_text())
    shape: dict[str, Any] = kernel_shape(checkpoint)
    assert DecodeShape(**said["shape"]) == DecodeShape(**shape)
    assert all(offset % 256 == 0 for offset, _ in said["sections"].values()), "16-byte loads"
    names = [tensor.name for tensor in gguf.GGUFReader(small).tensors]
    assert len(names) == 2 + 13 * LAYERS
    for name in names:
        np.testing.assert_allclose(folder.values(name), checkpoint.values(name), rtol=1e-3, atol=1e-6, err_msg=name)


def test_torch_peer_holds_the_same_model(small: Path, tmp_path: Path) -> None:
    """One token, no cache yet: torch's fp32 reference of the GPU benchmarks and the numpy one."""
    build_kernel_weights(small, tmp_path, format="fp16")
    model = checkpoint_model(tmp_path, 8, device="cpu")
    k, v = torch.zeros(2, LAYERS, 1, 8, 256).half()
    logits = TorchReference(model, k, v, quantise=False).step(17, 0)
    folder = KernelFolder(tmp_path)
    wanted = GemmaReference(folder, folder.shape, np.float16).logits([17], 1)[0]
    np.testing.assert_allclose(logits.numpy(), wanted, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("value", [1.0, -0.0078125, 3.14159, 65504.0, 1e-30])
def test_bf16_is_the_nearest(value: float) -> None:
    bits = halves(np.array([value], np.float32), "bf16", "x").astype(np.uint32) << 16
    assert bits.view(np.float32)[0] == pytest.approx(value, rel=2**-8)
    assert bits.view(np.float32)[0] == torch.tensor(value).bfloat16().item()


def test_weights_beyond_fp16_are_refused() -> None:
    with pytest.raises(InputError, match="bf16"):
        halves(np.array([7e4], np.float32), "fp16", "blk.0.qkv")


def test_checkpoint_that_is_missing_cut_or_too_short_is_refused(small: Path, tmp_path: Path) -> None:
    driver = cast(BoundDriver, HostDriver(cast(Any, None)))
    with pytest.raises(ModelMissing, match=r"benchmarks\.gemma\.weights MODEL\.gguf"):
        load_checkpoint(driver, tmp_path, 9, 8)
    build_kernel_weights(small, tmp_path)
    with pytest.raises(InputError, match="65 positions"):
        load_checkpoint(driver, tmp_path, 9, 65)
    os.truncate(tmp_path / "weights.bin", 1000)
    with pytest.raises(InputError, match=r"benchmarks\.gemma\.weights MODEL\.gguf"):
        load_checkpoint(driver, tmp_path, 9, 8)


def test_judge_lets_only_near_ties_pass() -> None:
    wanted = np.array([[1, 2, 1.99], [3, 1, 0], [0, 1, 4]], np.float32)
    found = agreement([2, 0, 1], wanted, wanted, 0.02)
    assert (found["equal"], found["near_ties"], found["wrong"], found["own_argmax"]) == (1, 1, 1, 1)


# --- the reference, on the real model --------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def engine(model_dir: Callable[[str], Path]) -> CausalLM:
    return CausalLM.load(model_dir("gemma-3-270m-f32"))


@pytest.fixture(scope="module")
def reference(model_dir: Callable[[str], Path], model_store: Store) -> GemmaReference:
    model_dir("gemma-3-270m-f32")
    checkpoint = Gguf.open(model_store.source("gemma-3-270m", GGUF))
    shape: dict[str, Any] = kernel_shape(checkpoint)
    return GemmaReference(checkpoint, DecodeShape(**shape))


@pytest.mark.parametrize("name", ["cities", "harbour"])
def test_reference_is_what_onnx_runtime_computes(engine: CausalLM, reference: GemmaReference, name: str) -> None:
    """Both texts of the GPU check, one of them longer than the sliding window."""
    prompt = prompts()[name]
    session = engine.open_session()
    session.set_tokens(prompt)
    answer = list(session.generate(max_new_tokens=4))
    assert len(answer) == 4
    logits = reference.logits([*prompt, *answer[:-1]], 4)
    assert logits.argmax(axis=1).tolist() == answer
    session.set_tokens([*prompt, *answer[:-1]])
    exact = engine.head.logits(session.hidden())[0]
    assert np.linalg.norm(logits[-1] - exact) < 1e-4 * np.linalg.norm(exact)


def test_prompts_are_the_texts_they_say(engine: CausalLM) -> None:
    sentence = " Rain had fallen all night, and in the morning the road to the harbour was flooded."
    assert tuple(engine.tokenizer.encode(sentence)) == SENTENCES[0]
    assert len(prompts()["harbour"]) > 512 + 100
