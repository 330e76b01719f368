"""Sockets that the service manager opened and handed over (sd_listen_fds(3))."""

from __future__ import annotations

import os
import socket
from functools import cache

_FIRST = 3
_VARIABLES = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")


def inherited(name: str) -> socket.socket | None:
    """The listening unix socket of that name; None where none was handed over. Its file is the manager's to remove."""
    return _all().get(name)


@cache
def _all() -> dict[str, socket.socket]:
    """Every socket by name. The variables are taken out of the environment: they are not for child processes."""
    count, pid, names = (os.environ.pop(variable, "") for variable in _VARIABLES)
    if not count.isdigit() or pid != str(os.getpid()):
        return {}
    made = {}
    for number, name in zip(range(_FIRST, _FIRST + int(count)), names.split(":"), strict=False):
        os.set_inheritable(number, False)
        made[name] = socket.socket(fileno=number)
    return made
