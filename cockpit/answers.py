"""From transcripts to replies: speculation in the trailing silence, action only when the turn is over.

A candidate transcript is planned at once (and a free answer begun), so that a final one with the same words finds its
plan made. A re-opened turn takes back what it did before it acts again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from cockpit.ledger import Ledger, TurnRecord
from pipeline.dialogue import Plan, Understanding
from pipeline.frames import TextDelta, Transcript
from pipeline.trace import Tracer
from pipeline.turns import Generations

NS_PER_MS = 1e6


@dataclass(slots=True)
class Speculation:
    """A plan made before the turn was over. `pieces`: what a free answer has said so far; `rest` goes on with it."""

    turn_id: int
    text: str
    plan: Plan
    planned_ms: float
    pieces: list[str] = field(default_factory=list)
    rest: Iterator[str] | None = None


class Answers:
    """The understanding stage. One thread calls `answer`."""

    def __init__(
        self,
        understanding: Understanding,
        generations: Generations,
        ledger: Ledger,
        tracer: Tracer,
        command_complete: Callable[[int, int], None],
        more_waiting: Callable[[], bool],
    ) -> None:
        self._understanding = understanding
        self._generations = generations
        self._ledger = ledger
        self._tracer = tracer
        self._command_complete = command_complete
        self._more_waiting = more_waiting
        self._speculation: Speculation | None = None

    def answer(self, transcript: Transcript) -> Iterator[TextDelta]:
        """Plan a candidate; act on a final and yield its reply, closed by a delta with `last`."""
        if transcript.stage == "partial":
            return
        if transcript.stage == "candidate":
            self._speculate(transcript)
            return
        if transcript.reopened:
            self._understanding.roll_back(transcript.turn_id)
        if not transcript.text:
            self._ledger.drop(transcript.turn_id)
            return
        yield from self._final(transcript)

    def _speculate(self, transcript: Transcript) -> None:
        if not transcript.text:
            return
        if self._understanding.is_complete(transcript.text, transcript.language):
            self._command_complete(transcript.turn_id, transcript.revision)
        speculation = self._planned(transcript)
        if speculation.rest is None:
            return
        for piece in speculation.rest:
            speculation.pieces.append(piece)
            if self._more_waiting():
                return

    def _planned(self, transcript: Transcript) -> Speculation:
        """The plan for these words: the one made already, or a new one."""
        known = self._speculation
        if known is not None and (known.turn_id, known.text) == (transcript.turn_id, transcript.text):
            return known
        start_ns = time.monotonic_ns()
        with self._tracer.span("understand", transcript.turn_id, transcript.stage):
            plan = self._understanding.plan(transcript.text, transcript.language, cancelled=self._stale(transcript))
        made = Speculation(transcript.turn_id, transcript.text, plan, (time.monotonic_ns() - start_ns) / NS_PER_MS)
        if plan.chat:
            made.rest = self._understanding.chat(
                transcript.text,
                transcript.language,
                turn_id=transcript.turn_id,
                cancelled=self._stale(transcript),
            )
        self._speculation = made
        return made

    def _final(self, transcript: Transcript) -> Iterator[TextDelta]:
        record = self._ledger.open(transcript.turn_id, transcript.generation)
        record.language, record.transcript, record.reply = transcript.language, transcript.text, ""
        record.ms["asr"] = transcript.asr_ms
        record.ms["tts_first"] = None
        speculation = self._planned(transcript)
        self._speculation = None
        pieces = self._free_answer(speculation) if speculation.plan.chat else self._acted(speculation, record)
        start_ns = time.monotonic_ns()
        for piece in pieces:
            record.reply += piece
            yield self._delta(transcript, piece)
        if speculation.plan.chat:
            record.ms["llm"] = speculation.planned_ms + (time.monotonic_ns() - start_ns) / NS_PER_MS
            record.ms["llm_ttft"] = self._understanding.chat_ttft_ms
        elif speculation.plan.decided_by == "model":
            record.ms["llm_ttft"] = speculation.plan.llm_ttft_ms
        yield self._delta(transcript, "", last=True)

    def _acted(self, speculation: Speculation, record: TurnRecord) -> Iterator[str]:
        results = self._understanding.execute(speculation.plan, speculation.turn_id)
        record.tool_results = tuple(results)
        record.ms["llm"] = speculation.plan.llm_ms
        yield self._understanding.reply(speculation.plan, results, speculation.plan.language)

    def _free_answer(self, speculation: Speculation) -> Iterator[str]:
        yield from speculation.pieces
        if speculation.rest is not None:
            yield from speculation.rest

    def _stale(self, transcript: Transcript) -> Callable[[], bool]:
        return lambda: self._generations.is_stale(transcript.generation)

    @staticmethod
    def _delta(transcript: Transcript, text: str, *, last: bool = False) -> TextDelta:
        return TextDelta(
            transcript.turn_id, transcript.generation, text, transcript.language, transcript.captured_ns, last
        )
