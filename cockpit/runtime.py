"""The process: one thread per stage, one bounded channel per edge, nothing serialised in between.

    source -> listen -> [frames] -> wake -> endpoint -> [utterances] -> recognise -> [transcripts] -> understand
           -> [deltas] -> speak -> [speech] -> play -> sink

A stage never waits for a later one except through its bounded channel. Barge-in bumps the generation; every stage
drops messages of an older one, so nothing is ever cleared. Work begins on "candidate" utterances, in the trailing
silence; only a "final" one acts on the car.

An exception in a stage costs the turn it was working on: that turn is answered by an apology, counted, traced and
logged. A stage that fails on three turns in a row ends the process (StageFailed, exit code 5).
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol

from cockpit.headunit.by_hand import ByHand
from cockpit.headunit.observer import NoObserver, Observer
from cockpit.scheduling.dispatcher import Refused
from cockpit.stage_failures import StageFailed, StageFailures, described, log_failure
from cockpit.text_turns import TextAnswer, TextTurns
from cockpit.wake_word import AlwaysAwake, WakeStage
from pipeline.asr import AsrStage
from pipeline.audio.sink import STALE, Played
from pipeline.channels import Channel, Closed
from pipeline.dialogue.llm_steps import LlmScheduler, UnscheduledLlm
from pipeline.dialogue.manager import DialogueManager
from pipeline.dialogue.own_words import is_own_words
from pipeline.dialogue.stage import UnderstandStage
from pipeline.endpointing.backchannel import LONGEST_MS, is_backchannel, says_more
from pipeline.endpointing.endpointer import Endpointer
from pipeline.frames import (
    SAMPLE_RATE_HZ,
    AudioFrame,
    GuidancePrompt,
    Language,
    OverReply,
    PromptFrame,
    SpeechFrame,
    SpokenClause,
    TextDelta,
    Transcript,
    TurnFailed,
    Utterance,
)
from pipeline.guidance import GuidanceStage
from pipeline.trace import Tracer
from pipeline.tts.stage import TtsStage
from pipeline.turn_log import TurnLog, TurnRecord
from pipeline.turns import Generations

log = logging.getLogger("cockpit.runtime")

NS_PER_MS = 1e6
IDLE_S = 0.25
"""How often a stage without messages looks whether something has timed out."""
SLICE_S = 0.2
LAST_WORDS_S = 5.0
"""How long the apology of a chain that ends may take."""
STAGES = ("endpoint", "recognise", "understand", "speak", "play")
"""Their names, in the order of the data."""
MICROPHONE = "microphone"
"""What a turn failed in when sound of it was lost."""
SWITCH_S = 0.0001
"""How long a thread that computes in Python may keep the others waiting (sys.setswitchinterval; the interpreter begins
with 5 ms). A message to another thread and back beside two such threads on two cores: P50 21 ms with 5 ms, 1.8 ms with
0.5. The interpreter back after a sleep beside them: P50 2.9 ms with 0.5 ms, 0.26 ms with this, and the same work takes
no more processor time."""
GUIDANCE = "guidance"
"""The thread beside the stages."""


class Sink(Protocol):
    """Where reply audio goes: a speaker or one WAV per turn."""

    def play(self, frame: SpeechFrame) -> int:
        """Take one frame; return the monotonic ns at which its first sample goes out."""
        ...

    def stop(self, generation: int) -> None:
        """Silence everything older than `generation` at once (barge-in)."""
        ...

    def duck(self, quiet: bool) -> None:
        """Play more quietly for a while: somebody speaks, and it is not known yet whether the reply must stop."""
        ...

    def prompt(self, frame: PromptFrame) -> int:
        """Take one frame of a prompt of guidance, from one thread of its own; prompts sound one after another. Returns
        the monotonic ns at which its first sample goes out, `STALE` when the prompt was stopped.
        """
        ...

    def stop_prompt(self) -> int:
        """Silence the prompt that sounds, at once; returns its id, -1 where none does. Replies go on."""
        ...

    def prompting(self) -> bool:
        """True while a prompt sounds, or waits for the end of a clause."""
        ...

    def prompt_wait_ns(self, over_reply: OverReply) -> int:
        """How long a prompt that is handed in now waits for others before it, and in "queue" for the running clause."""
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

    def duck(self, quiet: bool) -> None:
        return None

    def prompt(self, frame: PromptFrame) -> int:
        return time.monotonic_ns()

    def stop_prompt(self) -> int:
        return -1

    def prompting(self) -> bool:
        return False

    def prompt_wait_ns(self, over_reply: OverReply) -> int:
        return 0

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
    scheduler: LlmScheduler = field(default_factory=UnscheduledLlm)
    wake: WakeStage = field(default_factory=AlwaysAwake)
    guidance: GuidanceStage = field(default_factory=lambda: GuidanceStage({}))


@dataclass(frozen=True, slots=True)
class Edges:
    """The bounded channels between stages, ordered by edge."""

    frames: Channel[AudioFrame]
    utterances: Channel[Utterance | TurnFailed]
    transcripts: Channel[Transcript | TurnFailed]
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

    def all(self) -> tuple[Channel[Any], ...]:
        return (self.frames, self.utterances, self.transcripts, self.deltas, self.speech)


@dataclass(frozen=True, slots=True)
class Speaker:
    """The newest spoken turn. `over_reply`: it began while another was being answered."""

    turn_id: int
    generation: int
    over_reply: bool


class Runtime:
    """Runs the stages. `start()`, then `listen(source)` as often as wanted, then `stop()`, or `abort()` at any time."""

    def __init__(
        self, parts: Parts, *, live: bool = False, barge_in: bool = True, observer: Observer | None = None
    ) -> None:
        self.parts = parts
        self.edges = Edges.make(live=live)
        self.turn_log = TurnLog(on_closed=self._turn_ended)
        self.stage_failures = StageFailures(STAGES)
        self.failed: StageFailed | None = None
        self._steps = dict.fromkeys((*STAGES, GUIDANCE), 0)
        self._observer: Observer = observer or NoObserver()
        self._barge_in = barge_in
        self._threads: list[threading.Thread] = []
        self._aborted = False
        self._drained = threading.Event()
        self._drained.set()  # no frame is waiting yet: a turn asked in words needs none
        self._heard_to_ns = 0
        self._unplayable = (-1, -1)
        self._speaker = Speaker(-1, 0, False)
        self._ducked = False
        self._playing_turn = -1
        self._sounding = (-1, -1, -1)
        self.by_hand = ByHand(parts.endpointer, parts.wake, self._cancel_replies)
        self._language: Language = parts.dialogue.default_language
        self._understand_stage = UnderstandStage(
            parts.dialogue,
            parts.generations,
            self.turn_log,
            parts.tracer,
            parts.scheduler,
            parts.endpointer.command_complete,
            lambda: len(self.edges.transcripts) > 0,
        )
        self._text_turns = TextTurns(
            parts.dialogue, self._understand_stage, self.turn_log, parts.generations, parts.scheduler
        )

    # --- life ------------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start every stage in its thread. Shortens the interpreter's switch interval to SWITCH_S for the process."""
        sys.setswitchinterval(SWITCH_S)
        stages: tuple[tuple[str, Channel[Any], Callable[[Any], None], Channel[Any] | None], ...] = (
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
        guidance = threading.Thread(target=self._guide, name="guidance", daemon=True)
        self._threads.append(guidance)
        guidance.start()

    def listen(self, source: Iterable[AudioFrame]) -> None:
        """Feed one source to its end. Returns when its frames are taken, not when its turns are answered.

        Returns early when the chain has ended; `wait_idle` and `stop` then say why.
        """
        for frame in source:
            self._drained.clear()
            try:
                self.edges.frames.put(frame)
            except Closed:
                self._drained.set()
                return

    def ask(self, text: str, language: Language, turn_id: int) -> None:
        """Start a turn from text instead of speech."""
        now_ns = time.monotonic_ns()
        generation = self.parts.generations.current
        self.turn_log.open(turn_id, generation).decided_ns = now_ns
        transcript = Transcript(turn_id, generation, 0, "final", text, language, 0.0, now_ns)
        self.edges.transcripts.put(transcript)
        self._observer.heard(transcript)

    def cancel(self) -> None:
        """Stop the reply at once and give up what is being worked on; what the driver is saying is given up with the
        next frame. What the car has done already stays done. Any thread.
        """
        self._cancel_replies("cancelled")
        self.by_hand.cancel()

    def doing(self) -> Literal["idle", "listening", "thinking", "speaking"]:
        """As a driver sees it: somebody speaks, is to be answered, or is answered aloud. Any thread."""
        if self.parts.endpointer.speech_ms or self.by_hand.talking:
            return "listening"
        if self.parts.sink.speaking():
            return "speaking"
        return "idle" if self.turn_log.all_closed() else "thinking"

    def ask_for_text(self, text: str, language: Language, turn_id: int, *, act: bool = True) -> Future[TextAnswer]:
        """A turn asked in words whose reply is handed back, not spoken. Any thread. Raises Closed.

        act: False only finds out what the words mean. See cockpit.text_turns.
        """
        answer = self._text_turns.expect(turn_id, act=act)
        now_ns = time.monotonic_ns()
        generation = self.parts.generations.current
        self.edges.transcripts.put(Transcript(turn_id, generation, 0, "final", text, language, 0.0, now_ns))
        return answer

    def guide(self, prompt: GuidancePrompt) -> int:
        """Speak a prompt of guidance beside whatever else is said; returns its id at once. Any thread.

        It opens no turn and enters no dialogue. See pipeline.guidance for what is dropped. Raises InputError for a
        prompt that cannot be spoken, PromptOutdated and GuidanceEnded.
        """
        return self.parts.guidance.submit(prompt)

    def steps(self, stage: str) -> int:
        """How many steps a stage (or `GUIDANCE`) has made: messages, looks for one, pieces of a long one. Only grows,
        and stands still in a stage that hangs. Any thread.
        """
        steps = self._steps[stage]
        if stage == "understand":
            steps += self._understand_stage.asked
        return steps + (self.parts.guidance.asked if stage == GUIDANCE else 0)

    def waits_to_hand_on(self, stage: str) -> bool:
        """Whether the next stage is so far behind that this one can do nothing. Any thread."""
        outboxes: dict[str, Channel[Any]] = {
            "endpoint": self.edges.utterances,
            "recognise": self.edges.transcripts,
            "understand": self.edges.deltas,
            "speak": self.edges.speech,
        }
        outbox = outboxes.get(stage)
        return outbox is not None and len(outbox) >= outbox.capacity

    def wait_idle(self, timeout_s: float = 60.0) -> bool:
        """Wait until every frame handed in is processed and every turn is answered; False after `timeout_s`.

        The time is counted in slices, so that a stop of the whole process costs no more than one of them. Raises
        StageFailed when a stage has failed for good; the last apology is waited for a few seconds.
        """
        waited_s, idle = 0.0, False
        while not idle and waited_s < (LAST_WORDS_S if self.failed else timeout_s):
            idle = self._drained.wait(SLICE_S) and self.turn_log.wait_all_closed(SLICE_S)
            waited_s += SLICE_S
        self._raise_failure()
        return idle

    def stop(self) -> list[TurnRecord]:
        """Close the first edge, let the stages drain in order, close the sink. Raises StageFailed."""
        self.edges.frames.close()
        self.parts.guidance.close()
        for thread in self._threads:
            thread.join(timeout=30.0)
        self._text_turns.close()
        self.parts.sink.close()
        self._raise_failure()
        return self.turn_log.closed()

    def abort(self) -> None:
        """End at once: nothing more is done or said, what waits is forgotten. Never raises StageFailed."""
        self._aborted = True
        self._cancel_replies("abort")
        self.parts.guidance.close()
        self.parts.guidance.stop(self.parts.sink)
        for edge in self.edges.all():
            edge.close()
        for thread in self._threads:
            thread.join(timeout=10.0)
        self._text_turns.close()
        self.parts.sink.close()

    def _raise_failure(self) -> None:
        if self.failed is not None:
            raise self.failed

    def _guide(self) -> None:
        """The thread of guidance: beside the stages, and never waiting for one."""
        while self.parts.guidance.step(self.parts.sink, IDLE_S):
            self._steps[GUIDANCE] += 1

    def _stage(self, name: str, inbox: Channel[Any], work: Callable[[Any], None], outbox: Channel[Any] | None) -> None:
        idle_s = 0.0
        try:
            while not self._aborted:
                self._steps[name] += 1
                try:
                    message = inbox.get(IDLE_S)
                except TimeoutError:
                    idle_s += IDLE_S
                    self._attempt(name, None, partial(self._idle, name, idle_s))
                    continue
                idle_s = 0.0
                self._attempt(name, message, partial(work, message))
                if name == "endpoint" and message.end_of_stream:
                    self._drained.set()
        except Closed:
            pass
        finally:
            if name == "endpoint":
                self._drained.set()
            if outbox is not None:
                outbox.close()

    def _attempt(self, stage: str, message: Any, work: Callable[[], None]) -> None:
        """One step of a stage; the only place where a fault of any kind is caught."""
        try:
            work()
        except Closed:
            raise
        except Exception as error:
            if not self._aborted:
                self._stage_failed(stage, message, error)
        else:
            if getattr(message, "stage", "") == "final" or getattr(message, "last", False):
                self.stage_failures.passed(stage, message.turn_id)

    def _idle(self, stage: str, idle_s: float) -> None:
        """A microphone that died in the midst of a word must not leave its turn open.

        idle_s: waited in vain so far, counted in slices: a stop of the whole process counts as one of them.
        """
        if stage == "endpoint":
            for utterance in self.parts.endpointer.tick(idle_s * 1000):
                self._send(utterance, self._silent_since(utterance))
        if stage == "understand" and not self._in_use():
            self._remember_what_was_heard()
            self._understand_stage.prepare(self._in_use)

    # --- when a stage fails ------------------------------------------------------------------------------------------
    def _stage_failed(self, stage: str, message: Any, error: Exception) -> None:
        """Count, log and trace; answer the turn with an apology; after three turns in a row end the chain in order.

        A run that the arbiter refused costs the turn too, and is no failure of the stage.
        """
        turn = self._lost_turn(stage, message)
        turn_id = turn.turn_id if turn is not None else getattr(message, "turn_id", 0)
        self.parts.tracer.instant(stage, turn_id, f"failed: {type(error).__name__}")
        self._observer.failed(stage, turn_id, error)
        if isinstance(error, Refused):  # the device is busy, and the stage is well
            log.warning("turn %d: %s got no lane: %s", turn_id, stage, error)
        else:
            self._count_failure(stage, message, turn_id, error)
        if turn is not None:
            try:
                self._apologise(stage, turn)
            except Closed:
                raise
            except Exception as worse:  # not even the apology can be made: the turn ends in silence
                log_failure(stage, turn.turn_id, worse)
                self.turn_log.close(turn.turn_id)
        if self.failed is not None:
            self.edges.frames.close()

    def _count_failure(self, stage: str, message: Any, turn_id: int, error: Exception) -> None:
        log_failure(stage, turn_id, error)
        counted_by = turn_id or (getattr(message, "first_sample", time.monotonic_ns()) // SAMPLE_RATE_HZ, "no turn")
        if self.stage_failures.failed(stage, counted_by):
            self.failed = StageFailed(
                f"stage {stage} failed on three turns in a row: {described(error)}; start Cockpit again, and see "
                "cockpit doctor if it happens again (--log-level debug logs the whole traceback)"
            )

    def _lost_turn(self, stage: str, message: Any) -> TurnFailed | None:
        """The turn that cannot be finished; None where only work ahead of its end was lost."""
        now_ns = time.monotonic_ns()
        if stage == "endpoint":
            turn_id, generation = self.parts.endpointer.abandon(), self.parts.generations.current
            if turn_id is None:
                return None
            self.turn_log.open(turn_id, generation).decided_ns = now_ns
        elif message is None or getattr(message, "stage", "final") in ("partial", "candidate"):
            return None
        else:
            turn_id, generation = message.turn_id, message.generation
        record = self.turn_log.get(turn_id)
        if self.parts.generations.is_stale(generation) or (record is not None and record.closed):
            return None
        if record is not None:
            record.failed = stage
        return TurnFailed(turn_id, generation, stage, now_ns)

    def _apologise(self, stage: str, turn: TurnFailed) -> None:
        """Early stages send the fault on, so that turns stay in order; late ones play what was made at the start."""
        if stage == "endpoint":
            self.edges.utterances.put(turn)
        elif stage == "recognise":
            self.edges.transcripts.put(turn)
        elif stage == "understand":
            for delta in self._understand_stage.apologise(turn, self._language):
                self.edges.deltas.put(delta)
        else:
            self._apologise_without_voice(stage, turn)

    def _apologise_without_voice(self, stage: str, turn: TurnFailed) -> None:
        if stage == "speak":
            self.parts.tts.abandon(turn.turn_id, turn.generation)
        frames = self.parts.tts.apology(turn.turn_id, turn.generation, self._language, turn.captured_ns)
        if stage == "speak":
            for frame in frames:
                self.edges.speech.put(frame)
            return
        try:
            for frame in frames:
                self._play(frame)
        finally:
            self._unplayable = (turn.turn_id, turn.generation)
            self.turn_log.close(turn.turn_id)

    def _turn_ended(self, record: TurnRecord) -> None:
        log.info("%s", record.as_log_line())
        self._observer.ended(record)

    # --- stages, in the order of the data ----------------------------------------------------------------------------
    def _hear(self, frame: AudioFrame) -> None:
        """The wake word first; nothing sleeps while somebody speaks or is answered."""
        frame = self.by_hand.heard(frame)
        self._observer.hears(frame)
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
            utterance = self._over_a_reply(self._cancel_if_reopened(pushed))
            silence_ms = (frame_end - utterance.speech_end_sample) * 1000 / SAMPLE_RATE_HZ
            self._send(utterance, silence_ms + (time.monotonic_ns() - frame.captured_ns) / NS_PER_MS)
        if self._barge_in:
            self._attend()

    def _send(self, utterance: Utterance, silence_ms: float) -> None:
        """Hand an utterance on; a final one opens its turn. `silence_ms`: from the end of speech until now."""
        if utterance.torn:
            self._ask_again(utterance)
            return
        if utterance.stage == "final":
            record = self.turn_log.open(utterance.turn_id, utterance.generation)
            record.decided_ns = time.monotonic_ns()
            record.ms["endpoint"] = silence_ms
            record.ms["first_audio"] = None
            record.first_audio_ns = 0
            record.failed = None
            self._trace_speech(utterance, record.decided_ns)
        elif utterance.stage == "candidate":
            self.parts.tracer.instant("endpoint", utterance.turn_id, "candidate")
        self.edges.utterances.put(utterance)

    def _trace_speech(self, utterance: Utterance, decided_ns: int) -> None:
        """The VAD's span, pre-roll included, and the endpointer's: the silence until the turn was over."""
        ns_per_sample = 1_000_000_000 // SAMPLE_RATE_HZ
        silent_samples = utterance.first_sample + len(utterance.samples) - utterance.speech_end_sample
        start_ns = utterance.captured_ns - len(utterance.samples) * ns_per_sample
        speech_end_ns = utterance.captured_ns - silent_samples * ns_per_sample
        self.parts.tracer.record("vad", utterance.turn_id, start_ns, speech_end_ns, "speech")
        self.parts.tracer.record("endpoint", utterance.turn_id, speech_end_ns, decided_ns, "silence")

    def _ask_again(self, torn: Utterance) -> None:
        """The microphone lost part of what was said: what is left of it may mean something else."""
        log.warning("turn %d: the microphone lost part of it; the driver is asked to say it again", torn.turn_id)
        record = self.turn_log.open(torn.turn_id, torn.generation)
        record.decided_ns, record.failed = time.monotonic_ns(), MICROPHONE
        self.edges.utterances.put(TurnFailed(torn.turn_id, torn.generation, MICROPHONE, torn.captured_ns))

    @staticmethod
    def _silent_since(utterance: Utterance) -> float:
        return (time.monotonic_ns() - utterance.captured_ns) / NS_PER_MS

    def _over_a_reply(self, utterance: Utterance) -> Utterance:
        """A turn that begins over a reply may be a backchannel, so it carries the generation that its words may make
        the current one: were it the current one already, barge-in would outdate what of it is on its way.
        """
        if utterance.turn_id != self._speaker.turn_id:
            over = self._answering()
            generation = self.parts.generations.current + (over and self._barge_in)
            self._speaker = Speaker(utterance.turn_id, generation, over)
        return replace(utterance, generation=max(utterance.generation, self._speaker.generation))

    def _attend(self) -> None:
        """Barge-in while a reply sounds or is being made: quieter at once, and stopped when it is no backchannel."""
        endpointer = self.parts.endpointer
        speech_ms = endpointer.speech_ms
        self.parts.guidance.attend(self.parts.sink, speech_ms, LONGEST_MS)
        over = speech_ms >= endpointer.config.barge_in_ms and self._answering()
        if over and speech_ms > LONGEST_MS and endpointer.speech_started:
            self._interrupt(
                self._speaker.generation if self._speaker.over_reply else self.parts.generations.current + 1
            )
            over = False
        if over != self._ducked:
            self._ducked = over
            self.parts.sink.duck(over)

    def _interrupt(self, generation: int) -> None:
        """The reply stops, and whatever is older than `generation`."""
        if self.parts.generations.advance_to(generation):
            self._outdate(generation, "barge-in")

    def _is_backchannel(self, transcript: Transcript) -> bool:
        """Whether these words over a reply only say "go on", or are the reply's own, heard through the speaker. Nothing
        says "go on" while the reply asks a question.
        """
        speaker = self._speaker
        if transcript.turn_id != speaker.turn_id or not speaker.over_reply:
            return False
        reply = self.turn_log.get(self._playing_turn)
        if reply is not None and is_own_words(transcript.text, reply.reply):
            return True
        # too short to have stopped the reply, and not understood
        sound = transcript.unclear and self.parts.generations.current < transcript.generation
        if not sound and not is_backchannel(transcript.text):
            return False
        return reply is None or not reply.reply.rstrip().endswith(("?", "？"))

    def _cancel_if_reopened(self, utterance: Utterance) -> Utterance:
        """Speech went on after an early end: what the turn was answering is outdated, and was so from here on."""
        record = self.turn_log.get(utterance.turn_id) if utterance.reopened else None
        if record is None or record.generation < self.parts.generations.current:
            return utterance
        return replace(utterance, generation=self._cancel_replies("re-opened"))

    def _cancel_replies(self, why: str) -> int:
        """Make every reply outdated; nothing is cleared. Returns the new generation."""
        generation = self.parts.generations.bump()
        self._outdate(generation, why)
        return generation

    def _outdate(self, generation: int, why: str) -> None:
        self.parts.sink.stop(generation)
        self.parts.tracer.instant("play", 0, why)
        self.turn_log.interrupt_older(generation)

    def _recognise(self, utterance: Utterance | TurnFailed) -> None:
        if isinstance(utterance, TurnFailed):
            self.edges.transcripts.put(utterance)
            return
        if utterance.stage != "final" and len(self.edges.utterances):
            return  # the person has gone on speaking, or has ended, since
        with self.parts.tracer.span("asr", utterance.turn_id, utterance.stage):
            transcript = self.parts.asr.handle(utterance, superseded=lambda: len(self.edges.utterances) > 0)
        if transcript is None:
            return
        if self._is_backchannel(transcript):
            if transcript.stage == "final":
                self.turn_log.drop(transcript.turn_id)
            return
        unclear = transcript.unclear and transcript.stage == "final"
        if unclear or (transcript.text and (transcript.stage != "partial" or says_more(transcript.text))):
            self._interrupt(transcript.generation)
        self.edges.transcripts.put(transcript)
        self._observer.heard(transcript)

    def _understand(self, transcript: Transcript | TurnFailed) -> None:
        if isinstance(transcript, Transcript) and transcript.turn_id in self._text_turns:
            self._text_turns.answer(transcript)
            return
        if self.parts.generations.is_stale(transcript.generation):
            return  # interrupted, and its turn closed, while this was on its way
        if isinstance(transcript, TurnFailed):
            self._interrupt(transcript.generation)
            self._apologise("understand", transcript)
            return
        if transcript.stage != "partial":
            self._remember_what_was_heard()
        if transcript.stage == "final" and transcript.text:
            self._language = transcript.language
        if transcript.stage == "final":
            log.debug("turn %d is answered", transcript.turn_id)
        for delta in self._understand_stage.answer(transcript):
            self._steps["understand"] += 1
            if delta.last:
                self._tell_calls(delta.turn_id)
            self.edges.deltas.put(delta)

    def _tell_calls(self, turn_id: int) -> None:
        record = self.turn_log.get(turn_id)
        if record is not None and record.tool_results:
            self._observer.acted(record)

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
                self._steps["speak"] += 1
                self.edges.speech.put(frame)
            self.parts.tracer.record("tts", clause.turn_id, start_ns, time.monotonic_ns(), f"clause {clause.index}")

    def _note_first_sound(self, clause: SpokenClause, start_ns: int) -> None:
        record = self.turn_log.get(clause.turn_id)
        if record is not None and record.ms["tts_first"] is None:
            record.ms["tts_first"] = (time.monotonic_ns() - start_ns) / NS_PER_MS

    def _play(self, frame: SpeechFrame) -> None:
        if self.parts.generations.is_stale(frame.generation) or self._unplayable == (frame.turn_id, frame.generation):
            return
        self._playing_turn = frame.turn_id
        out_ns = self.parts.sink.play(frame)
        clause = (frame.turn_id, frame.generation, frame.clause_index)
        if out_ns != STALE and frame.text and clause != self._sounding:
            self._sounding = clause
            self._observer.sounds(frame, out_ns)
        record = self.turn_log.get(frame.turn_id)
        if record is None or out_ns == STALE:
            return
        if record.ms["first_audio"] is None and len(frame.samples):
            record.first_audio_ns = out_ns
            record.ms["first_audio"] = (record.ms["endpoint"] or 0.0) + (out_ns - record.decided_ns) / NS_PER_MS
            self.parts.tracer.instant("play", frame.turn_id, "first audio", out_ns)
        if frame.last:
            self.turn_log.close(frame.turn_id)
