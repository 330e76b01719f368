"""Guidance: what navigation says by itself, spoken beside the dialogue and never part of it.

Prompts wait in one bounded queue, in the order of their arrival. A prompt is dropped, and counted, when its deadline
passes before its first sample, when a newer one for the same manoeuvre has come, and when MOST_WAITING newer ones wait.
The first clause is made alone, under a lease of navigation, so that the dialogue's model gives way at its next token;
its first chunk sounds before the others are made. A distance at the beginning ("In 200 metres") is a clause too.
Clauses that were made before come from a cache: the distances, of which there are few, soon do.
"""

from __future__ import annotations

import itertools
import logging
import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from models.engines.base import Audio, Voice
from models.engines.tts.espeak import SpeechFailed
from models.errors import CockpitError, InputError
from pipeline.audio.sink import STALE
from pipeline.clock import Clock, SystemClock
from pipeline.frames import GuidancePrompt, Language, OverReply, PromptFrame
from pipeline.trace import NullTracer, Tracer
from pipeline.tts.clauses import ClauseStream
from pipeline.tts.normalise import spoken

log = logging.getLogger("cockpit.guidance")

MOST_WAITING = 8
NS_PER_MS = 1e6
_AHEAD_NS = 40_000_000
"""A prompt is handed to the sink so long before it may sound: until then a newer one can still take its place."""
_LOOK_S = 0.02
_REMEMBERED = 1024
_DISTANCE: Mapping[Language, re.Pattern[str]] = {
    "en": re.compile(
        r"(?:in|after) (?:about |a |an )?[\w.]+ (?:hundred |thousand )?"
        r"(?:m|met(?:re|er)s?|km|kilomet(?:re|er)s?|miles?|yards|feet)(?= \w)",
        re.IGNORECASE,
    ),
    "zh": re.compile(
        r"(?:前方|再过|行驶)?[\d.一二两三四五六七八九十百千]+(?:米|公里|千米)(?:后|处)?(?=[\u3400-\u9fff])"
    ),
}
_SILENCE: Audio = np.zeros(0, np.float32)
GiveUp = Callable[[], bool]
Lease = Callable[[GiveUp], AbstractContextManager[object]]
"""Held while a clause is made. Raises CockpitError when the arbiter refuses it."""


def no_lease(_give_up: GiveUp) -> AbstractContextManager[object]:
    """Nothing else uses the device."""
    return nullcontext()


class PromptOutdated(CockpitError):
    """The deadline of a prompt had passed when it came."""


class GuidanceEnded(CockpitError):
    """The process is ending: no prompt is taken any more."""


class PromptSink(Protocol):
    """What guidance needs of a sink, see cockpit.runtime.Sink."""

    def prompt(self, frame: PromptFrame) -> int: ...
    def stop_prompt(self) -> int: ...
    def prompting(self) -> bool: ...
    def prompt_wait_ns(self, over_reply: OverReply) -> int: ...


@dataclass(frozen=True, slots=True)
class GuidanceCounts:
    """What became of prompts. outdated: their deadline passed; superseded: a newer one for the same manoeuvre came;
    overflowed: too many newer ones waited; refused: the arbiter gave no lane; interrupted: the driver spoke;
    failed: no voice could speak them; cut_off: the process ended. latencies_ms: from arrival to the first sample, the
    newest 1024.
    """

    accepted: int
    spoken: int
    outdated: int
    superseded: int
    overflowed: int
    refused: int
    interrupted: int
    failed: int
    cut_off: int
    cached_clauses: int
    latencies_ms: tuple[float, ...]

    def as_json(self) -> dict[str, float | int]:
        """Counts, and P50, P95 and P99 of the latency where there is one."""
        names = (name for name in self.__slots__ if name != "latencies_ms")
        values: dict[str, float | int] = {name: getattr(self, name) for name in names}
        if self.latencies_ms:
            for share in (50, 95, 99):
                values[f"first_sample_p{share}_ms"] = round(float(np.percentile(self.latencies_ms, share)), 1)
        return values


class ClauseCache:
    """Synthesised clauses by language and spoken text, the longest unused going first. Audio: float32."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._clauses: OrderedDict[tuple[Language, str], tuple[Audio, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._clauses)

    def get(self, language: Language, words: str) -> tuple[Audio, ...] | None:
        """The chunks of a clause; None where it is not kept."""
        chunks = self._clauses.get((language, words))
        if chunks is not None:
            self._clauses.move_to_end((language, words))
        return chunks

    def put(self, language: Language, words: str, chunks: tuple[Audio, ...]) -> None:
        """Keep a clause that is not kept yet, unless it alone is larger than the cache."""
        size = sum(chunk.nbytes for chunk in chunks)
        if size > self._most_bytes or (language, words) in self._clauses:
            return
        self._clauses[language, words] = chunks
        self._bytes += size
        while self._bytes > self._most_bytes:
            _, dropped = self._clauses.popitem(last=False)
            self._bytes -= sum(chunk.nbytes for chunk in dropped)


@dataclass(frozen=True, slots=True)
class _Waiting:
    prompt_id: int
    prompt: GuidancePrompt
    clauses: tuple[str, ...]


class GuidanceStage:
    """`submit` from any thread; `step` and `attend` from one each.

    voices: of its own or shared ones whose turns are taken. lease: see Lease. pause: sleeps up to so many seconds.
    """

    def __init__(
        self,
        voices: Mapping[Language, Voice],
        *,
        over_reply: OverReply = "interrupt",
        lease: Lease = no_lease,
        cache_bytes: int = 16 << 20,
        clock: Clock | None = None,
        tracer: Tracer | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.over_reply = over_reply
        self._voices = voices
        self._lease = lease
        self._cache = ClauseCache(cache_bytes)
        self._clock: Clock = clock or SystemClock()
        self._tracer = tracer or NullTracer()
        self._pause = pause
        self._ids = itertools.count(1)
        self._waiting: deque[_Waiting] = deque()
        self._came = threading.Condition()
        self._counts = dict.fromkeys(GuidanceCounts.__slots__[:-2], 0)
        self._latencies_ms: deque[float] = deque(maxlen=_REMEMBERED)
        self._closed = False
        self._spoke_before = False
        self.asked = 0
        """How often the work on a prompt has asked whether to go on, and handed on a piece of it."""

    # --- any thread ------------------------------------------------------------------------------------------------
    def submit(self, prompt: GuidancePrompt) -> int:
        """Take a prompt; returns its id. Raises InputError for one that holds nothing to say or whose language has no
        voice, PromptOutdated and GuidanceEnded.
        """
        if prompt.language not in self._voices:
            known = ", ".join(self._voices) or "none"
            raise InputError(f"guidance has no voice for {prompt.language!r} here; it has {known}")
        clauses = _clauses(prompt.text, prompt.language)
        if not clauses:
            raise InputError("the prompt holds nothing that can be spoken; give it words")
        with self._came:
            if self._closed:
                raise GuidanceEnded("the process is ending: no prompt is taken any more; hand it in after the restart")
            if self._late(prompt):
                self._counts["outdated"] += 1
                raise PromptOutdated("the deadline of the prompt had passed when it came; it is not spoken")
            waiting = _Waiting(next(self._ids), prompt, clauses)
            self._counts["accepted"] += 1
            for older in [other for other in self._waiting if _same(other.prompt, prompt)]:
                self._waiting.remove(older)
                self._counts["superseded"] += 1
            if len(self._waiting) >= MOST_WAITING:
                self._waiting.popleft()
                self._counts["overflowed"] += 1
            self._waiting.append(waiting)
            self._came.notify()
            return waiting.prompt_id

    def counts(self) -> GuidanceCounts:
        """A consistent snapshot."""
        with self._came:
            return GuidanceCounts(
                **self._counts, cached_clauses=len(self._cache), latencies_ms=tuple(self._latencies_ms)
            )

    def close(self) -> None:
        """Speak nothing more; what waits is counted as cut off. Safe to call twice."""
        with self._came:
            self._closed = True
            self._counts["cut_off"] += len(self._waiting)
            self._waiting.clear()
            self._came.notify_all()

    # --- the thread of guidance ------------------------------------------------------------------------------------
    def step(self, sink: PromptSink, timeout_s: float) -> bool:
        """Speak the prompt that waited longest, if one comes within `timeout_s`. False once closed."""
        with self._came:
            if not self._waiting and not self._closed:
                self._came.wait(timeout_s)
            if self._closed:
                return False
            if not self._waiting:
                return True
            taken = self._waiting.popleft()
        try:
            outcome = self._speak(taken, sink)
        except SpeechFailed as error:
            outcome = "failed"
            log.warning("prompt %d of guidance cannot be spoken: %s", taken.prompt_id, error)
        except CockpitError as error:
            outcome = "outdated" if self._late(taken.prompt) else "refused"
            log.warning("prompt %d of guidance is not spoken: %s", taken.prompt_id, error)
        except Exception as error:
            # the edge of a stage: counted, and the next prompt is spoken
            outcome = "failed"
            log.error("prompt %d of guidance failed: %s: %s", taken.prompt_id, type(error).__name__, error)
        self._count(outcome)
        self._tracer.instant("guidance", 0, f"prompt {taken.prompt_id}: {outcome}")
        return True

    def _speak(self, taken: _Waiting, sink: PromptSink) -> str:
        """Make it and hand it on; returns what became of it, a name in GuidanceCounts."""
        rate_hz = self._voices[taken.prompt.language].sample_rate_hz
        outdated = ""

        def give_up() -> bool:
            nonlocal outdated
            self.asked += 1
            outdated = outdated or self._outdated(taken)
            return bool(outdated)

        begun = False
        try:
            for words in taken.clauses:
                for samples in self._in_turn(words, taken.prompt.language, sink, bool if begun else give_up):
                    self.asked += 1
                    if not begun and give_up():
                        return outdated
                    out_ns = sink.prompt(PromptFrame(taken.prompt_id, samples, rate_hz, self.over_reply))
                    if out_ns == STALE:
                        return "interrupted"
                    if not begun:
                        self._note_first(taken.prompt, out_ns)
                    begun = True
        finally:  # whatever happened: replies must not stand still for ever
            last = PromptFrame(taken.prompt_id, _SILENCE, rate_hz, self.over_reply, last=True)
            stopped = begun and sink.prompt(last) == STALE
        if begun:
            return "interrupted" if stopped else "spoken"
        return outdated or ("cut_off" if self._closed else "failed")

    def _note_first(self, prompt: GuidancePrompt, out_ns: int) -> None:
        with self._came:
            self._latencies_ms.append((out_ns - prompt.captured_ns) / NS_PER_MS)
        self._tracer.record("guidance", 0, prompt.captured_ns, out_ns, "to first sample")

    def _in_turn(self, words: str, language: Language, sink: PromptSink, give_up: GiveUp) -> Iterator[Audio]:
        """A clause, chunk by chunk as it is made; where it must wait to be heard, it is made whole before the wait: no
        lease is held meanwhile. Nothing when it is given up.
        """
        chunks = self._chunks(words, language, give_up)
        if sink.prompting() or sink.prompt_wait_ns(self.over_reply) <= _AHEAD_NS:
            yield from chunks
            return
        made = list(chunks)
        if self._wait_for_turn(sink, give_up):
            yield from made

    def _chunks(self, words: str, language: Language, give_up: GiveUp) -> Iterator[Audio]:
        """A clause, chunk by chunk. The lease is given back at its end, also while a listener lags."""
        cached = self._cache.get(language, words)
        if cached is not None:
            yield from cached
            return
        made: list[Audio] = []
        with self._lease(give_up):
            for samples in self._voices[language].synthesise(words):
                made.append(samples)
                yield samples
        with self._came:
            self._cache.put(language, words, tuple(made))

    def _wait_for_turn(self, sink: PromptSink, give_up: GiveUp) -> bool:
        """Until it may sound almost at once; False when it is outdated by then, or the process ends."""
        while (wait_ns := sink.prompt_wait_ns(self.over_reply)) > _AHEAD_NS and not self._closed and not give_up():
            self.asked += 1
            self._pause(min(_LOOK_S, (wait_ns - _AHEAD_NS) / 1e9))
        return not self._closed and not give_up()

    def _outdated(self, taken: _Waiting) -> str:
        if self._late(taken.prompt):
            return "outdated"
        with self._came:
            newer = any(_same(other.prompt, taken.prompt) for other in self._waiting)
        return "superseded" if newer else ""

    def _late(self, prompt: GuidancePrompt) -> bool:
        return prompt.deadline_ns is not None and self._clock.now_ns() > prompt.deadline_ns

    def _count(self, outcome: str) -> None:
        with self._came:
            self._counts[outcome] += 1

    # --- the thread that hears the driver --------------------------------------------------------------------------
    def attend(self, sink: PromptSink, speech_ms: float, longest_backchannel_ms: float) -> None:
        """The driver has spoken for so long (0: is silent). Speech that began during a prompt stops it, unless it is so
        short that it may only say "go on".
        """
        if not sink.prompting():
            self._spoke_before = speech_ms > 0
        elif speech_ms == 0:
            self._spoke_before = False
        elif speech_ms > longest_backchannel_ms and not self._spoke_before:
            self.stop(sink)

    def stop(self, sink: PromptSink) -> None:
        """Silence the prompt that sounds; it is not repeated, and those that wait are spoken."""
        if sink.stop_prompt() >= 0:
            self._tracer.instant("guidance", 0, "barge-in")


def _clauses(text: str, language: Language) -> tuple[str, ...]:
    """The spoken words, clause by clause; the distance at the beginning is one."""
    stream = ClauseStream(language)
    displays = [*stream.push(text), *stream.close()]
    distance = _DISTANCE[language].match(displays[0]) if displays else None
    lead = ""
    if distance is not None:
        lead = spoken(distance[0], language) + ("，" if language == "zh" else ",")
        displays[0] = displays[0][distance.end() :].strip()
    return tuple(filter(None, (lead, *(spoken(display, language) for display in displays))))


def _same(one: GuidancePrompt, other: GuidancePrompt) -> bool:
    return bool(one.manoeuvre) and one.manoeuvre == other.manoeuvre
