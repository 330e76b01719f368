"""A Hugging Face checkpoint (config.json, safetensors, tokenizer.json) -> model folder; see models/build/llm.py.

A config.json alone gives a model with random weights and, without a tokenizer, a vocabulary of bytes: for the speed and
the memory of a shape, and for tests of the chain.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from models.build.families.config import decoder_shape, read_config
from models.build.families.nemotron import NemotronGraph, states_of
from models.build.families.tensors import (
    FamilyCheckpoint,
    FileTensors,
    RandomTensors,
    Tensors,
    check_whole,
    tensor_shapes,
)
from models.build.llm import NARROW_BLOCK, FullWeights, Progress, ServedWeights, shape_config
from models.build.llm_emit import Emitter, WeightFile
from models.build.llm_gguf import END_OF_TURN, DecoderShape
from models.build.llm_graph import DecoderGraph, save
from models.build.llm_head import WHOLE_TOP, HeadGraph
from models.build.llm_quant import EXACT_BLOCK
from models.engines.llm.tokenizer import TextTokenizer
from models.engines.llm.tokens import guard as tokenizer_guard
from models.errors import InputError, TokenizerMismatch

_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""For the vocabulary of bytes, which has its marks."""


def build_family(
    config: Path,
    out: Path,
    *,
    quant: Literal["f32", "served"] = "served",
    weights: Path | None = None,
    tokenizer: Path | None = None,
    tokenizer_config: Path | None = None,
    generation_config: Path | None = None,
    chat_template: Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> None:
    """Build the model folder `out` for a CPU.

    weights: a safetensors file or its index; without it they are drawn with `seed`. generation_config: more ids that
    end a turn. quant: as in `build_llm`. Raises InputError when a file cannot be read, holds what its family's graph
    does not compute, or lacks tensors; TokenizerMismatch when the tokenizer does not bring its texts back.
    """
    report = progress or (lambda step, share: None)
    settings = read_config(config)
    shape = decoder_shape(settings)
    _check_sizes(settings, shape, quant)
    out.mkdir(parents=True, exist_ok=True)
    report("tokenizer", 0.0)
    words = _json(tokenizer_config)
    written = _write_tokenizer(tokenizer, words, out)
    if tokenizer is None:
        words = {"chat_template": _CHATML} | words
    template = _write_template(chat_template, words, out)
    report("weights", 0.1)
    with _opened(settings, weights, seed) as tensors, WeightFile(out / "model.bin") as file:
        check_whole(settings, tensors)
        checkpoint = FamilyCheckpoint(config, settings, tensors)
        packed = FullWeights(checkpoint, shape) if quant == "f32" else ServedWeights(checkpoint, shape)
        graph = NemotronGraph if shape.architecture == "nemotron_h" else DecoderGraph
        save(graph(checkpoint, shape, packed, Emitter(file)).body(), out / "model.onnx")
        report("head", 0.7)
        quick, table = packed.head()
        save(HeadGraph(shape, quick, table, Emitter(file)).emit(), out / "head.onnx")
    stop = _stop_ids(settings, _json(generation_config), written)
    said = _engine_config(settings, shape, quant, written, words, stop) | {"chat_template": template}
    (out / "config.json").write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    report("done", 1.0)


def _check_sizes(config: Mapping[str, Any], shape: DecoderShape, quant: str) -> None:
    """Raises InputError where the head or the packed blocks do not divide."""
    if shape.vocab < WHOLE_TOP:
        raise InputError(f"config.json: a vocabulary of {shape.vocab} is below the {WHOLE_TOP} that the head needs")
    if quant != "served":
        return
    tables = {"embed_tokens", "embeddings", "lm_head"}
    for name, size in tensor_shapes(config):
        block = NARROW_BLOCK if tables & set(name.split(".")) else EXACT_BLOCK
        if len(size) == 2 and size[1] % block:
            raise InputError(
                f"{name} has rows of {size[1]} weights, no multiple of {block}, so they cannot be packed; "
                'build it with "quant": "f32"'
            )


@contextmanager
def _opened(settings: Mapping[str, Any], weights: Path | None, seed: int) -> Iterator[Tensors]:
    if weights is None:
        yield RandomTensors(settings, seed)
    else:
        with FileTensors(weights) as tensors:
            yield tensors


def _json(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} cannot be read as a JSON object ({error})") from error


# --- the text side -------------------------------------------------------------------------------------------------
def _write_tokenizer(source: Path | None, words: Mapping[str, Any], out: Path) -> Tokenizer:
    """tokenizer.json as the checkpoint has it, and the ids of the guard's corpus. `add_prefix_space` is what
    tokenizer_config.json says, where it says something.
    """
    if source is None:
        tokenizer = _bytes_alone()
    else:
        said = _json(source)
        if "add_prefix_space" in words:
            _set_prefix(said.get("pre_tokenizer"), bool(words["add_prefix_space"]))
        try:
            tokenizer = Tokenizer.from_str(json.dumps(said))
        except Exception as error:  # the library raises Exception itself
            raise InputError(f"{source} cannot be read as a tokenizer ({error})") from error
    expected = [tokenizer.encode(text, add_special_tokens=False).ids for text in tokenizer_guard.CORPUS]
    tokenizer.save(str(out / "tokenizer.json"))
    inner = Tokenizer.from_file(str(out / "tokenizer.json"))
    made = TextTokenizer(inner, None, inner.get_vocab_size(), frozenset())
    if difference := tokenizer_guard.first_difference(made, expected):
        raise TokenizerMismatch(f"{source}: {difference}")
    tokenizer_guard.write(out, expected)
    return inner


def _set_prefix(step: Any, value: bool) -> None:
    if isinstance(step, dict):
        if step.get("type") == "ByteLevel":
            step["add_prefix_space"] = value
        for part in step.get("pretokenizers", ()):
            _set_prefix(part, value)


def _bytes_alone() -> Tokenizer:
    """A vocabulary of the 256 bytes, a start and an end token and ChatML's marks."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    marks = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    return tokenizer


def _write_template(file: Path | None, words: Mapping[str, Any], out: Path) -> bool:
    text = words.get("chat_template") if file is None else file.read_text(encoding="utf-8")
    if not isinstance(text, str):
        return False
    (out / "chat_template.jinja").write_text(text, encoding="utf-8", newline="")
    return True


def _stop_ids(settings: Mapping[str, Any], generation: Mapping[str, Any], tokenizer: Tokenizer) -> list[int]:
    """Every id that a file names as the end, and the control tokens that are known to end a turn."""
    found: set[int] = set()
    for said in (settings, generation):
        named = said.get("eos_token_id")
        found |= {int(each) for each in (named if isinstance(named, list) else [named]) if each is not None}
    special = (number for number, token in tokenizer.get_added_tokens_decoder().items() if token.content in END_OF_TURN)
    return sorted(found | set(special))


def _engine_config(
    settings: Mapping[str, Any],
    shape: DecoderShape,
    quant: str,
    tokenizer: Tokenizer,
    words: Mapping[str, Any],
    stop_ids: list[int],
) -> dict[str, Any]:
    """What models/engines/llm/causal_lm.py reads."""
    bos = settings.get("bos_token_id")
    named = [settings.get("eos_token_id")]
    eos = next((each[0] if isinstance(each, list) else each for each in named if each is not None), None)
    own = {
        "stop_ids": stop_ids,
        "bos_id": bos,
        "bos_token": "" if bos is None else tokenizer.id_to_token(bos) or "",
        "eos_token": "" if eos is None else tokenizer.id_to_token(eos) or "",
        "add_bos": bool(words.get("add_bos_token", False)),
    }
    return shape_config(shape, quant) | own | states_of(settings)
