"""The API of one process: its services from the assembled engines, and the server in front of them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cockpit.api.app import Services
from cockpit.api.grants import Grants
from cockpit.api.server import ApiServer
from cockpit.api.sessions import SessionPool
from cockpit.api.speech import SpeechService
from cockpit.api.text import TextService
from cockpit.arbiter.config import DIALOGUE
from cockpit.assemble import Assembly
from cockpit.headunit.cabin import Cabin
from cockpit.headunit.stream import EventStream
from cockpit.profile.sections import Profile
from cockpit.scheduling.batch_lease import BatchLane, BatchLease
from cockpit.scheduling.engine_turns import LaneLeases, NoLeases
from cockpit.scheduling.llm_lease import EvictedSessions
from cockpit.scheduling.service import SchedulingService
from cockpit.scheduling.tasks import stand_in
from cockpit.scheduling.voice_task import task_lane
from cockpit.service.audio_devices import AudioDevices
from cockpit.telemetry.live_metrics import LiveMetrics
from cockpit.telemetry.metrics import Metrics
from cockpit.telemetry.process_status import process_status, profile_sha256
from cockpit.token_file import read_token
from models.engines.llm.causal_lm import CausalLM
from pipeline.frames import GuidancePrompt
from pipeline.guidance import GuidanceStage

_ALONE: Mapping[str, int] = {DIALOGUE: 5}
"""The tasks of a profile that names none: nothing is shared out, and every request is the same."""


@dataclass(frozen=True, slots=True)
class HeadUnit:
    """What a head unit follows and handles of the voice chain."""

    cabin: Cabin
    events: EventStream
    metrics: Metrics
    profile_name: str
    devices: AudioDevices | None = None

    def live(self, profile: Profile, assembly: Assembly, texts: Mapping[str, TextService]) -> LiveMetrics:
        """What the metrics read when they are asked for."""
        devices = self.devices
        return LiveMetrics(
            self.cabin.runtime,
            self.cabin.service,
            self.profile_name,
            profile_sha256(profile),
            profile.device,
            assembly.service,
            None if devices is None else devices.microphone,
            None if devices is None else devices.speaker,
            self.events,
            texts,
        )


@dataclass(frozen=True, slots=True)
class Api:
    """A server that runs."""

    server: ApiServer
    services: Services
    texts: tuple[TextService, ...]
    _forgetting: _Forgetting | None

    def close(self) -> None:
        """Take no more requests, cancel those that run. Before the assembly is closed."""
        if self.services.events is not None:  # those who follow it hang up by themselves then
            self.services.events.close()
        self.server.stop()
        if self._forgetting is not None:
            self._forgetting.stop()
        for text in self.texts:
            text.close()


class _Forgetting:
    """Gives the memory of idle texts back as soon as the arbiter evicts them, in a thread of its own. Texts in use are
    forgotten by the request that uses them.
    """

    def __init__(self, pools: Sequence[SessionPool], evicted: EvictedSessions) -> None:
        self._pools = tuple(pools)
        self._evicted = evicted
        self._wanted = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="api-memory", daemon=True)
        evicted.listener = self._wanted.set
        self._thread.start()

    def stop(self) -> None:
        self._evicted.listener = bool
        self._stopped = True
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        while self._wanted.wait() and not self._stopped:
            self._wanted.clear()
            for pool in self._pools:
                pool.forget_evicted(self._evicted.take)


def open_api(
    profile: Profile,
    assembly: Assembly,
    path: Path,
    guide: Callable[[GuidancePrompt], int] | None = None,
    given: socket.socket | None = None,
    decided: Callable[[], Mapping[str, int]] | None = None,
    headunit: HeadUnit | None = None,
) -> Api:
    """Serve the assembled models on the socket `path`, as `profile.api` says. Raises StartupError.

    guide, decided: see Services. headunit: what is shown and handled of the chain, None without one.
    given: the socket itself, where the service manager opened it.
    """
    section, service = profile.api, assembly.service
    token = None if section.token_file is None else read_token(section.token_file, "api.token_file")
    tasks = _ALONE if service is None else {name: task.priority for name, task in service.config.tasks.items()}
    granted = {
        user: tuple(dict.fromkeys(stand_in(name, tasks) for name in row)) for user, row in section.grants.items()
    }
    texts = _texts(profile, assembly, {} if service is None else _granted(service, granted))
    engines = assembly.engines
    speech = SpeechService(
        engines.recogniser,
        engines.voices,
        profile.asr.languages,
        engines.asr_turns,
        engines.tts_turns,
        NoLeases() if service is None else LaneLeases(service.dispatcher, _nothing),
    )
    services = Services(
        texts,
        speech,
        Grants(tasks, granted, words=section.words, control=section.control),
        _health(service, assembly.parts.guidance),
        guide=guide,
        roles={model.name: model.roles for model in profile.llm.models},
        remote=assembly.parts.dialogue.remote,
        decided=decided,
    )
    if headunit is not None:
        headunit.metrics.show(headunit.live(profile, assembly, texts))
        services = replace(
            services,
            cabin=headunit.cabin,
            events=headunit.events,
            metrics=headunit.metrics.text,
            status=process_status(headunit.cabin.runtime, service, headunit.profile_name, profile, services.stats),
        )
    try:
        server = ApiServer.open(services, path, group=section.group, port=section.port, token=token, given=given)
        server.start()
    except BaseException:
        for text in texts.values():
            text.close()
        raise
    served = tuple(texts.values())
    if service is None:
        return Api(server, services, served, None)
    if service.orders is not None:
        service.orders.beside["api"] = services.stats
    return Api(server, services, served, _Forgetting([text.pool for text in served], service.evicted))


def _texts(profile: Profile, assembly: Assembly, priorities: Mapping[str, int]) -> dict[str, TextService]:
    """Each language model under its name, the dialogue's first. priorities: of the tasks that requests may run as."""
    section, models = profile.api, profile.llm.models
    loaded = {"dialogue": assembly.engines.model, "background": assembly.engines.background}
    texts = {}
    for named in models:
        model = loaded[named.roles[0]]
        texts[named.name] = TextService(
            model,
            _lane_of(assembly.service, model, lanes=assembly.placements.llm is not None),
            most_running=section.requests,
            most_sessions=section.texts if "dialogue" in named.roles else section.requests,
            priorities=priorities,
            most_waiting=section.waiting,
            parked_bytes=(section.parked_mb << 20) // len(models),
        )
    return texts


def _granted(service: SchedulingService, grants: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Priorities of the tasks that some client may ask for."""
    names = {name for row in grants.values() for name in row}
    return {name: task.priority for name, task in service.config.tasks.items() if name in names}


def _lane_of(service: SchedulingService | None, model: CausalLM, *, lanes: bool) -> Callable[[str], BatchLane] | None:
    """A lane per task. lanes: whether the model has a cache per lane."""
    if service is None:
        return None

    def lane(task: str) -> BatchLane:
        return BatchLease(service.dispatcher, task, task_lane(service, model, lanes=lanes), service.evicted)

    return lane


def _nothing(_task: str) -> None:
    return None


def _health(service: SchedulingService | None, guidance: GuidanceStage) -> Callable[[], dict[str, Any]]:
    """What `/health` says of the process."""

    def health() -> dict[str, Any]:
        spoken = {"guidance": guidance.counts().as_json()}
        if service is None:
            return {"degraded": False, "paused": [], **spoken}
        status = service.dispatcher.status(verbose=False)
        return {"degraded": status.degraded.active, "paused": list(status.degraded.paused), **spoken}

    return health
