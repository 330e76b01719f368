"""Prompts of guidance among replies: one stream for the speaker, and what a reply's WAV file would have sounded like.

`PromptMixer.render` runs in the device's callback: it allocates no samples and takes no lock. A prompt is an object of
its own; the callback is told of a new one by replacing it as a whole.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from models.engines.base import Audio
from pipeline.audio.portaudio import PromptRing, ReplyRing
from pipeline.frames import OverReply

UNDER_A_PROMPT = 0.2
"""Loudness of a reply under a prompt that ducks it: 14 dB down."""
_MOST_PROMPT_S = 30.0
_NOT_KNOWN = sys.maxsize


@dataclass(slots=True)
class _Prompt:
    """hold_at: position of the replies at which they stand still. resume_at: where they go on, if that is before it.
    over: by the callback, when the last sample is out.
    """

    prompt_id: int
    over_reply: OverReply
    hold_at: int
    resume_at: int = 0
    ended: bool = False
    over: bool = False


class PromptMixer:
    """Rings of replies and prompts. `render` belongs to the callback; the rest is called under the sink's lock."""

    def __init__(self, rate_hz: int, reply_s: float) -> None:
        self.replies = ReplyRing(int(reply_s * rate_hz))
        self.prompts = PromptRing(int(_MOST_PROMPT_S * rate_hz))
        self.cut_to = 0
        """Replies before this position are not heard any more."""
        self._prompts_cut_to = 0
        self._prompt: _Prompt | None = None
        self._starts: deque[int] = deque([0])

    # --- the callback's side ---------------------------------------------------------------------------------------
    def render(self, out: Audio, gain: float) -> int:
        """Fill the front of float32 (n,) with what is to be heard next, replies at `gain`; returns how many samples."""
        self.replies.skip_to(self.cut_to)
        self.prompts.skip_to(self._prompts_cut_to)
        prompt = self._prompt
        if prompt is None or prompt.over:
            return self._replies_into(out, gain)
        if prompt.over_reply == "duck":
            count = self._replies_into(out, min(gain, UNDER_A_PROMPT))
            out[count:] = 0.0
            count = max(count, self.prompts.add_to(out))
            prompt.over = prompt.ended and not len(self.prompts)
            return count
        before_hold = max(0, prompt.hold_at - self.replies.consumed)
        count = self._replies_into(out[:before_hold], gain)
        if count == len(out):
            return count
        prompt.hold_at = min(prompt.hold_at, self.replies.consumed)  # the clause ended and nothing came after it yet
        count += self.prompts.read_into(out[count:])
        if count < len(out) and prompt.ended and not len(self.prompts):
            prompt.over = True
            self.replies.rewind_to(max(prompt.resume_at, self.cut_to))
            count += self._replies_into(out[count:], gain)
        return count

    def _replies_into(self, out: Audio, gain: float) -> int:
        count = self.replies.read_into(out)
        out[:count] *= gain
        return count

    # --- the feeding side ------------------------------------------------------------------------------------------
    @property
    def sounding(self) -> bool:
        """Whether a prompt is under way."""
        return self._prompt is not None and not self._prompt.over

    def begin_clause(self) -> None:
        """What is written to the replies from now on is a new clause."""
        start = self.replies.written
        if self._starts[-1] != start:
            self._starts.append(start)
        prompt = self._prompt
        if prompt is not None and prompt.hold_at == _NOT_KNOWN:
            prompt.hold_at = start

    def keep_running_clause(self) -> None:
        """Before each write: the clause that sounds must not be written over, it may be spoken again."""
        while len(self._starts) > 1 and self._starts[1] <= self.replies.consumed:
            self._starts.popleft()
        self.replies.kept = self._clause_start()

    def begin_prompt(self, prompt_id: int, over_reply: OverReply) -> None:
        """Frames of this prompt follow; those of one before it sound first."""
        if self._prompt is None or self._prompt.over or self._prompt.prompt_id != prompt_id:
            hold_at = 0 if over_reply == "interrupt" else self._clause_end()
            self._prompt = _Prompt(prompt_id, over_reply, hold_at)

    def end_prompt(self) -> None:
        """All of it is written. Replies stand still by now, so where they go on is known."""
        prompt = self._prompt
        if prompt is not None:
            prompt.resume_at = self._clause_start() if prompt.over_reply == "interrupt" else _NOT_KNOWN
            prompt.ended = True

    def stop_prompt(self) -> int:
        """Silence the prompt within one callback; returns its id, -1 where none sounds."""
        prompt = self._prompt
        if prompt is None or prompt.over:
            return -1
        self._prompts_cut_to = self.prompts.written
        self.end_prompt()
        return prompt.prompt_id

    def samples_until_prompt(self, over_reply: OverReply) -> int:
        """How long a prompt that is handed in now waits: for prompts before it, and for the end of the clause."""
        waiting = len(self.prompts)
        if over_reply != "queue" or self.sounding:
            return waiting
        end = self._clause_end()
        return max(0, (self.replies.written if end == _NOT_KNOWN else end) - max(self.replies.consumed, self.cut_to))

    def samples_until_reply(self) -> int:
        """How long what is written to the replies now waits, as far as it is known."""
        prompt = self._prompt
        stands_still = prompt is not None and not prompt.over and prompt.over_reply != "duck"
        return len(self.replies) + len(self.prompts) * stands_still

    def _clause_start(self) -> int:
        """Of the clause that was cut; the position itself where nothing of a clause was left."""
        position = self.replies.consumed
        if position >= self.replies.written:
            return position
        return self._starts[max(0, bisect_right(self._starts, position) - 1)]

    def _clause_end(self) -> int:
        """Of the clause that sounds, as far as it is known; the position itself between two clauses."""
        position = max(self.replies.consumed, self.cut_to)
        if position >= self.replies.written or position in self._starts:
            return position
        after = bisect_right(self._starts, position)
        return self._starts[after] if after < len(self._starts) else _NOT_KNOWN


@dataclass(slots=True)
class SpokenPrompt:
    """One prompt of a WAV sink. at: where its next samples go in the reply that it interrupts, -1 in none."""

    prompt_id: int
    rate_hz: int
    over_reply: OverReply
    end_ns: int
    at: int = -1
    parts: list[Audio] = field(default_factory=list)
    samples: int = 0
    ended: bool = False

    def add(self, samples: Audio, start_ns: int) -> None:
        """Its next samples, heard from `start_ns` on."""
        self.parts.append(samples)
        self.samples += len(samples)
        self.end_ns = start_ns + len(samples) * 1_000_000_000 // self.rate_hz

    def heard(self, now_ns: int) -> Audio:
        """What sounded until `now_ns`."""
        late = max(0, (self.end_ns - now_ns) * self.rate_hz // 1_000_000_000)
        whole: Audio = np.concatenate(self.parts) if self.parts else np.zeros(0, np.float32)
        return whole[: max(0, len(whole) - late)]
