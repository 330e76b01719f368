"""What of a dialogue stays available: the places that tools found or that were offered, for ten turns and more; and the
question that the last turn asked, for its answer.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from pipeline.frames import ToolCall
from pipeline.nlu.asking import Question
from pipeline.vehicle.places import Place

KEPT_TURNS = 12
"""Turns, whatever they were about, for which what was named can be referred to."""

RECENT_TURNS = 2
"""For so many turns "the second one" alone is a choice; later it is asked about, unless a trip is named with it."""

ANSWER_S = 20.0
"""So long a call waits for the answer that completes it."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Places that were named aloud, in this order. call: what is to be done with the one that is meant.

    kind: "found" answers a question; "asked" is itself one, "did you mean ...?", and waits for yes or no.
    """

    turn_id: int
    kind: Literal["found", "asked"]
    places: tuple[Place, ...]
    call: ToolCall


class TaskMemory:
    """Offers of the last turns. Owned by the understanding stage's thread."""

    def __init__(self) -> None:
        self._turns: OrderedDict[int, Offer | None] = OrderedDict()
        self._asked: tuple[int, Question, float] | None = None
        """Turn, its question, and when it was asked (seconds)."""

    def begin(self, turn_id: int) -> None:
        """A turn has begun that may offer something; called again for one that is planned anew."""
        self._turns[turn_id] = None
        self._turns.move_to_end(turn_id)
        while len(self._turns) > KEPT_TURNS:
            self._turns.popitem(last=False)

    def keep(self, offer: Offer) -> None:
        """Remember what the turn named."""
        self.begin(offer.turn_id)
        self._turns[offer.turn_id] = offer

    def ask(self, turn_id: int, question: Question, at_s: float) -> None:
        """The turn asked for what a call lacks."""
        self._asked = (turn_id, question, at_s)

    def asked(self, turn_id: int | None, now_s: float) -> Question | None:
        """The question of the very last turn before `turn_id`, while its call waits."""
        if self._asked is None or now_s - self._asked[2] > ANSWER_S:
            return None
        before = [number for number in self._turns if number != turn_id]
        return self._asked[1] if before and before[-1] == self._asked[0] else None

    def asks(self, turn_id: int) -> str | None:
        """What the turn asked for: value, zone, place, confirm; None where it asked nothing."""
        if self._asked is not None and self._asked[0] == turn_id:
            return self._asked[1].slot
        offer = self._turns.get(turn_id)
        return "place" if offer is not None and offer.kind == "asked" else None

    def forget(self, turn_id: int) -> None:
        """The turn was taken back."""
        self._turns.pop(turn_id, None)
        if self._asked is not None and self._asked[0] == turn_id:
            self._asked = None

    def clear(self) -> None:
        """A new dialogue."""
        self._turns.clear()
        self._asked = None

    def latest(self, turn_id: int | None = None) -> Offer | None:
        """The newest offer before the turn `turn_id`, or of all."""
        turns = [offer for number, offer in self._turns.items() if number != turn_id]
        return next((offer for offer in reversed(turns) if offer is not None), None)

    def turns_since_latest(self, turn_id: int | None = None) -> int:
        """How many turns before `turn_id` the newest offer was made: 1 for the one just before; large without one."""
        turns = [offer for number, offer in self._turns.items() if number != turn_id]
        return next((age for age, offer in enumerate(reversed(turns), 1) if offer is not None), KEPT_TURNS)

    def open_question(self, turn_id: int | None = None) -> Offer | None:
        """The offer of the very last turn before `turn_id`, where it is a question."""
        turns = [offer for number, offer in self._turns.items() if number != turn_id]
        last = turns[-1] if turns else None
        return last if last is not None and last.kind == "asked" else None
