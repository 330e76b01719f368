"""The peer of the turn benchmark: faster-whisper, llama.cpp and piper-tts, one after the other.

Same weights, same threads, same tools, same replies. It waits for half a second of silence (a common setting of such
programs), then runs one stage after the other: transcribe, one JSON tool call under llama.cpp's own grammar, execute,
speak. A question that needs no tool is answered by a second, streamed completion whose first sentence is spoken at
once. Each engine is in a process of its own and takes its own time, so what passes between them costs nothing here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.llama import LlamaAssistant
from benchmarks.peers.piper import PiperTts
from benchmarks.peers.process import Peer, PeerFailed, PeerProcess
from benchmarks.peers.whisper import FasterWhisper

END_SILENCE_MS = 500.0


@dataclass(frozen=True, slots=True)
class PeerTurn:
    """One turn of the peer; all times in ms. `first_audio_ms` counts from the last sample of speech."""

    transcript: str
    language: str
    call: dict[str, Any]
    reply: str
    asr_ms: float
    llm_ms: float
    tts_ms: float

    @property
    def compute_ms(self) -> float:
        return self.asr_ms + self.llm_ms + self.tts_ms

    @property
    def first_audio_ms(self) -> float:
        return END_SILENCE_MS + self.compute_ms


class SequentialPeer:
    """Three engines in a row.

    `act(call, language)` does the call on this process's car and words the reply; `mandarin` speaks Chinese, which
    piper-tts cannot. The first turn loads the engines. failure: why there will be no more turns.
    """

    def __init__(
        self,
        whisper: PeerProcess,
        llama: PeerProcess,
        piper: PeerProcess,
        mandarin: Callable[[str], Iterator[Any]],
        act: Callable[[dict[str, Any], str], str],
    ) -> None:
        self._whisper = whisper
        self._llama = llama
        self._piper = piper
        self._mandarin = mandarin
        self._act = act
        self.failure: str | None = None

    @classmethod
    def of_files(
        cls,
        *,
        whisper: Path,
        gguf: Path,
        piper: tuple[Path, Path],
        tools: dict[str, dict[str, Any]],
        mandarin: Callable[[str], Iterator[Any]],
        act: Callable[[dict[str, Any], str], str],
        threads: int = 2,
    ) -> SequentialPeer:
        """whisper: folder of the sources; piper: model and config; tools: name -> JSON Schema. Starts nothing."""
        return cls(
            PeerProcess(Peer.FASTER_WHISPER, FasterWhisper, whisper, threads),
            PeerProcess(Peer.LLAMA_CPP, LlamaAssistant, gguf, threads, tools),
            PeerProcess(Peer.PIPER_TTS, PiperTts, *piper),
            mandarin,
            act,
        )

    def close(self) -> None:
        """End the processes. May be called twice."""
        for engine in (self._whisper, self._llama, self._piper):
            engine.close()

    def turn(self, samples: NDArray[np.float32]) -> PeerTurn | None:
        """samples: float32 (n,) at 16 kHz, the speech of one command with its trailing half second. None: it failed."""
        if self.failure is not None:
            return None
        try:
            text, heard, asr_ms = self._whisper.call("transcribe", samples)
            language = "zh" if heard in ("zh", "yue") else "en"
            call, llm_ms = self._llama.call("choose", text)
            if call["name"] == "chat":
                reply, took_ms = self._llama.call("chat", text)
            else:
                start_s = time.perf_counter()
                reply = self._act(call, language)
                took_ms = (time.perf_counter() - start_s) * 1e3
            tts_ms = self._first_sound_ms(reply, language)
        except PeerFailed as error:
            self.failure = str(error)
            self.close()
            return None
        return PeerTurn(text, language, call, reply, asr_ms, llm_ms + took_ms, tts_ms)

    def _first_sound_ms(self, reply: str, language: str) -> float:
        if language == "en":
            return float(self._piper.call("measure", reply, False)[0])
        start_s = time.perf_counter()
        next(iter(self._mandarin(reply)), None)
        return (time.perf_counter() - start_s) * 1e3
