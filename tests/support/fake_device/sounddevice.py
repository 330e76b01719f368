"""Stands in for the sounddevice package in a child process: a microphone that plays FAKE_MIC (a WAV at 16 kHz, int16)
once and then silence, and a speaker that takes everything at its own pace. Found before the real one by PYTHONPATH."""

from __future__ import annotations

import os
import threading
import time
import wave
from typing import Any

import numpy as np

RATE_HZ = 16_000
BLOCK = 160


class PortAudioError(Exception):
    """As sounddevice names it."""


def query_devices(device: Any = None, kind: str | None = None) -> Any:
    known = {
        "name": "fake", "default_samplerate": float(RATE_HZ), "max_input_channels": 1, "max_output_channels": 1,
        "default_low_output_latency": 0.0,
    }  # fmt: skip
    return [known] if kind is None else known


class _Status:
    input_overflow = False


class _Stream:
    def __init__(self, **settings: Any) -> None:
        self._callback = settings["callback"]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def __enter__(self) -> _Stream:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        begin_s, blocks = time.monotonic(), 0
        while not self._ended.is_set():
            blocks += 1
            late_s = time.monotonic() - (begin_s + blocks * BLOCK / RATE_HZ)
            if late_s > 0.2:  # what a device loses while its process is stopped
                begin_s += late_s
            self._ended.wait(max(0.0, -late_s))
            self._block()

    def _block(self) -> None:
        raise NotImplementedError


class InputStream(_Stream):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        path = os.environ.get("FAKE_MIC")
        self._samples = np.zeros(0, np.float32)
        if path:
            with wave.open(path) as file:
                self._samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768.0
        self._taken = 0

    def _block(self) -> None:
        block = np.zeros((BLOCK, 1), np.float32)
        part = self._samples[self._taken : self._taken + BLOCK]
        block[: len(part), 0] = part
        self._taken += BLOCK
        self._callback(block, BLOCK, None, _Status)


class OutputStream(_Stream):
    def _block(self) -> None:
        self._callback(np.zeros((BLOCK, 1), np.float32), BLOCK, None, None)
