"""Stands in for the sounddevice package in a child process: a microphone that plays FAKE_MIC (a WAV at 16 kHz, int16)
once and then silence, and a speaker that takes everything at its own pace. Found before the real one by PYTHONPATH.

FAKE_AUDIO names a folder through which a test acts while the child runs: a `NAME.wav` that appears there is what the
microphone hears next, and is gone once it is heard; while `no-input` or `no-output` is there, that device is not:
streams stop delivering, and none can be opened. `name` holds what the devices are called, read when PortAudio begins.
What the microphone was to hear meanwhile is gone, as in a car. While `frames-stop` is there, the microphone can be
opened and delivers nothing; while `xruns` is there, it loses every third block (and says so); `drift` holds by how many
ppm its clock is fast. `counters` is where it says what it withheld, lost and refused, and how far its clock is ahead.

FAKE_ECHO is the loudness at which the microphone hears what the speaker plays, through `hil.cabin`; unset: not at all.
"""

from __future__ import annotations

import json
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


class _Counters:
    """What the faults did, for who wants to know whether they were on. withheld, lost: blocks of the microphone;
    refused: streams that could not be opened; ahead_ns: of the microphone's clock.
    """

    def __init__(self) -> None:
        self._values = {"blocks": 0, "withheld": 0, "lost": 0, "refused": 0, "ahead_ns": 0}
        self._lock = threading.Lock()
        self._written_s = 0.0

    def add(self, name: str, by: int = 1) -> None:
        with self._lock:
            self._values[name] += by
            now_s = time.monotonic()
            if now_s - self._written_s > 0.1 and _FOLDER.is_dir():
                self._written_s = now_s
                part = _FOLDER / "counters.part"
                part.write_text(json.dumps(self._values))
                part.rename(_FOLDER / "counters")


_COUNTERS = _Counters()


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
        _COUNTERS.add("refused")
        raise PortAudioError(f"Error querying device {device}")
    return known


class _Status:
    def __init__(self, input_overflow: bool = False) -> None:
        self.input_overflow = input_overflow


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
        due_s = time.monotonic()
        self._position = 0 if _AIR is None else _AIR.now()
        while not self._ended.is_set():
            due_s += BLOCK / RATE_HZ - self._ahead_s()
            late_s = time.monotonic() - due_s
            if late_s > 0.2:  # what a device loses while its process is stopped
                due_s += late_s
                self._position += round(late_s * RATE_HZ)
            self._ended.wait(max(0.0, -late_s))
            self._position += BLOCK
            if _absent(self.kind):
                self._skip()
            else:
                self._block()

    def _ahead_s(self) -> float:
        """By how much the next block comes early."""
        return 0.0

    def _skip(self) -> None:
        """A block that is not delivered."""

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
        self._overflowed = False

    def close(self) -> None:
        super().close()
        if self._heard is not None:  # it was being said; nobody says it again
            self._heard.unlink(missing_ok=True)

    def _ahead_s(self) -> float:
        try:
            ppm = float((_FOLDER / "drift").read_text())
        except (OSError, ValueError):
            return 0.0
        ahead_s = BLOCK / RATE_HZ * ppm * 1e-6
        _COUNTERS.add("ahead_ns", round(ahead_s * 1e9))
        return ahead_s

    def _skip(self) -> None:
        self._taken += BLOCK
        _COUNTERS.add("withheld")

    def _block(self) -> None:
        self._blocks += 1
        _COUNTERS.add("blocks")
        if (_FOLDER / "frames-stop").exists():
            self._skip()
            return
        if self._blocks % 3 == 0 and (_FOLDER / "xruns").exists():
            self._taken += BLOCK
            self._overflowed = True
            _COUNTERS.add("lost")
            return
        if self._taken >= len(self._samples) and self._blocks % 10 == 0:
            self._next_file()
        block = np.zeros((BLOCK, 1), np.float32)
        part = self._samples[self._taken : self._taken + BLOCK]
        block[: len(part), 0] = part
        self._taken += BLOCK
        if _AIR is not None:
            block[:, 0] = np.clip(block[:, 0] + _AIR.heard(self._position - BLOCK, BLOCK), -1.0, 1.0)
        overflowed, self._overflowed = self._overflowed, False
        self._callback(block, BLOCK, None, _Status(overflowed))

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
