"""Waiting for what may come (back) before the process can be ready: a GPU, the databroker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from models.errors import DeviceAbsent
from pipeline.backoff import Backoff

T = TypeVar("T")


def until_there(
    make: Callable[[], T],
    absent: Callable[[DeviceAbsent], object],
    *,
    backoff: Backoff | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """What `make` returns, once it does not raise DeviceAbsent. absent: told of each try in vain. Every other error,
    which no waiting mends, is raised at once.
    """
    wait = backoff or Backoff()
    while True:
        try:
            return make()
        except DeviceAbsent as error:
            absent(error)
        sleep(wait.next_s())
