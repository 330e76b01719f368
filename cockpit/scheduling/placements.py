"""Where each engine of the voice chain runs: cores of a CPU, or lanes of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cockpit.arbiter.config import DIALOGUE, SPEECH
from cockpit.arbiter.lanes import lanes_of, plan_lanes
from cockpit.profile.memory_plan import arena_name
from cockpit.profile.sections import Profile
from cockpit.scheduling.copy_scheduler import CopyScheduler
from cockpit.scheduling.measured_memory import Stage, nothing_used
from cockpit.scheduling.service import SchedulingService
from models.engines.placement import CpuPlacement, Placement
from models.errors import ConfigError

if TYPE_CHECKING:
    from cockpit.device.cuda.placement import Decoders


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class EnginePlacements:
    """asr, tts: one placement each. llm: one per lane that the arbiter may choose; None where it runs on any core.

    speech_lane: where asr and tts run; empty on a CPU. seal: called once everything is loaded and warm. close: called
    before the device is closed. used_bytes: device memory in use, 0 where it says nothing about this process.
    """

    asr: Placement
    tts: Placement
    llm: Mapping[str, Placement] | None = None
    speech_lane: str = ""
    seal: Callable[[], None] = _nothing
    close: Callable[[], None] = _nothing
    used_bytes: Callable[[], int] = nothing_used

    def stages(self, profile: Profile) -> dict[str, Stage]:
        """What loads together where, for the memory plan's measured peaks. Empty on a CPU."""
        if self.llm is None:
            return {}
        speech, texts = (self.speech_lane,), profile.llm.models
        return {
            "asr": Stage(speech, (profile.asr.model,)),
            "llm": Stage(tuple(self.llm), (*(model.name for model in texts), *map(arena_name, texts))),
            "tts": Stage(speech, (profile.tts.en_voice, profile.tts.zh_voice)),
        }


def engine_placements(
    profile: Profile, service: SchedulingService | None, kernels: Path | None = None
) -> EnginePlacements:
    """kernels: the model cache, where `cockpit kernels build` leaves what decodes on a GPU; None: ONNX Runtime decodes.

    Raises ConfigError for a GPU without lanes, DeviceUnavailable where ONNX Runtime has no CUDA provider."""
    if profile.device == "cpu":
        return EnginePlacements(CpuPlacement(profile.asr.threads), CpuPlacement(profile.tts.threads))
    if service is None:
        raise ConfigError(
            f"device {profile.device}: every engine runs in a lane; add `orchestration` and `tasks`, as in "
            "profiles/h200.yaml"
        )
    from cockpit.device.cuda.placement import CudaEngines, LanedDevice

    device = service.device
    assert isinstance(device, LanedDevice)
    config, lanes = service.config, plan_lanes(service.config)
    index = {name: place for place, name in enumerate(config.tasks)}
    tasks = {lane.name: index[lane.task] for lane in lanes}
    priorities = tuple(task.priority for task in config.tasks.values())
    engines = CudaEngines(device, CopyScheduler(tasks, priorities), _decoders(device, kernels))
    speech = lanes_of(lanes, SPEECH) or lanes_of(lanes, DIALOGUE)
    name = speech[-1].name
    llm = {lane.name: engines.placement(lane.name) for lane in lanes_of(lanes, DIALOGUE)}
    asr, tts = engines.placement(name), engines.placement(name)
    return EnginePlacements(asr, tts, llm, name, engines.seal, engines.close, lambda: device.memory().used_bytes)


def _decoders(device: Any, kernels: Path | None) -> Decoders | None:
    """The decode kernels of a device that says what it is; a device without a driver of its own has none."""
    from cockpit.device.cuda.device import CudaDevice
    from cockpit.device.cuda.driver import BoundDriver
    from cockpit.device.cuda.kernel_store import KernelStore
    from cockpit.device.cuda_decode.serving import StepDecoders

    if kernels is None or not isinstance(device, CudaDevice) or not isinstance(device.driver, BoundDriver):
        return None
    return StepDecoders(device.driver, device.facts, KernelStore(kernels))
