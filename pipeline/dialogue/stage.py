"""From transcripts to replies: speculation in the trailing silence, action only when the turn is over.

A candidate transcript is planned at once (and a free answer begun), so that a final one with the same words finds its
plan made. A re-opened turn takes back what it did before it acts again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pipeline.dialogue.llm_steps import LlmScheduler
from pipeline.dialogue.manager import DialogueManager
from pipeline.dialogue.plan import Plan
from pipeline.frames import Language, Task, TextDelta, Transcript, TurnFailed
from pipeline.nlg.apologies import NOT_TAKEN_BACK, SAY_AGAIN, UNCLEAR
from pipeline.trace import Tracer
from pipeline.turn_log import TurnLog, TurnRecord
from pipeline.turns import Generations
from pipeline.vehicle.signals import SignalError

NS_PER_MS = 1e6
_BUSY: dict[Language, str] = {
    "en": "I am busy right now, please ask again.",
    "zh": "我现在忙不过来，请再说一次。",
}
"""Said when the model got no lane in time."""


@dataclass(slots=True)
class Speculation:
    """A plan made before the turn was over. `pieces`: what a free answer has said so far; `rest` goes on with it."""

    turn_id: int
    text: str
    plan: Plan
    planned_ms: float
    pieces: list[str] = field(default_factory=list)
    rest: Iterator[str] | None = None


class UnderstandStage:
    """The understanding stage. One thread calls `answer`."""

    def __init__(
        self,
        dialogue: DialogueManager,
        generations: Generations,
        turn_log: TurnLog,
        tracer: Tracer,
        scheduler: LlmScheduler,
        command_complete: Callable[[int, int], None],
        more_waiting: Callable[[], bool],
    ) -> None:
        self._dialogue = dialogue
        self._generations = generations
        self._turn_log = turn_log
        self._tracer = tracer
        self._scheduler = scheduler
        self._command_complete = command_complete
        self._more_waiting = more_waiting
        self._speculation: Speculation | None = None
        self._prepared = True
        self.asked = 0
        """How often the work on a transcript has asked whether to go on: between the model's steps, and while it waits
        for a lane or a tool. It stands still where the work hangs."""

    def answer(self, transcript: Transcript) -> Iterator[TextDelta]:
        """Plan a candidate; act on a final and yield its reply, closed by a delta with `last`."""
        if transcript.stage == "partial":
            return
        self._prepared = False
        if transcript.stage == "candidate":
            self._speculate(transcript)
            return
        if transcript.reopened:
            self._dialogue.roll_back(transcript.turn_id)
        if transcript.text:
            yield from self._final(transcript)
        elif transcript.unclear:
            yield from self._ask_again(transcript)
        else:
            self._turn_log.drop(transcript.turn_id)

    def _ask_again(self, transcript: Transcript) -> Iterator[TextDelta]:
        """Something was said, nobody knows what. The language heard in it is a guess too: the last one goes before."""
        record = self._turn_log.open(transcript.turn_id, transcript.generation)
        language = self._dialogue.last_language() or transcript.language
        record.language, record.transcript, record.reply = language, "", UNCLEAR[language]
        record.ms["asr"] = transcript.asr_ms
        for text, last in ((UNCLEAR[language], False), ("", True)):
            yield TextDelta(transcript.turn_id, transcript.generation, text, language, transcript.captured_ns, last)

    def apologise(self, turn: TurnFailed, language: Language) -> Iterator[TextDelta]:
        """The reply of a turn that failed before its answer was complete; what it had done is taken back."""
        record = self._turn_log.open(turn.turn_id, turn.generation)
        record.failed, record.language = turn.stage, record.language or language
        self._speculation = None
        words = SAY_AGAIN[language]
        try:
            self._dialogue.roll_back(turn.turn_id)
            record.tool_results = ()
        except SignalError:
            words = NOT_TAKEN_BACK[language]
        record.reply = f"{record.reply} {words}".strip()
        for text, last in ((words, False), ("", True)):
            yield TextDelta(turn.turn_id, turn.generation, text, language, turn.captured_ns, last)

    def prepare(self, busy: Callable[[], bool]) -> None:
        """In idle time: compute what the next free answer begins with. Stops when `busy` or when something comes."""
        if self._prepared:
            return

        def give_up() -> bool:
            self.asked += 1
            return self._more_waiting() or busy()

        def cancelled() -> bool:
            return give_up() or bool(self._scheduler.stopped)

        with self._scheduler.block(give_up):
            self._prepared = self._dialogue.prepare(cancelled, scheduler=self._scheduler)

    def _speculate(self, transcript: Transcript) -> None:
        if not transcript.text:
            return
        heard, margin = transcript.avg_logprob, transcript.number_margin
        if self._dialogue.is_complete(transcript.text, transcript.language, avg_logprob=heard, number_margin=margin):
            self._command_complete(transcript.turn_id, transcript.revision)
        stale = self._stale(transcript)
        with self._scheduler.block(lambda: stale() or self._more_waiting()):
            speculation = self._planned(transcript)
            for piece in speculation.rest or ():
                speculation.pieces.append(piece)
                if self._more_waiting():
                    return
        if self._scheduler.stopped:
            self._speculation = None  # cut short: the final one starts anew

    def _planned(self, transcript: Transcript) -> Speculation:
        """The plan for these words: the one made already, or a new one."""
        known = self._speculation
        if known is not None and (known.turn_id, known.text) == (transcript.turn_id, transcript.text):
            return known
        start_ns = time.monotonic_ns()
        with self._tracer.span("understand", transcript.turn_id, transcript.stage):
            plan = self._dialogue.plan(
                transcript.text,
                transcript.language,
                avg_logprob=transcript.avg_logprob,
                number_margin=transcript.number_margin,
                turn_id=transcript.turn_id,
                cancelled=self._cancelled(transcript),
                scheduler=self._scheduler,
            )
        made = Speculation(transcript.turn_id, transcript.text, plan, (time.monotonic_ns() - start_ns) / NS_PER_MS)
        if plan.chat:
            made.rest = self._dialogue.chat(
                transcript.text,
                transcript.language,
                turn_id=transcript.turn_id,
                cancelled=self._cancelled(transcript),
                scheduler=self._scheduler,
                from_manual=plan.from_manual,
            )
        self._speculation = None if plan.cut else made
        return made

    def _final(self, transcript: Transcript) -> Iterator[TextDelta]:
        record = self._turn_log.open(transcript.turn_id, transcript.generation)
        record.language, record.transcript, record.reply = transcript.language, transcript.text, ""
        record.decided_by = record.task = record.confidence = record.asked = None
        record.ms["asr"] = transcript.asr_ms
        record.ms["tts_first"] = None
        with self._scheduler.block(self._stale(transcript)):
            speculation = self._planned(transcript)
            self._speculation = None
            record.decided_by = None if speculation.plan.cut else speculation.plan.decided_by
            record.confidence = None if speculation.plan.cut else speculation.plan.confidence
            record.task = task = speculation.plan.task
            start_ns = time.monotonic_ns()
            for piece in self._pieces(speculation, record):
                record.reply += piece
                yield self._delta(transcript, piece, task)
        if speculation.plan.chat:
            record.ms["llm"] = speculation.planned_ms + (time.monotonic_ns() - start_ns) / NS_PER_MS
            record.ms["llm_ttft"] = self._dialogue.chat_ttft_ms
        elif speculation.plan.llm_ttft_ms:
            record.ms["llm_ttft"] = speculation.plan.llm_ttft_ms
        yield self._delta(transcript, "", task, last=True)

    def _pieces(self, speculation: Speculation, record: TurnRecord) -> Iterator[str]:
        """The reply. A choice that the model could not make is not guessed: nothing is done then, and that is said
        unless the answer is stale by now.
        """
        cut = speculation.plan.cut
        if speculation.plan.chat:
            yield from self._free_answer(speculation)
        elif not self._scheduler.stopped and not cut:
            yield from self._acted(speculation, record)
        unmade = self._scheduler.stopped or (cut and not self._generations.is_stale(record.generation))
        if unmade and not record.reply.strip():
            yield _BUSY[speculation.plan.language]

    def _acted(self, speculation: Speculation, record: TurnRecord) -> Iterator[str]:
        names = ", ".join(call.name for call in speculation.plan.calls)
        with self._tracer.span("car", speculation.turn_id, names):
            results = self._dialogue.execute(speculation.plan, speculation.turn_id)
        record.tool_results = tuple(results)
        record.asked = self._dialogue.memory.asks(speculation.turn_id)
        record.ms["llm"] = speculation.plan.llm_ms
        plan = speculation.plan
        yield self._dialogue.reply(plan, results, plan.language, turn_id=speculation.turn_id)

    def _free_answer(self, speculation: Speculation) -> Iterator[str]:
        yield from speculation.pieces
        if speculation.rest is not None:
            yield from speculation.rest

    def _stale(self, transcript: Transcript) -> Callable[[], bool]:
        def stale() -> bool:
            self.asked += 1
            return self._generations.is_stale(transcript.generation)

        return stale

    def _cancelled(self, transcript: Transcript) -> Callable[[], bool]:
        stale = self._stale(transcript)
        return lambda: stale() or bool(self._scheduler.stopped)

    @staticmethod
    def _delta(transcript: Transcript, text: str, task: Task, *, last: bool = False) -> TextDelta:
        return TextDelta(
            transcript.turn_id, transcript.generation, text, transcript.language, transcript.captured_ns, last, task
        )
