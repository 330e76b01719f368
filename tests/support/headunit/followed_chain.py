"""A chain with scripted engines whose events are followed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from cockpit.headunit.cabin import Cabin
from cockpit.headunit.observer import NoObserver, Observer, Observers
from cockpit.headunit.stream import EventStream, Subscription
from cockpit.runtime import Runtime
from cockpit.service.notify import Notifier
from cockpit.service.state import ServiceState
from tests.support.fake_chain import fake_parts


class Chain:
    """A chain with scripted engines, and what a subscriber was told of it."""

    def __init__(
        self,
        sink: Any,
        hears: Callable[[Any], str] | None = None,
        reply_s: float = 0.1,
        *,
        observer: Observer | None = None,
    ) -> None:
        self.events = EventStream()
        parts = fake_parts(sink, hears, reply_s=reply_s) if hears else fake_parts(sink, reply_s=reply_s)
        self.runtime = Runtime(parts, observer=Observers(self.events, observer or NoObserver()))
        self.service = ServiceState(Notifier())
        self.service.ready("listening")
        self.cabin = Cabin(self.runtime, self.service, ("en", "zh"), parts.endpointer._turn_ids.next, microphone=True)
        self.runtime.start()
        self.cabin.shown_by(self.events)

    def follow(self, words: bool = True) -> Told:
        return Told(self.events, words)

    def close(self) -> None:
        self.events.close()
        self.runtime.abort()


class Told:
    """Everything that one subscriber was told so far."""

    def __init__(self, events: EventStream, words: bool = True) -> None:
        self.all: list[dict[str, Any]] = []
        self.subscription: Subscription = events.subscribe(words=words, wake=lambda: None)

    def of(self, kind: str) -> list[dict[str, Any]]:
        self.all += [json.loads(event) for event in self.subscription.take()]
        return [event for event in self.all if event["type"] == kind]
