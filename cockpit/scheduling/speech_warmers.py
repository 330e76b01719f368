"""Warm-up requests of recognition and of a voice: short, real ones, that give way to the chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cockpit.scheduling.engine_turns import EngineTurns
from models.engines.base import SpeechRecognizer, Voice
from pipeline.frames import SAMPLE_RATE_HZ, Language
from pipeline.tts.normalise import spoken

_PROMPT: dict[Language, str] = {"en": "In 200 metres turn left.", "zh": "前方200米左转。"}


@dataclass(frozen=True, slots=True)
class SpeechWarmers:
    """languages: what the recogniser is asked for; the voice speaks the first of them. Whoever uses an engine already
    keeps it warm, so a request to it is left out.
    """

    recogniser: SpeechRecognizer
    voice: Voice
    languages: Sequence[Language]
    asr_turns: EngineTurns
    tts_turns: EngineTurns

    def hear(self) -> None:
        """Recognise half a second of faint noise."""
        noise = np.random.default_rng(0).normal(0.0, 0.01, SAMPLE_RATE_HZ // 2).astype(np.float32)
        with self.asr_turns.at_once() as mine:
            if mine:
                self.recogniser.transcribe(noise, languages=self.languages, cancelled=lambda: self.asr_turns.wanted)

    def say(self) -> None:
        """Speak a short prompt that nobody hears."""
        language = self.languages[0]
        with self.tts_turns.at_once() as mine:
            if mine:
                for _ in self.voice.synthesise(spoken(_PROMPT[language], language)):
                    if self.tts_turns.wanted:
                        return
