"""Every message of the chain, ordered by the edge it crosses. Frozen; arrays are views that only their maker may write.

Each message carries `turn_id` (which spoken turn), `generation` (bumped by barge-in; a stage drops messages of an older
generation) and `captured_ns` (monotonic time at which the newest audio behind the message was captured).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE_HZ = 16_000
"""Rate of all audio between capture and ASR. Reply audio keeps the voice's own rate."""

Language = Literal["en", "zh"]
Status = Literal["done", "refused", "failed"]
OverReply = Literal["interrupt", "duck", "queue"]
"""What a prompt of guidance does to a reply: it stops until the prompt is over and goes on at its clause; it goes on
quietly; the prompt waits for the end of the running clause."""
Task = Literal["navigation", "vehicle", "dialogue", "background"]
"""What a request is for, chosen where it enters: by the parse for spoken turns, by its sender for others."""


# --- microphone or WAV -> endpointer -------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class AudioFrame:
    """Mono audio at 16 kHz. `samples`: float32 (n,) in [-1, 1]; `first_sample`: index of samples[0] in the stream.

    `over_playback`: the loudspeaker sounded, or had just done so: what was left of its echo may be in the samples.
    """

    samples: NDArray[np.float32]
    first_sample: int
    captured_ns: int
    end_of_stream: bool = False
    after_loss: bool = False
    """True when the device lost sound just before this frame: speech at its start may have begun earlier."""
    over_playback: bool = False
    for_detection: NDArray[np.float32] | None = None
    """The same sound with what is left of an echo suppressed as well, and some of the speech with it: for deciding
    whether somebody speaks. None where `samples` serve for that too."""


# --- endpointer -> ASR ---------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Utterance:
    """Speech so far of one turn, pre-roll included.

    `stage`: "partial" while the person speaks, "candidate" in the trailing silence (work may begin, nothing may act),
    "final" when the turn has ended. A "candidate" or "final" whose `revision` was seen already holds the same samples.
    `speech_end_sample` is the VAD's estimate of the last sample of speech, in stream positions.
    """

    turn_id: int
    generation: int
    revision: int
    stage: Literal["partial", "candidate", "final"]
    samples: NDArray[np.float32]
    first_sample: int
    speech_end_sample: int
    captured_ns: int
    reopened: bool = False
    """True when this turn had ended already and speech went on: what it did before must be taken back first."""
    torn: bool = False
    """True for a "final" of which sound was lost: it must not be acted upon, the person is asked to say it again."""


# --- ASR -> understanding ------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Transcript:
    """What was heard. Empty `text` means no speech, or with `unclear` speech whose words nobody can tell: then the
    person is asked to say it again. `avg_logprob`: mean log-probability per token (nats). `number_margin`: nats by
    which the least certain number is likelier than the one it is easily mistaken for; infinite where there is none.
    """

    turn_id: int
    generation: int
    revision: int
    stage: Literal["partial", "candidate", "final"]
    text: str
    language: Language
    avg_logprob: float
    captured_ns: int
    reopened: bool = False
    asr_ms: float = 0.0
    unclear: bool = False
    number_margin: float = math.inf


# --- any stage before the answer -> understanding ------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TurnFailed:
    """A turn that a stage could not finish: passed on in order, answered by an apology. `stage`: where it failed."""

    turn_id: int
    generation: int
    stage: str
    captured_ns: int


# --- understanding -> vehicle --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call the model chose. `arguments` is JSON-able and valid against the tool's schema."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the car did, as read back, never as asked for. `reason` is a stable code when not done (see vehicle/)."""

    call: ToolCall
    status: Status
    path: str | None
    value: Any
    reason: str | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    """Values the spoken reply needs (limits, unit, place name, distance_km)."""


# --- understanding -> spoken text ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the reply as it is decided. `last` closes the reply (its text may be empty)."""

    turn_id: int
    generation: int
    text: str
    language: Language
    captured_ns: int
    last: bool = False
    task: Task = "dialogue"


# --- spoken text -> TTS --------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SpokenClause:
    """One clause ready to be spoken: normalised, no markdown, no digits left to guess."""

    turn_id: int
    generation: int
    index: int
    display: str
    spoken: str
    language: Language
    captured_ns: int
    last: bool = False
    task: Task = "dialogue"


# --- TTS -> speaker or WAV -----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SpeechFrame:
    """Reply audio. `samples`: float32 (n,) in [-1, 1] at `sample_rate_hz`; `last` closes the turn's reply."""

    turn_id: int
    generation: int
    samples: NDArray[np.float32]
    sample_rate_hz: int
    captured_ns: int
    clause_index: int = 0
    text: str = ""
    last: bool = False


# --- the head unit's navigation -> guidance --------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class GuidancePrompt:
    """Something that navigation says by itself. It opens no turn and has no generation: no barge-in outdates it.

    `manoeuvre`: a newer prompt for the same one takes the place of one that waits; empty for none. `deadline_ns`:
    monotonic; not begun by then it is not spoken. `captured_ns`: monotonic time of its arrival.
    """

    text: str
    language: Language
    captured_ns: int
    manoeuvre: str = ""
    deadline_ns: int | None = None


# --- guidance -> speaker or WAV --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class PromptFrame:
    """Audio of one prompt. `samples`: float32 (n,) in [-1, 1] at `sample_rate_hz`; `last` closes the prompt."""

    prompt_id: int
    samples: NDArray[np.float32]
    sample_rate_hz: int
    over_reply: OverReply
    last: bool = False
