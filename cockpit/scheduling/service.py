"""The arbiter of one process, put together: device and lanes, dispatcher, watch, saved policy, control socket."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from cockpit.arbiter.arbiter import Arbiter
from cockpit.arbiter.config import ArbiterConfig
from cockpit.arbiter.lanes import plan_lanes
from cockpit.device.base import Device, LaneSpec, open_device
from cockpit.profile.memory_budget import MemoryPlan
from cockpit.scheduling.control_socket import ControlServer, Orders
from cockpit.scheduling.dispatcher import Dispatcher
from cockpit.scheduling.llm_lease import Evicted
from cockpit.scheduling.maintenance import Housekeeper
from cockpit.scheduling.state_file import PolicyFile
from cockpit.telemetry.watch import Watch, open_watch
from models.errors import StartupError

log = logging.getLogger("cockpit.scheduling.service")


@dataclass(frozen=True, slots=True)
class Arbitration:
    """What a process needs to share its device. `control` is None where no socket was asked for. evicted: what the
    owners of sessions must forget.

    Without a socket somebody else must call `housekeeper.beat()` about once a second.
    """

    device: Device
    dispatcher: Dispatcher
    watch: Watch
    housekeeper: Housekeeper
    control: ControlServer | None
    evicted: Evicted

    def close(self) -> None:
        """Stop answering, then free the device. Engines must be closed before."""
        if self.control is not None:
            self.control.stop()
        self.watch.close()
        self.device.close()


def open_arbitration(
    config: ArbiterConfig,
    kind: str,
    *,
    arena_bytes: int | None = None,
    state_dir: Path | None = None,
    socket: Path | None = None,
    group: str | None = None,
    memory_plan: MemoryPlan | None = None,
) -> Arbitration:
    """Open device `kind` with every lane any arm may choose, prove where each runs, and start the control socket.

    arena_bytes: KV memory of all tasks, by default what their budgets add up to. state_dir: where the policy's state is
    kept. memory_plan: what `o3ctl status --verbose` shows as planned. Raises StartupError (DeviceUnavailable, or a lane
    that ran elsewhere) and ConfigError.
    """
    specs = [LaneSpec(lane.name, lane.clusters, lane.memory_budget_bytes, lane.priority) for lane in plan_lanes(config)]
    device = open_device(kind, config.clusters, specs)
    watch = open_watch()
    try:
        _prove(device, specs)
        arena = _arena(config, device) if arena_bytes is None else arena_bytes
        evicted = Evicted()
        dispatcher = Dispatcher(Arbiter(config, arena, on_evict=evicted.note))
        file = PolicyFile(state_dir, device.fingerprint) if state_dir is not None else None
        housekeeper = Housekeeper(dispatcher, watch, file)
        housekeeper.start()
        control = None
        if socket is not None:
            orders = Orders(dispatcher, watch, housekeeper, memory_plan)
            control = ControlServer(socket, orders, housekeeper, group)
            control.start()
    except BaseException:
        watch.close()
        device.close()
        raise
    return Arbitration(device, dispatcher, watch, housekeeper, control, evicted)


def _prove(device: Device, specs: list[LaneSpec]) -> None:
    for spec in specs:
        placement = device.verify_placement(spec.name)
        if not placement.ok:
            raise StartupError(
                f"lane {spec.name} ran outside its clusters ({placement.detail}): look for other users of these units "
                "or change `clusters`; cockpit doctor shows every lane"
            )
        log.info("lane %s: %s", spec.name, placement.detail)


def _arena(config: ArbiterConfig, device: Device) -> int:
    wanted = sum(task.memory_budget_mb for task in config.tasks.values()) << 20
    limit = int(device.memory().total_bytes * config.limits.max_gpu_memory_percent / 100)
    return min(wanted, limit)
