"""systemd's notification protocol (sd_notify(3)): one datagram of `NAME=value` lines to the socket in $NOTIFY_SOCKET.

Only the standard library is imported here: the first status is told before anything slow is loaded.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from functools import cache

SEND_S = 5.0
"""How long a datagram may wait for a service manager that is busy."""
EXTEND_S = 120.0
"""How long one phase of a start may take; each phase asks for it anew."""
_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Notifier:
    """Tells the service manager how the process is. Without one every method does nothing. Any thread."""

    def __init__(self, address: str = "", watchdog_s: float | None = None) -> None:
        """address: as in $NOTIFY_SOCKET, a path or `@` and an abstract name; empty for none. watchdog_s: see there."""
        self.watchdog_s = watchdog_s
        """The service is ended when `alive` was not called for so long; None where nobody watches."""
        self.present = bool(address)
        self._address = "\0" + address[1:] if address.startswith("@") else address

    @classmethod
    def from_environment(cls) -> Notifier:
        """The one that the variables name. They are taken out of the environment: they are not for child processes."""
        address, usec, pid = (os.environ.pop(name, "") for name in _VARIABLES)
        if not address.startswith(("/", "@")):
            if address:
                sys.stderr.write(f"cockpit: NOTIFY_SOCKET={address} is neither a path nor @NAME and is not used\n")
            return cls()
        watched = usec.isdigit() and int(usec) > 0 and pid in ("", str(os.getpid()))
        return cls(address, int(usec) / 1e6 if watched else None)

    def status(self, text: str) -> None:
        """One line that `systemctl status` shows."""
        self._send(f"STATUS={_line(text)}")

    def starting(self, text: str) -> None:
        """A phase of the start begins (or goes on): it may take EXTEND_S from now on."""
        self._send(f"STATUS={_line(text)}\nEXTEND_TIMEOUT_USEC={round(EXTEND_S * 1e6)}")

    def ready(self, text: str) -> None:
        """The start is over, or a reload."""
        self._send(f"READY=1\nSTATUS={_line(text)}")

    def reloading(self, text: str) -> None:
        """A reload begins; `ready` ends it."""
        usec = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send(f"RELOADING=1\nMONOTONIC_USEC={usec}\nSTATUS={_line(text)}")

    def stopping(self, text: str) -> None:
        """The process ends."""
        self._send(f"STOPPING=1\nSTATUS={_line(text)}")

    def alive(self) -> None:
        """Every stage makes progress."""
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self.present:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(SEND_S)
                sender.sendto(message.encode(), self._address)
        except OSError as error:  # what is lost is told by the next one; the watchdog ends a process that none leaves
            sys.stderr.write(f"cockpit: the service manager was not told {message.splitlines()[0]}: {error}\n")


@cache
def process() -> Notifier:
    """The one of this process."""
    return Notifier.from_environment()


def _line(text: str) -> str:
    return " ".join(text.split())
