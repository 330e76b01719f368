"""Peers that misbehave, loaded in a child process by the tests of benchmarks/peers/process.py."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any


class Peer:
    """Answers, until told to do something else."""

    def __init__(self, behaviour: str = "answers") -> None:
        if behaviour == "crashes while loading":
            os.kill(os.getpid(), signal.SIGSEGV)
        if behaviour == "refuses to load":
            raise ValueError("no such weights")
        self.behaviour = behaviour

    def double(self, value: int) -> int:
        print("a library that prints to standard output")
        sys.stdout.flush()
        return 2 * value

    def crash(self, *_: Any) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def hang(self, *_: Any) -> None:
        time.sleep(3600)

    def leave(self, *_: Any) -> None:
        os._exit(7)

    def refuse(self, *_: Any) -> None:
        raise RuntimeError("out of memory")

    def garble(self, *_: Any) -> None:
        """Write what is no message on every pipe that is open, and stay."""
        write_everywhere(b"\x00\x00\x00\x09gibberish")
        time.sleep(3600)

    def garble_length(self, *_: Any) -> None:
        """A length without its message, and stay."""
        write_everywhere(b"\x00\x10\x00\x00gibberish")
        time.sleep(3600)


def write_everywhere(text: bytes) -> None:
    """To every open socket: the pipe to the parent is one (standard streams and files are left alone)."""
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:"):
            os.write(int(name), text)


class CrashingSpeed(Peer):
    """A peer of the decode benchmark that dies at its third run."""

    def __init__(self, crash_at: int) -> None:
        super().__init__()
        self.runs = 0
        self.crash_at = crash_at

    def speed(self, prompt: list[int]) -> tuple[float, float]:
        self.runs += 1
        if self.runs == self.crash_at:
            self.crash()
        return 100.0, 10.0


class Whisper(Peer):
    """A recogniser that hears the same in everything."""

    def transcribe(self, samples: Any) -> tuple[str, str, float]:
        return "turn left", "en", 10.0


class CrashingAssistant(Peer):
    """llama.cpp compiled for what the machine cannot do."""

    def choose(self, text: str) -> tuple[dict[str, Any], float]:
        self.crash()
        return {}, 0.0
