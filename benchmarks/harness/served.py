"""Servers in child processes and what their clients feel: `cockpit serve` and peers with the same HTTP interface."""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

READY_S = 180.0
ANSWER_S = 120.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server answers: a unix socket, or a port on 127.0.0.1."""

    path: Path | None = None
    port: int = 0

    def connection(self) -> http.client.HTTPConnection:
        """A connection of its own for one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        if self.path is not None:
            connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.sock.settimeout(ANSWER_S)
            connection.sock.connect(str(self.path))
        return connection


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed answer. ttft_ms: to the first text; turn_ms: to the end. failure: why there is none, or empty.

    timings: what the server says of its own times, and "completion_tokens"; nothing from servers that do not.
    """

    text: str
    ttft_ms: float
    turn_ms: float
    failure: str = ""
    timings: Mapping[str, float | None] = field(default_factory=dict)


def ask(address: Address, body: Mapping[str, Any]) -> Answer:
    """POST /v1/chat/completions, streamed. What goes wrong is in the answer."""
    start_s = time.perf_counter()
    text, first_ms = "", 0.0
    timings: dict[str, float | None] = {}
    try:
        connection = address.connection()
        payload = json.dumps({**body, "stream": True}, ensure_ascii=False).encode()
        connection.request("POST", "/v1/chat/completions", payload, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            refusal = response.read().decode(errors="replace")[:200]
            return Answer("", 0.0, _ms_since(start_s), f"HTTP {response.status}: {refusal}")
        for piece in _pieces(response, timings):
            first_ms = first_ms or _ms_since(start_s)
            text += piece
        connection.close()
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        return Answer(text, first_ms, _ms_since(start_s), f"{type(error).__name__}: {error}")
    return Answer(text, first_ms, _ms_since(start_s), timings=timings)


def _pieces(response: http.client.HTTPResponse, timings: dict[str, float | None]) -> Iterator[str]:
    for line in response:
        data = line.strip().removeprefix(b"data: ")
        if not data or data == b"[DONE]":
            continue
        event = json.loads(data)
        if "error" in event:
            raise ValueError(str(event["error"]))
        if (said := event.get("timings")) and "queue_ms" in said:  # ours: llama.cpp's are others
            timings.update(said, completion_tokens=event["usage"]["completion_tokens"])
        for choice in event["choices"]:
            if piece := choice["delta"].get("content"):
                yield piece


def _ms_since(start_s: float) -> float:
    return (time.perf_counter() - start_s) * 1e3


def steady(
    address: Address, bodies: Sequence[Mapping[str, Any]], at_once: int, done: Callable[[], None]
) -> tuple[list[Answer], float]:
    """All bodies, `at_once` of them open at any time. Returns the answers in order, and the seconds it took."""
    start_s = time.perf_counter()
    with ThreadPoolExecutor(at_once) as clients:
        answers = list(clients.map(lambda body: _asked(address, body, done), bodies))
    return answers, time.perf_counter() - start_s


def pulsed(
    address: Address, bodies: Sequence[Mapping[str, Any]], burst: int, done: Callable[[], None]
) -> tuple[list[Answer], float]:
    """Bursts of `burst` that begin together, one after the other. Seconds: of the bursts alone."""
    answers: list[Answer] = []
    busy_s = 0.0
    for start in range(0, len(bodies), burst):
        made, took_s = steady(address, bodies[start : start + burst], burst, done)
        answers += made
        busy_s += took_s
        time.sleep(0.2)
    return answers, busy_s


def _asked(address: Address, body: Mapping[str, Any], done: Callable[[], None]) -> Answer:
    answer = ask(address, body)
    done()
    return answer


def _end_with_parent() -> None:
    """In the child, before its program: it is killed when this process ends, however it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class ServerProcess:
    """One server in a child process. peak_mb: its highest resident memory so far, workers included."""

    def __init__(
        self, command: Sequence[str], address: Address, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.address = address
        self._log = log
        with log.open("wb") as output:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - no other thread runs yet
                start_new_session=True,
                env=environment,
            )

    def wait_ready(self) -> None:
        """Until `/health` answers. Raises RuntimeError with the end of its log."""
        ends_s = time.monotonic() + READY_S
        while time.monotonic() < ends_s and self._child.poll() is None:
            with suppress(OSError, http.client.HTTPException):
                connection = self.address.connection()
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            time.sleep(0.1)
        tail = self._log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise RuntimeError(f"the server did not come up:\n{tail}")

    def get(self, path: str) -> Any:
        """A JSON answer of the server."""
        connection = self.address.connection()
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())

    @property
    def peak_mb(self) -> float:
        """VmHWM of the server and its children."""
        return sum(_peak_kb(process) for process in _family(self._child.pid)) / 1024

    def stop(self) -> None:
        """SIGINT, and SIGKILL for what does not end in ten seconds."""
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGINT)
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()


def _family(process: int) -> Iterator[int]:
    yield process
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in task.read_text(encoding="ascii").split():
            yield from _family(int(child))


def _peak_kb(process: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return 0


@contextmanager
def serving(
    command: Sequence[str], address: Address, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[ServerProcess]:
    """A server for the length of the block. environment: None is this process's own."""
    server = ServerProcess(command, address, log, environment)
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


@contextmanager
def cockpit_serving(profile: str) -> Iterator[ServerProcess]:
    """`cockpit serve --no-voice` with that profile, on sockets of its own: another Cockpit may run on the machine."""
    with tempfile.TemporaryDirectory(prefix="cockpit-bench-") as folder:
        path = Path(folder) / "api.sock"
        command = [sys.executable, "-m", "cockpit", "serve", "--no-voice", "--allow-unvalidated"]
        command += ["--profile", profile, "--socket", str(path)]
        environment = {**os.environ, "O3CTL_SOCKET": str(Path(folder) / "o3.sock")}
        with serving(command, Address(path), Path(folder) / "server.log", environment) as server:
            yield server


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Progress:
    """`[12/100] steady 2` on standard error, from any thread."""

    def __init__(self, label: str, of: int) -> None:
        self._label = label
        self._of = of
        self._done = 0
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self._done += 1
            end = "\n" if self._done == self._of else ""
            sys.stderr.write(f"\r{self._label}: {self._done}/{self._of}{end}")
            sys.stderr.flush()
