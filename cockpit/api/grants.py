"""What a client may ask for: tasks by the user at the other end of the socket, as the profile grants them."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from cockpit.api.errors import ApiError, invalid
from cockpit.api.schema import Placed

NS_PER_MS = 1_000_000
ANYONE = "*"
"""The name in a profile's grants that stands for every client that may connect."""


@dataclass(frozen=True, slots=True)
class Client:
    """Who sent a request: a unix user, or None for one that came with the token over loopback."""

    user_id: int | None

    @property
    def name(self) -> str:
        """The user's name; its number where the system knows none."""
        if self.user_id is None:
            return "token"
        try:
            return pwd.getpwuid(self.user_id).pw_name
        except KeyError:
            return str(self.user_id)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request goes. deadline_ns: monotonic, None without one."""

    task: str
    deadline_ns: int | None


class Grants:
    """tasks: name -> priority, of every task there is. by_user: who may ask for which, the first being the default.

    words: who may know what is heard, said and done. control: who may act as the driver does by hand. This process's
    own user and root may both: they could read its memory anyway.
    """

    def __init__(
        self,
        tasks: Mapping[str, int],
        by_user: Mapping[str, Sequence[str]],
        *,
        words: Collection[str] = (),
        control: Collection[str] = (),
    ) -> None:
        self._tasks = tasks
        self._by_user = by_user
        self._words = frozenset(words)
        self._control = frozenset(control)

    def may_know_words(self, client: Client) -> bool:
        """Whether this client may know what is heard, said and done."""
        return self._is_named(client, self._words)

    def require_control(self, client: Client) -> None:
        """Raises ApiError (403) where this client may not act as the driver does by hand."""
        if not self._is_named(client, self._control):
            message = f"the profile lets {client.name} control nothing: add it to api.control"
            raise ApiError(403, "not_granted", message)

    @staticmethod
    def _is_named(client: Client, names: Collection[str]) -> bool:
        return client.user_id in (os.getuid(), 0) or ANYONE in names or client.name in names

    def of(self, client: Client) -> tuple[str, ...]:
        """The tasks that this client may ask for."""
        return tuple(self._by_user.get(client.name, self._by_user.get(ANYONE, ())))

    def place(self, body: Placed, client: Client) -> Placement:
        """Raises ApiError for a task that is unknown (400) or not granted (403)."""
        granted = self.of(client)
        if not granted:
            raise ApiError(403, "not_granted", f"the profile grants {client.name} no task: add it to api.grants")
        task = granted[0] if body.task is None else self._named(body.task, granted, client)
        if body.priority is not None:
            task = self._within(body.priority, task, body.task is not None, granted)
        deadline_ns = None if body.deadline_ms is None else time.monotonic_ns() + body.deadline_ms * NS_PER_MS
        return Placement(task, deadline_ns)

    def require(self, task: str, client: Client) -> None:
        """Raises ApiError (403) where `task` is not granted to this client."""
        if task not in self.of(client):
            granted = ", ".join(self.of(client)) or "nothing"
            raise ApiError(
                403, "not_granted", f"the profile grants {client.name} {granted}, not {task}: add it to api.grants"
            )

    def _named(self, name: str, granted: Sequence[str], client: Client) -> str:
        task = name if name in self._tasks else f"{name}_task"
        if task not in self._tasks:
            raise invalid(f"no task {name!r}; this process has {', '.join(self._tasks)}", "task", code="unknown_task")
        if task not in granted:
            raise ApiError(
                403, "not_granted", f"the profile grants {client.name} {', '.join(granted)}, not {task}", "task"
            )
        return task

    def _within(self, priority: int, task: str, named: bool, granted: Sequence[str]) -> str:
        """The most urgent granted task that is not more urgent than `priority`."""
        most = max(self._tasks[name] for name in granted)
        if priority > most:
            raise ApiError(403, "not_granted", f"priority {priority} is above {most}, the highest granted", "priority")
        if named:
            if self._tasks[task] > priority:
                raise invalid(f"{task} runs at priority {self._tasks[task]}, above {priority}", "priority")
            return task
        below = [name for name in granted if self._tasks[name] <= priority]
        if not below:
            least = min(self._tasks[name] for name in granted)
            raise invalid(f"no granted task has a priority of {priority} or below; the lowest is {least}", "priority")
        return max(below, key=lambda name: self._tasks[name])
