"""WAV files of any rate, width and channel count as 16 kHz mono, and WAV files out, whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from models.errors import InputError
from pipeline.audio.open_ended import mended
from pipeline.frames import SAMPLE_RATE_HZ

Audio = NDArray[np.float32]

WAV_FORMATS = {"WAV", "WAVEX", "RF64", "W64"}
_BLOCK_FRAMES = 4096
_LOWEST_HZ, _HIGHEST_HZ = 4_000, 768_000
_NEAR = 0.1
"""Channels with at least this share of the loudest one's energy (-10 dB) are heard; the others hold no voice."""
_CONVERT = "convert it: ffmpeg -i IN -ar 16000 -ac 1 OUT.wav"


def open_wav(path: Path) -> soundfile.SoundFile:
    """Open a WAV for reading; its header is parsed by libsndfile and never reaches the samples.

    Raises InputError naming the file and the remedy: missing, a folder, a pipe, unreadable, empty, no WAV, a header cut
    short, a rate that no recorder has.
    """
    copy = None
    try:
        size_bytes = path.stat().st_size
        if path.is_dir():
            raise InputError(f"{path} is a folder; name a WAV file in it")
        if not path.is_file():
            raise InputError(f"{path} is a pipe or a device, not a file; save it as a WAV first")
        copy = mended(path)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file; check the path") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); check its permissions, and the disk") from error
    if size_bytes == 0:
        raise InputError(f"{path} is empty (0 bytes); record or copy it again")
    try:
        file = soundfile.SoundFile(path if copy is None else copy, closefd=True)
    except soundfile.LibsndfileError as error:
        reason = error.error_string.rstrip(".")
        raise InputError(f"{path} is no WAV file, or its header is cut short ({reason}); {_CONVERT}") from error
    if file.format not in WAV_FORMATS:
        name = file.format
        file.close()
        raise InputError(f"{path} is {name}, not WAV; {_CONVERT}")
    if not _LOWEST_HZ <= file.samplerate <= _HIGHEST_HZ:
        rate_hz = file.samplerate
        file.close()
        raise InputError(
            f"{path} says {rate_hz} Hz, which no recorder has ({_LOWEST_HZ} to {_HIGHEST_HZ}); its header is damaged: "
            "ffmpeg -f s16le -ar RATE -ac 1 -i IN OUT.wav reads the samples at the rate that you know"
        )
    return file


def stream_wav(path: Path, rate_hz: int = SAMPLE_RATE_HZ) -> Iterator[Audio]:
    """Yield the file as float32 mono blocks (n,) in [-1, 1] at `rate_hz`, of any length, none empty.

    Channels that are nearly as loud as the loudest are averaged, one of opposite phase turned round; other rates go
    through soxr as a stream. A file cut short yields what is there. Raises InputError (see `open_wav`), also for
    samples that are no numbers.
    """
    with open_wav(path) as file:
        mix = _mix(file, path)
        resampler = None if file.samplerate == rate_hz else soxr.ResampleStream(file.samplerate, rate_hz, 1, "float32")
        while True:
            mono = _read_mono(file, path, mix)
            done = len(mono) == 0
            block = mono if resampler is None else resampler.resample_chunk(mono, last=done)
            if len(block):
                yield np.clip(block, -1.0, 1.0)
            if done:
                return


def read_wav(path: Path, rate_hz: int = SAMPLE_RATE_HZ) -> Audio:
    """The whole file as float32 (n,) mono at `rate_hz`; n may be 0. Raises InputError (see `open_wav`)."""
    blocks = list(stream_wav(path, rate_hz))
    return np.concatenate(blocks) if blocks else np.zeros(0, np.float32)


def write_wav(path: Path, samples: Audio, rate_hz: int) -> None:
    """Write float32 (n,) as 16-bit PCM. The file appears whole or not at all."""
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=".wav", dir=path.parent)
    os.close(handle)
    try:
        soundfile.write(name, np.clip(samples, -1.0, 1.0), rate_hz, subtype="PCM_16", format="WAV")
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _mix(file: soundfile.SoundFile, path: Path) -> Audio | None:
    """What each channel counts in the sum, float32 (channels,), found in one pass over the file; None for one alone."""
    if file.channels == 1:
        return None
    products = np.zeros((file.channels, file.channels))
    while len(block := _read(file, path)):
        wide = block.astype(np.float64)
        products += wide.T @ wide
    file.seek(0)
    energy = products.diagonal()
    loudest = int(energy.argmax())
    heard = energy >= _NEAR * energy[loudest]
    signs = np.where(products[loudest] < -0.5 * np.sqrt(energy * energy[loudest]), -1.0, 1.0)
    weights: Audio = (heard * signs / heard.sum()).astype(np.float32)
    return weights


def _read(file: soundfile.SoundFile, path: Path) -> Audio:
    """The next samples, float32 (n, channels); n is 0 at the end."""
    try:
        block: Audio = file.read(_BLOCK_FRAMES, dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise InputError(f"{path} cannot be decoded ({error.error_string.rstrip('.')}); {_CONVERT}") from error
    if not np.isfinite(block).all():
        raise InputError(f"{path} holds samples that are no numbers (NaN or infinite); export it again as 16-bit PCM")
    return block


def _read_mono(file: soundfile.SoundFile, path: Path, mix: Audio | None) -> Audio:
    block = _read(file, path)
    return np.ascontiguousarray(block[:, 0] if mix is None else block @ mix)
