"""Whether a profile can run here: one list of findings, for `profile check`, `profile apply`, `doctor` and every start.

`load_profile` refuses what is wrong whatever the machine; this is about what is built, installed, connected and free.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cockpit.agent_tools import setup_of
from cockpit.arbiter.config import DIALOGUE, ArbiterConfig
from cockpit.profile.base import Violation, dotted
from cockpit.profile.memory_plan import KV_SESSIONS, device_memory_bytes, plan_of
from cockpit.profile.orchestration import budget_violations, unit_violations
from cockpit.profile.sections import Profile
from cockpit.profile.yaml import KeyPath
from models.errors import BrokerAbsent, CockpitError, ConfigError, DeviceAbsent, GpuAbsent, ModelUnusable, StartupError
from models.store.store import Store
from pipeline.vehicle.overlay import signals_with

DISTRIBUTION = "cockpit-voice"
_WAKE_LIBRARIES = {"microwakeword": "pymicro_wakeword", "openwakeword": "pyopen_wakeword"}
_NO_WAKE_WORDS = {"melspectrogram", "embedding_model"}
"""Files of openWakeWord that are shared by all its words."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`status`: "ok"; "note" (fine, worth knowing); "missing" (this profile cannot start here until it is mended).

    key: the profile's key that asks for it; empty for what every profile needs. error: what a start raises.
    """

    name: str
    status: Literal["ok", "note", "missing"]
    detail: str
    remedy: str = ""
    key: KeyPath = ()
    error: type[CockpitError] = StartupError

    def as_json(self) -> dict[str, str]:
        """What `--json` prints."""
        key = dotted(self.key) if self.key else ""
        return {"name": self.name, "status": self.status, "detail": self.detail, "remedy": self.remedy, "key": key}

    def __str__(self) -> str:
        what = f"{dotted(self.key)}: {self.detail}" if self.key else f"{self.name}: {self.detail}"
        return f"{what}; {self.remedy}" if self.remedy else what


def require_runnable(
    profile: Profile,
    arbiter: ArbiterConfig | None,
    store: Store,
    peaks: Mapping[str, int] | None = None,
    kv_sessions: int = KV_SESSIONS,
) -> None:
    """Raises the first missing finding's error, with the text of all of them, one a line. What may come by itself
    (DeviceAbsent) is raised only where nothing else is missing.
    """
    missing = [found for found in findings(profile, arbiter, store, peaks, kv_sessions) if found.status == "missing"]
    if missing and all(issubclass(found.error, ModelUnusable) for found in missing):
        store.built_all(profile.model_names)  # its message names one command for all of them
    if missing:
        missing.sort(key=lambda found: issubclass(found.error, DeviceAbsent))
        raise missing[0].error("\n".join(map(str, missing)))


def findings(
    profile: Profile,
    arbiter: ArbiterConfig | None,
    store: Store,
    peaks: Mapping[str, int] | None = None,
    kv_sessions: int = KV_SESSIONS,
) -> Iterator[Finding]:
    """Every check. peaks, kv_sessions: see `plan_of`."""
    yield from _tasks(profile, arbiter)
    yield from _privacy(profile)
    yield from _vehicle(profile)
    yield from _places(profile)
    yield from _manual(profile)
    yield from _agent(profile, store)
    yield onnxruntime(profile.device)
    yield from _models(profile, store)
    yield from _wake_word(profile, store)
    yield from gpu(required=profile.device == "cuda")
    yield from _device(profile, arbiter, store, peaks, kv_sessions)


def _tasks(profile: Profile, arbiter: ArbiterConfig | None) -> Iterator[Finding]:
    """The tasks that the voice chain runs as."""
    if arbiter is None and profile.device != "cpu":
        detail = "every engine on a GPU runs in a lane"
        remedy = "add orchestration and tasks, as in profiles/h200.yaml"
        yield Finding("tasks", "missing", detail, remedy, ("device",), ConfigError)
    if arbiter is not None and DIALOGUE not in arbiter.tasks:
        detail = f"the voice chain runs as {DIALOGUE}, which is not among {', '.join(arbiter.tasks)}"
        remedy = "add it, or leave out orchestration and tasks"
        yield Finding("tasks", "missing", detail, remedy, ("tasks",), ConfigError)


def _privacy(profile: Profile) -> Iterator[Finding]:
    for key in ("store_audio", "store_transcripts"):
        if getattr(profile.privacy, key):
            path = ("privacy", key)
            yield Finding("privacy", "missing", "nothing can be stored yet", "set it false", path, ConfigError)


def _vehicle(profile: Profile) -> Iterator[Finding]:
    vehicle = profile.vehicle
    try:
        signals_with(vehicle.signals)
    except ConfigError as error:
        yield Finding("vehicle", "missing", str(error), "", ("vehicle", "signals"), ConfigError)
    if vehicle.backend != "kuksa":
        return
    absent = [name for name in ("grpc", "google.protobuf") if not _installed(name)]
    if absent:
        detail = f"a KUKSA databroker needs {' and '.join(absent)}, which is not installed"
        yield Finding("vehicle", "missing", detail, f'pip install "{DISTRIBUTION}[vss]"', ("vehicle", "backend"))
    here = vehicle.socket is None or vehicle.socket.exists()
    if not here:
        remedy = "start kuksa-databroker, or use backend: embedded"
        detail = f"no databroker socket at {vehicle.socket}"
        yield Finding("vehicle", "missing", detail, remedy, ("vehicle", "socket"), BrokerAbsent)
    for key in ("token_file", "ca_file"):
        file = getattr(vehicle, key)
        if file is not None and not os.access(file, os.R_OK):
            detail = f"no readable {key.partition('_')[0]} at {file}"
            remedy = "create it, readable for this user, or leave the key out"
            yield Finding("vehicle", "missing", detail, remedy, ("vehicle", key))
    if not absent and here:
        yield Finding("vehicle", "ok", f"KUKSA databroker at {vehicle.socket or vehicle.address}")


def _places(profile: Profile) -> Iterator[Finding]:
    file = profile.navigation.places
    if file is None:
        return
    if file.is_file() and os.access(file, os.R_OK):
        yield Finding("places", "ok", str(file))
    else:
        remedy = "copy the head unit's place list there, or leave the key out"
        yield Finding("places", "missing", f"no readable file {file}", remedy, ("navigation", "places"), ConfigError)


def _manual(profile: Profile) -> Iterator[Finding]:
    file = profile.manual.file
    if file is None:
        return
    path = ("manual", "file")
    if file.suffix not in (".md", ".npz"):
        remedy = "name a .md file, or the .npz that `cockpit manual build` made of it"
        yield Finding("manual", "missing", f"{file} is no manual", remedy, path, ConfigError)
    elif file.is_file() and os.access(file, os.R_OK):
        yield Finding("manual", "ok", str(file))
    else:
        remedy = "copy the manual there, or leave the key out for the one that ships"
        yield Finding("manual", "missing", f"no readable file {file}", remedy, path, ConfigError)


def _agent(profile: Profile, store: Store) -> Iterator[Finding]:
    section = profile.agent
    try:
        setup_of(section)
    except ConfigError as error:
        key = ("agent", "cache" if str(error).startswith("agent.cache") else "tools")
        yield Finding("agent", "missing", str(error).partition(": ")[2], "", key, ConfigError)
    if section.model is None:
        return
    key, remedy = ("agent", "model"), "name one of `cockpit models list`, or leave the key out"
    registry = store.registry
    if section.model not in registry.names or registry.get(section.model).kind != "llm":
        yield Finding("agent", "missing", f"no language model is called {section.model!r}", remedy, key, ConfigError)
    elif profile.device != "cpu" and section.model != profile.llm.dialogue.model:
        detail = "a language model beside llm.model runs on the CPU only"
        yield Finding("agent", "missing", detail, "leave the key out", key, ConfigError)


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is not there
        return False


def onnxruntime(device: str) -> Finding:
    """ONNX Runtime is there and offers what the profile's device needs."""
    wanted, extra = ("CUDAExecutionProvider", "gpu") if device == "cuda" else ("CPUExecutionProvider", "cpu")
    remedy = f'pip install "{DISTRIBUTION}[{extra}]"'
    try:
        import onnxruntime as ort
    except ImportError as error:
        return Finding("onnxruntime", "missing", str(error), remedy)
    providers = ort.get_available_providers()
    detail = f"{ort.__version__}: {', '.join(providers)}"
    if wanted not in providers:
        # Both packages own the same import name: the one that is here must go first.
        return Finding(
            "onnxruntime", "missing", f"{detail}; {wanted} is absent", f"pip uninstall -y onnxruntime && {remedy}"
        )
    return Finding("onnxruntime", "ok", detail)


def _models(profile: Profile, store: Store) -> Iterator[Finding]:
    """The models that the profile loads."""
    for name in profile.model_names:
        fault = store.fault(name)
        if fault is None:
            yield Finding(f"model {name}", "ok", str(store.built(name)))
        else:
            yield Finding(f"model {name}", "missing", str(fault), f"run: {store.remedy(name)}", error=type(fault))


def _wake_word(profile: Profile, store: Store) -> Iterator[Finding]:
    wake = profile.wake
    if wake.engine == "none":
        return
    library = _WAKE_LIBRARIES[wake.engine]
    if not _installed(library):
        remedy = f'pip install "{DISTRIBUTION}[wake]"'
        yield Finding("wake word", "missing", f"{library} is not installed", remedy, ("wake", "engine"))
    words = _wake_words(wake.engine, store)
    if wake.model in words:
        yield Finding("wake word", "ok", f"{wake.model} ({wake.engine})")
    else:
        detail = f"{wake.engine} has no wake word {wake.model!r}"
        remedy = f"choose one of: {', '.join(words)}"
        yield Finding("wake word", "missing", detail, remedy, ("wake", "model"), ConfigError)


def _wake_words(engine: str, store: Store) -> list[str]:
    """The words in the engine's folder (its user may have added some), or those that would be fetched."""
    names = set(store.registry.source_entry(engine).files)
    if store.is_built(engine):
        names |= {path.name for path in store.built(engine).iterdir()}
    return wake_words_among(names)


def wake_words_among(files: Iterable[str]) -> list[str]:
    """The words that an engine's files are models of."""
    return sorted({name.removesuffix(".tflite") for name in files if name.endswith(".tflite")} - _NO_WAKE_WORDS)


def gpu(*, required: bool) -> Iterator[Finding]:
    """NVIDIA GPUs as NVML reports them."""
    absent: Literal["missing", "note"] = "missing" if required else "note"
    remedy = "install the NVIDIA driver, or choose a profile with device: cpu" if required else ""
    try:
        import pynvml
    except ImportError:
        yield Finding("gpu", absent, "nvidia-ml-py is not installed, so no GPU can be seen", "pip install nvidia-ml-py")
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield Finding("gpu", absent, f"no NVIDIA GPU here ({error})", remedy, error=GpuAbsent)
        return
    try:
        driver = _told(pynvml, "nvmlSystemGetDriverVersion") or "unknown"
        for index in range(pynvml.nvmlDeviceGetCount()):
            yield _gpu(pynvml, index, driver)
    except pynvml.NVMLError as error:
        yield Finding("gpu", absent, f"NVML cannot count the GPUs here ({error})", remedy, error=GpuAbsent)
    finally:
        pynvml.nvmlShutdown()


def _gpu(nvml: Any, index: int, driver: str) -> Finding:
    """One GPU; what NVML does not support there (on unified memory: its size) is said to be unknown."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return Finding(
            f"gpu {index}", "note", f"NVML does not show it ({error})", "look at nvidia-smi and the kernel log"
        )
    memory, name = _told(nvml, "nvmlDeviceGetMemoryInfo", handle), _told(nvml, "nvmlDeviceGetName", handle)
    size = "memory shared with the CPU, its size not told" if memory is None else f"{memory.total / 2**30:.0f} GiB"
    return Finding(f"gpu {index}", "ok", f"{name or 'a GPU without a name'}, {size}, driver {driver}")


def _told(nvml: Any, question: str, *of: Any) -> Any:
    """NVML's answer; None where it has none."""
    try:
        return getattr(nvml, question)(*of)
    except nvml.NVMLError:
        return None


def _device(
    profile: Profile,
    arbiter: ArbiterConfig | None,
    store: Store,
    peaks: Mapping[str, int] | None,
    kv_sessions: int,
) -> Iterator[Finding]:
    """Clusters and memory against what the device has."""
    total_bytes = device_memory_bytes(profile.device)
    faults: list[Violation] = []
    if arbiter is not None:
        units = len(os.sched_getaffinity(0)) if profile.device == "cpu" else None
        faults += unit_violations(arbiter.clusters, units)
        budgets = {name: task.memory_budget_mb for name, task in arbiter.tasks.items()}
        total_mb = None if total_bytes is None else total_bytes >> 20
        faults += budget_violations(budgets, arbiter.limits.max_gpu_memory_percent, total_mb)
    for fault in faults:
        yield Finding("device", "missing", fault.message, "", fault.path, ConfigError)
    plan = plan_of(profile, arbiter, store, total_bytes, peaks, kv_sessions)
    if plan.fits:
        yield Finding("memory", "ok", f"{plan.sum_bytes >> 20} MiB planned, limit {plan.limit_text}")
    else:
        yield Finding("memory", "missing", plan.refusal, error=ConfigError)
