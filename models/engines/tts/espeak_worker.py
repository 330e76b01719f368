"""The child process that holds libespeak-ng (GPL-3.0-or-later): the library never enters Cockpit's own process.

Run by path with `python -I -S espeak_worker.py LIBRARY DATA_DIR`; needs nothing but the standard library. It reads
requests from stdin and answers on stdout, both length-prefixed:

    request  <BHHI operation (1 phonemes, 2 speech), words per minute (speech only), byte lengths of the voice name and
                   of the text; then both, UTF-8
    answer   <BI   kind, byte length of the payload; then the payload. Kinds: 1 phonemes (UTF-8, line by line),
             2 audio (int16 little-endian mono), 3 end of this answer (payload: sample rate, <I), 4 error (UTF-8)

It ends when stdin closes, which happens when the parent ends in whatever way, even in the middle of an answer.
"""

from __future__ import annotations

import ctypes
import os
import queue
import struct
import sys
import threading
from typing import BinaryIO

REQUEST = struct.Struct("<BHHI")
ANSWER = struct.Struct("<BI")
OP_PHONEMES, OP_SPEECH = 1, 2
KIND_PHONEMES, KIND_AUDIO, KIND_END, KIND_ERROR = 1, 2, 3, 4

_OUTPUT_SYNCHRONOUS = 2
_OPTION_DONT_EXIT = 0x8000
_PARAMETER_RATE = 1
_CHARS_UTF8 = 1
_PHONEMES_IPA = 0x02
_BUFFER_MS = 100

_SynthCallback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


class Espeak:
    """libespeak-ng through its C interface (speak_lib.h). One per process: the library keeps global state."""

    def __init__(self, library: ctypes.CDLL, sample_rate_hz: int) -> None:
        self._library = library
        self.sample_rate_hz = sample_rate_hz
        self._voice = b""

    @classmethod
    def load(cls, library_path: str, data_dir: str) -> Espeak:
        """Load and initialise. `data_dir` holds `espeak-ng-data`; empty means the library's own default."""
        library = ctypes.CDLL(library_path)
        library.espeak_TextToPhonemes.restype = ctypes.c_char_p
        library.espeak_TextToPhonemes.argtypes = [ctypes.POINTER(ctypes.c_char_p), ctypes.c_int, ctypes.c_int]
        rate = library.espeak_Initialize(
            _OUTPUT_SYNCHRONOUS, _BUFFER_MS, os.fsencode(data_dir) if data_dir else None, _OPTION_DONT_EXIT
        )
        if rate <= 0:
            raise RuntimeError(f"espeak_Initialize failed with {rate} for {library_path} and data in {data_dir!r}")
        return cls(library, rate)

    def set_voice(self, voice: bytes) -> None:
        """Choose a voice such as b"en-us" or b"cmn"."""
        if voice == self._voice:
            return
        if self._library.espeak_SetVoiceByName(voice) != 0:
            raise RuntimeError(f"espeak-ng has no voice {voice.decode()!r}: build its model with that language")
        self._voice = voice

    def phonemes(self, text: bytes) -> bytes:
        """IPA of every line of `text`, line by line."""
        return b"\n".join(self._line(line) for line in text.split(b"\n"))

    def _line(self, line: bytes) -> bytes:
        position = ctypes.c_char_p(line)
        parts = []
        while position.value:
            part = self._library.espeak_TextToPhonemes(ctypes.byref(position), _CHARS_UTF8, _PHONEMES_IPA)
            parts.append((part or b"").replace(b"\n", b" "))
        return b" ".join(part for part in parts if part)

    def speak(self, text: bytes, words_per_minute: int, out: BinaryIO) -> None:
        """Synthesise and write each buffer as it is made. words_per_minute: 80 to 450, the library's range."""

        def take(samples: ctypes._Pointer[ctypes.c_short], count: int, _events: int) -> int:
            if samples and count > 0:
                _answer(out, KIND_AUDIO, ctypes.string_at(samples, count * 2))
            return 0

        callback = _SynthCallback(take)
        self._library.espeak_SetSynthCallback(callback)
        if self._library.espeak_SetParameter(_PARAMETER_RATE, words_per_minute, 0) != 0:
            raise RuntimeError(f"espeak-ng takes no rate of {words_per_minute} words per minute")
        status = self._library.espeak_Synth(text, ctypes.c_size_t(len(text) + 1), 0, 1, 0, _CHARS_UTF8, None, None)
        if status != 0:
            raise RuntimeError(f"espeak_Synth failed with {status}")


def _answer(out: BinaryIO, kind: int, payload: bytes) -> None:
    out.write(ANSWER.pack(kind, len(payload)) + payload)
    out.flush()


def _read_requests(source: BinaryIO, requests: queue.Queue[tuple[int, int, bytes, bytes]]) -> None:
    """Reader thread: it sees the end of stdin even while the library is busy, and then ends the process at once."""
    while True:
        head = source.read(REQUEST.size)
        if len(head) < REQUEST.size:
            os._exit(0)
        operation, words_per_minute, voice_bytes, text_bytes = REQUEST.unpack(head)
        requests.put((operation, words_per_minute, source.read(voice_bytes), source.read(text_bytes)))


def main(library_path: str, data_dir: str) -> None:
    """Serve until stdin closes."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever the library prints must not end up between our messages
    espeak = Espeak.load(library_path, data_dir)
    requests: queue.Queue[tuple[int, int, bytes, bytes]] = queue.Queue()
    threading.Thread(target=_read_requests, args=(sys.stdin.buffer, requests), daemon=True).start()
    while True:
        operation, words_per_minute, voice, text = requests.get()
        try:
            espeak.set_voice(voice)
            if operation == OP_PHONEMES:
                _answer(out, KIND_PHONEMES, espeak.phonemes(text))
            else:
                espeak.speak(text, words_per_minute, out)
        except RuntimeError as error:
            _answer(out, KIND_ERROR, str(error).encode())
        else:
            _answer(out, KIND_END, struct.pack("<I", espeak.sample_rate_hz))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
