"""Continuous batching: the texts of one task run together, join and leave between two tokens.

One loop per task holds the task's lane while it has texts. A turn of it: let requests in, compute up to one chunk of
prompts, compute the next token of every text that has its prompt in one run, hand the tokens out, ask the arbiter.
So a long prompt delays nobody's token by more than a chunk, and whoever hangs up is gone at the next turn.
A device is given the run after that as soon as its tokens are chosen, and computes while they are handed out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from cockpit.api.errors import ApiError, invalid
from cockpit.api.generation import Finished, Generation, Piece, StopTexts, given_up
from cockpit.api.lengths import LengthsSeen
from cockpit.api.sessions import LEAST_TOKENS, Seat, SessionPool
from cockpit.api.stats import TextStats
from cockpit.scheduling.batch_lease import BatchLane, Member
from cockpit.scheduling.dispatcher import Refused
from models.engines.llm.batch import TextBatch
from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.sampling import Sampler
from models.engines.llm.session import Continuation, Hidden, LmSession, common
from models.engines.llm.tokenizer import TextStream
from models.engines.preemption import RunEnded
from models.errors import InputError

log = logging.getLogger("cockpit.api.batching")

NS_PER_MS = 1e6
_STARVED_TURNS = 8
"""After so many turns without a chunk a long prompt goes before shorter ones."""
_GROW = 1.5
_RETRY_S = 0.05
"""How often a loop looks again whether a request that could not join now can."""
_WAITED = "stopped: it waited past the task's timeout"


class Shared(Protocol):
    """What the loops of all tasks share. See cockpit.api.text.TextService."""

    model: CausalLM
    batch: TextBatch
    pool: SessionPool
    stats: TextStats
    lengths: LengthsSeen

    def may_run(self, task: str, room_bytes: int | None) -> int:
        """Texts that may be at work, of all tasks together, for one of `task` to join."""
        ...

    def ended(self, generation: Generation) -> None:
        """It is out of the queue or the batch."""
        ...


@dataclass(slots=True)
class RunningText:
    """One request at work. prompt_ns, first_ns, last_ns: when its prompt was computed, its first and its last token
    came. new: tokens of this turn. held: it waits for memory. ended: its answer is whole. waits_for: another text that
    computes the same first `shared` tokens now; they are copied then.
    """

    generation: Generation
    seat: Seat
    member: Member
    going: Continuation
    sampler: Sampler | None
    stream: TextStream
    stops: StopTexts
    most: int
    cached: int
    start_ns: int
    prompt_ns: int = 0
    first_ns: int = 0
    last_ns: int = 0
    count: int = 0
    new: int = 0
    waited_turns: int = 0
    held: bool = False
    ended: bool = False
    waits_for: RunningText | None = None
    shared: int = 0

    @property
    def session(self) -> LmSession:
        return self.seat.session


class QueuedStep(NamedTuple):
    """The next token of all these texts, which a device computes. hidden: a row for each."""

    texts: list[RunningText]
    hidden: Hidden

    def serves(self, ready: Sequence[RunningText]) -> bool:
        """Whether nothing has come between: all of them go on, and no row was moved or forgotten."""
        return all(text in ready and not text.session.missing for text in self.texts)


class BatchLoop:
    """The batch of one task. `add` may be called from any thread.

    mixed_chunk: most tokens of prompt that one turn computes while other texts wait for their next token; twice as many
    for a text alone, behind which a spoken turn may wait.
    """

    def __init__(self, task: str, shared: Shared, lane: BatchLane, mixed_chunk: int) -> None:
        self.task = task
        self._shared = shared
        self._lane = lane
        self._mixed_chunk = mixed_chunk
        self._changed = threading.Condition()
        self._waiting: deque[Generation] = deque()
        self._texts: list[RunningText] = []
        self._closed = False
        self._queued: QueuedStep | None = None
        self.steps = 0
        """Turns, and looks while the lane is waited for."""
        self._thread = threading.Thread(target=self._run, name=f"api-{task}", daemon=True)
        self._thread.start()

    def add(self, generation: Generation) -> None:
        with self._changed:
            self._waiting.append(generation)
            self._changed.notify()

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return not self._texts and not self._waiting

    def close(self) -> None:
        """End when everything is over. Cancel what runs before."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    # --- the loop --------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if not self._waiting:
                    return
            if not self._serve():
                with self._changed:
                    self._changed.wait(_RETRY_S)

    def _serve(self) -> bool:
        """Hold the lane while there are texts. False: nothing could join."""
        began = False
        try:
            if not self._lane.wait(self._nobody_waits):
                for generation in self._taken_out(list(self._waiting)):
                    self._refuse(generation, given_up(generation, self._lane.stopped))
                return True
            while self._turn():
                began = True
        except Exception as error:  # the edge of the requests: whatever it was, later ones are served
            log.exception("the batch of %s failed", self.task)
            failure = ApiError(500, "internal", f"{type(error).__name__}: {error}")
            for text in list(self._texts):
                self._end(text, failure)
        finally:
            self._lane.give_back()
        return began

    def _turn(self) -> bool:
        """One turn. False when no text is left, or the lane was lost."""
        self.steps += 1
        for text in list(self._texts):
            if text.generation.unwanted():
                self._end(text, given_up(text.generation, ""))
        self._let_in()
        if not self._texts:
            return False
        with suppress(RunEnded):  # done again in the next turn, after the boundary
            self._prefill()
            self._decode()
        new = 0
        for text in list(self._texts):
            new += text.new
            reason = text.member.report(text.new)
            text.new = 0
            if text.ended:
                self._leave(text)
            elif reason:
                text.session.forget()
                self._end(text, given_up(text.generation, reason))
        if not self._lane.boundary(new):
            for text in list(self._texts):
                self._end(text, given_up(text.generation, self._lane.stopped))
            return False
        return True

    # --- joining and leaving ---------------------------------------------------------------------------------------
    def _nobody_waits(self) -> bool:
        """While the lane is waited for: requests that nobody wants any more are told so."""
        self.steps += 1
        self._drop_unwanted()
        return not self._waiting and all(text.generation.unwanted() for text in self._texts)

    def _drop_unwanted(self) -> None:
        """Of those that wait: who is gone, who is late, and who waited past the task's timeout."""
        timeout_ns, now_ns = self._lane.timeout_ns, time.monotonic_ns()
        with self._changed:
            waiting = list(self._waiting)
        for generation in waiting:
            too_long = timeout_ns is not None and now_ns - generation.arrived_ns > timeout_ns
            if generation.unwanted() or too_long:
                self._taken_out([generation])
                self._refuse(generation, given_up(generation, _WAITED if too_long else ""))

    def _taken_out(self, generations: Sequence[Generation]) -> Sequence[Generation]:
        with self._changed:
            for generation in generations:
                self._waiting.remove(generation)
        return generations

    def _refuse(self, generation: Generation, error: ApiError) -> None:
        self._shared.stats.stopped(self.task)
        generation.tell(error)
        self._shared.ended(generation)

    def _let_in(self) -> None:
        """Every request that has room now, in order; one whose dialogue is at work is passed over."""
        self._drop_unwanted()
        shared = self._shared
        with self._changed:
            waiting = list(self._waiting)
        for generation in waiting:
            request = generation.request
            most = shared.may_run(self.task, self._lane.room_bytes)
            seat = shared.pool.take(request.prompt, request.session, most)
            if seat is None:
                continue
            try:
                member = self._joined(generation, seat)
            except Refused as error:
                shared.pool.give(seat)
                self._taken_out([generation])
                self._refuse(generation, ApiError(429, "memory", str(error), retry_after_s=1))
                continue
            if member is None:
                shared.pool.give(seat)
                return
            self._taken_out([generation])
            self._begin(generation, seat, member)

    def _joined(self, generation: Generation, seat: Seat) -> Member | None:
        prompt = len(generation.request.prompt)
        seat.session.expect(self._shared.lengths.booking(prompt, self._most(generation, seat.session)))
        seat.session.expect_shared(self._shared.pool.will_share(seat, generation.request.prompt))
        return self._lane.join(seat.session, generation.arrived_ns)

    def _most(self, generation: Generation, session: LmSession) -> int:
        request = generation.request
        return min(request.most_tokens or session.capacity, session.capacity - len(request.prompt))

    def _begin(self, generation: Generation, seat: Seat, member: Member) -> None:
        """The request has a cache and memory: bring what is cached of its prompt there, and make it a text."""
        shared, request, session = self._shared, generation.request, seat.session
        generation.running = True
        start_ns = time.monotonic_ns()
        try:
            shared.pool.bring_to_front(seat, shared.batch)
            cached = shared.pool.prepare(seat, request.prompt, self._copying)
            self._book_what_is_not_shared(session, member)
            session.begin(request.prompt)
            most = self._most(generation, session)
            sampler = None if request.sampling.plain else Sampler(shared.model.head, request.sampling)
            text = RunningText(
                generation,
                seat,
                member,
                Continuation(session, most, request.constraint),
                sampler,
                shared.model.tokenizer.stream(),
                StopTexts(request.stops),
                most,
                cached,
                start_ns,
            )
        except (InputError, ApiError) as error:
            member.leave()
            shared.pool.give(seat)
            self._refuse(generation, error if isinstance(error, ApiError) else invalid(str(error)))
            return
        self._wait_for_the_same(text)
        self._texts.append(text)

    def _book_what_is_not_shared(self, session: LmSession, member: Member) -> None:
        """Where less is shared than was thought when the text joined, its own rows need memory. Raises ApiError."""
        booked = session.kv_bytes
        session.expect_shared(session.shown)
        if session.kv_bytes > booked and not member.grow():
            raise ApiError(503, "memory", "texts that run hold the memory that is left", retry_after_s=1)

    def _wait_for_the_same(self, text: RunningText) -> None:
        """Where an earlier text computes at least half of what this one lacks, it is computed once, and copied."""
        session = text.session
        for other in self._texts:
            shared = common(other.session.tokens, session.tokens)
            half = session.cached + max(LEAST_TOKENS, session.missing // 2)
            if other.session.cached < shared >= half and shared > text.shared:
                text.waits_for, text.shared = other, shared

    def _take_over(self, text: RunningText) -> None:
        """Copy the beginning once it is computed, or its text is gone; what is missing then is computed."""
        other, prompt = text.waits_for, text.generation.request.prompt
        if any(going is other and going.session.cached < text.shared for going in self._texts):
            return
        text.waits_for = None
        text.cached = self._shared.pool.prepare(text.seat, prompt, self._copying)
        text.session.expect_shared(text.session.shown)
        text.session.begin(prompt)

    def _copying(self) -> None:
        """Between two parts of a long copy. A lane that is lost here is noticed at the end of the turn."""
        self._lane.boundary(0)

    def _end(self, text: RunningText, error: ApiError) -> None:
        """Cut a text short."""
        self._shared.stats.stopped(self.task)
        text.generation.tell(error)
        self._leave(text)

    def _leave(self, text: RunningText) -> None:
        self._texts.remove(text)
        text.member.leave()
        self._shared.pool.give(text.seat)
        self._shared.ended(text.generation)

    # --- prompts ---------------------------------------------------------------------------------------------------
    def _prefill(self) -> None:
        """Up to one chunk: shorter rests first, so that a long prompt holds up no short one, but it is not starved."""
        for text in self._texts:
            if text.waits_for is not None:
                self._take_over(text)
        rests = [text for text in self._texts if not text.ended and not text.waits_for and text.session.missing > 1]
        if not rests:
            return
        rests.sort(key=lambda text: (text.waited_turns < _STARVED_TURNS, text.session.missing))
        alone = len(self._texts) == 1
        left = min(self._lane.chunk_tokens, self._mixed_chunk * (2 if alone else 1))
        for text in rests:
            text.waited_turns += 1
            if left < 2:
                continue
            text.waited_turns = 0
            before = text.session.missing
            text.session.compute(left)
            left -= before - text.session.missing
            if not text.session.missing:
                self._prompt_done(text)
                self._choose([text], text.session.last_hidden)

    def _prompt_done(self, text: RunningText) -> None:
        if not text.prompt_ns:
            text.prompt_ns = time.monotonic_ns()
            prompt = len(text.generation.request.prompt)
            self._shared.stats.computed(self.task, prompt, text.cached, (text.prompt_ns - text.start_ns) / NS_PER_MS)

    # --- tokens ----------------------------------------------------------------------------------------------------
    def _decode(self) -> None:
        """The next token of every text that lacks nothing else, in one run."""
        ready = [text for text in self._texts if not text.ended and text.session.missing <= 1 and self._has_room(text)]
        queued, self._queued = self._queued, None
        if queued is not None and queued.serves(ready):
            self._choose(queued.texts, queued.hidden, go_on=len(ready) == len(queued.texts))
            ready = [text for text in ready if text not in queued.texts]
        known = [text for text in ready if not text.session.missing]
        for text in known:  # a whole prompt was cached
            self._prompt_done(text)
            self._choose([text], text.session.last_hidden)
        ready = [text for text in ready if text not in known]
        if not ready:
            return
        if len(ready) == 1 and self._drafted(ready[0]):
            return
        hidden = self._shared.batch.step([text.session for text in ready])
        for text in ready:
            self._prompt_done(text)
        self._shared.stats.stepped(len(ready))
        self._choose(ready, hidden, go_on=not known)

    def _queue_step(self, texts: Sequence[RunningText]) -> None:
        """Let a device compute what follows the tokens that were just chosen, unless somebody else comes first."""
        busy = self._lane.wanted or self._waiting or len(texts) != len(self._texts)
        if busy or not self._shared.model.on_device:
            return
        if any(text.going.over or text.generation.unwanted() or text.session.missing != 1 for text in texts):
            return
        if len(texts) == 1 and self._lane.draft_tokens:
            return
        if any(len(text.session.tokens) >= text.session.expected for text in texts):
            return  # memory must be booked first
        self._queued = QueuedStep(list(texts), self._shared.batch.step([text.session for text in texts]))
        self._shared.stats.stepped(len(texts))

    def _has_room(self, text: RunningText) -> bool:
        """Whether the memory that is booked for the text holds one more token; more is booked when it does not. While
        there is none the text waits for others to end.
        """
        session = text.session
        tokens = len(session.tokens)
        if tokens < session.expected:
            return True
        before = session.expected
        session.expect(min(round(tokens * _GROW), len(text.generation.request.prompt) + text.most))
        text.held = not text.member.grow()
        if text.held:
            session.expect(before)
            if all(other.held for other in self._texts):
                self._end(text, ApiError(503, "memory", "texts outgrew the memory that is left", retry_after_s=1))
        return not text.held

    def _choose(self, texts: Sequence[RunningText], hidden: Hidden, *, go_on: bool = False) -> None:
        """The next token of each text from its row of `hidden`, and what its grammar forces before and after it.

        go_on: nothing else is to be computed before the token after that one.
        """
        head = self._shared.model.head
        free: list[RunningText] = []
        rows: list[int] = []
        said: list[tuple[RunningText, int]] = []
        for row, text in enumerate(texts):
            if text.going.over:
                continue
            forced = text.going.forced()
            said += [(text, token) for token in forced]
            if forced:
                continue
            free.append(text)
            rows.append(row)
        plain = [text.sampler is None for text in free]
        allowed = [text.going.allowed() for text in free]
        if len(free) == len(texts) and all(plain):
            tokens = head.best_each(hidden, allowed)
        else:
            tokens = []
            for text, row, ids in zip(free, rows, allowed, strict=True):
                one = head.row(hidden, row)
                tokens.append(head.best(one, ids) if text.sampler is None else text.sampler.choose(one, ids))
        for text, token in zip(free, tokens, strict=True):
            if text.going.take(token):
                said += [(text, token), *((text, forced) for forced in text.going.forced())]
        if go_on:
            self._queue_step(texts)
        for text, token in said:
            self._say(text, token)
        for text in texts:
            if text.going.over and not text.ended:
                self._finish(text)

    def _drafted(self, text: RunningText) -> bool:
        """One text alone may guess ahead and verify in one run. False: nothing to guess from."""
        text.session.draft_tokens = self._lane.draft_tokens
        if not text.session.draft_tokens or text.sampler is not None or text.going.constraint is not None:
            return False
        if not text.session.drafting.open:
            text.session.drafting.passed()
            return False
        generation = text.generation
        steps = text.session.drafted_steps(text.going.room, generation.unwanted, _nothing)
        made: int | None = 0
        while not text.ended:
            try:
                token = next(steps)
            except StopIteration as end:
                made = end.value
                break
            text.going.room -= 1
            self._say(text, token)
        if made is None:
            text.going.end()
        if text.going.over and not text.ended:
            self._finish(text)
        return made is None or made > 0 or text.ended

    def _say(self, text: RunningText, token: int) -> None:
        """Hand a token out; the text ends at a stop text."""
        if text.ended:
            return
        chances = () if text.sampler is None else text.sampler.take()
        piece = Piece(text.stops.push(text.stream.push(token)), chances)
        text.last_ns = time.monotonic_ns()
        text.first_ns = text.first_ns or text.last_ns
        text.count += 1
        text.new += 1
        if piece.text or piece.chances:
            text.generation.tell(piece)
        if text.stops.found:
            self._finish(text)

    def _finish(self, text: RunningText) -> None:
        """The answer is whole: the text leaves at the end of this turn."""
        text.ended = True
        generation, request = text.generation, text.generation.request
        rest = "" if text.stops.found else text.stops.push(text.stream.finish()) + text.stops.rest()
        if rest:
            generation.tell(Piece(rest))
        now_ns, count = time.monotonic_ns(), text.count
        finished = Finished(
            reason="length" if count >= text.most and not text.stops.found else "stop",
            prompt_tokens=len(request.prompt),
            cached_tokens=text.cached,
            new_tokens=count,
            queue_ms=(text.start_ns - generation.arrived_ns) / NS_PER_MS,
            ttft_ms=((text.first_ns or now_ns) - generation.arrived_ns) / NS_PER_MS,
            tpot_ms=(text.last_ns - text.first_ns) / NS_PER_MS / (count - 1) if count > 1 else None,
        )
        self._shared.stats.finished(self.task, finished)
        self._shared.lengths.add(len(request.prompt), count)
        self._shared.pool.settle(text.seat)
        generation.tell(finished)


def _nothing() -> None:
    return None
