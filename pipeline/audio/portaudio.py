"""What microphone and speaker share: the sounddevice module, and the ring between its callback and our thread."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.errors import DeviceAbsent, DeviceUnavailable

Audio = NDArray[np.float32]


def load_sounddevice() -> Any:
    """The `sounddevice` module. Raises DeviceUnavailable (exit code 3) naming the package that is missing."""
    try:
        return importlib.import_module("sounddevice")
    except ModuleNotFoundError as error:
        raise DeviceUnavailable('no audio support; install it: pip install "cockpit-voice[audio]"') from error
    except OSError as error:
        raise DeviceUnavailable(f"{error}; install PortAudio: apt-get install libportaudio2") from error


def begin_anew() -> None:
    """Let PortAudio list the devices again: it does so only when it begins. No stream may be open."""
    module = load_sounddevice()
    try:
        module._terminate()
        module._initialize()
    except module.PortAudioError as error:
        raise DeviceAbsent(
            f"PortAudio does not begin anew: {error}; check the sound server, e.g. wpctl status"
        ) from error


def device_info(module: Any, device: int | str | None, kind: str) -> dict[str, Any]:
    """What PortAudio knows of one device (`kind`: "input" or "output"; `device` None: the default one).

    Raises DeviceAbsent with the list of the devices that are there.
    """
    try:
        info: dict[str, Any] = dict(module.query_devices(device, kind))
    except (module.PortAudioError, ValueError) as error:
        wanted = "default" if device is None else repr(device)
        raise DeviceAbsent(f"no {kind} device ({wanted}): {error}. {_devices(module, kind)}") from error
    if info.get(f"max_{kind}_channels", 0) < 1:
        raise DeviceAbsent(f"device {info.get('name')} has no {kind}. {_devices(module, kind)}")
    return info


def _devices(module: Any, kind: str) -> str:
    names = [str(item["name"]) for item in module.query_devices() if item.get(f"max_{kind}_channels", 0) > 0]
    if names:
        return f"There are: {', '.join(names)}; choose one in the profile"
    return f"This machine has no {kind} device: connect one (arecord -l and aplay -l list them), or use WAV files"


class SampleRing:
    """Preallocated ring for one writer thread and one reader thread; neither locks, neither allocates samples.

    Only the writer moves `written`, only the reader moves `consumed`: both only grow, and each is an int that the
    interpreter replaces as a whole, so the other side sees the old value or the new one.
    """

    def __init__(self, capacity_samples: int) -> None:
        """Raises ValueError for a capacity below 1."""
        if capacity_samples < 1:
            raise ValueError(f"a ring needs room for at least 1 sample, not {capacity_samples}")
        self._buffer = np.zeros(capacity_samples, np.float32)
        self.capacity = capacity_samples
        self.written = 0
        self.consumed = 0

    def __len__(self) -> int:
        """Samples waiting to be read."""
        return self.written - self.consumed

    def write(self, samples: Audio) -> int:
        """Copy in as much of float32 (n,) as there is room for; returns how many. Writer only."""
        count = min(len(samples), self._room())
        start = self.written % self.capacity
        head = min(count, self.capacity - start)
        self._buffer[start : start + head] = samples[:head]
        self._buffer[: count - head] = samples[head:count]
        self.written += count
        return count

    def read_into(self, out: Audio) -> int:
        """Fill the front of float32 (n,) with what waits; returns how many samples. Reader only."""
        count = min(len(out), len(self))
        start = self.consumed % self.capacity
        head = min(count, self.capacity - start)
        out[:head] = self._buffer[start : start + head]
        out[head:count] = self._buffer[: count - head]
        self.consumed += count
        return count

    def skip_to(self, position: int) -> None:
        """Forget everything before stream position `position` (never moves back). Reader only."""
        self.consumed = max(self.consumed, min(position, self.written))

    def _room(self) -> int:
        return self.capacity - len(self)


class ReplyRing(SampleRing):
    """A ring whose reader may go back: what was read from `kept` on is not written over, up to half of the ring."""

    def __init__(self, capacity_samples: int) -> None:
        super().__init__(capacity_samples)
        self.kept = 0
        """The writer's: from here on the reader may go back to."""
        self._furthest = 0

    @property
    def furthest(self) -> int:
        """The highest position that was ever read to."""
        return max(self._furthest, self.consumed)

    def rewind_to(self, position: int) -> None:
        """Read again from `position`, or from the oldest sample that is still there. Reader only."""
        self._furthest = max(self._furthest, self.consumed)
        self.consumed = max(min(position, self.consumed), self.written - self.capacity)

    def _room(self) -> int:
        kept = min(self.consumed, max(self.kept, self.consumed - self.capacity // 2))
        return self.capacity - (self.written - kept)


class PromptRing(SampleRing):
    """A ring whose reader may mix instead of copying."""

    def add_to(self, out: Audio) -> int:
        """Add what waits to the front of float32 (n,); returns how many samples. Reader only."""
        count = min(len(out), len(self))
        start = self.consumed % self.capacity
        head = min(count, self.capacity - start)
        out[:head] += self._buffer[start : start + head]
        out[head:count] += self._buffer[: count - head]
        self.consumed += count
        return count
