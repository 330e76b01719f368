"""A machine in numbers: the real arbiter and policy against recorded service times, bursts and long sessions.

Time is simulated, so a million requests take seconds and every run with the same seed is the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from cockpit.arbiter.arbiter import Arbiter
from cockpit.arbiter.config import ArbiterConfig
from cockpit.arbiter.policy import Arm
from cockpit.arbiter.requests import RUNNING, LatencyHistogram, Request
from cockpit.profile.orchestration import parse

MS: Final = 1_000_000
NAVIGATION: Final = 0
DIALOGUE: Final = 1


@dataclass(frozen=True, slots=True)
class Machine:
    """Service times as recorded on one machine.

    nav_ms: navigation alone, per width of its lane (clusters of its mask). nav_beside: factor on it while dialogue runs
    beside it and does not yield, per width. token_ms: one dialogue token per width of its lane; ms per prefill token
    follows `prefill_ms` + tokens x `prefill_ms_per_token` for one chunk. A yielding task stops after the chunk or token
    in flight. noise: standard deviation of every service time, as a share.
    """

    name: str
    nav_ms: tuple[float, ...]
    nav_beside: tuple[float, ...]
    token_ms: tuple[float, ...]
    prefill_ms: tuple[float, ...]
    prefill_ms_per_token: tuple[float, ...]
    resume_ms: float
    noise: float = 0.03


HBM = Machine(
    "one H200, 4B-shaped fp16 decoder (navigation on 32 or all SMs)",
    nav_ms=(38.9, 29.5),
    nav_beside=(1.39, 1.50),
    token_ms=(5.4, 4.1),
    prefill_ms=(2.5, 1.5),
    prefill_ms_per_token=(0.025, 0.026),
    resume_ms=0.3,
)
"""Recorded on the H200 of the design's table: a wide lane and yielding win, chunks are cheap."""

SOC = Machine(
    "an embedded GPU: slow prefill, dear restarts, navigation small enough for one cluster",
    nav_ms=(22.0, 21.5),
    nav_beside=(1.02, 1.9),
    token_ms=(21.0, 20.5),
    prefill_ms=(4.0, 4.0),
    prefill_ms_per_token=(0.20, 0.19),
    resume_ms=18.0,
)
"""A shape, not a recording: big chunks make a yielding task late to stop, and restarts cost more than sharing does."""

PROFILE: Final[Mapping[str, Any]] = {
    "global_limits": {"max_gpu_memory_percent": 85, "min_token_per_second": 5},
    "eviction_policy": {"type": "hybrid", "lru_k": 3, "age_threshold_seconds": 180, "memory_pressure_threshold": 0.7},
    "clusters": {"a": 4, "b": 8, "system": 1},
    "policy": {"prefill_chunk_tokens": [512, 128], "yielding": [True, False]},
    "tasks": {
        "navigation_task": {
            "priority": 9, "latency_sla": "150ms", "memory_budget_mb": 1200, "affinity_mask": "a,b", "queue_limit": 16,
        },
        "dialogue_task": {
            "priority": 5, "latency_sla": "1200ms", "memory_budget_mb": 4000, "affinity_mask": "b", "timeout": "20s",
        },
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Load:
    """Requests as they come. Times in ms. bursts: share of navigation requests that bring three more at once."""

    nav_every_ms: float = 110.0
    bursts: float = 0.003
    dialogue_every_ms: float = 1500.0
    prompt_tokens: tuple[int, int] = (64, 900)
    reply_tokens: tuple[int, int] = (4, 24)
    sessions: int = 24
    long_session_share: float = 0.3
    kv_bytes_per_token: int = 36_864


LOADS: Final = {
    HBM.name: Load(nav_every_ms=80.0, dialogue_every_ms=800.0, reply_tokens=(30, 60)),
    SOC.name: Load(),
}
"""A load that keeps each machine's dialogue lane about half busy."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to. broken: red lines broken, which must be empty. cost: mean price of an epoch over the run's
    last half, as the policy counts it. arm_share: share of all epochs per arm."""

    requests: int
    cost: float
    arm: Arm
    arm_share: tuple[float, ...]
    nav_p50_ms: float
    nav_p99_ms: float
    dialogue_p50_ms: float
    dialogue_p99_ms: float
    missed: tuple[int, ...]
    evictions: int
    refused: int
    reverts: int
    broken: tuple[str, ...]


def config_of() -> ArbiterConfig:
    """The simulator's profile, checked."""
    checked = parse(PROFILE)
    if checked.config is None:
        raise ValueError(f"the simulator's own profile is wrong: {checked.errors}")
    return checked.config


class _Running:
    """A request in its lane. ends_ns: when it ends if nothing else happens. chunk_ns: its step between boundaries.

    parks_ns: when it reached the boundary it yields at, 0 while it runs. version: events of older versions are void.
    """

    __slots__ = ("chunk_ns", "ends_ns", "parks_ns", "request", "version")

    def __init__(self, request: Request, ends_ns: int, chunk_ns: int) -> None:
        self.request = request
        self.ends_ns = ends_ns
        self.chunk_ns = chunk_ns
        self.parks_ns = 0
        self.version = 0


class Simulator:
    """One machine under one load. `fixed_arm`: run this arm only, for comparison."""

    def __init__(
        self, machine: Machine, load: Load, *, seed: int, fixed_arm: int | None = None, arena_mb: int = 512
    ) -> None:
        self.machine = machine
        self.load = load
        self.random = Random(seed)
        self.arbiter = Arbiter(config_of(), arena_mb << 20)
        self.done = 0
        self.refused = 0
        self.broken: list[str] = []
        self._fixed = fixed_arm
        self._events: list[tuple[int, int, int, int]] = []
        self._serial = 0
        self._running: list[_Running | None] = [None, None]
        self._details: dict[int, tuple[int, int]] = {}
        self._costs: list[float] = []
        self._epoch = 0
        self._session = 0
        self._born_ns = 0
        self._recent = (LatencyHistogram(), LatencyHistogram())
        if fixed_arm is not None:
            self.arbiter.policy.arm = fixed_arm
            self.arbiter.policy.frozen = True
            self.arbiter.policy_changed()

    # --- the clock -------------------------------------------------------------------------------------------------
    def run(self, requests: int) -> Outcome:
        """Simulate until `requests` have ended."""
        self._push(0, NAVIGATION, 0)
        self._push(0, DIALOGUE, 0)
        ticks = 0
        while self.done < requests:
            now_ns, _, kind, version = heapq.heappop(self._events)
            if kind < 2:
                self._arrive(kind, now_ns)
            else:
                running = self._running[kind - 2]
                if running is None or running.version != version:
                    continue
                self._end(kind - 2, now_ns)
            self._start_all(now_ns)
            ticks += 1
            if ticks & 255 == 0:
                self._housekeep(now_ns)
        return self._outcome()

    def _push(self, at_ns: int, kind: int, version: int) -> None:
        self._serial += 1
        heapq.heappush(self._events, (at_ns, self._serial, kind, version))

    def _housekeep(self, now_ns: int) -> None:
        while (late := self.arbiter.tick(now_ns)) is not None:
            self.arbiter.finish(late, now_ns)
            self.refused += 1
        self._red_lines()

    def _red_lines(self) -> None:
        ledger = self.arbiter.ledger
        if ledger.total_held > ledger.arena_bytes:
            self.broken.append(f"memory {ledger.total_held} above {ledger.arena_bytes}")
        for task, profile in enumerate(self.arbiter.tasks):
            if ledger.held[task] > profile.memory_budget_mb << 20:
                self.broken.append(f"{profile.name} above its budget")
            lane = self.arbiter.lanes[self.arbiter.lane_index(task)]
            if not set(lane.clusters) <= set(profile.clusters):
                self.broken.append(f"{profile.name} outside its mask")
        floor = self.arbiter.floor
        below = floor.rate and floor.rate < self.arbiter.config.limits.min_token_per_second
        if below and floor.below_for_ns > 6_000_000_000 and floor.degraded_since_ns < 0:
            self.broken.append("token floor broken for more than 5 s without degraded mode")

    # --- arrivals --------------------------------------------------------------------------------------------------
    def _arrive(self, kind: int, now_ns: int) -> None:
        load = self.load
        if kind == NAVIGATION:
            copies = 4 if self.random.random() < load.bursts else 1
            for _ in range(copies):
                if self.arbiter.submit(NAVIGATION, now_ns, expected_ns=30 * MS).slot < 0:
                    self.refused += 1
                    self.done += 1
            gap = load.nav_every_ms * (0.7 + 0.6 * self.random.random())
        else:
            self._submit_dialogue(now_ns)
            gap = self.random.expovariate(1.0 / load.dialogue_every_ms)
        self._push(now_ns + int(gap * MS), kind, 0)

    def _submit_dialogue(self, now_ns: int) -> None:
        load, random = self.load, self.random
        prompt = random.randint(*load.prompt_tokens)
        reply = random.randint(*load.reply_tokens)
        if random.random() < load.long_session_share:
            name = f"long{random.randint(0, 2)}"
        else:
            self._session += random.random() < 0.5
            name = f"s{self._session % load.sessions}"
        kv = (prompt + reply) * load.kv_bytes_per_token
        request = self.arbiter.submit(DIALOGUE, now_ns, session=name, kv_bytes=kv, expected_ns=400 * MS)
        if request.slot < 0:
            self.refused += 1
            self.done += 1
        else:
            self._details[request.slot] = (prompt, reply)

    # --- service ---------------------------------------------------------------------------------------------------
    def _noisy(self, value_ms: float) -> int:
        return int(value_ms * MS * max(0.5, self.random.gauss(1.0, self.machine.noise)))

    def _start_all(self, now_ns: int) -> None:
        while (request := self.arbiter.decide(now_ns)) is not None:
            if request.state != RUNNING:
                self.arbiter.finish(request, now_ns)
                self.refused += 1
                self.done += 1
            elif request.task == NAVIGATION:
                self._start_navigation(request, now_ns)
            else:
                self._start_dialogue(request, now_ns)

    def _start_navigation(self, request: Request, now_ns: int) -> None:
        machine = self.machine
        width = request.lane
        service_ns = self._noisy(machine.nav_ms[width])
        dialogue = self._running[DIALOGUE]
        wait_ns = 0
        if dialogue is not None:
            if self.arbiter.yield_bits >> DIALOGUE & 1:
                if dialogue.parks_ns == 0:
                    dialogue.parks_ns = min(dialogue.ends_ns, now_ns + int(dialogue.chunk_ns * self.random.random()))
                    dialogue.version += 1  # its end moves
                flight_ns = max(0, dialogue.parks_ns - now_ns)
                # What is still in flight shares the device: navigation runs slower for so long.
                wait_ns = int(flight_ns * (1.0 - 1.0 / machine.nav_beside[width]))
            else:
                service_ns = int(service_ns * machine.nav_beside[width])
        self._running[NAVIGATION] = running = _Running(request, now_ns + wait_ns + service_ns, service_ns)
        self._push(running.ends_ns, NAVIGATION + 2, running.version)

    def _start_dialogue(self, request: Request, now_ns: int) -> None:
        machine = self.machine
        width = request.lane - len(self.arbiter.tasks[NAVIGATION].clusters)
        prompt, reply = self._details.pop(request.slot)
        chunk = request.chunk_tokens
        chunks = -(-prompt // chunk)
        chunk_ms = machine.prefill_ms[width] + min(chunk, prompt) * machine.prefill_ms_per_token[width]
        prefill_ms = chunks * machine.prefill_ms[width] + prompt * machine.prefill_ms_per_token[width]
        total_ns = self._noisy(prefill_ms + reply * machine.token_ms[width])
        prefill_share = prefill_ms / (prefill_ms + reply * machine.token_ms[width])
        step_ms = chunk_ms if self.random.random() < prefill_share else machine.token_ms[width]
        request.tokens = reply
        self._running[DIALOGUE] = running = _Running(request, now_ns + total_ns, int(step_ms * MS))
        self._push(running.ends_ns, DIALOGUE + 2, running.version)

    def _end(self, task: int, now_ns: int) -> None:
        running = self._running[task]
        assert running is not None
        self._running[task] = None
        request = running.request
        tokens = 0
        if task == DIALOGUE:
            # Only the decode part counts for the token floor; before it comes the first token, which judges a stream.
            tokens = request.tokens
            busy_ns = int(tokens * self.machine.token_ms[0] * MS)
            request.reported_ns = max(request.reported_ns, now_ns - busy_ns)
            request.first_token_ns = max(request.started_ns, now_ns - busy_ns)
        latency_ns = now_ns - request.submitted_ns
        self._recent[task].add(latency_ns)
        epoch = self.arbiter.policy.epoch
        cost = self.arbiter.policy.cost()
        self.arbiter.finish(request, now_ns, tokens)
        self.done += 1
        if self.arbiter.policy.epoch != epoch:
            self._costs.append(cost)
        if task == NAVIGATION:
            self._resume_dialogue(now_ns)

    def _resume_dialogue(self, now_ns: int) -> None:
        dialogue = self._running[DIALOGUE]
        if dialogue is None or dialogue.parks_ns == 0 or self.arbiter.yield_bits >> DIALOGUE & 1:
            return
        if self.arbiter.queues.heaps[NAVIGATION]:
            return  # the next one starts at this very moment: it stays parked
        parked_ns = max(0, now_ns - dialogue.parks_ns)
        dialogue.ends_ns += parked_ns + self._noisy(self.machine.resume_ms)
        dialogue.parks_ns = 0
        self._push(dialogue.ends_ns, DIALOGUE + 2, dialogue.version)

    # --- outcome ---------------------------------------------------------------------------------------------------
    def _outcome(self) -> Outcome:
        policy = self.arbiter.policy
        late = self._costs[len(self._costs) // 2 :]
        total = max(1, sum(policy.epochs_of(index) for index in range(len(policy.arms))))
        navigation, dialogue = self._recent
        self._red_lines()
        self.arbiter.check()
        return Outcome(
            self.done,
            sum(late) / len(late) if late else 0.0,
            policy.arms[policy.favourite() if self._fixed is None else self._fixed],
            tuple(policy.epochs_of(index) / total for index in range(len(policy.arms))),
            navigation.quantile_ns(0.50) / MS,
            navigation.quantile_ns(0.99) / MS,
            dialogue.quantile_ns(0.50) / MS,
            dialogue.quantile_ns(0.99) / MS,
            tuple(self.arbiter.missed),
            self.arbiter.evictions,
            self.refused,
            policy.reverts,
            tuple(self.broken[:5]),
        )
