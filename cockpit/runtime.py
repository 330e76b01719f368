"""The process: one thread per stage, one bounded channel per edge, nothing serialised in between.

    source -> listen -> [frames] -> wake -> endpoint -> [utterances] -> recognise -> [transcripts] -> understand
           -> [deltas] -> speak -> [speech] -> play -> sink

A stage never waits for a later one except through its bounded channel. Barge-in bumps the generation; every stage
drops messages of an older one, so nothing is ever cleared. Work begins on "candidate" utterances, in the trailing
silence; only a "final" one acts on the car.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from cockpit.scheduling.llm_lease import ModelWork, Unshared
from cockpit.wake_word import AlwaysAwake, WakeStage
from models.errors import CockpitError
from pipeline.asr import AsrStage
from pipeline.audio.sink import STALE, Played
from pipeline.channels import Channel, Closed
from pipeline.dialogue.manager import DialogueManager
from pipeline.dialogue.stage import UnderstandStage
from pipeline.endpointing.endpointer import Endpointer
from pipeline.frames import (
    SAMPLE_RATE_HZ,
    AudioFrame,
    Language,
    SpeechFrame,
    SpokenClause,
    TextDelta,
    Transcript,
    Utterance,
)
from pipeline.trace import Tracer
from pipeline.tts.stage import TtsStage
from pipeline.turn_log import TurnLog, TurnRecord
from pipeline.turns import Generations

log = logging.getLogger("cockpit.runtime")

NS_PER_MS = 1e6
IDLE_S = 0.25
"""How often a stage without messages looks whether something has timed out."""


class Sink(Protocol):
    """Where reply audio goes: a speaker or one WAV per turn."""

    def play(self, frame: SpeechFrame) -> int:
        """Take one frame; return the monotonic ns at which its first sample goes out."""
        ...

    def stop(self, generation: int) -> None:
        """Silence everything older than `generation` at once (barge-in)."""
        ...

    def speaking(self) -> bool:
        """True while reply audio is still going out."""
        ...

    def played(self) -> tuple[Played, ...]:
        """The newest replies, oldest first, each with the text that was heard of it."""
        ...

    def close(self) -> None: ...


class NullSink:
    """Takes reply audio and plays it nowhere; a reply counts as heard once its last frame is in."""

    def __init__(self) -> None:
        self._clauses: dict[int, str] = {}
        self._played: deque[Played] = deque(maxlen=16)

    def play(self, frame: SpeechFrame) -> int:
        now_ns = time.monotonic_ns()
        if frame.text:
            self._clauses[frame.clause_index] = frame.text
        if frame.last:
            text = " ".join(self._clauses.values())
            self._clauses.clear()
            self._played.append(
                Played(frame.turn_id, frame.generation, frame.captured_ns, now_ns, 0, frame.sample_rate_hz, text, True)
            )
        return now_ns

    def stop(self, generation: int) -> None:
        self._clauses.clear()

    def speaking(self) -> bool:
        return False

    def played(self) -> tuple[Played, ...]:
        return tuple(self._played)

    def close(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Parts:
    """The stages, ready and warm. Built once by `cockpit.assemble`."""

    endpointer: Endpointer
    asr: AsrStage
    dialogue: DialogueManager
    tts: TtsStage
    sink: Sink
    generations: Generations
    tracer: Tracer
    work: ModelWork = field(default_factory=Unshared)
    wake: WakeStage = field(default_factory=AlwaysAwake)


@dataclass(frozen=True, slots=True)
class Edges:
    """The bounded channels between stages, ordered by edge."""

    frames: Channel[AudioFrame]
    utterances: Channel[Utterance]
    transcripts: Channel[Transcript]
    deltas: Channel[TextDelta]
    speech: Channel[SpeechFrame]

    @classmethod
    def make(cls, *, live: bool) -> Edges:
        """A live microphone cannot wait, so its frames are dropped oldest first (and counted); a file can."""
        return cls(
            frames=Channel("frames", 256, "drop_oldest" if live else "block"),
            utterances=Channel("utterances", 16, "block"),
            transcripts=Channel("transcripts", 16, "block"),
            deltas=Channel("deltas", 256, "block"),
            speech=Channel("speech", 256, "block"),
        )

    def all(
        self,
    ) -> tuple[
        Channel[AudioFrame] | Channel[Utterance] | Channel[Transcript] | Channel[TextDelta] | Channel[SpeechFrame], ...
    ]:
        return (self.frames, self.utterances, self.transcripts, self.deltas, self.speech)


class Runtime:
    """Runs the stages. `start()`, then `listen(source)` as often as wanted, then `stop()`."""

    def __init__(self, parts: Parts, *, live: bool = False, barge_in: bool = True) -> None:
        self.parts = parts
        self.edges = Edges.make(live=live)
        self.turn_log = TurnLog()
        self.failures: list[tuple[str, BaseException]] = []
        self._barge_in = barge_in
        self._threads: list[threading.Thread] = []
        self._drained = threading.Event()
        self._drained.set()  # no frame is waiting yet: a turn asked in words needs none
        self._heard_to_ns = 0
        self._understand_stage = UnderstandStage(
            parts.dialogue,
            parts.generations,
            self.turn_log,
            parts.tracer,
            parts.work,
            parts.endpointer.command_complete,
            lambda: len(self.edges.transcripts) > 0,
        )

    # --- life ------------------------------------------------------------------------------------------------------
    def start(self) -> None:
        stages: tuple[tuple[str, Channel, Callable, Channel | None], ...] = (  # type: ignore[type-arg]
            ("endpoint", self.edges.frames, self._hear, self.edges.utterances),
            ("recognise", self.edges.utterances, self._recognise, self.edges.transcripts),
            ("understand", self.edges.transcripts, self._understand, self.edges.deltas),
            ("speak", self.edges.deltas, self._speak, self.edges.speech),
            ("play", self.edges.speech, self._play, None),
        )
        for name, inbox, work, outbox in stages:
            thread = threading.Thread(target=self._stage, args=(name, inbox, work, outbox), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def listen(self, source: Iterable[AudioFrame]) -> None:
        """Feed one source to its end. Returns when its frames are taken, not when its turns are answered."""
        for frame in source:
            if self.failures:
                break
            self._drained.clear()
            self.edges.frames.put(frame)

    def ask(self, text: str, language: Language, turn_id: int) -> None:
        """Start a turn from text instead of speech."""
        now_ns = time.monotonic_ns()
        generation = self.parts.generations.current
        self.turn_log.open(turn_id, generation).decided_ns = now_ns
        self.edges.transcripts.put(Transcript(turn_id, generation, 0, "final", text, language, 0.0, now_ns, now_ns))

    def wait_idle(self, timeout_s: float = 60.0) -> bool:
        """Wait until every frame handed in is judged and every turn is answered. Raises what a stage raised."""
        deadline_ns = time.monotonic_ns() + int(timeout_s * 1e9)
        idle = self._drained.wait(timeout_s)
        while idle and not self.failures and time.monotonic_ns() < deadline_ns:
            if self.turn_log.wait_all_closed(0.2):
                break
        self._raise_failure()
        return idle and self.turn_log.all_closed()

    def stop(self) -> list[TurnRecord]:
        """Close the first edge, let the stages drain in order, close the sink."""
        self.edges.frames.close()
        for thread in self._threads:
            thread.join(timeout=30.0)
        self.parts.sink.close()
        self._raise_failure()
        return self.turn_log.closed()

    def _raise_failure(self) -> None:
        if self.failures:
            stage, error = self.failures[0]
            if isinstance(error, CockpitError):
                raise error
            raise RuntimeError(f"stage {stage} failed: {error}") from error

    def _stage(self, name: str, inbox: Channel, work: Callable, outbox: Channel | None) -> None:  # type: ignore[type-arg]
        try:
            while True:
                try:
                    message = inbox.get(IDLE_S)
                except TimeoutError:
                    self._idle(name)
                    continue
                work(message)
        except Closed:
            pass
        except Exception as error:  # the edge of a stage: recorded, reported by wait_idle and stop
            log.exception("stage %s failed", name)
            self.failures.append((name, error))
            self.edges.frames.close()
            inbox.close()
        finally:
            if outbox is not None:
                outbox.close()

    def _idle(self, stage: str) -> None:
        """A microphone that died in the midst of a word must not leave its turn open."""
        if stage == "endpoint":
            for utterance in self.parts.endpointer.tick(time.monotonic_ns()):
                self._send(utterance, self._silent_since(utterance))
        if stage == "understand":
            self.parts.work.beat()
            if not self._in_use():
                self._remember_what_was_heard()
                self._understand_stage.prepare(self._in_use)

    # --- stages, in the order of the data ----------------------------------------------------------------------------
    def _hear(self, frame: AudioFrame) -> None:
        """The wake word first; nothing sleeps while somebody speaks or is answered."""
        for passed in self.parts.wake.push(frame):
            self._endpoint(passed)
        if self._in_use():
            self.parts.wake.stay_awake(frame.first_sample + len(frame.samples))

    def _in_use(self) -> bool:
        """Somebody speaks or is answered."""
        return self.parts.endpointer.speech_started or self._answering()

    def _answering(self) -> bool:
        return self.parts.sink.speaking() or not self.turn_log.all_closed()

    def _endpoint(self, frame: AudioFrame) -> None:
        frame_end = frame.first_sample + len(frame.samples)
        for pushed in self.parts.endpointer.push(frame):
            utterance = self._cancel_if_reopened(pushed)
            silence_ms = (frame_end - utterance.speech_end_sample) * 1000 / SAMPLE_RATE_HZ
            self._send(utterance, silence_ms + (time.monotonic_ns() - frame.captured_ns) / NS_PER_MS)
        if self._barge_in and self.parts.endpointer.speech_started:
            self._interrupt()
        if frame.end_of_stream:
            self._drained.set()

    def _send(self, utterance: Utterance, silence_ms: float) -> None:
        """Hand an utterance on; a final one opens its turn. `silence_ms`: from the end of speech until now."""
        if utterance.stage == "final":
            record = self.turn_log.open(utterance.turn_id, utterance.generation)
            record.decided_ns = time.monotonic_ns()
            record.ms["endpoint"] = silence_ms
            record.ms["first_audio"] = None
            record.first_audio_ns = 0
        self.edges.utterances.put(utterance)

    @staticmethod
    def _silent_since(utterance: Utterance) -> float:
        return (time.monotonic_ns() - utterance.captured_ns) / NS_PER_MS

    def _interrupt(self) -> None:
        """Barge-in: the person speaks while a reply sounds or is being made."""
        if self._answering():
            self._cancel_replies("barge-in")

    def _cancel_if_reopened(self, utterance: Utterance) -> Utterance:
        """Speech went on after an early end: what the turn was answering is outdated, and was so from here on."""
        record = self.turn_log.get(utterance.turn_id) if utterance.reopened else None
        if record is None or record.generation < self.parts.generations.current:
            return utterance
        return replace(utterance, generation=self._cancel_replies("re-opened"))

    def _cancel_replies(self, why: str) -> int:
        """Make every reply outdated; nothing is cleared. Returns the new generation."""
        generation = self.parts.generations.bump()
        self.parts.sink.stop(generation)
        self.parts.tracer.instant("play", 0, why)
        self.turn_log.interrupt_older(generation)
        return generation

    def _recognise(self, utterance: Utterance) -> None:
        for item in _not_outdated([utterance, *self.edges.utterances.drain()]):
            with self.parts.tracer.span("asr", item.turn_id, item.stage):
                transcript = self.parts.asr.handle(item, superseded=lambda: len(self.edges.utterances) > 0)
            if transcript is not None:
                self.edges.transcripts.put(transcript)

    def _understand(self, transcript: Transcript) -> None:
        if transcript.stage != "partial":
            self._remember_what_was_heard()
        for delta in self._understand_stage.answer(transcript):
            self.edges.deltas.put(delta)

    def _remember_what_was_heard(self) -> None:
        """Only what reached the ear enters the dialogue history, so it is asked of the sink, when it is needed."""
        for reply in self.parts.sink.played():
            if reply.first_out_ns > self._heard_to_ns and not self.parts.sink.speaking():
                self.parts.dialogue.heard(reply.turn_id, reply.text)
                self._heard_to_ns = reply.first_out_ns

    def _speak(self, delta: TextDelta) -> None:
        for clause in self.parts.tts.handle(delta):
            start_ns = time.monotonic_ns()
            for frame in self.parts.tts.speak(clause, partial(self.parts.generations.is_stale, clause.generation)):
                self._note_first_sound(clause, start_ns)
                self.edges.speech.put(frame)
            self.parts.tracer.record("tts", clause.turn_id, start_ns, time.monotonic_ns(), clause.display)

    def _note_first_sound(self, clause: SpokenClause, start_ns: int) -> None:
        record = self.turn_log.get(clause.turn_id)
        if record is not None and record.ms["tts_first"] is None:
            record.ms["tts_first"] = (time.monotonic_ns() - start_ns) / NS_PER_MS

    def _play(self, frame: SpeechFrame) -> None:
        if self.parts.generations.is_stale(frame.generation):
            return
        out_ns = self.parts.sink.play(frame)
        record = self.turn_log.get(frame.turn_id)
        if record is None or out_ns == STALE:
            return
        if record.ms["first_audio"] is None and len(frame.samples):
            record.first_audio_ns = out_ns
            record.ms["first_audio"] = (record.ms["endpoint"] or 0.0) + (out_ns - record.decided_ns) / NS_PER_MS
            self.parts.tracer.instant("play", frame.turn_id, "first audio", out_ns)
        if frame.last:
            self.turn_log.close(frame.turn_id)


def _not_outdated(waiting: list[Utterance]) -> list[Utterance]:
    """What is still worth recognising: every final, and the newest message of a turn that is not over yet."""
    newest = waiting[-1]
    return [item for item in waiting if item.stage == "final" or item is newest]
