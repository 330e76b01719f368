"""Stands in for the sounddevice package in a child process: a microphone that plays FAKE_MIC (a WAV at 16 kHz, int16)
once and then silence, and a speaker that takes everything at its own pace. Found before the real one by PYTHONPATH.

FAKE_AUDIO names a folder through which a test acts while the child runs: a `NAME.wav` that appears there is what the
microphone hears next, and is gone once it is heard; while `no-input` or `no-output` is there, that device is not:
streams stop delivering, and none can be opened. `name` holds what the devices are called, read when PortAudio begins.

FAKE_ECHO is the loudness at which the microphone hears what the speaker plays, through `hil.cabin`; unset: not at all.
"""

from __future__ import annotations

import os
import threading
import time
import wave
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RATE_HZ = 16_000
BLOCK = 160
_FOLDER = Path(os.environ.get("FAKE_AUDIO", "/nonexistent"))


class PortAudioError(Exception):
    """As sounddevice names it."""


def _absent(kind: str) -> bool:
    return (_FOLDER / f"no-{kind}").exists()


def _name() -> str:
    file = _FOLDER / "name"
    return file.read_text().strip() if file.exists() else "fake"


class _PortAudio:
    """What it knows of the devices since it began."""

    name = _name()
    streams = 0


def _terminate() -> None:
    if _PortAudio.streams:
        raise AssertionError("PortAudio ends while streams are open")


def _initialize() -> None:
    _PortAudio.name = _name()


def query_devices(device: Any = None, kind: str | None = None) -> Any:
    known = {
        "name": _PortAudio.name, "default_samplerate": float(RATE_HZ), "max_input_channels": 1,
        "max_output_channels": 1, "default_low_output_latency": 0.0,
    }  # fmt: skip
    if kind is None:
        return [] if _absent("input") and _absent("output") else [known]
    if _absent(kind) or device not in (None, _PortAudio.name):
        raise PortAudioError(f"Error querying device {device}")
    return known


class _Status:
    input_overflow = False


class _Air:
    """Between speaker and microphone: what is on its way, by the time at which it arrives."""

    def __init__(self, gain: float) -> None:
        from hil.cabin import EchoPath

        path = EchoPath()
        self._gain = gain
        self._response = path.apply(np.eye(1, 1, dtype=np.float32)[0] * 1e-3) * 1e3  # of the delay and the cabin
        self._samples = np.zeros(10 * RATE_HZ, np.float32)
        self._lock = threading.Lock()
        self._epoch_s = time.monotonic()

    def now(self) -> int:
        """A position, in samples."""
        return round((time.monotonic() - self._epoch_s) * RATE_HZ)

    def play(self, block: NDArray[np.float32], position: int) -> None:
        if block.any():
            with self._lock:
                arriving = self._gain * np.convolve(block, self._response)
                self._samples[(position + np.arange(len(arriving))) % len(self._samples)] += arriving

    def heard(self, position: int, count: int) -> NDArray[np.float32]:
        with self._lock:
            places = (position + np.arange(count)) % len(self._samples)
            part: NDArray[np.float32] = self._samples[places]
            self._samples[places] = 0.0
        return part


_AIR = _Air(float(os.environ["FAKE_ECHO"])) if os.environ.get("FAKE_ECHO") else None


class _Stream:
    kind = ""

    def __init__(self, **settings: Any) -> None:
        if _absent(self.kind) or settings["device"] not in (None, _name()):
            raise PortAudioError("Device unavailable [PaErrorCode -9985]")
        self._callback = settings["callback"]
        self._ended = threading.Event()
        self._position = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        _PortAudio.streams += 1

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        _PortAudio.streams -= 1

    def __enter__(self) -> _Stream:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        begin_s, blocks = time.monotonic(), 0
        self._position = 0 if _AIR is None else _AIR.now()
        while not self._ended.is_set():
            blocks += 1
            late_s = time.monotonic() - (begin_s + blocks * BLOCK / RATE_HZ)
            if late_s > 0.2:  # what a device loses while its process is stopped
                begin_s += late_s
                self._position += round(late_s * RATE_HZ)
            self._ended.wait(max(0.0, -late_s))
            self._position += BLOCK
            if not _absent(self.kind):
                self._block()

    def _block(self) -> None:
        raise NotImplementedError


def _samples(path: str | Path) -> NDArray[np.float32]:
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768.0


class InputStream(_Stream):
    kind = "input"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        path = os.environ.get("FAKE_MIC")
        self._samples = np.zeros(0, np.float32) if not path else _samples(path)
        self._taken = 0
        self._heard: Path | None = None
        self._blocks = 0

    def _block(self) -> None:
        self._blocks += 1
        if self._taken >= len(self._samples) and self._blocks % 10 == 0:
            self._next_file()
        block = np.zeros((BLOCK, 1), np.float32)
        part = self._samples[self._taken : self._taken + BLOCK]
        block[: len(part), 0] = part
        self._taken += BLOCK
        if _AIR is not None:
            block[:, 0] = np.clip(block[:, 0] + _AIR.heard(self._position - BLOCK, BLOCK), -1.0, 1.0)
        self._callback(block, BLOCK, None, _Status)

    def _next_file(self) -> None:
        if self._heard is not None:
            self._heard.unlink(missing_ok=True)
            self._heard = None
        for path in sorted(_FOLDER.glob("*.wav")):
            self._samples, self._taken, self._heard = _samples(path), 0, path
            return


class OutputStream(_Stream):
    kind = "output"

    def _block(self) -> None:
        block = np.zeros((BLOCK, 1), np.float32)
        self._callback(block, BLOCK, None, None)
        if _AIR is not None:
            _AIR.play(block[:, 0], self._position)
