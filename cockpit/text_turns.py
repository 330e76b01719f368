"""Turns asked in words by another program: the reply is handed back instead of spoken.

They run on the understanding thread, through the same parse, guards and tools as what the driver says, in the same
dialogue: one car has one conversation. What the driver says meanwhile interrupts the one that is being answered, never
those that wait.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Literal

from pipeline.dialogue.llm_steps import LlmScheduler
from pipeline.dialogue.manager import DialogueManager
from pipeline.dialogue.stage import UnderstandStage
from pipeline.frames import ToolCall, ToolResult, Transcript, TurnFailed
from pipeline.turn_log import TurnLog
from pipeline.turns import Generations

Outcome = Literal["answered", "cut", "failed"]
"""`cut`: the model got no lane in time, or the driver spoke meanwhile. `failed`: a fault of this process."""


@dataclass(frozen=True, slots=True)
class TextAnswer:
    """What became of the words. calls: what they mean; results: what the car did, empty where it was not to act.

    reply: what would have been spoken; empty where the car was not to act, and where the turn was cut.
    """

    calls: tuple[ToolCall, ...]
    results: tuple[ToolResult, ...]
    reply: str
    outcome: Outcome

    @property
    def acted(self) -> bool:
        """Whether the car was changed, as read back from it. Answering a question is no deed."""
        return any(result.status == "done" and not result.call.name.startswith("ask_") for result in self.results)


@dataclass(frozen=True, slots=True)
class _Asked:
    act: bool
    answer: Future[TextAnswer]


class TextTurns:
    """The ones of one runtime. `expect` before the transcript is sent; `answer` on the understanding thread."""

    def __init__(
        self,
        dialogue: DialogueManager,
        stage: UnderstandStage,
        turn_log: TurnLog,
        generations: Generations,
        scheduler: LlmScheduler,
    ) -> None:
        self._dialogue = dialogue
        self._stage = stage
        self._turn_log = turn_log
        self._generations = generations
        self._scheduler = scheduler
        self._asked: dict[int, _Asked] = {}
        self._lock = threading.Lock()

    def expect(self, turn_id: int, *, act: bool) -> Future[TextAnswer]:
        """The answer to come. Cancelling it before its turn has begun leaves everything undone."""
        answer: Future[TextAnswer] = Future()
        with self._lock:
            self._asked[turn_id] = _Asked(act, answer)
        return answer

    def __contains__(self, turn_id: int) -> bool:
        with self._lock:
            return turn_id in self._asked

    def answer(self, transcript: Transcript) -> None:
        """Answer one. A fault is told to whoever asked, what was done is taken back, and the fault is raised."""
        with self._lock:
            asked = self._asked.pop(transcript.turn_id)
        if not asked.answer.set_running_or_notify_cancel():
            return
        now = replace(transcript, generation=self._generations.current)
        try:
            found = self._acted(now) if asked.act else self._understood(now)
        except Exception:
            asked.answer.set_result(self._taken_back(now))
            raise
        asked.answer.set_result(found)

    def close(self) -> None:
        """Cancel those that were not begun."""
        with self._lock:
            waiting = list(self._asked.values())
            self._asked.clear()
        for asked in waiting:
            asked.answer.cancel()

    def _understood(self, transcript: Transcript) -> TextAnswer:
        def stopped() -> bool:
            return bool(self._scheduler.stopped) or self._generations.is_stale(transcript.generation)

        with self._scheduler.block(stopped):
            plan = self._dialogue.plan(
                transcript.text, transcript.language, cancelled=stopped, scheduler=self._scheduler
            )
        return TextAnswer(plan.calls, (), "", "cut" if plan.cut else "answered")

    def _acted(self, transcript: Transcript) -> TextAnswer:
        record = self._turn_log.open(transcript.turn_id, transcript.generation)
        record.decided_ns = transcript.captured_ns
        for _ in self._stage.answer(transcript):
            pass
        self._dialogue.heard(transcript.turn_id, record.reply)
        self._turn_log.close(transcript.turn_id)
        results = record.tool_results
        cut = not results and (record.decided_by is None or self._generations.is_stale(transcript.generation))
        return TextAnswer(tuple(result.call for result in results), results, record.reply, "cut" if cut else "answered")

    def _taken_back(self, transcript: Transcript) -> TextAnswer:
        turn = TurnFailed(transcript.turn_id, transcript.generation, "understand", transcript.captured_ns)
        for _ in self._stage.apologise(turn, transcript.language):
            pass
        record = self._turn_log.close(transcript.turn_id)
        if record is None:
            return TextAnswer((), (), "", "failed")
        return TextAnswer((), record.tool_results, record.reply, "failed")
