"""The peer of the turn benchmark: faster-whisper, llama.cpp and piper-tts, glued in the obvious way.

Same weights, same threads, same tools, same replies. The glue waits for half a second of silence (a common setting of
such programs), then runs one stage after the other: transcribe, one JSON tool call under llama.cpp's own grammar (its
prompt prefix cached, as llama.cpp does by itself), execute, speak. A question that needs no tool is answered by a
second, streamed completion whose first sentence is spoken at once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

END_SILENCE_MS = 500.0
SENTENCE_ENDS = ".!?。！？"


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


class GluedPeer:
    """Three peers in a row. `tools`: name -> JSON Schema; `act(call, language)` does the call and words the reply."""

    def __init__(
        self,
        whisper: Any,
        llama: Any,
        voices: dict[str, Callable[[str], Iterator[Any]]],
        tools: dict[str, dict[str, Any]],
        act: Callable[[dict[str, Any], str], str],
    ) -> None:
        self._whisper = whisper
        self._llama = llama
        self._voices = voices
        self._act = act
        self._system = (
            "You are the voice assistant of a car. Choose exactly one tool for what the driver says and answer "
            'with one JSON object {"name": ..., "arguments": {...}}. Use the tool "chat" when no other fits.\nTools:\n'
            + "\n".join(json.dumps({"name": n, "parameters": s}, ensure_ascii=False) for n, s in tools.items())
            + '\n{"name": "chat", "parameters": {}}'
        )
        self._typed = {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {"name": {"const": name}, "arguments": schema},
                    "required": ["name", "arguments"],
                    "additionalProperties": False,
                }
                for name, schema in [*tools.items(), ("chat", {"type": "object", "additionalProperties": False})]
            ]
        }

    @classmethod
    def load(
        cls,
        *,
        whisper_dir: Path,
        gguf: Path,
        piper_onnx: Path,
        piper_json: Path,
        mandarin: Callable[[str], Iterator[Any]],
        tools: dict[str, dict[str, Any]],
        act: Callable[[dict[str, Any], str], str],
        threads: int = 2,
    ) -> GluedPeer:
        """Raises SystemExit naming the extra when a peer is not installed."""
        try:
            from faster_whisper import WhisperModel
            from llama_cpp import Llama
            from piper import PiperVoice
        except ImportError as error:
            raise SystemExit(f"{error.name} is not installed; run: pip install -e '.[bench]'") from error
        voice = PiperVoice.load(str(piper_onnx), str(piper_json))
        return cls(
            WhisperModel(str(whisper_dir), device="cpu", compute_type="int8", cpu_threads=threads),
            Llama(model_path=str(gguf), n_threads=threads, n_threads_batch=threads, n_ctx=4096, verbose=False),
            {"en": voice.synthesize, "zh": mandarin},
            tools,
            act,
        )

    def turn(self, samples: NDArray[np.float32]) -> PeerTurn:
        """samples: float32 (n,) at 16 kHz, the speech of one command with its trailing half second."""
        start = time.perf_counter()
        segments, info = self._whisper.transcribe(samples, beam_size=1)
        text = "".join(segment.text for segment in segments).strip()
        language = "zh" if info.language in ("zh", "yue") else "en"
        heard = time.perf_counter()
        call = self._choose(text)
        reply = self._chat(text) if call["name"] == "chat" else self._act(call, language)
        decided = time.perf_counter()
        next(iter(self._voices[language](reply)), None)
        spoken = time.perf_counter()
        return PeerTurn(
            text, language, call, reply, (heard - start) * 1e3, (decided - heard) * 1e3, (spoken - decided) * 1e3
        )

    def _choose(self, text: str) -> dict[str, Any]:
        answer = self._llama.create_chat_completion(
            [{"role": "system", "content": self._system}, {"role": "user", "content": text}],
            response_format={"type": "json_object", "schema": self._typed},
            temperature=0.0,
            max_tokens=96,
        )
        try:
            call: dict[str, Any] = json.loads(answer["choices"][0]["message"]["content"])
        except json.JSONDecodeError:
            return {"name": "chat", "arguments": {}}
        return call

    def _chat(self, text: str) -> str:
        """The first sentence of a free answer, streamed."""
        said = ""
        for piece in self._llama.create_chat_completion(
            [
                {"role": "system", "content": "You are the voice assistant of a car. Answer in one short sentence."},
                {"role": "user", "content": text},
            ],
            temperature=0.0,
            max_tokens=48,
            stream=True,
        ):
            said += piece["choices"][0]["delta"].get("content", "")
            if said and said[-1] in SENTENCE_ENDS:
                break
        return said
