"""Reading CTranslate2 files, quantising, and the log-mel against a plain definition."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from models.build.ct2 import read_ct2
from models.build.whisper_graph import quantise_blocks
from models.engines.whisper.logmel import HOP_SAMPLES, WINDOW_SAMPLES, log_mel, mel_filters
from models.errors import InputError


def _text(value: str) -> bytes:
    raw = value.encode() + b"\0"
    return struct.pack("<H", len(raw)) + raw


def _file(tmp_path: Path, version: int = 6, alias_of: str = "a/weight") -> Path:
    weight = np.arange(6, dtype="<f2").reshape(2, 3)
    raw = struct.pack("<I", version) + _text("WhisperSpec") + struct.pack("<II", 3, 2)
    raw += _text("a/weight") + struct.pack("<BIIBI", 2, 2, 3, 4, weight.nbytes) + weight.tobytes()
    raw += _text("a/heads") + struct.pack("<BBI", 0, 2, 2) + struct.pack("<h", 8)
    raw += struct.pack("<I", 1) + _text("b/weight") + _text(alias_of)
    path = tmp_path / "model.bin"
    path.write_bytes(raw)
    return path


def test_ct2_names_shapes_and_aliases(tmp_path: Path) -> None:
    model = read_ct2(_file(tmp_path))
    assert (model.spec, model.revision) == ("WhisperSpec", 3)
    assert model.variables["a/weight"].shape == (2, 3)
    assert model.f32("b/weight").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert int(model.variables["a/heads"]) == 8
    with pytest.raises(InputError, match="no variable 'c/weight'"):
        model.f32("c/weight")


def test_ct2_truncated_anywhere_is_refused(tmp_path: Path) -> None:
    path = _file(tmp_path)
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"cut short|empty"):
            read_ct2(path)


def test_ct2_other_version_and_dangling_alias_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="binary version 6"):
        read_ct2(_file(tmp_path, version=5))
    with pytest.raises(InputError, match="alias"):
        read_ct2(_file(tmp_path, alias_of="nowhere"))


def test_quantised_blocks_come_back_within_half_a_step() -> None:
    weight = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    weight[3, 32:] = 0.0
    codes, scales = quantise_blocks(weight, 32)
    restored = (codes.astype(np.float32) - 128.0) * scales.reshape(5, 2, 1)
    assert np.all(np.abs(restored.reshape(5, 64) - weight).reshape(5, 2, 32) <= scales.reshape(5, 2, 1) * 0.5001)
    with pytest.raises(InputError, match="blocks of 32"):
        quantise_blocks(weight[:, :40], 32)


def test_mel_filters_have_unit_area_and_cover_the_band() -> None:
    filters = mel_filters()
    assert filters.shape == (WINDOW_SAMPLES // 2 + 1, 80)
    assert np.all(filters.max(axis=0) > 0)
    assert filters.sum(axis=0)[40:].mean() * 40.0 == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("size", [0, 1, 159, 160, 161, 399, 401, 16_000, 40_000])
def test_log_mel_equals_the_plain_definition(size: int) -> None:
    samples = np.random.default_rng(size).standard_normal(size).astype(np.float32) * 0.1
    frames = 200
    signal = np.zeros(frames * HOP_SAMPLES)
    signal[: min(size, signal.size)] = samples[: signal.size]
    padded = np.pad(signal, WINDOW_SAMPLES // 2, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW_SAMPLES) / WINDOW_SAMPLES)
    power = np.stack(
        [np.abs(np.fft.rfft(padded[i * HOP_SAMPLES :][:WINDOW_SAMPLES] * window)) ** 2 for i in range(frames)]
    )
    log = np.log10(np.maximum(power @ mel_filters().astype(np.float64), 1e-10))
    expected = (np.maximum(log, log.max() - 8.0) + 4.0) / 4.0
    np.testing.assert_allclose(log_mel(samples, frames)[0].T, expected, atol=2e-3)
