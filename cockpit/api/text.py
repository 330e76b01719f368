"""Text generation for API requests on one language model: what is let in, one batch per task, what it took."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from cockpit.api.batching import BatchLoop
from cockpit.api.errors import ApiError, invalid
from cockpit.api.generation import Finished, Generation, Piece, TextRequest
from cockpit.api.lengths import LengthsSeen
from cockpit.api.sessions import SessionPool
from cockpit.api.stats import TextStats
from cockpit.device.cpu import LONGEST_CHUNK
from cockpit.scheduling.batch_lease import BatchLane, UnsharedLane
from models.engines.llm.causal_lm import CausalLM

MIXED_CHUNK_CPU = LONGEST_CHUNK // 2
"""Tokens of prompt per turn beside others' tokens: 0.3 s on two cores."""
MIXED_CHUNK_DEVICE = 512


class TextService:
    """Runs requests on one language model. `submit` may be called from any thread.

    lane_of: where the batch of a task runs; asked once for each task. most_running: texts at work at a time, of all
    tasks together; at most the model's width. most_sessions: texts whose caches are kept, idle ones too. most_waiting:
    further requests that may wait, more are refused. parked_bytes: see SessionPool. priorities: of the tasks that
    requests may run as: one place is kept for those above the lowest. mixed_chunk: tokens of prompt that one turn
    computes beside others' tokens; None: what suits the device.
    """

    def __init__(
        self,
        model: CausalLM,
        lane_of: Callable[[str], BatchLane] | None = None,
        *,
        most_running: int = 4,
        most_sessions: int | None = None,
        most_waiting: int = 16,
        parked_bytes: int = 0,
        priorities: Mapping[str, int] | None = None,
        mixed_chunk: int | None = None,
    ) -> None:
        self.model = model
        self.batch = model.open_batch()
        self.most_running = min(most_running, self.batch.width)
        self.pool = SessionPool(self.batch.open, max(most_sessions or 0, most_running), parked_bytes)
        self.stats = TextStats()
        self.lengths = LengthsSeen()
        self._lane_of = lane_of or (lambda _task: UnsharedLane())
        self._priorities = dict(priorities or {})
        self._most_waiting = most_waiting
        self._mixed_chunk = mixed_chunk or (MIXED_CHUNK_DEVICE if model.on_device else MIXED_CHUNK_CPU)
        self._lock = threading.Lock()
        self._generations: dict[int, Generation] = {}
        self._loops: dict[str, BatchLoop] = {}
        self._limit = self.most_running

    def submit(self, request: TextRequest, emit: Callable[[Piece | Finished | ApiError], None]) -> Generation:
        """Start, or queue. Raises ApiError for a prompt that does not fit (400) and when too many wait (429)."""
        room = self.model.context_tokens - len(request.prompt)
        if room < 1:
            raise invalid(
                f"the prompt has {len(request.prompt)} tokens, and this model has room for "
                f"{self.model.context_tokens} with the answer; shorten it, or raise its context_tokens in the profile",
                "messages",
                code="context_length_exceeded",
            )
        generation = Generation(request, emit, time.monotonic_ns())
        with self._lock:
            if len(self._generations) >= self._limit + self._most_waiting:
                self.stats.refused(request.task)
                raise ApiError(
                    429,
                    "busy",
                    f"{len(self._generations)} requests run or wait already, {self._limit} at a time; try again",
                    retry_after_s=1,
                )
            self._generations[id(generation)] = generation
            loop = self._loops.get(request.task)
            if loop is None:
                lane = self._lane_of(request.task)
                loop = self._loops[request.task] = BatchLoop(request.task, self, lane, self._mixed_chunk)
        loop.add(generation)
        return generation

    def may_run(self, task: str, room_bytes: int | None) -> int:
        """Texts that may be at work, of all tasks together, for one of `task` to join: as many of P99 length as the
        memory holds, and one place less for the lowest of several tasks.
        """
        token_bytes = self.model.token_bytes
        self._limit = limit = self.lengths.at_once(room_bytes, token_bytes, self.most_running)
        lowest = min(self._priorities.values(), default=0)
        several = len(set(self._priorities.values())) > 1
        return limit - 1 if several and limit > 1 and self._priorities.get(task, lowest) == lowest else limit

    def ended(self, generation: Generation) -> None:
        """It is out of its batch, or was never in one."""
        with self._lock:
            self._generations.pop(id(generation), None)

    @property
    def steps(self) -> int:
        """Of all its batches."""
        return sum(loop.steps for loop in list(self._loops.values()))

    @property
    def idle(self) -> bool:
        """No batch has anything to do."""
        return all(loop.idle for loop in list(self._loops.values()))

    @property
    def counts(self) -> tuple[int, int]:
        """Requests that run, and that wait."""
        with self._lock:
            running = sum(generation.running for generation in self._generations.values())
            return running, len(self._generations) - running

    @property
    def active(self) -> int:
        """Requests that run or wait."""
        with self._lock:
            return len(self._generations)

    def shown(self) -> dict[str, Any]:
        """Requests, batches, caches and what was measured per task, for JSON."""
        running, waiting = self.counts
        pool = asdict(self.pool.status())
        names = ("session", "dialogue", "cached_tokens", "busy")
        pool["sessions"] = [dict(zip(names, session, strict=True)) for session in pool["sessions"]]
        shared = self.model.shared
        pool["shared"] = None if shared is None else asdict(shared)
        batch = {"limit": self._limit, "most": self.most_running, **self.stats.batches(), **self.lengths.shown()}
        counted = {"running": running, "waiting": waiting, "batch": batch, "kv": pool, "tasks": self.stats.shown()}
        return {"decoder": self.model.decoder, **counted}

    def close(self) -> None:
        """Cancel what runs, wait for it, give the caches back."""
        with self._lock:
            for generation in self._generations.values():
                generation.cancel()
            loops = list(self._loops.values())
        for loop in loops:
            loop.close()
        self.pool.close()
        self.batch.close()
