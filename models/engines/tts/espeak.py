"""espeak-ng in a child process: phonemes for Piper voices, and a formant voice for any language (Mandarin by default).

espeak-ng is GPL-3.0-or-later, so it is only ever loaded by `espeak_worker.py`, a separate program spoken to over pipes.
"""

from __future__ import annotations

import ctypes.util
import os
import re
import select
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from models.engines.base import Audio
from models.engines.tts import espeak_worker as wire
from models.errors import CockpitError, ModelMissing, fetch_command

MODEL = "espeak-ng"
SAMPLE_RATE_HZ = 22_050
WORDS_PER_MINUTE = 175
"""espeak-ng's own rate."""
_LIBRARY_NAME = "libespeak-ng.so.1"
_DATA_NAME = "espeak-ng-data"
_BREAK = re.compile(r"([,.;:!?，。；：！？、…]+)(?=\s|$|[^\x00-\x7f])")
_BREAK_ASCII = str.maketrans("，。；：！？、…", ",.;:!?,.")
_LANGUAGE_SWITCH = re.compile(r"\([a-z]{2,3}(?:-[a-z]+)*\)")


class SpeechFailed(CockpitError):
    """The speech worker died or did not answer. The next request starts a fresh one."""


class Phonemizer(Protocol):
    """Text to IPA."""

    def phonemes(self, text: str, voice: str) -> str:
        """IPA of `text` with its clause punctuation (`,.;:!?`) kept; empty when there is nothing to say."""
        ...


class EspeakWorker:
    """A long-lived espeak-ng child. Started by the first request, replaced if it died. Not thread-safe.

    `starts` counts the processes started so far: one above the number of crashes survived.
    """

    def __init__(self, library: str, data_dir: str, timeout_s: float = 5.0) -> None:
        self._library = library
        self._data_dir = data_dir
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[..., EspeakWorker] | None = None
        self.starts = 0

    @classmethod
    def load(cls, model_dir: Path | None = None, *, timeout_s: float = 5.0) -> EspeakWorker:
        """Use the library in `model_dir`, or the system's where `model_dir` is None. Raises ModelMissing."""
        if model_dir is not None:
            if not (model_dir / _LIBRARY_NAME).is_file() or not (model_dir / _DATA_NAME).is_dir():
                raise ModelMissing(f"no espeak-ng in {model_dir}; run: {fetch_command(MODEL)}")
            return cls(str(model_dir / _LIBRARY_NAME), str(model_dir), timeout_s)
        if ctypes.util.find_library("espeak-ng") is None:
            raise ModelMissing(f"no espeak-ng here; install libespeak-ng1, or run: {fetch_command(MODEL)}")
        return cls(_LIBRARY_NAME, "", timeout_s)

    @property
    def pid(self) -> int | None:
        """Process id of the child, None while none runs."""
        return None if self._process is None else self._process.pid

    def phonemes(self, text: str, voice: str) -> str:
        """IPA of `text` with its clause punctuation kept. Raises SpeechFailed.

        The text is cut at punctuation here, not by the library, so that the breaks do not depend on its version.
        """
        pieces = _BREAK.split(text.replace("\n", " "))
        answer = b"".join(self._request(wire.OP_PHONEMES, voice, "\n".join(pieces[::2])))
        result = ""
        for spoken, mark in zip(answer.decode().split("\n"), [*pieces[1::2], ""], strict=True):
            ipa = _LANGUAGE_SWITCH.sub("", spoken).strip()
            if not ipa:
                continue
            sign = mark.translate(_BREAK_ASCII)[-1:]
            result += f"{' ' if result else ''}{ipa}{sign}"
        return result

    def speech(self, text: str, voice: str, speed: float = 1.0) -> Iterator[Audio]:
        """Float32 chunks at 22.05 kHz, about 100 ms each. speed: 0.5 to 2, of the voice's own. Raises SpeechFailed.

        The whole answer is read first (1.5 ms per second of speech), so a caller may stop at any chunk.
        """
        for pcm in list(self._request(wire.OP_SPEECH, voice, text, round(WORDS_PER_MINUTE * speed))):
            yield np.frombuffer(pcm, dtype="<i2").astype(np.float32) / 32768.0

    def close(self) -> None:
        """End the child and wait for it. The next request starts another."""
        if self._finalizer is not None:
            self._finalizer()
        self._process = self._finalizer = None

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        command = [sys.executable, "-I", "-S", wire.__file__, self._library, self._data_dir]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            process_group=0,  # a terminal's Ctrl-C is for Cockpit, which then ends its child
        )
        self._finalizer = weakref.finalize(self, _stop, self._process)
        self.starts += 1
        return self._process

    def _request(self, operation: int, voice: str, text: str, words_per_minute: int = 0) -> Iterator[bytes]:
        """Payloads of one answer. An answer left half read ends the child: its pipe would hold the rest."""
        process = self._start()
        complete = False
        try:
            voice_utf8, text_utf8 = voice.encode(), text.replace("\0", " ").encode()
            assert process.stdin is not None
            head = wire.REQUEST.pack(operation, words_per_minute, len(voice_utf8), len(text_utf8))
            process.stdin.write(head + voice_utf8 + text_utf8)
            deadline = time.monotonic() + self._timeout_s
            while True:
                kind, payload = self._read_message(process, deadline)
                if kind == wire.KIND_END:
                    complete = struct.unpack("<I", payload)[0] == SAMPLE_RATE_HZ
                    if not complete:
                        raise SpeechFailed(f"espeak-ng does not speak at 22.05 kHz; run: {fetch_command(MODEL)}")
                    return
                if kind == wire.KIND_ERROR:
                    complete = True
                    raise SpeechFailed(payload.decode())
                yield payload
        except BrokenPipeError as error:
            raise SpeechFailed("the espeak-ng worker died; the next request starts it again") from error
        finally:
            if not complete:
                self.close()

    def _read_message(self, process: subprocess.Popen[bytes], deadline: float) -> tuple[int, bytes]:
        kind, length = wire.ANSWER.unpack(self._read(process, wire.ANSWER.size, deadline))
        return kind, self._read(process, length, deadline)

    def _read(self, process: subprocess.Popen[bytes], count: int, deadline: float) -> bytes:
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        data = b""
        while len(data) < count:
            if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise SpeechFailed(f"the espeak-ng worker did not answer within {self._timeout_s:g} s and was ended")
            part = os.read(descriptor, count - len(data))
            if not part:
                raise SpeechFailed("the espeak-ng worker died; the next request starts it again")
            data += part
        return data


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.wait()


class EspeakVoice:
    """espeak-ng's own formant synthesis as a Voice."""

    sample_rate_hz = SAMPLE_RATE_HZ

    def __init__(self, worker: EspeakWorker, voice: str, speed: float = 1.0) -> None:
        """speed: speaking rate, 0.5 to 2; 1 is the voice's own."""
        self._worker = worker
        self._voice = voice
        self._speed = speed

    @classmethod
    def load(cls, model_dir: Path | None = None, *, voice: str = "cmn") -> EspeakVoice:
        """A voice with a worker of its own. `voice`: an espeak-ng voice name. Raises ModelMissing."""
        return cls(EspeakWorker.load(model_dir), voice)

    def synthesise(self, text: str) -> Iterator[Audio]:
        """Float32 chunks of about 100 ms. Raises SpeechFailed."""
        if any(character.isalnum() for character in text):
            yield from self._worker.speech(text, self._voice, self._speed)

    def warm_up(self) -> None:
        """Start the worker and load the language."""
        for _ in self.synthesise("好" if self._voice == "cmn" else "a"):
            pass

    def close(self) -> None:
        """End the worker."""
        self._worker.close()
