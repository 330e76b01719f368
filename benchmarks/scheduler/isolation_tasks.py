"""The two tasks of isolation_engine, navigation and dialogue, on one language model, with a lease or without."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.devices import ON_CPU, ON_CUDA
from cockpit.arbiter.config import ArbiterConfig, parse
from cockpit.scheduling.service import Arbitration
from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.session import LmSession

NAVIGATION, DIALOGUE = "navigation_task", "dialogue_task"
REQUEST = "Name ten things that a driver should check before a long drive, one after another."
FILLER = "The driver asked for a warmer cabin before the motorway, and it began to rain. "


@dataclass(frozen=True, slots=True)
class Size:
    """How much the tasks do. chunk: tokens of prompt between two boundaries."""

    model: str
    prompt: int
    answer: int
    chunk: int
    context: int
    samples: int
    idle_ms: tuple[float, float]


SIZES = {
    "cuda": Size(ON_CUDA["llm"], 1024, 64, 256, 1536, 100, (20.0, 70.0)),
    "cpu": Size(ON_CPU["llm"], 128, 24, 32, 512, 10, (150.0, 450.0)),
}


# --- what both devices share -----------------------------------------------------------------------------------------
class Unleased:
    """Nobody shares anything out: never told to yield."""

    def boundary(self, new_tokens: int = 1) -> bool:
        return True


@contextmanager
def unleased() -> Iterator[Unleased]:
    yield Unleased()


Leasing = Callable[[], AbstractContextManager[Any]]


class Navigation:
    """One request: the last token of a cached prompt, then `tokens` greedy ones."""

    def __init__(self, lm: CausalLM, leasing: Leasing, tokens: int) -> None:
        self._session = lm.open_session()
        self._leasing = leasing
        self._tokens = tokens
        self._prompt = lm.tokenizer.encode(lm.chat.render([{"role": "user", "content": REQUEST}]))
        self.answer: list[int] = []

    def __call__(self) -> None:
        with self._leasing() as lease:
            self._session.set_tokens(self._prompt)
            self.answer = []
            for token in self._session.generate(max_new_tokens=self._tokens):
                self.answer.append(token)
                lease.boundary()
        if len(self.answer) != self._tokens:
            raise ValueError(f"navigation's answer ended after {len(self.answer)} of {self._tokens} tokens")


class Dialogue:
    """The load: turn after turn, a lease for each. One step is a chunk of prompt or a token of answer.

    worth: what a chunk and a token take alone, ms, measured once on the whole device: the common measure of work done.
    """

    def __init__(self, lm: CausalLM, leasing: Leasing, size: Size, worth: dict[str, float]) -> None:
        self._session = lm.open_session()
        self._leasing = leasing
        self._size = size
        self._worth = worth
        self._text = lm.tokenizer.encode(FILLER * 200)
        self._turn = 0

    def begin(self) -> None:
        self._steps = self._turns()

    def step(self) -> float:
        return next(self._steps)

    def end(self) -> None:
        self._steps.close()

    def _turns(self) -> Generator[float, None, None]:
        while True:
            with self._leasing() as lease:
                yield from self._one(lease)

    def _one(self, lease: Any) -> Iterator[float]:
        self._turn += 1
        start = 1 + self._turn % 13  # another first token than the last turn's: nothing is reused
        prompt = self._text[start : start + self._size.prompt]
        for at in range(0, len(prompt), self._size.chunk):
            if not lease.boundary(0):
                return
            part = prompt[at : at + self._size.chunk]
            if at:
                self._session.prefill(part, chunk=self._size.chunk)
            else:
                self._session.set_tokens(part, chunk=self._size.chunk)
            yield self._worth["chunk"] * len(part) / self._size.chunk
        stopped = False

        def boundary() -> None:
            nonlocal stopped
            stopped = stopped or not lease.boundary(1)

        steps = self._session.generate(
            max_new_tokens=self._size.answer, at_boundary=boundary, cancelled=lambda: stopped
        )
        for _ in steps:
            yield self._worth["token"]


def worth_of(session: LmSession, text: Sequence[int], size: Size) -> dict[str, float]:
    """Milliseconds of a chunk and of a token alone, medians of 5 and of 40."""
    chunks, tokens = [], []
    for start in range(1, 6):
        session.set_tokens(text[start : start + size.chunk])
        next(session.generate(max_new_tokens=1), None)
        began = time.perf_counter()
        session.set_tokens(text[start + 20 : start + 20 + size.chunk])
        next(session.generate(max_new_tokens=1), None)
        chunks.append((time.perf_counter() - began) * 1e3)
    steps = session.generate(max_new_tokens=41)
    next(steps, None)
    for _ in range(40):
        began = time.perf_counter()
        if next(steps, None) is None:
            break
        tokens.append((time.perf_counter() - began) * 1e3)
    token = sorted(tokens)[len(tokens) // 2]
    return {"chunk": max(0.0, sorted(chunks)[2] - token), "token": token}


def config_of(clusters: dict[str, int], chunk: int) -> ArbiterConfig:
    """Both tasks may have every cluster but `system`: lanes overlap, the dialogue yields. Raises ValueError."""
    names = [name for name in clusters if name != "system"]
    checked = parse(
        {
            "global_limits": {"max_gpu_memory_percent": 85, "min_token_per_second": 0},
            "eviction_policy": {"type": "lru_k", "lru_k": 3},
            "clusters": clusters,
            "policy": {"frozen": True, "prefill_chunk_tokens": chunk},
            "tasks": {
                NAVIGATION: {
                    "priority": 9,
                    "latency_sla": "150ms",
                    "memory_budget_mb": 0,
                    "affinity_mask": ",".join(names),
                },
                DIALOGUE: {
                    "priority": 5,
                    "latency_sla": "800ms",
                    "memory_budget_mb": 0,
                    "affinity_mask": ",".join(reversed(names)),
                    "timeout": "60s",
                },
            },
        }
    )
    if checked.config is None:
        raise ValueError(f"the benchmark's own profile is wrong: {checked.errors}")
    return checked.config


def leasing(arbitration: Arbitration, task: str) -> Leasing:
    """Leases of `task` whose thread is bound to the lane, as cockpit/scheduling/llm_lease.py does it."""

    @contextmanager
    def leased() -> Iterator[Any]:
        with (
            arbitration.dispatcher.lease(task) as lease,
            arbitration.device.enter(lease.lane),
        ):
            yield lease

    return leased
