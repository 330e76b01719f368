"""Guidance as a task of the arbiter: its clauses are made in navigation's turn, and what yields does so then."""

from __future__ import annotations

from contextlib import AbstractContextManager

from cockpit.arbiter.config import NAVIGATION
from cockpit.scheduling.service import SchedulingService
from pipeline.guidance import GiveUp, Lease, no_lease


def guidance_lease(service: SchedulingService | None) -> Lease:
    """What a clause of guidance is made under.

    The thread is not bound to the lane: voices compute on their own placement. Without an arbiter, or in a profile
    without navigation_task, nothing is asked for.
    """
    if service is None or NAVIGATION not in service.config.tasks:
        return no_lease
    dispatcher = service.dispatcher

    def lease(give_up: GiveUp) -> AbstractContextManager[object]:
        return dispatcher.lease(NAVIGATION, give_up=give_up)

    return lease
