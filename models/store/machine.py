"""What of this machine decides how a model runs on it: processor or GPU, firmware, driver, libraries.

A build is portable and holds none of this. A validation does (models/store/validation.py): what was seen to work under
one firmware and driver has to be seen again under another.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from models.store.fingerprint import onnxruntime_version
from models.store.registry import Device

ROOT = Path("/")
NONE = "none"
"""The value of a field that this machine does not have, or does not let read."""

_KERNEL_SETS = (
    "sse4_1 avx avx2 fma f16c avx_vnni avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16 avx512_fp16 "
    "amx_tile amx_int8 amx_bf16 "
    "asimd asimdhp asimddp i8mm bf16 sve sve2 svei8mm svebf16 sme"
)
"""The instruction sets, as Linux names them, by which the kernels of ONNX Runtime's CPU provider (MLAS) are chosen."""

_CORES_PER_SM = {7: 64, 8: 128, 9: 128, 10: 128, 11: 128, 12: 128}
"""CUDA cores of one SM by major compute capability (CUDA C++ Programming Guide, "Compute Capabilities"); NVML counts
cores, not SMs."""

_PACKAGES = {
    "cuda_runtime": ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12"),
    "tensorrt": ("tensorrt", "tensorrt-rtx-cu13", "tensorrt-rtx", "tensorrt-cu13", "tensorrt-cu12"),
}


def machine_fields(device: Device) -> dict[str, str]:
    """Field -> value of this machine, of the processor alone or ("cuda") of the first GPU too. A GPU may come late, so
    only the processor's are kept.
    """
    fields = dict(_without_gpu())
    return fields | gpu_fields(_nvml()) if device == "cuda" else fields


def fields_sha3(fields: Mapping[str, str]) -> str:
    """sha3-256 over named fields, in the order of their names."""
    digest = hashlib.sha3_256()
    for name in sorted(fields):
        digest.update(name.encode() + b"\0" + fields[name].encode() + b"\n")
    return digest.hexdigest()


def fields_that_differ(expected: Mapping[str, str], got: Mapping[str, str]) -> list[str]:
    """One phrase a field: what was expected and what is there."""
    names = sorted(expected.keys() | got.keys())
    return [
        f"{name}: expected {expected.get(name, NONE)}, got {got.get(name, NONE)}"
        for name in names
        if expected.get(name, NONE) != got.get(name, NONE)
    ]


@cache
def _without_gpu() -> dict[str, str]:
    return cpu_fields(ROOT) | {"onnxruntime": onnxruntime_version(), "cockpit": package_version("cockpit-voice")}


def package_version(*names: str) -> str:
    """Version of the first of these packages that is installed; "none" when none is."""
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return NONE


# --- the processor -------------------------------------------------------------------------------------------------
def cpu_fields(root: Path) -> dict[str, str]:
    """The processor below `root`, where `/proc` and `/sys` lie."""
    info = _first_processor(_text(root / "proc/cpuinfo"))
    flags = set((info.get("flags") or info.get("Features") or "").split())
    parts = [info[key] for key in ("CPU implementer", "CPU part", "CPU variant") if key in info]
    firmware = (_text(root / path).split("\n")[0].strip() for path in _FIRMWARE)
    modules = (root / "sys/devices/system/edac/mc").glob("mc[0-9]*/dimm[0-9]*/dimm_location")
    channels = {(path.parent.parent.name, _text(path).partition(" slot")[0].strip()) for path in modules}
    return {
        "machine": platform.machine(),
        "cpu": info.get("model name") or " ".join(parts) or NONE,
        "instruction_sets": " ".join(sorted(flags & set(_KERNEL_SETS.split()))) or NONE,
        "firmware": next((line for line in firmware if line), NONE),
        "memory_channels": str(len(channels)) if channels else NONE,
    }


_FIRMWARE = ("sys/class/dmi/id/bios_version", "etc/nv_tegra_release")
"""A PC's, and the release of a Jetson's board support package."""


def _first_processor(text: str) -> dict[str, str]:
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# --- the GPU -------------------------------------------------------------------------------------------------------
def _nvml() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def gpu_fields(nvml: Any) -> dict[str, str]:
    """The first GPU as NVML (the module pynvml, or what stands in for it) reports it; {"gpu": "none"} without one.

    A field that this GPU or driver does not report is "none".
    """
    libraries = {name: package_version(*names) for name, names in _PACKAGES.items()}
    if nvml is None:
        return {"gpu": NONE, **libraries}
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return {"gpu": NONE, **libraries}
    try:
        return _gpu(nvml) | libraries
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any) -> dict[str, str]:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
    except nvml.NVMLError:
        return {"gpu": NONE}

    def asked(name: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, name)(*arguments)
        except nvml.NVMLError:
            return None

    capability = asked("nvmlDeviceGetCudaComputeCapability", handle)
    cores, cuda = asked("nvmlDeviceGetNumGpuCores", handle), asked("nvmlSystemGetCudaDriverVersion_v2")
    values = {
        "gpu": asked("nvmlDeviceGetName", handle),
        "compute_capability": None if capability is None else f"{capability[0]}.{capability[1]}",
        "sm_count": None if cores is None or capability is None else _sm_count(cores, *capability),
        "memory_bus_bits": asked("nvmlDeviceGetMemoryBusWidth", handle),
        "driver": asked("nvmlSystemGetDriverVersion"),
        "vbios": asked("nvmlDeviceGetVbiosVersion", handle),
        "cuda": None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
    }
    return {name: NONE if value is None else str(value) for name, value in values.items()}


def _sm_count(cores: int, major: int, minor: int) -> int | None:
    per_sm = 64 if (major, minor) == (8, 0) else _CORES_PER_SM.get(major)
    return None if per_sm is None else cores // per_sm
