"""Texts that run together: one request holds the lane for all (`Request.batch`), and each text is a member beside it.

A member books its session's memory and is measured like any request, but has no place in the queue: its batch lets it
in between two tokens. It never holds the lane, so it is not told to yield either.
"""

from __future__ import annotations

from cockpit.arbiter.arbiter import Arbiter
from cockpit.arbiter.requests import EVICTED, MEMORY_RED_LINE, OVER_BUDGET, RUNNING, TIMED_OUT, Request


def join(arbiter: Arbiter, task: int, now_ns: int, *, session: str, kv_bytes: int, submitted_ns: int) -> Request | None:
    """Let a text into the batch that `task` runs. REFUSED when its memory could never fit, or the red line is passed;
    None: not now, because the task is paused or texts that run hold the memory.

    submitted_ns: when the text was asked for.
    """
    if not arbiter.ledger.could_ever_hold(task, kv_bytes):
        arbiter.log.note(now_ns, task, OVER_BUDGET)
        return arbiter.queues.refuse(task, OVER_BUDGET)
    if arbiter.refuses_memory(task, session):
        arbiter.log.note(now_ns, task, MEMORY_RED_LINE)
        return arbiter.queues.refuse(task, MEMORY_RED_LINE)
    request = None if arbiter.paused >> task & 1 else arbiter.queues.take_member()
    if request is None:
        return None
    request.task = request.owner = task
    request.session, request.kv_bytes = session, kv_bytes
    request.submitted_ns = submitted_ns
    request.started_ns = request.reported_ns = now_ns
    request.tokens = request.first_token_ns = 0
    request.judged, request.degraded, request.batch = True, False, False
    if not arbiter.memory.hold(request, arbiter.arm.kv_keep_ratio, now_ns):
        arbiter.queues.give_back(request)
        return None
    request.state = RUNNING
    arbiter.waited[task].add(max(0, now_ns - submitted_ns))
    return request


def grow(arbiter: Arbiter, request: Request, kv_bytes: int, now_ns: int) -> bool:
    """Book more for a member. False while texts that run hold the memory."""
    assert request.session is not None
    before, request.kv_bytes = request.kv_bytes, kv_bytes
    if arbiter.memory.hold(request, arbiter.arm.kv_keep_ratio, now_ns):
        arbiter.table.sessions[request.session].pins -= 1  # it had one already
        return True
    request.kv_bytes = before
    return False


def report(arbiter: Arbiter, request: Request, new_tokens: int, now_ns: int) -> str:
    """Why a member must stop, in words; empty: it goes on. Its batch reports the tokens for the task."""
    if new_tokens:
        request.tokens += new_tokens
        request.first_token_ns = request.first_token_ns or now_ns
    session = arbiter.table.sessions.get(request.session or "")
    if session is None or session.doomed:
        request.reason = EVICTED
    elif now_ns - request.submitted_ns > arbiter.tasks[request.task].timeout_ns:
        request.reason = TIMED_OUT
        arbiter.timeouts += 1
    else:
        return ""
    return request.why


def leave(arbiter: Arbiter, request: Request, now_ns: int) -> None:
    """The text is over; `request` is no longer valid afterwards."""
    arbiter.memory.let_go(request, now_ns)
    arbiter.measure(request, now_ns)
    arbiter.queues.give_back(request)
