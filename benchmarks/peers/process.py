"""A peer in a process of its own: when it dies, hangs or is not installed, the benchmark says so and goes on.

The child is spawned, loads the peer's model there, and answers calls over a pipe. What it writes to its standard output
goes to standard error, so that `--json` stays one object. Times are taken in the child: the pipe is no part of them.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from enum import Enum
from multiprocessing.connection import Connection
from typing import Any, NoReturn

LOAD_LIMIT_S = 180.0
CALL_LIMIT_S = 120.0
PORTABLE_LLAMA = (
    "CMAKE_ARGS='-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON' "
    "pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python llama-cpp-python"
)
"""Compiled for AVX2, not for what the processor announces: a virtual machine may announce AMX that faults when used."""


class Peer(Enum):
    """The packages that benchmarks compare with: (package, import name, how to get a build that works here)."""

    FASTER_WHISPER = ("faster-whisper", "faster_whisper", "pip install --force-reinstall faster-whisper ctranslate2")
    LLAMA_CPP = ("llama-cpp-python", "llama_cpp", PORTABLE_LLAMA)
    PIPER_TTS = ("piper-tts", "piper", "pip install --force-reinstall piper-tts")
    TORCH = ("torch", "torch", "pip install torch")
    ORT_GENAI = ("onnxruntime-genai", "onnxruntime_genai", "pip install onnxruntime-genai")

    @property
    def package(self) -> str:
        return self.value[0]

    @property
    def module(self) -> str:
        return self.value[1]

    @property
    def reinstall(self) -> str:
        return self.value[2]


def installed(peer: Peer) -> bool:
    return importlib.util.find_spec(peer.module) is not None


class PeerFailed(Exception):
    """The peer gave no answer; the message says why and what to do. The child has ended."""


class PeerProcess:
    """One peer in one child process.

    load: a function at the top level of a module, called in the child with `arguments` (picklable), which returns the
    object whose methods `call` runs. `peer` is the package that it imports. The first call spawns and loads.
    failure: why there will be no more answers; None while all is well.
    """

    def __init__(
        self, peer: Peer, load: Callable[..., Any], *arguments: Any, load_limit_s: float = LOAD_LIMIT_S
    ) -> None:
        self.peer = peer
        self._load = load
        self._arguments = arguments
        self._load_limit_s = load_limit_s
        self.failure: str | None = None
        self._pipe: Connection | None = None
        self._child: Any = None

    def attempt(self, method: str, *arguments: Any, limit_s: float = CALL_LIMIT_S) -> Any:
        """As `call`, but None instead of an answer when the peer fails or has failed."""
        try:
            return self.call(method, *arguments, limit_s=limit_s)
        except PeerFailed:
            return None

    def call(self, method: str, *arguments: Any, limit_s: float = CALL_LIMIT_S) -> Any:
        """What `method` of the loaded object returns. Raises PeerFailed; the child is then gone, for good."""
        if self.failure is not None:
            raise PeerFailed(self.failure)
        if self._pipe is None:
            self._start()
        return self._answer(method, limit_s, (method, arguments))

    def _start(self) -> None:
        if not installed(self.peer):
            self.failure = f"{self.peer.package} is not installed; run: pip install -e '.[bench]'"
            raise PeerFailed(self.failure)
        context = multiprocessing.get_context("spawn")
        self._pipe, end = context.Pipe()
        self._child = context.Process(target=_serve, args=(end, self._load, self._arguments), daemon=True)
        self._child.start()
        end.close()  # the child's copy is the only one left: its death ends the pipe
        self._answer("loading", self._load_limit_s, None)

    def close(self) -> None:
        """End the child. May be called twice."""
        if self._pipe is None:
            return
        self._pipe.close()  # an idle child ends by itself
        self._pipe = None
        self._child.join(5)
        if self._child.is_alive():
            self._child.kill()
            self._child.join()
        self._child.close()

    def _answer(self, doing: str, limit_s: float, request: tuple[str, tuple[Any, ...]] | None) -> Any:
        assert self._pipe is not None
        late = threading.Event()

        def stop() -> None:
            late.set()
            self._child.kill()

        timer = threading.Timer(limit_s, stop)
        timer.start()
        worked, value, reason = False, None, ""
        try:
            if request is not None:
                self._pipe.send(request)
            worked, value = _checked(self._pipe.recv())
            reason = "" if worked else f"failed while {doing}: {value}"
        except (EOFError, OSError) as error:  # the pipe ended, or a message's length is nonsense
            reason = f"no answer within {limit_s:g} s while {doing}" if late.is_set() else self._end(doing, error)
        except Exception as error:  # unpickling what is no pickle may raise anything
            reason = f"wrote something else than an answer while {doing} ({type(error).__name__}: {error})"
        finally:
            timer.cancel()
            timer.join()
        if not worked:
            self._fail(reason)
        return value

    def _end(self, doing: str, error: Exception) -> str:
        """How the child ended, in words."""
        self._child.join(5)
        code = self._child.exitcode
        if code is None:
            return f"wrote something else than an answer while {doing} ({type(error).__name__}: {error})"
        if code < 0:
            return f"died by {signal.Signals(-code).name} while {doing}"
        return f"exited with code {code} while {doing}"

    def _fail(self, reason: str) -> NoReturn:
        self._child.kill()
        self.close()
        self.failure = f"{self.peer.package} {reason}. For a build that may work here: {self.peer.reinstall}"
        raise PeerFailed(self.failure)


def _checked(message: Any) -> tuple[bool, Any]:
    """An answer is (whether it worked, value or reason). Raises ValueError for anything else."""
    if not (isinstance(message, tuple) and len(message) == 2 and isinstance(message[0], bool)):
        raise ValueError("not an answer")
    return message


def _serve(pipe: Connection, load: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """The child: load, say so, then answer calls until the pipe ends."""
    sys.stdout.flush()
    os.dup2(2, 1)
    try:
        peer = load(*arguments)
        pipe.send((True, None))
        while True:
            method, given = pipe.recv()
            pipe.send((True, getattr(peer, method)(*given)))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return
    except Exception as error:  # the edge of the child: the parent reports it
        pipe.send((False, f"{type(error).__name__}: {error}"))
