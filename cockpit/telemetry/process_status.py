"""`/v1/status`: the whole process at one moment, for an engineer, and without anything that was heard or said."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from cockpit import __version__
from cockpit.profile.sections import Profile
from cockpit.runtime import Runtime
from cockpit.scheduling.service import SchedulingService


def profile_sha256(profile: Profile) -> str:
    """Of the values in force, wherever they were written."""
    return hashlib.sha256(profile.model_dump_json().encode()).hexdigest()


def process_status(
    runtime: Runtime,
    scheduling: SchedulingService | None,
    profile_name: str,
    profile: Profile,
    stats: Callable[[], Mapping[str, Any]],
) -> Callable[[], dict[str, Any]]:
    """What tells it. stats: as `/v1/stats` does. `arbiter`: null without orchestration; `gpu`: null without one."""
    in_force = {
        "name": profile_name,
        "sha256": profile_sha256(profile),
        "values": profile.model_dump(mode="json"),
    }

    def status() -> dict[str, Any]:
        edges = runtime.edges.all()
        channels = [
            {"name": edge.name, "waiting": len(edge), "capacity": edge.capacity, **asdict(edge.counts)}
            for edge in edges
        ]
        told: dict[str, Any] = {
            "version": __version__,
            "profile": in_force,
            "channels": channels,
            "stage_failures": runtime.stage_failures.counts,
            "arbiter": None,
            "findings": [],
            "gpu": None,
            **stats(),
        }
        if scheduling is not None:
            told["arbiter"] = asdict(scheduling.dispatcher.status())
            told["findings"] = [asdict(finding) for finding in scheduling.maintenance.findings]
            told["gpu"] = asdict(scheduling.watch.sample()) if scheduling.watch.present else None
        return told

    return status
