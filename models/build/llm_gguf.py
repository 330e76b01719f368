"""What a GGUF file says about a decoder: its shape, its tensors, its vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from models.errors import InputError

F32 = NDArray[np.float32]

ARCHITECTURES = ("qwen2", "llama", "gemma3")
END_OF_TURN = ("<|im_end|>", "<|endoftext|>", "<end_of_turn>", "<eos>", "</s>", "<|eot_id|>", "<|end_of_text|>")
"""Control tokens that end a turn wherever they exist. Files often name only one of them as `eos_token_id`."""
GEMMA_LOCAL_THETA = 10_000.0
"""RoPE base of Gemma 3's sliding layers; GGUF stores only the full layers' base."""
GEMMA_FULL_EVERY = 6
CONTROL = 3
"""gguf.TokenType.CONTROL, as stored in tokenizer.ggml.token_type."""
USER_DEFINED = 4
"""The type of text that is matched whole, as control tokens are, but belongs to the reply."""


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Dimensions of one decoder-only transformer. Lengths in elements, `context` in tokens."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    rms_epsilon: float
    rope_theta: float
    window: int
    tied: bool

    @property
    def gemma(self) -> bool:
        return self.architecture == "gemma3"

    def sliding(self, layer: int) -> bool:
        """True when `layer` sees only the last `window` tokens."""
        return self.gemma and (layer + 1) % GEMMA_FULL_EVERY != 0


class MappedReader(gguf.GGUFReader):  # type: ignore[misc]
    """Reads metadata out of a plain view of the memory map: a slice of `np.memmap` costs four times as much.

    A vocabulary of 262,144 tokens takes about a million slices.
    """

    @property
    def data(self) -> NDArray[np.uint8]:
        return self._data

    @data.setter
    def data(self, mapped: NDArray[np.uint8]) -> None:
        self._data = np.asarray(mapped)


class Checkpoint:
    """One opened GGUF file. Tensors are read on demand through its memory map."""

    def __init__(self, path: Path, reader: Any) -> None:
        self.path = path
        self._reader = reader
        self._tensors = {t.name: t for t in reader.tensors}

    @classmethod
    def open(cls, path: Path) -> Checkpoint:
        """Raises InputError when `path` is no GGUF file or of an architecture that is not known."""
        try:
            checkpoint = cls(path, MappedReader(path))
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read as GGUF ({error}); fetch it again") from error
        if checkpoint.architecture not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise InputError(f"{path}: architecture '{checkpoint.architecture}' is not built here; known: {known}")
        return checkpoint

    @property
    def architecture(self) -> str:
        return str(self.field("general.architecture"))

    def field(self, name: str, default: Any = None) -> Any:
        """Metadata value `name` as plain Python, or `default`."""
        found = self._reader.fields.get(name)
        return default if found is None else found.contents()

    def shape(self) -> DecoderShape:
        prefix = self.architecture + "."
        heads = int(self.field(prefix + "attention.head_count"))
        hidden = int(self.field(prefix + "embedding_length"))
        return DecoderShape(
            architecture=self.architecture,
            layers=int(self.field(prefix + "block_count")),
            hidden=hidden,
            heads=heads,
            kv_heads=int(self.field(prefix + "attention.head_count_kv", heads)),
            head_dim=int(self.field(prefix + "attention.key_length", hidden // heads)),
            vocab=int(self._tensors["token_embd.weight"].shape[1]),
            context=int(self.field(prefix + "context_length")),
            rms_epsilon=float(self.field(prefix + "attention.layer_norm_rms_epsilon")),
            rope_theta=float(self.field(prefix + "rope.freq_base", 10_000.0)),
            window=int(self.field(prefix + "attention.sliding_window", 0)),
            tied="output.weight" not in self._tensors,
        )

    def has(self, name: str) -> bool:
        return name in self._tensors

    def kind(self, name: str) -> str:
        """Storage type of a tensor, such as "Q5_0" or "F32"."""
        return str(self._tensors[name].tensor_type.name)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Stored bytes of a quantised tensor, (rows, bytes per row)."""
        return np.asarray(self._tensors[name].data)

    def values(self, name: str) -> F32:
        """The tensor dequantised to float32: (n,) or (rows, columns), rows being outputs, in the order of the file."""
        tensor = self._tensors[name]
        return np.ascontiguousarray(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)

    def row_order(self, name: str, shape: DecoderShape) -> NDArray[np.int64] | None:
        """Order that turns llama.cpp's interleaved q/k rows into half-split ones; None where they already are."""
        if shape.architecture != "llama" or not name.endswith(("attn_q.weight", "attn_k.weight")):
            return None
        rows = int(self._tensors[name].shape[1])
        return np.arange(rows).reshape(-1, shape.head_dim // 2, 2).swapaxes(1, 2).reshape(-1)

    def stop_ids(self) -> list[int]:
        """Ids that end a turn: those the metadata names, and the control tokens known to mean it."""
        named = (self.field(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom"))
        found = {int(value) for value in named if value is not None}
        kinds = self.field("tokenizer.ggml.token_type", [])
        for index, text in enumerate(self.field("tokenizer.ggml.tokens")):
            if text in END_OF_TURN and (not kinds or kinds[index] == CONTROL):
                found.add(index)
        return sorted(found)
