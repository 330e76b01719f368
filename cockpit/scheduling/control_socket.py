"""The control socket: one JSON object a line over a unix socket, for callers whose credentials the kernel vouches for.

Request: {"op": "status", "verbose": true}. Reply: {"ok": true, ...} or {"ok": false, "error": "...", "exit_code": n}.
A caller that is refused reads why: the reply is sent before the connection is closed for writing, and what the caller
still writes is read and dropped.
"""

from __future__ import annotations

import logging
import os
import pwd
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

from cockpit.profile.memory_budget import MemoryPlan
from cockpit.scheduling.dispatcher import Dispatcher
from cockpit.scheduling.maintenance import Maintenance
from cockpit.telemetry.watch import Watch
from cockpit.unix_socket import clear_stale, group_id, peer_of
from models.errors import InputError, StartupError
from pipeline.frames import Language

log = logging.getLogger("cockpit.scheduling.control_socket")

MAX_LINE_BYTES: Final = 64 * 1024
IDLE_S: Final = 60.0
"""A connection that says nothing for so long is closed."""
MAX_CONNECTIONS: Final = 8
MAX_REFUSALS: Final = 64
"""Refused connections kept open at once until their callers have read why; more are closed at once."""
REFUSAL_S: Final = 10.0
"""How long a refused connection is kept open."""
BACKLOG: Final = 128
"""Callers that may wait to be accepted; beyond that the kernel tells them to try again."""
ANSWER_S: Final = 10.0
"""How long a caller waits for an answer."""
_RETRY_S: Final = 0.02
Handler = Callable[[Mapping[str, Any]], dict[str, Any]]
Ask = Callable[[str, Language], dict[str, Any]]


def default_socket() -> Path:
    """Where the service listens: $O3CTL_SOCKET, else the runtime folder of the unit or of the user, else /tmp."""
    named = os.environ.get("O3CTL_SOCKET")
    if named:
        return Path(named)
    runtime = os.environ.get("RUNTIME_DIRECTORY", "").split(":")[0] or "/run/cockpit"
    if os.getuid() != 0 and not os.access(runtime, os.X_OK):
        own = os.environ.get("XDG_RUNTIME_DIR")
        runtime = f"{own}/cockpit" if own else f"/tmp/cockpit-{os.getuid()}"
    return Path(runtime) / "o3.sock"


class Answers(Protocol):
    """Answers the lines of callers."""

    def answer(self, line: bytes) -> bytes:
        """One request line to one reply line. Any thread. Never raises for what a caller may have written."""
        ...


class Orders:
    """What the socket can ask for. Each answers one JSON-able mapping or raises InputError with the reason."""

    def __init__(
        self, dispatcher: Dispatcher, watch: Watch, maintenance: Maintenance, memory_plan: MemoryPlan | None = None
    ) -> None:
        self._memory_plan = memory_plan
        self._dispatcher = dispatcher
        self._watch = watch
        self._maintenance = maintenance
        self.beside: dict[str, Callable[[], Mapping[str, Any]]] = {}
        """What other parts of the process add to the status, by name."""
        self.ask: Ask | None = None
        """Does a command that comes as text; None where nobody can."""
        self._handlers: dict[str, Handler] = {
            "status": self._status,
            "pause": self._pause,
            "resume": self._resume,
            "evict": self._evict,
            "policy": self._policy,
            "ask": self._asked,
        }

    def answer(self, line: bytes) -> bytes:
        """One request line to one reply line. Never raises for what a caller may have written."""
        try:
            request = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            return _failed(f"not a JSON line: {error}")
        if not isinstance(request, dict):
            return _failed("a request is an object with an op")
        handler = self._handlers.get(str(request.get("op")))
        if handler is None:
            return _failed(f"unknown op {request.get('op')!r}; known: {', '.join(self._handlers)}")
        try:
            reply = handler(request)
        except InputError as error:
            return _failed(str(error))
        return orjson.dumps({"ok": True, **reply}) + b"\n"

    def _status(self, request: Mapping[str, Any]) -> dict[str, Any]:
        verbose = bool(request.get("verbose", False))
        status = self._dispatcher.status(verbose=verbose)
        findings = [asdict(finding) for finding in self._maintenance.findings]
        sample = asdict(self._watch.sample()) if self._watch.present else None
        reply: dict[str, Any] = {
            "status": asdict(status),
            "gpu": sample,
            "gpu_absent": self._watch.why,
            "findings": findings,
        }
        reply |= {name: tell() for name, tell in tuple(self.beside.items())}
        if verbose:
            reply["memory_plan"] = None if self._memory_plan is None else _plan(self._memory_plan)
        return reply

    def _asked(self, request: Mapping[str, Any]) -> dict[str, Any]:
        text, language = str(request.get("text", "")).strip(), language_of(request)
        if self.ask is None or not text:
            raise InputError("nothing to do; give a command" if self.ask else "this process takes no commands as text")
        return self.ask(text, language)

    def _task(self, request: Mapping[str, Any]) -> str:
        task = str(request.get("task"))
        known = self._dispatcher.arbiter.task_names
        if task not in known:
            raise InputError(f"unknown task {task!r}; known: {', '.join(known)}")
        return task

    def _pause(self, request: Mapping[str, Any]) -> dict[str, Any]:
        task = self._task(request)
        self._dispatcher.pause(task)
        return {"message": f"{task} is paused: what runs goes on, nothing more starts until o3ctl resume {task}"}

    def _resume(self, request: Mapping[str, Any]) -> dict[str, Any]:
        task = self._task(request)
        self._dispatcher.resume(task)
        return {"message": f"{task} is resumed"}

    def _evict(self, request: Mapping[str, Any]) -> dict[str, Any]:
        session = str(request.get("session"))
        answer = self._dispatcher.evict(session)
        if answer == "unknown":
            raise InputError(f"no session {session!r}; o3ctl status --verbose lists them")
        return {"message": f"{session}: {answer}"}

    def _policy(self, request: Mapping[str, Any]) -> dict[str, Any]:
        action = request.get("action", "show")
        if action == "reset":
            self._maintenance.reset_policy()
        elif action in ("freeze", "unfreeze"):
            self._dispatcher.freeze_policy(action == "freeze")
        elif action != "show":
            raise InputError(f"unknown action {action!r}; known: show, reset, freeze, unfreeze")
        _, state = self._dispatcher.policy_state()
        return {"policy": asdict(self._dispatcher.status(verbose=False).policy), "learnt": state}


def language_of(request: Mapping[str, Any]) -> Language:
    """The language that a request names. Raises InputError."""
    language = request.get("language")
    if language == "en":
        return "en"
    if language == "zh":
        return "zh"
    raise InputError(f"unknown language {language!r}; known: en, zh")


def _plan(plan: MemoryPlan) -> dict[str, Any]:
    limits = {"limit_bytes": plan.limit_bytes, "total_bytes": plan.total_bytes}
    return {"lines": [asdict(line) for line in plan.lines], "sum_bytes": plan.sum_bytes, **limits}


def _failed(message: str, exit_code: int = InputError.exit_code) -> bytes:
    return orjson.dumps({"ok": False, "error": message, "exit_code": exit_code}) + b"\n"


class _Connection(socketserver.StreamRequestHandler):
    timeout = IDLE_S
    server: ControlServer

    def handle(self) -> None:
        try:
            refused = self.server.refusal(self.connection)
            if refused:
                log.warning("control socket: %s", refused)
                self._refuse(_failed(refused, StartupError.exit_code))
            elif not self.server.slots.acquire(blocking=False):
                busy = f"busy: {MAX_CONNECTIONS} callers are connected already, close one or try again"
                self._refuse(_failed(busy, StartupError.exit_code))
            else:
                try:
                    self._serve()
                finally:
                    self.server.slots.release()
        except (TimeoutError, ConnectionError):
            return  # the caller fell silent or went away: nothing is owed to it

    def _serve(self) -> None:
        while line := self.rfile.readline(MAX_LINE_BYTES):
            if not line.endswith(b"\n"):
                self._refuse(_failed(f"a line ends within {MAX_LINE_BYTES} bytes"))
                return
            self.wfile.write(self.server.orders.answer(line))

    def _refuse(self, reply: bytes) -> None:
        """Say why and end the reply; then read on, or a caller that still writes would find the pipe broken first."""
        self.wfile.write(reply)
        self.connection.shutdown(socket.SHUT_WR)
        if not self.server.refusals.acquire(blocking=False):
            return
        try:
            until_s = time.monotonic() + REFUSAL_S
            while (left_s := until_s - time.monotonic()) > 0:
                self.connection.settimeout(left_s)
                if not self.connection.recv(MAX_LINE_BYTES):
                    return
        finally:
            self.server.refusals.release()


class ControlServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Listens in a thread of its own after `start`. Callers: this process's user, root, members of `group`."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = BACKLOG

    def __init__(self, path: Path, orders: Answers, group: str | None = None) -> None:
        self.path = path
        self.orders = orders
        self.slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self.refusals = threading.BoundedSemaphore(MAX_REFUSALS)
        self._thread: threading.Thread | None = None
        self._inode = 0
        self._gid = None if group is None else group_id(group, "control.group")
        clear_stale(path, "control.socket")
        _own_folder(path.parent)
        before = os.umask(0o117)
        try:
            super().__init__(str(path), _Connection)
        except OSError as error:
            raise StartupError(f"control socket {path} cannot be made ({error.strerror}): check its folder") from error
        finally:
            os.umask(before)
        try:
            self._inode = path.stat().st_ino
            if self._gid is not None:
                os.chown(path, -1, self._gid)
        except BaseException:
            self.stop()
            raise

    def start(self) -> None:
        self._thread = threading.Thread(target=self.serve_forever, args=(0.25,), name="control", daemon=True)
        self._thread.start()

    def handle_error(self, request: object, client_address: object) -> None:
        log.exception("control socket: a connection failed")

    def refusal(self, connection: socket.socket) -> str:
        """Empty when the kernel vouches for a caller that may ask."""
        uid, gid = peer_of(connection)
        if may_ask(uid, gid, os.getuid(), self._gid):
            return ""
        return f"user {uid} may not ask: run as the service's user ({os.getuid()}), as root, or join the socket's group"

    def stop(self) -> None:
        """Stop serving and take the socket away, if it is still ours. Safe to call twice, and before `start`."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self.shutdown()
            thread.join()
        self.server_close()
        inode, self._inode = self._inode, 0
        try:
            if inode and self.path.stat().st_ino == inode:
                self.path.unlink()
        except FileNotFoundError:
            return


def may_ask(uid: int, gid: int, own_uid: int, allowed_gid: int | None) -> bool:
    """Whether a caller with these credentials may ask."""
    if uid in (own_uid, 0):
        return True
    if allowed_gid is None:
        return False
    if gid == allowed_gid:
        return True
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return False
    return allowed_gid in os.getgrouplist(name, gid)


def _own_folder(folder: Path) -> None:
    """Make the socket's folder. Raises StartupError for one in which another user could replace the socket."""
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        owner = folder.stat().st_uid
    except OSError as error:
        raise StartupError(f"control socket folder {folder} cannot be made ({error.strerror}): name another") from error
    if owner not in (os.getuid(), 0):
        raise StartupError(f"control socket folder {folder} belongs to user {owner}: name another")


class ControlClient:
    """The other end. Raises InputError with the service's own words for a wrong request, StartupError when nobody
    listens and when the service does not serve this caller.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self._file: Any = None

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """One request, one reply."""
        if self._socket is None:
            self._connect()
        assert self._socket is not None
        with suppress(BrokenPipeError, ConnectionResetError):  # closed already: the reply that says why is there
            self._socket.sendall(orjson.dumps({"op": op, **fields}) + b"\n")
        reply = self._reply()
        if reply.get("ok"):
            return reply
        refused = InputError if reply.get("exit_code") == InputError.exit_code else StartupError
        raise refused(str(reply.get("error")))

    def _reply(self) -> dict[str, Any]:
        try:
            line = self._file.readline()
        except TimeoutError as error:
            raise StartupError(f"no answer on {self._path} within {ANSWER_S:g} s: systemctl status cockpit") from error
        except ConnectionResetError:
            line = b""
        if not line:
            raise StartupError(
                f"Cockpit closed the connection on {self._path}: is it stopping? systemctl status cockpit"
            )
        reply: dict[str, Any] = orjson.loads(line)
        return reply

    def _connect(self) -> None:
        """Connect; while more callers wait than the kernel keeps, try again."""
        until_s = time.monotonic() + ANSWER_S
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(ANSWER_S)
            try:
                connection.connect(str(self._path))
            except BlockingIOError as error:
                connection.close()
                if time.monotonic() > until_s:
                    raise StartupError(f"too many callers wait on {self._path}: try again") from error
                time.sleep(_RETRY_S)
            except OSError as error:
                connection.close()
                remedy = (
                    "join the socket's group or use sudo"
                    if isinstance(error, PermissionError)
                    else "is Cockpit running? systemctl status cockpit, or name its socket with --socket"
                )
                raise StartupError(f"no answer on {self._path} ({error.strerror}): {remedy}") from error
            else:
                break
        self._socket = connection
        self._file = connection.makefile("rb")

    def close(self) -> None:
        if self._socket is not None:
            self._file.close()
            self._socket.close()
            self._socket = self._file = None
