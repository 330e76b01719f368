"""Unix sockets that a process listens on: a stale one is cleared away, who may connect, who is at the other end."""

from __future__ import annotations

import contextlib
import grp
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from models.errors import StartupError

SOCKET_MODE = 0o660
_BACKLOG = 128
LONGEST_PATH_BYTES = 107
_PEER = struct.Struct("3i")


def listening(path: Path, what: str, group: str | None = None) -> socket.socket:
    """A socket that listens on `path`, with mode 0660 and, where one is named, the group `group`.

    what: the profile's key of the socket, for messages. Raises StartupError naming what is in the way.
    """
    if len(os.fsencode(path)) > LONGEST_PATH_BYTES:
        raise StartupError(f"{what} {path} is longer than {LONGEST_PATH_BYTES} bytes: name a shorter path")
    gid = -1 if group is None else group_id(group, what)
    with _faults(path, what):
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        clear_stale(path, what)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            before = os.umask(0o777 & ~SOCKET_MODE)
            try:
                made.bind(str(path))
            finally:
                os.umask(before)
            os.chown(path, -1, gid)
            os.chmod(path, SOCKET_MODE)
            made.listen(_BACKLOG)
        except BaseException:
            made.close()
            raise
        return made


def listening_on_loopback(port: int, what: str) -> socket.socket:
    """A socket that listens on 127.0.0.1; port 0: any free one. Raises StartupError."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("127.0.0.1", port))
        made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        raise StartupError(f"{what} {port} cannot be opened ({error.strerror}): name another") from error
    return made


def clear_stale(path: Path, what: str) -> None:
    """Remove a socket that nobody listens on. Raises StartupError when somebody does, and when it is something else."""
    if not path.exists():
        return
    if not path.is_socket():
        raise StartupError(f"{path} is in the way of {what} and is no socket: move it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            if not isinstance(error, BlockingIOError | TimeoutError):  # these two: it listens, and is busy
                raise StartupError(f"{path} cannot be asked whether it is in use ({error.strerror}): {what}") from error
    raise StartupError(f"another Cockpit listens on {path}: stop it first (systemctl stop cockpit)")


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """User and group of the process at the other end of a unix socket, as the kernel tells them."""
    _, user_id, group = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return user_id, group


def group_id(group: str, what: str) -> int:
    """Raises StartupError for a group that does not exist."""
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError as error:
        raise StartupError(f"the group {group!r} of {what} does not exist: groupadd --system {group}") from error


@contextlib.contextmanager
def _faults(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StartupError(f"{what} {path} cannot be made ({error.strerror}): name another path") from error
