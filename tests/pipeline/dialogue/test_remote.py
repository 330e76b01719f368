"""Free talk from a server: whose words are spoken, what it costs when it is late or breaks off, what leaves the car."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator

import pytest

from models.engines.llm.causal_lm import CausalLM
from pipeline.dialogue.chat_guard import TalkFilter
from pipeline.dialogue.manager import DialogueManager
from pipeline.dialogue.remote import Messages, RemoteLimits, RemoteTalk, ServerFailed
from pipeline.dialogue.talk import AnswerCut, allowed
from tests.support.waiting import until

ASKED = [{"role": "user", "content": "What is a comet?"}]
SLOW = 60.0


class Server:
    """Gives `pieces` once `go` is set; "!" breaks off, "|" ends at its limit."""

    host = "llm.example.org"

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces
        self.go = threading.Event()
        self.go.set()
        self.asked: list[Messages] = []
        self.hung_up = 0

    def stream(self, messages: Messages, most_tokens: int, wait_s: float) -> Generator[str]:
        self.asked.append(messages)
        try:
            assert self.go.wait(SLOW)
            for piece in self.pieces:
                if piece == "!":
                    raise ServerFailed("connection lost")
                if piece == "|":
                    raise AnswerCut("limit")
                yield piece
        finally:
            self.hung_up += 1

    def close(self) -> None:
        return None


def never() -> bool:
    return False


def own(_stop: Callable[[], bool]) -> Iterator[str]:
    yield "In the car."


def spoken(talk: RemoteTalk, source: Callable[[Callable[[], bool]], Iterator[str]] = own) -> str:
    """As the dialogue does it: the server's words, the car's where it fails before it has said anything."""
    try:
        return "".join(allowed(talk.words(ASKED, source, never), TalkFilter("en"), never))
    except AnswerCut:
        return "".join(allowed(source(never), TalkFilter("en"), never))


def test_the_server_answers() -> None:
    talk = RemoteTalk(Server("A comet is ", "an icy body."), 64)
    assert spoken(talk) == "A comet is an icy body."
    until(lambda: talk.hedge_s == talk.limits.deadline_s / 2)
    shown = talk.shown()
    assert (shown["asked"], shown["answered"], shown["failed"], shown["host"]) == (1, 1, 0, "llm.example.org")


def test_a_server_that_is_late_is_overtaken_by_the_car() -> None:
    server = Server("Too late.")
    server.go.clear()
    talk = RemoteTalk(server, 64, RemoteLimits(deadline_s=0.02))
    assert spoken(talk) == "In the car."
    assert talk.counts.overtaken == 1
    time.sleep(talk.limits.deadline_s)
    server.go.set()
    until(lambda: talk.counts.failed == 1)  # its first words came after the deadline
    until(lambda: server.hung_up == 1)


def test_the_server_wins_while_the_car_still_reads_the_prompt() -> None:
    server = Server("From outside.")
    server.go.clear()
    talk = RemoteTalk(server, 64, RemoteLimits(deadline_s=0.1))

    def slow(stop: Callable[[], bool]) -> Iterator[str]:
        server.go.set()
        until(stop)  # its prompt is given up as soon as the server has words
        yield from ()

    assert spoken(talk, slow) == "From outside."
    assert (talk.counts.answered, talk.counts.overtaken) == (1, 0)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (("!",), "In the car."),
        (("A co", "!"), "In the car."),
        (("A comet is an icy body of the solar system. It has", "!"), "A comet is an icy body of the solar system."),
        (("A comet is an icy body of the solar system. It has", "|"), "A comet is an icy body of the solar system."),
        ((), "In the car."),
    ],
)
def test_an_answer_that_breaks_off(pieces: tuple[str, ...], expected: str) -> None:
    talk = RemoteTalk(Server(*pieces), 64)
    assert spoken(talk) == expected
    until(lambda: talk.counts.failed == (pieces[-1:] != ("|",)))
    assert talk.counts.cut == (pieces[:1] != ("!",) and "!" in pieces)


def test_after_failures_in_a_row_the_server_is_left_alone_for_a_while() -> None:
    server = Server("!")
    talk = RemoteTalk(server, 64, RemoteLimits(failures=2, rest_s=SLOW))
    for _ in range(2):
        assert spoken(talk) == "In the car."
    until(lambda: talk.counts.failed == 2)
    assert spoken(talk) == "In the car."
    assert (len(server.asked), talk.counts.left_alone) == (2, 1)
    assert talk.shown()["left_alone_now"] is True
    talk._asleep_until = 0.0
    server.pieces = ("It works again.",)
    assert spoken(talk) == "It works again."
    until(lambda: talk._in_a_row == 0)


def test_the_wait_is_what_95_of_100_first_words_took() -> None:
    talk = RemoteTalk(Server("x"), 64, RemoteLimits(deadline_s=2.0))
    assert talk.hedge_s == 1.0
    for hundredths in range(1, 101):
        talk._learn(hundredths / 100, "")
    assert talk.hedge_s == pytest.approx(0.95, abs=0.011)
    for _ in range(100):
        talk._learn(9.0, "")
    assert talk.hedge_s == 2.0


def test_who_is_interrupted_hangs_up() -> None:
    server = Server("One. ", "Two. ", "Three. ")
    talk = RemoteTalk(server, 64)
    stopped = threading.Event()
    words = talk.words(ASKED, own, stopped.is_set)
    assert next(words) == "One. "
    stopped.set()
    assert list(words) == []
    until(lambda: server.hung_up == 1)


@pytest.fixture(scope="module")
def dialogue(qwen: CausalLM) -> DialogueManager:
    return DialogueManager.create(lm=qwen, by_sound=False)


def asking(dialogue: DialogueManager, talk: RemoteTalk) -> DialogueManager:
    """The dialogue without its past, with another server."""
    dialogue._history.clear()
    dialogue.remote = talk
    return dialogue


def test_only_free_talk_leaves_the_car(dialogue: DialogueManager) -> None:
    server = Server("A comet is an icy body.")
    talk = RemoteTalk(server, 64, history=True)
    asking(dialogue, talk)
    for turn, text in enumerate(("Take me to the airport", "Set the temperature to 22", "What is a comet?"), 1):
        plan = dialogue.plan(text, "en", turn_id=turn)
        results = dialogue.execute(plan, turn)
        said = "".join(dialogue.chat(text, "en", turn_id=turn)) if plan.chat else dialogue.reply(plan, results, "en")
        dialogue.heard(turn, said)
    assert said == "A comet is an icy body."
    assert "".join(dialogue.chat("Where do comets come from?", "en", turn_id=4)) == "A comet is an icy body."
    contents = [[message["content"] for message in messages[1:]] for messages in server.asked]
    assert contents == [
        ["What is a comet?"],
        ["What is a comet?", "A comet is an icy body.", "Where do comets come from?"],
    ]
    talk.history = False
    "".join(dialogue.chat("And go?", "en", turn_id=5))
    assert [message["role"] for message in server.asked[-1]] == ["system", "user"]


def test_a_claim_from_outside_is_not_spoken(dialogue: DialogueManager) -> None:
    asking(dialogue, RemoteTalk(Server("I have opened the window."), 64))
    assert "".join(dialogue.chat("What is a comet?", "en", turn_id=1)) == "I am not sure about that."


def test_without_the_server_the_car_answers(dialogue: DialogueManager) -> None:
    asking(dialogue, RemoteTalk(Server("!"), 64))
    said = "".join(dialogue.chat("What is the capital of France?", "en", turn_id=1))
    assert "Paris" in said
    assert dialogue.chat_ttft_ms > 0
