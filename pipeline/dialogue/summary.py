"""What was said before the exchanges that the model still sees, in two sentences that it writes itself in idle time.

Only talk goes in: what was commanded is the car's own state, and a small model retells it wrongly. What comes out
passes the filter of spoken talk, and none that names the car's things is kept, so a deed never appears as done. In a
prompt the text stands as something said, before the last exchanges: data like these, no instruction of the system.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.session import LmSession
from pipeline.dialogue.chat_guard import TalkFilter, names_the_car
from pipeline.dialogue.llm_steps import LlmScheduler, fill
from pipeline.frames import Language

WRITE_AFTER: Final = 2
"""Exchanges that have left the model's sight before the next summary is written."""
MOST_PENDING: Final = 6
SUMMARY_TOKENS: Final = 48
CHUNK_TOKENS: Final = 32
"""Tokens per step: the longest that somebody who begins to speak may wait for it."""
_TASK: Final[dict[Language, str]] = {
    "en": "You sum up a talk between a driver and an assistant. Write one or two short sentences in English: what the "
    "driver said about himself and what he wanted to know. Nothing else.",
    "zh": "请总结司机和助手的谈话。用一两句简短的中文写出司机说了自己什么、想知道什么。不要写别的。",
}
_EARLIER: Final[dict[Language, str]] = {"en": "Earlier we talked about this: ", "zh": "我们之前谈到："}
_NOTED: Final[dict[Language, str]] = {"en": "Yes, I remember.", "zh": "是的，我记得。"}


@dataclass(frozen=True, slots=True)
class _Said:
    user: str
    heard: str


@dataclass(slots=True)
class Summary:
    """Owned by the dialogue's thread. text: empty before the first one. session: None keeps nothing."""

    lm: CausalLM | None = None
    session: LmSession | None = None
    text: str = ""
    language: Language = "en"
    _pending: deque[_Said] = field(default_factory=lambda: deque(maxlen=MOST_PENDING))

    def leaves(self, user: str, heard: str, language: Language) -> None:
        """An exchange of talk leaves the model's sight. What was not heard was not said."""
        if self.session is not None and heard:
            self._pending.append(_Said(user[:200], heard[:200]))
            self.language = language

    def clear(self) -> None:
        """Forget all of it."""
        self.text = ""
        self._pending.clear()

    @property
    def due(self) -> bool:
        return len(self._pending) >= WRITE_AFTER

    def messages(self) -> list[dict[str, str]]:
        """What goes before the last exchanges in a prompt; empty without a summary."""
        if not self.text:
            return []
        language = self.language
        return [
            {"role": "user", "content": _EARLIER[language] + self.text},
            {"role": "assistant", "content": _NOTED[language]},
        ]

    def write(self, cancelled: Callable[[], bool], scheduler: LlmScheduler) -> bool:
        """Write the next summary, as work that waits for nobody and yields to all. True when none is due; False when it
        was cut short: call it again in the next idle moment.
        """
        if not self.due or self.lm is None or self.session is None:
            return True
        included, language = tuple(self._pending), self.language
        lines = [f"- {self.text}"] if self.text else []
        for said in included:
            lines += [f"- {said.user}", f"  {said.heard}"]
        messages = [{"role": "system", "content": _TASK[language]}, {"role": "user", "content": "\n".join(lines)}]
        steps = scheduler.on(self.session, ahead=True, task="background")
        prompt = self.lm.chat.encode(messages, self.lm.tokenizer)
        fill(self.session, prompt, steps, at_most=CHUNK_TOKENS, cancelled=cancelled)
        stream, talk = self.lm.tokenizer.stream(), TalkFilter(language)
        count = 0
        for token in self.session.generate(
            max_new_tokens=SUMMARY_TOKENS, cancelled=cancelled, at_boundary=steps.at_token
        ):
            count += 1
            talk.push(stream.push(token))
            if talk.done:
                break
        if cancelled():
            return False
        if not talk.done:
            talk.push(stream.finish())
            talk.close(cut=count == SUMMARY_TOKENS)
        written = talk.said.strip()
        self.text = "" if names_the_car(written, language) else written
        for _ in included:
            self._pending.popleft()
        return True
