"""When somebody speaks, and when the turn is over. Pure of threads and clocks: frames in, utterances out.

All times are stream time, so a test needs no waiting. The stages of one turn:

    partial ... partial    while the person speaks, every `partial_ms` of new audio
    candidate              after `candidate_silence_ms`, once per revision: work may begin, nothing may act
    final                  after `end_silence_ms`, or `early_end_silence_ms` when the candidate is a complete command

After an early final the turn is watched for `reopen_ms`; speech within it continues the same turn (`reopened`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.endpointing.buffers import PreRollBuffer, UtteranceBuffer
from pipeline.endpointing.vad import WINDOW_SAMPLES, Gate, VadModel, VoiceDetector
from pipeline.frames import SAMPLE_RATE_HZ, AudioFrame, Utterance
from pipeline.turns import Generations, TurnIds

Audio = NDArray[np.float32]

_NOTHING: Audio = np.zeros(0, np.float32)
_NS_PER_SAMPLE = 1_000_000_000 / SAMPLE_RATE_HZ
WINDOW_MS = WINDOW_SAMPLES * 1000 // SAMPLE_RATE_HZ
_MAX_LAG_SAMPLES = 5 * WINDOW_SAMPLES
_USUAL_LAG_SAMPLES = 3 * WINDOW_SAMPLES
"""How long after the end of speech the VAD model still reports speech, at most and as a rule."""
_MISSED_SAMPLES = 4 * WINDOW_SAMPLES
"""How long after the VAD model's last speech a soft last consonant may follow."""
_ONSET_DELAY_MS = 640
"""How late gate and model may report a soft onset: measured with speech 30 dB down."""
_TORN_SAMPLES = 200 * SAMPLE_RATE_HZ // 1000
"""So much sound lost in the midst of speech may have held a word."""


def _samples(milliseconds: int) -> int:
    return milliseconds * SAMPLE_RATE_HZ // 1000


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """What an engineer tunes. Probabilities in [0, 1]; `offset` below `onset` gives the decision its hysteresis.

    onset_over_playback: in place of `onset` in frames that may hold what is left of an echo.
    """

    onset: float = 0.5
    offset: float = 0.35
    onset_over_playback: float = 0.9
    min_speech_ms: int = 96
    pre_roll_ms: int = 300
    partial_ms: int = 400
    candidate_silence_ms: int = 100
    early_end_silence_ms: int = 200
    end_silence_ms: int = 500
    reopen_ms: int = 700
    max_utterance_ms: int = 15_000
    idle_timeout_ms: int = 1_000
    barge_in_ms: int = 160
    gate_hold_ms: int = 400

    def __post_init__(self) -> None:
        if not 0.0 < self.offset <= self.onset < 1.0:
            raise ValueError(f"0 < offset <= onset < 1 does not hold for {self.offset} and {self.onset}")
        if not 0 < self.candidate_silence_ms <= self.early_end_silence_ms <= self.end_silence_ms:
            raise ValueError("0 < candidate_silence_ms <= early_end_silence_ms <= end_silence_ms does not hold")
        if self.max_utterance_ms <= self.pre_roll_ms + 2 * self.min_speech_ms:
            raise ValueError("max_utterance_ms leaves no room for speech after the pre-roll")


@dataclass(slots=True)
class _Turn:
    """One turn in progress. `voice_end` is the end of the last window of speech, as a stream position."""

    turn_id: int
    block: UtteranceBuffer
    voice_end: int
    speech_windows: int = 0
    revision: int = -1
    sent_to: int = 0
    candidate: Utterance | None = None
    reopened: bool = False
    closed_at: int | None = None
    """Stream position of the early final; None while the turn is open."""


class Endpointer:
    """Finds the turns in one stream of frames. One thread calls `push` and `tick`; any may call `command_complete`.

    The samples of an utterance are a read-only view of the turn's own `UtteranceBuffer`. `generation` is the
    current one when the utterance is sent, so that a turn survives the barge-in that it caused.
    """

    def __init__(
        self, config: EndpointConfig, gate: Gate, model: VadModel, generations: Generations, turn_ids: TurnIds
    ) -> None:
        hold_windows = max(1, _samples(config.gate_hold_ms) // WINDOW_SAMPLES)
        self.config = config
        self.detector = VoiceDetector(gate, model, onset=config.onset, offset=config.offset, hold_windows=hold_windows)
        self.gap_samples = 0
        self._generations = generations
        self._turn_ids = turn_ids
        self._turn: _Turn | None = None
        self._complete: tuple[int, int] | None = None
        self._onset_windows = max(1, _samples(config.min_speech_ms) // WINDOW_SAMPLES)
        self._recent: deque[bool] = deque(maxlen=self._onset_windows + 2)
        before = _samples(config.pre_roll_ms + _ONSET_DELAY_MS)
        self._pre_roll = PreRollBuffer(before + (self._onset_windows + 4) * WINDOW_SAMPLES)
        self._window: Audio = np.zeros(WINDOW_SAMPLES, np.float32)
        self._detected: Audio = np.zeros(WINDOW_SAMPLES, np.float32)
        self._filled = 0
        self._position: int | None = None
        self._captured_ns = 0
        self._over_playback = False
        self._ignore_speech_for = 0
        """Samples of silence still to come before a turn may begin."""
        self._ignored_windows = 0
        """Windows of speech ignored meanwhile; -1 when nothing is to be made of them."""
        self._held_samples = 0
        """So much of the stream is still to come before push-to-talk is over by itself."""
        self._released = False
        self._torn: int | None = None
        self._taken_to = 0
        """Stream position before which every sample belongs to an earlier turn."""

    # --- what other stages use -------------------------------------------------------------------------------------
    def push(self, frame: AudioFrame) -> list[Utterance]:
        """Take one frame of any length; returns what became of it, oldest first. `end_of_stream` flushes.

        Frames follow each other; lost ones (a jump of `first_sample`) count as silence and in `gap_samples`. A turn
        that lost sound in the midst of its speech ends as `torn`, and so does speech that goes on behind the loss.
        """
        out = self._close_gap(frame)
        if frame.after_loss and self._turn is None and not self._ignore_speech_for:
            self._ignore()
        frame_end = frame.first_sample + len(frame.samples)
        self._over_playback = frame.over_playback
        for window, detected, end in self._windows(frame.samples, frame.for_detection):
            captured_ns = frame.captured_ns - round((frame_end - end) * _NS_PER_SAMPLE)
            out.extend(self._detect_window(window, detected, end, captured_ns))
        self._captured_ns = frame.captured_ns
        if frame.end_of_stream:
            out.extend(self._end_stream())
        return out

    def tick(self, idle_ms: float) -> list[Utterance]:
        """Close an open turn when no frame came for `idle_timeout_ms`; [] otherwise. idle_ms: since the last frame.

        It is `torn` when the last frame was in the midst of speech.
        """
        if idle_ms < self.config.idle_timeout_ms:
            return []
        self._tear()
        return self._end_of_ignored(self._captured_ns) + self._close_turn()

    def abandon(self) -> int | None:
        """After a fault: give up the open turn and whatever is still said of it. Its id; None when nobody spoke.

        No turn begins before `end_silence_ms` without speech have passed: the rest of a sentence is another command.
        """
        turn, self._turn = self._turn, None
        begun = turn is None and True in self._recent
        self._held_samples, self._released = 0, False
        self._ignore()
        self._ignored_windows = -1
        self._filled = 0
        if turn is not None:
            self._taken_to = turn.block.end_sample
        if begun:
            return self._turn_ids.next()
        return None if turn is None or turn.closed_at is not None else turn.turn_id

    def hold(self) -> None:
        """Push-to-talk is pressed: silence ends no turn before `release`, or `max_utterance_ms`."""
        self._held_samples, self._released = _samples(self.config.max_utterance_ms), False

    def release(self) -> None:
        """Push-to-talk is let go: the open turn ends after `candidate_silence_ms`, so a last word is not cut. A second
        time changes nothing.
        """
        if self._held_samples:
            self._held_samples, self._released = 0, self._turn is not None

    @property
    def held(self) -> bool:
        """Between `hold` and `release`. Any thread."""
        return self._held_samples > 0

    @property
    def in_turn(self) -> bool:
        """Whether a turn is open, or may still be re-opened."""
        return self._turn is not None

    def command_complete(self, turn_id: int, revision: int) -> None:
        """The candidate of this revision is a complete command: its turn may end early. Any thread, any time."""
        self._complete = (turn_id, revision)

    @property
    def speech_started(self) -> bool:
        """True while the person speaks and has for `barge_in_ms`: a reply that is sounding must stop."""
        turn = self._turn
        if turn is None or turn.closed_at is not None:
            return False
        return self._recent[-1] and turn.speech_windows * WINDOW_SAMPLES >= _samples(self.config.barge_in_ms)

    @property
    def speech_ms(self) -> int:
        """How long the person has spoken in the turn that is open, pauses left out; 0 without one."""
        turn = self._turn
        return 0 if turn is None or turn.closed_at is not None else turn.speech_windows * WINDOW_MS

    # --- from frames to windows ------------------------------------------------------------------------------------
    def _windows(self, samples: Audio, detected: Audio | None = None) -> Iterator[tuple[Audio, Audio, int]]:
        """Cut the stream into windows; yields each, what decides on it, and the stream position behind it. A whole one
        is not copied.
        """
        assert self._position is not None
        detected = samples if detected is None else detected
        taken = 0
        while taken < len(samples):
            if self._filled == 0 and len(samples) - taken >= WINDOW_SAMPLES:
                windows = samples[taken : taken + WINDOW_SAMPLES], detected[taken : taken + WINDOW_SAMPLES]
                taken += WINDOW_SAMPLES
            else:
                count = min(WINDOW_SAMPLES - self._filled, len(samples) - taken)
                self._window[self._filled : self._filled + count] = samples[taken : taken + count]
                self._detected[self._filled : self._filled + count] = detected[taken : taken + count]
                self._filled += count
                taken += count
                if self._filled < WINDOW_SAMPLES:
                    return
                windows, self._filled = (self._window, self._detected), 0
            self._position += WINDOW_SAMPLES
            yield *windows, self._position

    def _close_gap(self, frame: AudioFrame) -> list[Utterance]:
        if self._position is None:
            self._position = self._taken_to = frame.first_sample
            return []
        gap = frame.first_sample - (self._position + self._filled)
        if gap == 0:
            return []
        if gap >= _TORN_SAMPLES:
            self._tear()
        torn = self._torn is not None
        if torn or gap < 0 or gap > _samples(self.config.idle_timeout_ms):
            out = self._end_stream()
            self._position = self._taken_to = frame.first_sample
            if torn:  # it is asked for again; the rest of it is no command
                self._ignore()
                self._ignored_windows = -1
            return out
        self.gap_samples += gap
        out = []
        for window, detected, end in self._windows(np.zeros(gap, np.float32)):
            out.extend(self._detect_window(window, detected, end, self._captured_ns))
        return out

    # --- one window ------------------------------------------------------------------------------------------------
    def _detect_window(self, window: Audio, detected: Audio, end: int, captured_ns: int) -> list[Utterance]:
        turn = self._turn
        onset = self.config.onset_over_playback if self._over_playback else None
        speech = self.detector.is_speech(detected, listen=turn is not None, onset=onset)
        self._recent.append(speech)
        self._pre_roll.append(window, end)
        self._held_samples = max(0, self._held_samples - WINDOW_SAMPLES)
        if self._ignore_speech_for:
            return self._skip(speech, end, captured_ns)
        if turn is None:
            return self._open_turn(end, captured_ns) if self._onset() else []
        turn.block.append(window)
        if turn.closed_at is not None:
            return self._watch(turn, end, captured_ns)
        if speech:
            return self._speech(turn, end, captured_ns)
        return self._silence(turn, end, captured_ns)

    def _ignore(self) -> None:
        """From now on no turn begins before there was silence."""
        self._ignore_speech_for = _samples(self.config.end_silence_ms)
        self._ignored_windows = 0
        self._recent.clear()

    def _skip(self, speech: bool, end: int, captured_ns: int) -> list[Utterance]:
        """Wait for the silence behind a turn that was abandoned or torn."""
        self._recent.clear()
        self._taken_to = end
        self._ignored_windows += speech and self._ignored_windows >= 0
        whole = _samples(self.config.end_silence_ms)
        self._ignore_speech_for = whole if speech else max(0, self._ignore_speech_for - WINDOW_SAMPLES)
        return [] if self._ignore_speech_for else self._end_of_ignored(captured_ns)

    def _end_of_ignored(self, captured_ns: int) -> list[Utterance]:
        """What was torn, or was said behind a loss, as one turn to be asked for again."""
        lost, self._torn = self._torn, None
        if lost is None and self._ignore_speech_for == 0 and self._ignored_windows >= self._onset_windows:
            lost = self._turn_ids.next()
        self._ignored_windows = -1 if self._ignore_speech_for else 0
        if lost is None:
            return []
        end = self._taken_to
        return [Utterance(lost, self._generations.current, 0, "final", _NOTHING, end, end, captured_ns, torn=True)]

    def _tear(self) -> None:
        """Sound was lost: a turn in the midst of its speech is given up, and asked for again once it is quiet."""
        turn = self._turn
        if turn is None or turn.closed_at is not None or turn.candidate is not None:
            return
        self._turn, self._torn = None, turn.turn_id
        self._taken_to = turn.block.end_sample
        self._ignore()

    def _onset(self) -> bool:
        return sum(self._recent) >= self._onset_windows

    def _onset_start(self, end: int) -> int:
        """Stream position at which the speech that just became an onset began."""
        return end - (len(self._recent) - self._recent.index(True)) * WINDOW_SAMPLES

    def _open_turn(self, end: int, captured_ns: int) -> list[Utterance]:
        config = self.config
        onset = self._onset_start(end)
        onset = self._pre_roll.first_loud_sample(onset - _samples(_ONSET_DELAY_MS), onset)
        start = max(self._taken_to, onset - _samples(config.pre_roll_ms))
        samples, first_sample = self._pre_roll.since(start)
        capacity = _samples(config.max_utterance_ms + config.reopen_ms + config.min_speech_ms) + 8 * WINDOW_SAMPLES
        turn = _Turn(self._turn_ids.next(), UtteranceBuffer(capacity, first_sample), voice_end=end)
        turn.block.append(samples)
        turn.speech_windows = sum(self._recent)
        self._turn = turn
        return [self._send(turn, "partial", captured_ns)]

    def _speech(self, turn: _Turn, end: int, captured_ns: int) -> list[Utterance]:
        turn.voice_end = end
        turn.speech_windows += 1
        turn.candidate = None
        if end - turn.block.first_sample >= _samples(self.config.max_utterance_ms):
            return self._finish(turn, captured_ns)
        if end - turn.sent_to >= _samples(self.config.partial_ms):
            return [self._send(turn, "partial", captured_ns)]
        return []

    def _silence(self, turn: _Turn, end: int, captured_ns: int) -> list[Utterance]:
        config = self.config
        out = []
        silence = end - self._speech_end(turn)
        if turn.candidate is None and silence >= _samples(config.candidate_silence_ms):
            turn.candidate = self._send(turn, "candidate", captured_ns)
            out.append(turn.candidate)
        if self._held_samples and end - turn.block.first_sample < _samples(config.max_utterance_ms):
            return out
        if self._released and silence >= _samples(config.candidate_silence_ms):
            self._recent.clear()  # what was just said opens no other turn
            return out + self._finish(turn, captured_ns)
        if silence >= _samples(config.end_silence_ms):
            return out + self._finish(turn, captured_ns)
        if silence >= _samples(config.early_end_silence_ms) and self._is_complete(turn):
            turn.closed_at = end
            self._recent.clear()
            out.append(self._as_final(turn))
        return out

    def _is_complete(self, turn: _Turn) -> bool:
        return turn.candidate is not None and self._complete == (turn.turn_id, turn.candidate.revision)

    def _as_final(self, turn: _Turn) -> Utterance:
        assert turn.candidate is not None
        return replace(turn.candidate, stage="final", generation=self._generations.current)

    def _watch(self, turn: _Turn, end: int, captured_ns: int) -> list[Utterance]:
        """After an early final: go on with the same turn if speech does, forget it otherwise."""
        assert turn.closed_at is not None
        full = end - turn.block.first_sample >= _samples(self.config.max_utterance_ms)
        if self._onset() and not full:
            turn.closed_at = None
            turn.candidate = None
            turn.reopened = True
            turn.voice_end = end
            turn.speech_windows = sum(self._recent)
            return [self._send(turn, "partial", captured_ns)]
        begun = True in self._recent and self._onset_start(end) - turn.closed_at < _samples(self.config.reopen_ms)
        if full or (end - turn.closed_at >= _samples(self.config.reopen_ms) and not begun):
            self._taken_to = turn.voice_end
            self._turn = None
        return []

    # --- the end ---------------------------------------------------------------------------------------------------
    def _finish(self, turn: _Turn, captured_ns: int) -> list[Utterance]:
        """Close the turn for good: the candidate as it was, or all that was heard when speech went on to the end."""
        self._turn = None
        self._held_samples, self._released = 0, False
        self._taken_to = turn.block.end_sample
        if turn.candidate is not None:
            return [self._as_final(turn)]
        return [self._send(turn, "final", captured_ns)]

    def _close_turn(self) -> list[Utterance]:
        turn = self._turn
        self._turn = None
        self._recent.clear()
        if turn is None or turn.closed_at is not None:
            return []
        return self._finish(turn, self._captured_ns)

    def _end_stream(self) -> list[Utterance]:
        """Run the VAD on what is left of a window, close the turn, forget the stream."""
        out: list[Utterance] = []
        if self._filled and self._position is not None:
            rest = self._window[: self._filled].copy()
            self._detected[self._filled :] = 0.0
            end = self._position + self._filled
            speech = self.detector.is_speech(self._detected, listen=self._turn is not None)
            self._recent.append(speech)
            self._pre_roll.append(rest, end)
            self._finish_rest(rest, end, speech)
        begun = 2 * sum(self._recent) >= self._onset_windows and not self._ignore_speech_for
        if self._turn is None and self._position is not None and begun:
            # The file ended before the onset could be confirmed: half the evidence has to do, or a last word is lost.
            out.extend(self._open_turn(self._position + self._filled, self._captured_ns))
        out.extend(self._close_turn())
        self.detector.reset()
        self._pre_roll.clear()
        self._ignore_speech_for = 0
        out.extend(self._end_of_ignored(self._captured_ns))
        self._filled = 0
        self._position = None
        return out

    def _finish_rest(self, rest: Audio, end: int, speech: bool) -> None:
        turn = self._turn
        if turn is None:
            return
        turn.block.append(rest)
        if speech and turn.closed_at is None:
            turn.voice_end = end
            turn.candidate = None

    def _speech_end(self, turn: _Turn) -> int:
        end = turn.voice_end
        return turn.block.last_loud_sample(end - _MAX_LAG_SAMPLES, end - _USUAL_LAG_SAMPLES, end + _MISSED_SAMPLES)

    def _send(self, turn: _Turn, stage: Literal["partial", "candidate", "final"], captured_ns: int) -> Utterance:
        turn.revision += 1
        turn.sent_to = turn.block.end_sample
        speech_end = turn.voice_end if stage == "partial" else self._speech_end(turn)
        return Utterance(
            turn_id=turn.turn_id,
            generation=self._generations.current,
            revision=turn.revision,
            stage=stage,
            samples=turn.block.view(),
            first_sample=turn.block.first_sample,
            speech_end_sample=speech_end,
            captured_ns=captured_ns,
            reopened=turn.reopened,
        )
