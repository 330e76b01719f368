"""What the driver does by hand, with a button or on a screen: push-to-talk, cancel and mute of the microphone.

Any thread asks; the endpointing thread carries it out before the next frame, so that no frame is heard half.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, Protocol

import numpy as np

from models.errors import InputError
from pipeline.endpointing.endpointer import Endpointer
from pipeline.frames import AudioFrame

MOST_ORDERS = 64
_Order = Literal["press", "release", "cancel", "mute", "unmute"]


class Wakes(Protocol):
    """What can be woken without its word (see cockpit.wake_word)."""

    def wake(self) -> None: ...


class ByHand:
    """stop_replies: makes what is said, or on its way, outdated; called on the endpointing thread.

    `muted`: the microphone is not heard; every sample of it counts as silence. While no frames come, orders wait for
    the next one, MOST_ORDERS of them at most; then `press` and `release` raise InputError.
    """

    def __init__(self, endpointer: Endpointer, wake: Wakes, stop_replies: Callable[[str], object]) -> None:
        self.muted = False
        self._endpointer = endpointer
        self._wake = wake
        self._stop_replies = stop_replies
        self._orders: deque[_Order] = deque()
        self._after_mute = False

    @property
    def talking(self) -> bool:
        """Whether push-to-talk is held down."""
        return self._endpointer.held

    def press(self) -> None:
        """Talk: a reply stops, no wake word is needed, and silence does not end the turn until `release`."""
        self._order("press")

    def release(self) -> None:
        """The turn ends as soon as the sentence does."""
        self._order("release")

    def cancel(self) -> None:
        """Give up what is being said to the car. What it has done already stays done."""
        if len(self._orders) < MOST_ORDERS:  # else no frame has come for long: nobody is heard
            self._orders.append("cancel")

    def mute(self, on: bool) -> None:
        """Of the microphone, at once. A sentence that is cut by it is no command."""
        if on != self.muted:
            self._order("mute" if on else "unmute")
            self.muted = on

    def heard(self, frame: AudioFrame) -> AudioFrame:
        """Carry out what was asked for; the frame as it may be listened to. On the endpointing thread."""
        while self._orders:
            self._carry_out(self._orders.popleft())
        if self.muted:
            return replace(frame, samples=np.zeros_like(frame.samples), for_detection=None)
        if self._after_mute:  # what is being said began before it could be heard
            self._after_mute = False
            return replace(frame, after_loss=True)
        return frame

    def _carry_out(self, order: _Order) -> None:
        if order == "press":
            self._stop_replies("push-to-talk")
            self._wake.wake()
            self._endpointer.hold()
        elif order == "release":
            self._endpointer.release()
        elif order == "cancel":
            if self._endpointer.in_turn:
                self._endpointer.abandon()
            self._stop_replies("cancelled")
        elif order == "mute":
            if self._endpointer.speech_ms:
                self._endpointer.abandon()
        else:
            self._after_mute = True

    def _order(self, order: _Order) -> None:
        if len(self._orders) >= MOST_ORDERS:
            raise InputError("the microphone delivers nothing: reconnect it; nothing was done")
        self._orders.append(order)
