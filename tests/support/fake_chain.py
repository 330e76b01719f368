"""The chain with real stage cores and scripted engines: a whole turn in a few milliseconds, and faults on demand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from cockpit.runtime import NullSink, Parts, Sink
from models.engines.base import Audio, Hypothesis, never_cancelled
from pipeline.asr import AsrStage
from pipeline.dialogue.manager import DialogueManager
from pipeline.endpointing.endpointer import EndpointConfig, Endpointer
from pipeline.frames import AudioFrame, SpeechFrame
from pipeline.trace import NullTracer, Tracer
from pipeline.tts.stage import TtsStage
from pipeline.turns import Generations, TurnIds
from tests.support.audio_frames import frames
from tests.support.fake_vad import LoudnessVad, OpenGate

MS = 16


UNCLEAR = "<unclear>"
"""What a script says for speech whose words nobody can tell."""


class ScriptedEar:
    """Hears `text(samples)`, whatever the sound."""

    def __init__(self, text: Callable[[Audio], str]) -> None:
        self.text = text

    def transcribe(
        self,
        samples: Audio,
        *,
        languages: Sequence[str],
        hotwords: Sequence[str] = (),
        cancelled: Callable[[], bool] = never_cancelled,
    ) -> Hypothesis:
        text = self.text(samples)
        if text == UNCLEAR:
            return Hypothesis("", "en", -2.0, 0.2, unclear=True)
        return Hypothesis(text, "zh" if any(sign > "\u4e00" for sign in text) else "en", -0.1, 0.0)

    def warm_up(self) -> None: ...


class Voice:
    """`seconds` of sound per clause."""

    sample_rate_hz = 16_000

    def __init__(self, seconds: float = 0.1) -> None:
        self.seconds = seconds

    def synthesise(self, text: str) -> Iterator[Audio]:
        yield np.full(round(self.seconds * self.sample_rate_hz), 0.25, np.float32)

    def warm_up(self) -> None: ...


class RecordingSink(NullSink):
    """Keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[SpeechFrame] = []

    def play(self, frame: SpeechFrame) -> int:
        self.frames.append(frame)
        return super().play(frame)

    def said(self, turn_id: int) -> str:
        return " ".join(dict.fromkeys(frame.text for frame in self.frames if frame.turn_id == turn_id and frame.text))


def fake_parts(
    sink: Sink,
    text: Callable[[Audio], str] = lambda samples: "Turn on the rear defroster.",
    *,
    tracer: Tracer | None = None,
    reply_s: float = 0.1,
) -> Parts:
    """Parts whose VAD is loudness, whose recogniser hears `text`, and which have no language model."""
    generations, turn_ids = Generations(), TurnIds()
    tts = TtsStage({"en": Voice(reply_s), "zh": Voice(reply_s)})
    tts.warm_up()
    return Parts(
        Endpointer(EndpointConfig(), OpenGate(), LoudnessVad(), generations, turn_ids),  # type: ignore[arg-type]
        AsrStage(ScriptedEar(text), languages=("en", "zh"), generations=generations),
        DialogueManager.create(by_sound=False),
        tts,
        sink,
        generations,
        tracer or NullTracer(),
    )


def sound(*parts_ms: int) -> Audio:
    """Silence, speech, silence, ... of these lengths, at 16 kHz."""
    random = np.random.default_rng(7)
    loudness = (0.001, 0.8)
    pieces = [random.uniform(-1, 1, length * MS) * loudness[number % 2] for number, length in enumerate(parts_ms)]
    return np.concatenate(pieces).astype(np.float32)


def utterance() -> Iterator[AudioFrame]:
    """One spoken sentence of 0.8 s as a stream of its own."""
    return frames(sound(300, 800, 900), start_ns=time.monotonic_ns() - 2_000_000_000)
