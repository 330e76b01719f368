"""Compiled kernels on disk: built once for the device here with NVRTC, only loaded by the serving process.

    <root>/kernels/sm_90/<file>-<key>.cubin, and beside it .json: what it was made from, with and for

The key covers the source, its macros and the compute capability, so that what is found is what the code asks for. The
JSON file adds NVRTC's and the driver's version: after a new driver the kernels are built anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cockpit.device.cuda.driver import KERNELS, DeviceFacts, compile_cubin
from models.errors import DeviceUnavailable, FingerprintMismatch, ModelMissing

REMEDY = "run: cockpit kernels build"
Compiler = Callable[[str, tuple[int, int], Sequence[str]], bytes]


@dataclass(frozen=True, slots=True)
class KernelSource:
    """One thing to compile: a file of cockpit/device/kernels and its macros, each NAME=VALUE."""

    file: str
    defines: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return (KERNELS / self.file).read_text(encoding="utf-8")

    def key(self, capability: tuple[int, int]) -> str:
        """16 hex digits that change with the source, the macros and the part they are compiled for."""
        said = json.dumps([self.text, sorted(self.defines), capability])
        return hashlib.sha256(said.encode()).hexdigest()[:16]


class KernelStore:
    """Cubins below one root (the model cache). Several processes may read; `cockpit kernels build` writes."""

    def __init__(self, root: Path, compiler: Compiler = compile_cubin) -> None:
        self.root = root
        self._compile = compiler

    def path(self, source: KernelSource, facts: DeviceFacts) -> Path:
        """Where the cubin of `source` for this device is or will be."""
        part = "sm_{}{}".format(*facts.capability)
        return self.root / "kernels" / part / f"{Path(source.file).stem}-{source.key(facts.capability)}.cubin"

    def build(self, source: KernelSource, facts: DeviceFacts, nvrtc: str) -> Path:
        """Compile, unless that is done for this driver and NVRTC. Raises DeviceUnavailable: no NVRTC, or it refuses."""
        path = self.path(source, facts)
        made = {
            "file": source.file,
            "defines": sorted(source.defines),
            "capability": list(facts.capability),
            "driver": facts.driver_version,
            "nvrtc": nvrtc,
        }
        if path.is_file() and _made(path) == made:
            return path
        image = self._compile(source.text, facts.capability, source.defines)
        path.parent.mkdir(parents=True, exist_ok=True)
        _made_path(path).unlink(missing_ok=True)  # a cubin without its origin is not served
        scratch = path.with_suffix(".new")
        scratch.write_bytes(image)
        scratch.replace(path)
        _made_path(path).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        return path

    def load(self, source: KernelSource, facts: DeviceFacts) -> bytes:
        """The cubin of `source` for this device. Raises ModelMissing, FingerprintMismatch; both name the command."""
        path = self.path(source, facts)
        made = _made(path)
        if not path.is_file() or made is None:
            part = "compute capability {}.{}".format(*facts.capability)
            raise ModelMissing(f"{source.file} is not compiled for {part} ({path} is not there); {REMEDY}")
        if made["driver"] != facts.driver_version:
            raise FingerprintMismatch(
                f"{path} was compiled under driver API {made['driver']}, here is {facts.driver_version}; {REMEDY}"
            )
        return path.read_bytes()


def _made_path(cubin: Path) -> Path:
    return cubin.with_suffix(".json")


def _made(cubin: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(_made_path(cubin).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def nvrtc_version() -> str:
    """NVRTC's version, such as "13.0". Raises DeviceUnavailable when it is not installed."""
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise DeviceUnavailable("NVRTC is not installed; run: pip install 'cockpit-voice[gpu]'") from error
    status, major, minor = nvrtc.nvrtcVersion()
    if int(status) != 0:
        raise DeviceUnavailable(f"NVRTC failed with {status}; run: pip install 'cockpit-voice[gpu]'")
    return f"{major}.{minor}"
