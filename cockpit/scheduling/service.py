"""What shares out the device of a process, put together: lanes, dispatcher, GPU watch, saved policy, control socket."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from cockpit.arbiter.arbiter import Arbiter
from cockpit.arbiter.config import ArbiterConfig
from cockpit.arbiter.lanes import plan_lanes
from cockpit.device.base import Device, LaneSpec, open_device
from cockpit.device.cpu import LONGEST_CHUNK
from cockpit.profile.memory_budget import MemoryPlan
from cockpit.scheduling.control_socket import ControlServer, Orders
from cockpit.scheduling.dispatcher import Dispatcher
from cockpit.scheduling.llm_lease import EvictedSessions
from cockpit.scheduling.maintenance import Maintenance
from cockpit.scheduling.state_file import PolicyFile
from cockpit.scheduling.tasks import names_of
from cockpit.telemetry.memory_use import memory_use
from cockpit.telemetry.watch import Watch, open_watch
from models.errors import StartupError
from pipeline.trace import NullTracer, Tracer

log = logging.getLogger("cockpit.scheduling.service")


@dataclass(frozen=True, slots=True)
class SchedulingPlan:
    """How a process shares its device. socket: None has no control socket; group: who may ask besides the user.

    state_dir: None forgets what the policy learnt. memory: what was planned before anything was loaded, for operators.
    """

    config: ArbiterConfig
    socket: Path | None = None
    group: str | None = None
    state_dir: Path | None = None
    memory: MemoryPlan | None = None


@dataclass(frozen=True, slots=True)
class SchedulingService:
    """What a process needs to share its device. `control` is None where no socket was asked for. evicted: what the
    owners of sessions must forget. model_turn: see cockpit.scheduling.llm_lease.LanedModel.
    """

    config: ArbiterConfig
    device: Device
    dispatcher: Dispatcher
    watch: Watch
    maintenance: Maintenance
    control: ControlServer | None
    orders: Orders | None
    evicted: EvictedSessions
    _closing: ExitStack
    model_turn: threading.Lock = field(default_factory=threading.Lock)

    def close(self) -> None:
        """Stop answering, then free the device. Engines must be closed before. Safe to call twice."""
        self._closing.close()


def open_service(plan: SchedulingPlan, kind: str, tracer: Tracer | None = None) -> SchedulingService:
    """Open device `kind` with every lane any arm may choose, prove where each runs, and start the control socket.

    tracer: told of waits for a lane and of yields. Raises StartupError (DeviceUnavailable, or a lane that ran
    elsewhere) and ConfigError.
    """
    config = plan.config
    if kind == "cpu":
        config = _on_cpu(config)
    else:  # its language model serves one text at a time
        config = replace(config, one_engine=frozenset(names_of(config.tasks).values()))
    specs = [LaneSpec(lane.name, lane.clusters, lane.memory_budget_bytes, lane.priority) for lane in plan_lanes(config)]
    with ExitStack() as opened:
        device = open_device(kind, config.clusters, specs)
        opened.callback(device.close)
        watch = open_watch()
        opened.callback(watch.close)
        _prove(device, specs)
        evicted = EvictedSessions()
        arbiter = Arbiter(config, _arena_bytes(config, device), on_evict=evicted.note)
        dispatcher = Dispatcher(arbiter, tracer=tracer or NullTracer())
        file = PolicyFile(plan.state_dir, device.fingerprint) if plan.state_dir is not None else None
        maintenance = Maintenance(dispatcher, watch, file, memory_use(kind, watch))
        opened.callback(maintenance.stop)
        maintenance.start()
        control = orders = None
        if plan.socket is not None:
            orders = Orders(dispatcher, watch, maintenance, plan.memory)
            control = ControlServer(plan.socket, orders, plan.group)
            opened.callback(control.stop)
            control.start()
        return SchedulingService(
            config, device, dispatcher, watch, maintenance, control, orders, evicted, opened.pop_all()
        )


def _on_cpu(config: ArbiterConfig) -> ArbiterConfig:
    """Without the arms that change nothing there: engines' threads are on any core, so a narrower lane is as fast, and
    no run computes more than LONGEST_CHUNK tokens of a prompt.
    """
    chunks = tuple(dict.fromkeys(min(chunk, LONGEST_CHUNK) for chunk in config.policy.prefill_chunk_tokens))
    return replace(config, widths_act=False, policy=replace(config.policy, prefill_chunk_tokens=chunks))


def _prove(device: Device, specs: list[LaneSpec]) -> None:
    for spec in specs:
        probe = device.verify_placement(spec.name)
        if not probe.ok:
            raise StartupError(
                f"lane {spec.name} ran outside its clusters ({probe.detail}): look for other users of these units "
                "or change `clusters`; cockpit doctor shows every lane"
            )
        log.info("lane %s: %s", spec.name, probe.detail)


def _arena_bytes(config: ArbiterConfig, device: Device) -> int:
    """KV memory of all tasks: what their budgets add up to, within the profile's share of the device."""
    wanted = sum(task.memory_budget_mb for task in config.tasks.values()) << 20
    limit = int(device.memory().total_bytes * config.limits.max_gpu_memory_percent / 100)
    return min(wanted, limit)
