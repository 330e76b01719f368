"""What a built model was made from and for. A mismatch refuses to load and names the command that rebuilds."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from models.errors import FingerprintMismatch

_PACKAGE = Path(__file__).resolve().parents[1]
FILE_NAME = "fingerprint.json"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Identity of a build. `sources`: file name -> sha256; `builder_sha256`: over the builder's own source files."""

    model: str
    sources: dict[str, str]
    builder: str
    builder_sha256: str
    options: dict[str, Any]
    onnxruntime: str
    device: str

    def differences(self, other: Fingerprint) -> list[str]:
        """Each field that differs, as "field: mine -> theirs"."""
        mine, theirs = asdict(self), asdict(other)
        return [f"{key}: {mine[key]} -> {theirs[key]}" for key in mine if mine[key] != theirs[key]]


def write_fingerprint(folder: Path, fingerprint: Fingerprint) -> None:
    """Write `fingerprint` into a folder that is not yet visible under its final name."""
    (folder / FILE_NAME).write_text(json.dumps(asdict(fingerprint), indent=2) + "\n", encoding="utf-8")


def read_fingerprint(folder: Path) -> Fingerprint | None:
    """The fingerprint in a built folder; None when there is none or it is not readable as one."""
    try:
        return Fingerprint(**json.loads((folder / FILE_NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def check_fingerprint(folder: Path, expected: Fingerprint) -> None:
    """Raise FingerprintMismatch unless `folder` was built as `expected` says."""
    remedy = f"run: cockpit models build {expected.model}"
    found = read_fingerprint(folder)
    if found is None:
        raise FingerprintMismatch(f"{folder} has no readable {FILE_NAME}; {remedy}")
    if differences := found.differences(expected):
        raise FingerprintMismatch(f"{expected.model} was built for something else ({'; '.join(differences)}); {remedy}")


def onnxruntime_version() -> str:
    """Version of the installed ONNX Runtime, without importing it; "none" when there is none."""
    for package in ("onnxruntime-gpu", "onnxruntime"):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "none"


@cache
def builder_sha256(module: str) -> str:
    """Hash over the source of `module` and of every `models.build` module it imports, itself or through another."""
    seen: dict[str, bytes] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        path = _PACKAGE.parent.joinpath(*name.split(".")).with_suffix(".py")
        if not path.is_file():
            continue  # a name inside a module, or the package itself
        seen[name] = path.read_bytes()
        for node in ast.walk(ast.parse(seen[name])):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("models.build"):
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names if alias.name.startswith("models.build")]
    return _digest(seen)


def _digest(parts: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name in sorted(parts):
        digest.update(name.encode() + b"\0" + hashlib.sha256(parts[name]).digest())
    return digest.hexdigest()
