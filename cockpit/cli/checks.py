"""What `cockpit doctor` looks at beyond the profile itself: the machine, its packages, audio, and where lanes run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec

from cockpit.arbiter.config import ArbiterConfig
from cockpit.arbiter.lanes import plan_lanes
from cockpit.device.base import LaneSpec, open_device
from cockpit.lifecycle.trust import untrusted_models
from cockpit.profile.load import LoadedProfile
from cockpit.profile.runnable import DISTRIBUTION, Finding, findings
from cockpit.scheduling.measured_memory import measured_peaks
from models.errors import ConfigError, StartupError
from models.store.store import Store

MIN_FREE_BYTES = 5_000_000_000
"""Room for the default weights and everything built from them."""


def all_findings(loaded: LoadedProfile, store: Store) -> Iterator[Finding]:
    """Every check, in the order a fresh machine is set up."""
    profile = loaded.profile
    yield python_version()
    yield from packages()
    yield cores()
    yield disk(store)
    yield from audio()
    yield from findings(profile, loaded.arbiter, store, measured_peaks(profile, loaded.arbiter, store))
    for name, reason in store.unvalidated_all(profile.model_names).items():
        detail = f"serve and listen refuse it: {reason}"
        yield Finding(f"validation {name}", "note", detail, f"run: {store.validation_remedy(name)}")
    for name, reason in untrusted_models(store, profile).items():
        yield Finding(f"signature {name}", "note", reason, "install a signed pack: docs/pack.md")
    if loaded.arbiter is not None:
        yield from lanes(profile.device, loaded.arbiter)


def python_version() -> Finding:
    """Python 3.11 to 3.13."""
    version = platform.python_version()
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        return Finding("python", "ok", version)
    return Finding("python", "missing", f"{version} is not supported", "install Python 3.11, 3.12 or 3.13")


def packages() -> Iterator[Finding]:
    """The run-time dependencies of the installed distribution."""
    try:
        required = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        yield Finding("packages", "missing", f"{DISTRIBUTION} is not installed", "make demo")
        return
    found, absent = 0, []
    for requirement in required:
        if "extra ==" in requirement:
            continue
        name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
        try:
            importlib.metadata.version(name)
            found += 1
        except importlib.metadata.PackageNotFoundError:
            absent.append(name)
    if absent:
        yield Finding("packages", "missing", ", ".join(absent), f"pip install {' '.join(absent)}")
    else:
        yield Finding("packages", "ok", f"{found} run-time dependencies installed")


def cores() -> Finding:
    """Cores this process may use."""
    usable = len(os.sched_getaffinity(0))
    detail = f"{usable} usable of {os.cpu_count()} ({platform.machine()})"
    if usable < 2:
        return Finding("cores", "note", f"{detail}; replies are slower than on the two that profiles are tuned for")
    return Finding("cores", "ok", detail)


def disk(store: Store) -> Finding:
    """Room in the cache."""
    folder = store.root
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    detail = f"{free / 1e9:.1f} GB free for {store.root}"
    if free < MIN_FREE_BYTES:
        remedy = "free some space, or set COCKPIT_CACHE to another disk"
        return Finding(
            "disk", "note", f"{detail}; fetching and building takes up to {MIN_FREE_BYTES / 1e9:.0f} GB", remedy
        )
    return Finding("disk", "ok", detail)


def audio() -> Iterator[Finding]:
    """PortAudio and its devices: needed by `cockpit listen` only."""
    why = "`cockpit listen` needs it; WAV files do not"
    try:
        import sounddevice
    except ImportError:
        yield Finding("audio", "note", f"sounddevice is not installed; {why}", f'pip install "{DISTRIBUTION}[audio]"')
        return
    except OSError as error:
        yield Finding("audio", "note", f"PortAudio: {error}; {why}", "apt-get install libportaudio2")
        return
    if find_spec("pywebrtc_audio") is None:
        yield Finding("echo", "note", f"no echo canceller; {why}", f'pip install "{DISTRIBUTION}[audio]"')
    try:
        devices = sounddevice.query_devices()
    except sounddevice.PortAudioError as error:
        yield Finding("audio", "note", f"PortAudio: {error}; {why}", "check the sound server, e.g. wpctl status")
        return
    inputs = [str(device["name"]) for device in devices if device["max_input_channels"] > 0]
    outputs = [str(device["name"]) for device in devices if device["max_output_channels"] > 0]
    for label, names in (("microphone", inputs), ("speaker", outputs)):
        if names:
            yield Finding(label, "ok", ", ".join(names))
        else:
            yield Finding(label, "note", f"none found; {why}", "connect one and check: python -m sounddevice")


def lanes(kind: str, config: ArbiterConfig) -> Iterator[Finding]:
    """Where each lane really runs, as a probe inside it sees it."""
    specs = [LaneSpec(lane.name, lane.clusters, lane.memory_budget_bytes, lane.priority) for lane in plan_lanes(config)]
    try:
        device = open_device(kind, config.clusters, specs)
    except (StartupError, ConfigError) as error:
        yield Finding("lanes", "missing", str(error), "change clusters in the profile, or its device")
        return
    try:
        for spec in specs:
            placement = device.verify_placement(spec.name)
            if placement.ok:
                yield Finding(f"lane {spec.name}", "ok", placement.detail)
            else:
                remedy = "look for other users of these units: o3ctl status --verbose"
                yield Finding(f"lane {spec.name}", "missing", f"ran elsewhere: {placement.detail}", remedy)
    finally:
        device.close()
