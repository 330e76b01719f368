"""Whisper's decoder session with its cache, and the configuration that both of its graphs share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from models.engines.placement import Buffer, GraphSession, Placement, dtype_of
from models.errors import InputError

NO_BOOSTS: Mapping[int, float] = {}


@dataclass(frozen=True, slots=True)
class WhisperConfig:
    """config.json of a built Whisper. Counts are in tokens, frames of 10 ms (mel) or 20 ms (encoder positions).

    encoder_input: "mel" (the CPU's graphs) or "samples" (a GPU lane's, and their float32 twins). precision: as built.
    """

    encoder_input: str
    precision: str
    mel_bands: int
    encoder_positions: int
    decoder_positions: int
    width: int
    decoder_layers: int
    decoder_heads: int
    vocabulary: int
    tokens: dict[str, int]
    languages: dict[str, int]
    suppress: tuple[int, ...]
    suppress_at_begin: tuple[int, ...]

    @staticmethod
    def read(path: Path) -> WhisperConfig:
        raw = json.loads(path.read_text(encoding="utf-8"))
        fields = {name: raw[name] for name in WhisperConfig.__dataclass_fields__}
        fields["suppress"], fields["suppress_at_begin"] = tuple(raw["suppress"]), tuple(raw["suppress_at_begin"])
        return WhisperConfig(**fields)


@dataclass(frozen=True, slots=True)
class Step:
    """What one decoder run says of its last position. `ids` and `values` (raw logit + bias) are best first."""

    ids: NDArray[np.int64]
    values: NDArray[np.float32]
    log_sum_exp: float
    no_speech_logit: float


class Decoder:
    """The decoder session with its cache. Everything it needs is allocated once; a step writes a few dozen bytes.

    Biases of the whole vocabulary stay where the session runs, in the rows of a table, least recently used out first.
    """

    def __init__(self, placement: Placement, session: GraphSession, config: WhisperConfig) -> None:
        self._placement = placement
        self._session = session
        self._config = config
        self._binding = session.binding()
        self._total = ort.OrtValue.ortvalue_from_numpy(np.zeros((), np.int32))
        self._filled = 0
        self._bound_count = 0
        self._rows: dict[int, NDArray[np.float32]] = {}
        self._boosted: dict[int, float] = {}
        self._cache: list[Buffer] = []
        self._results: dict[str, Buffer] = {}
        self.cross: dict[str, Buffer] = {}
        """Cross keys and values by input name, where the graph fixes their size: the encoder writes them in place."""

    @property
    def filled(self) -> int:
        """Tokens in the cache."""
        return self._filled

    def allocate(self) -> None:
        """Make and bind the cache, the inputs and the outputs. Call once, before the first utterance."""
        c = self._config
        cache = (1, c.decoder_heads, c.decoder_positions, c.width // c.decoder_heads)
        metas = {meta.name: meta for meta in self._session.inner.get_inputs()}
        for name, meta in metas.items():
            if name.startswith("past_"):
                buffer = self._placement.allocate(cache, dtype_of(meta))
                buffer.bind_input(self._binding, name)
                buffer.bind_output(self._binding, name.replace("past_", "present_"))
                self._cache.append(buffer)  # a binding knows the address only
            elif name.startswith("cross_") and all(isinstance(size, int) for size in meta.shape):
                self.cross[name] = self._placement.allocate(meta.shape, dtype_of(meta))
                self.cross[name].bind_input(self._binding, name)
        self._binding.bind_ortvalue_input("total", self._total)
        self._feed = self._placement.allocate((16 * c.decoder_positions + 16,), np.uint8)
        self._table = self._placement.allocate(metas["bias_table"].shape, np.float32)
        self._table.bind_input(self._binding, "bias_table")
        boosts = metas["boost_ids"].shape
        self._boosts = self._placement.allocate((boosts[1] * 12,), np.uint8)
        self._boosts.part(0, boosts, np.dtype(np.int64)).bind_input(self._binding, "boost_ids")
        self._boosts.part(boosts[1] * 8, boosts, np.dtype(np.float32)).bind_input(self._binding, "boost_values")
        self._allocate_results()

    def _allocate_results(self) -> None:
        """All that a step reads lies in one buffer, so that one copy fetches it. The widest types come first."""
        metas = [meta for meta in self._session.inner.get_outputs() if not meta.name.startswith("present_")]
        metas.sort(key=lambda meta: -dtype_of(meta).itemsize)
        sizes = [int(np.prod(meta.shape)) * dtype_of(meta).itemsize for meta in metas]
        self._result = self._placement.allocate((sum(sizes),), np.uint8)
        offset = 0
        for meta, size in zip(metas, sizes, strict=True):
            self._results[meta.name] = self._result.part(offset, meta.shape, dtype_of(meta))
            self._results[meta.name].bind_output(self._binding, meta.name)
            offset += size

    def begin(self, cross: Mapping[str, ort.OrtValue]) -> None:
        """Start an utterance: bind its cross keys and values, forget the cached tokens.

        cross: empty when the encoder wrote them into `self.cross`.
        """
        for name, value in cross.items():
            self._binding.bind_ortvalue_input(name, value)
        self._filled = 0

    def rewind(self, filled: int) -> None:
        """Keep only the first `filled` cached tokens."""
        self._filled = min(filled, self._filled)

    def step(self, tokens: Sequence[int], bias: NDArray[np.float32], boosts: Mapping[int, float] = NO_BOOSTS) -> Step:
        """Append `tokens` and return the last position's best candidates under `bias` (V,) and `boosts`.

        boosts: token -> nats on top of `bias`. bias: known by its identity from step to step, so it must never be
        written again. Raises InputError when the cache is full.
        """
        count = len(tokens)
        total = self._filled + count
        if total > self._config.decoder_positions:
            raise InputError(f"the decoder holds {self._config.decoder_positions} tokens, {total} were asked for")
        if len(boosts) > self._boosts.shape[0] // 12:
            bias, boosts = bias.copy(), dict(boosts)
            bias[list(boosts)] += list(boosts.values())
            boosts = NO_BOOSTS
        self._write_feed(tokens, self._row_of(bias))
        if boosts != self._boosted:
            self._write_boosts(boosts)
        # A captured run repeats its host values whatever they were: there the cache's size stands for the length (the
        # kernels take the true one from last_index).
        captured = count == 1 and self._placement.device != "cpu"
        self._total.update_inplace(np.array(self._config.decoder_positions if captured else total, np.int32))
        self._session.run(self._binding, graph_id=0 if count == 1 else -1)
        self._filled = total
        return self._read_step()

    def _row_of(self, bias: NDArray[np.float32]) -> int:
        """The row of the table that holds `bias`, written there when it is new."""
        row = next((row for row, held in self._rows.items() if held is bias), None)
        if row is None:
            size = self._table.shape[0]
            row = len(self._rows) if len(self._rows) < size else next(iter(self._rows))
            part = self._table.part(row * bias.nbytes, bias.shape)
            self._placement.write(part, bias)
        self._rows.pop(row, None)
        self._rows[row] = bias  # the dictionary's order is the order of use
        return row

    def _write_feed(self, tokens: Sequence[int], row: int) -> None:
        """tokens (1, S), positions (1, S), bias_row (1,), last_index (1,) in one write; one S, one place each."""
        count, total = len(tokens), self._filled + len(tokens)
        longs = np.array([*tokens, *range(self._filled, total), row], np.int64)
        packed = np.concatenate([longs.view(np.uint8), np.array([total - 1], np.int32).view(np.uint8)])
        if count != self._bound_count:
            for index, name in enumerate(("tokens", "positions")):
                self._feed.part(8 * index * count, (1, count), np.dtype(np.int64)).bind_input(self._binding, name)
            self._feed.part(16 * count, (1,), np.dtype(np.int64)).bind_input(self._binding, "bias_row")
            self._feed.part(16 * count + 8, (1,), np.dtype(np.int32)).bind_input(self._binding, "last_index")
            self._bound_count = count
        self._placement.write(self._feed.part(0, packed.shape), packed)

    def _write_boosts(self, boosts: Mapping[int, float]) -> None:
        places = self._boosts.shape[0] // 12
        ids, values = np.zeros(places, np.int64), np.zeros(places, np.float32)
        ids[: len(boosts)], values[: len(boosts)] = list(boosts), list(boosts.values())
        self._placement.write(self._boosts, np.concatenate([ids.view(np.uint8), values.view(np.uint8)]))
        self._boosted = dict(boosts)

    def _read_step(self) -> Step:
        raw = self._placement.read(self._result)
        out = {}
        for name, part in self._results.items():
            offset = part.address - self._result.address
            out[name] = raw[offset : offset + part.size_bytes].view(part.dtype).reshape(part.shape)
        return Step(
            out["ids"][0], out["values"][0], float(out["log_sum_exp"][0, 0]), float(out["no_speech_logit"][0, 0])
        )
