"""requirements.lock: what a head unit installs, every package pinned with its hashes."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import ROOT

EXTRAS = ("cpu", "audio", "vss", "wake")
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)(?: ; (.+?))?(?: \\)?$")
REMEDY = "run: make lock"


def pins() -> list[tuple[Requirement, int]]:
    """(pin, number of its hashes) of every package in the file."""
    found: list[tuple[Requirement, int]] = []
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines():
        if match := PIN.match(line):
            name, version, marker = match.groups()
            found.append((Requirement(f"{name}=={version}" + (f"; {marker}" if marker else "")), 0))
        elif line.strip().startswith("--hash=sha256:"):
            pin, count = found.pop()
            found.append((pin, count + 1))
    return found


def locked_here() -> dict[str, str]:
    """Package -> version that the file chooses for this machine."""
    return {
        canonicalize_name(pin.name): str(pin.specifier)[2:]
        for pin, _ in pins()
        if pin.marker is None or pin.marker.evaluate()
    }


def wanted() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [item for extra in EXTRAS for item in project["optional-dependencies"][extra]]
    return [Requirement(item) for item in (*project["dependencies"], *extras)]


def test_every_pin_has_hashes() -> None:
    assert len(pins()) > len(wanted())
    assert [pin.name for pin, count in pins() if not count] == []


@pytest.mark.parametrize("requirement", wanted(), ids=lambda requirement: requirement.name)
def test_what_the_project_asks_for_is_locked(requirement: Requirement) -> None:
    version = locked_here().get(canonicalize_name(requirement.name))
    assert version is not None, f"{requirement.name} is not locked; {REMEDY}"
    assert version in requirement.specifier, f"{requirement.name} {version} is not {requirement.specifier}; {REMEDY}"


def test_what_they_ask_for_is_locked_too() -> None:
    locked = locked_here()
    missing = []
    for name, version in locked.items():
        try:
            installed = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if installed.version != version:
            continue
        for item in map(Requirement, installed.requires or ()):
            if item.marker is None or item.marker.evaluate({"extra": ""}):
                missing += [f"{name} needs {item.name}"] if canonicalize_name(item.name) not in locked else []
    assert missing == [], REMEDY


def test_nothing_of_the_bench_is_locked() -> None:
    assert not {"torch", "transformers", "onnx", "gguf", "pytest"} & set(locked_here())
