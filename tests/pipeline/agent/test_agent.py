"""Spoken questions through the loop with the real model: what is asked, said, remembered, and never done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.harness.injections import injections
from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.session import LmSession
from pipeline.agent.setup import AgentSetup
from pipeline.agent.tools import AgentTool
from pipeline.dialogue.llm_steps import UnscheduledLlm
from pipeline.dialogue.manager import DialogueManager
from pipeline.dialogue.plan import Plan
from pipeline.frames import Language, ToolResult
from pipeline.vehicle.place_index import PlaceIndex
from pipeline.vehicle.places import Place, Places, load_places
from pipeline.vehicle.signals import EmbeddedTree, SignalError

DESTINATION = "Vehicle.Cabin.Infotainment.Navigation.DestinationSet.Latitude"
NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
SAMPLE = slice(3, 200, 40)
"""Every fortieth injection; `python -m benchmarks agents --injections` runs all."""


class Talk:
    """A dialogue, turn by turn."""

    def __init__(self, lm: CausalLM, places: Places | None = None, *tools: AgentTool, **setup: Any) -> None:
        self.tree = EmbeddedTree()
        agent = AgentSetup(tools=tools, **setup)
        self.dialogue = DialogueManager.create(self.tree, lm, places, agent=agent)
        self.turn_id = 0

    def plan(self, text: str, language: Language = "en", **more: Any) -> Plan:
        return self.dialogue.plan(text, language, turn_id=self.turn_id + 1, **more)

    def turn(self, text: str, language: Language = "en") -> tuple[str, list[ToolResult]]:
        plan = self.plan(text, language)
        self.turn_id += 1
        if plan.chat:
            reply = "".join(self.dialogue.chat(text, language, turn_id=self.turn_id))
            self.dialogue.heard(self.turn_id, reply)
            return reply, []
        results = self.dialogue.execute(plan, self.turn_id)
        reply = self.dialogue.reply(plan, results, language, turn_id=self.turn_id)
        self.dialogue.heard(self.turn_id, reply)
        return reply, results


@pytest.fixture
def talk_of(qwen: CausalLM, prompted: LmSession) -> Iterator[Callable[..., Talk]]:
    made: list[Talk] = []

    def build(*arguments: Any, **more: Any) -> Talk:
        made.append(Talk(qwen, *arguments, **more))
        assert made[-1].dialogue.agent is not None
        made[-1].dialogue.agent.loop.session.adopt(prompted, prompted.tokens)
        return made[-1]

    yield build
    for talk in made:
        talk.dialogue.close()


def names(results: list[ToolResult]) -> list[str]:
    return [result.call.name for result in results]


def index_of(*places: Place) -> Places:
    return replace(load_places(), search=PlaceIndex.build(places))


@pytest.mark.parametrize(
    ("text", "language", "call", "said"),
    [
        ("find a charger near the airport and tell me how far it is", "en", "find_places", "West Park"),
        ("附近有什么充电站，哪个最近", "zh", "find_places", "北门充电站"),
        ("can I make it to Pudong airport with the battery", "en", "reach", "enough"),
        ("电量够不够开到浦东机场", "zh", "reach", "够到"),
        ("are there any hotels near the railway station", "en", "find_places", "Garden hotel"),
    ],
)
def test_a_question_is_looked_up_and_nothing_is_done(
    talk_of: Callable[..., Talk], text: str, language: Language, call: str, said: str
) -> None:
    talk = talk_of()
    before = talk.tree.snapshot()
    reply, results = talk.turn(text, language)
    assert names(results) == [call]
    assert said in reply
    assert talk.tree.snapshot() == before


def test_compared_places_are_asked_about_together(talk_of: Callable[..., Talk]) -> None:
    reply, results = talk_of().turn("which one is closer, the Garden hotel or the Peace hotel")
    assert names(results) == ["distance", "distance"]
    assert "Garden hotel" in reply
    assert "Peace hotel" in reply


def test_a_command_of_the_same_turn_is_carried_out(talk_of: Callable[..., Talk]) -> None:
    talk = talk_of()
    reply, results = talk.turn("找一下机场附近的充电站，然后打开空调", "zh")
    assert names(results) == ["find_places", "set_air_conditioning"]
    assert "西郊充电站" in reply
    assert reply.endswith("空调已打开。")


def test_what_was_named_stays_available_for_ten_turns(talk_of: Callable[..., Talk]) -> None:
    talk = talk_of()
    talk.turn("what chargers are nearby")
    for degrees in range(18, 27):
        talk.turn(f"set the temperature to {degrees}")
    reply, results = talk.turn("take me to the second one")
    assert names(results) == ["navigate_to"]
    assert "Riverside" in reply
    assert talk.tree.read(DESTINATION) == pytest.approx(31.221)


def test_the_second_turn_chooses(talk_of: Callable[..., Talk]) -> None:
    talk = talk_of()
    talk.turn("附近有哪些餐厅", "zh")
    reply, _ = talk.turn("第二个多远", "zh")
    assert "饺子馆" in reply
    assert talk.dialogue.toolbox.route.place is None
    reply, _ = talk.turn("第二个", "zh")
    assert reply.startswith("开始导航去饺子馆")


@pytest.mark.parametrize(
    ("asked", "answer", "language"),
    [("take me to Hazelden Lodge", "yes", "en"), ("导航到榛木旅舍", "对", "zh")],
)
def test_did_you_mean_is_answered(talk_of: Callable[..., Talk], asked: str, answer: str, language: Language) -> None:
    lodge = Place("p1", "hotel", "Hazelton Lodge", "榛林旅舍", 31.24, 121.49, ())
    talk = talk_of(index_of(lodge))
    reply, (refused,) = talk.turn(asked, language)
    assert refused.status == "refused"
    assert lodge.name(language) in reply
    reply, (done,) = talk.turn(answer, language)
    assert done.status == "done"
    assert lodge.name(language) in reply
    assert talk.tree.read(DESTINATION) == pytest.approx(31.24)


def test_no_to_did_you_mean_does_nothing(talk_of: Callable[..., Talk]) -> None:
    talk = talk_of(index_of(Place("p1", "hotel", "Hazelton Lodge", "榛林旅舍", 31.24, 121.49, ())))
    talk.turn("take me to Hazelden Lodge")
    before = talk.tree.snapshot()
    _, results = talk.turn("no")
    assert names(results) == ["refuse"]
    assert talk.tree.snapshot() == before
    assert talk.turn("yes")[1] == [], "the question is answered"


def test_a_trip_that_the_car_does_not_confirm_is_not_said_to_begin(talk_of: Callable[..., Talk]) -> None:
    talk = talk_of()
    talk.turn("what chargers are nearby")
    talk.tree.stick(DESTINATION)
    reply, (result,) = talk.turn("the first one")
    assert result.status == "failed"
    assert "did not work" in reply
    assert "Navigating" not in reply


def weather(run: Callable[[Any], Any], **more: Any) -> AgentTool:
    words: dict[Language, tuple[str, ...]] = {"en": ("weather", "rain"), "zh": ("天气",)}
    name: dict[Language, str] = {"en": "the weather service", "zh": "天气服务"}
    return AgentTool("weather", name, "the weather of today", NO_ARGUMENTS, run, words=words, **more)


def test_a_registered_tool_is_asked_and_its_values_are_said(talk_of: Callable[..., Talk]) -> None:
    talk = talk_of(None, weather(lambda _: {"celsius": 17, "rain_percent": 80}))
    for text, language in (("what's the weather like today", "en"), ("今天天气怎么样", "zh")):
        reply, results = talk.turn(text, language)  # type: ignore[arg-type]
        assert names(results) == ["weather"]
        assert "17" in reply or "80" in reply
    _, results = talk.turn("what time is it")
    assert names(results) == ["ask_vehicle"]


def test_a_slow_tool_is_told_by_name_and_blocks_nothing(talk_of: Callable[..., Talk]) -> None:
    go = threading.Event()

    def slow(_: Any) -> dict[str, int]:
        go.wait(60)
        return {}

    talk = talk_of(None, weather(slow, timeout_s=0.1))
    try:
        assert talk.turn("what's the weather like")[0] == "The weather service did not answer in time."
        assert talk.turn("今天天气怎么样", "zh")[0] == "天气服务还在处理之前的请求。"
        assert "North Gate" in talk.turn("what chargers are nearby")[0]
    finally:
        go.set()


def test_a_failing_tool_is_told_by_name(talk_of: Callable[..., Talk]) -> None:
    def broken(_: Any) -> dict[str, int]:
        raise OSError("no network")

    talk = talk_of(None, weather(broken))
    assert talk.turn("what's the weather like")[0] == "The weather service did not work."
    assert talk.turn("今天天气怎么样", "zh")[0] == "天气服务没有成功。"


def test_a_call_that_is_cut_off_is_dropped_whole(talk_of: Callable[..., Talk]) -> None:
    steps, asked_at = _Counted(), list[int]()

    def tell(_: Any) -> dict[str, int]:
        asked_at.append(steps.count)
        return {}

    talk = talk_of(None, weather(tell))
    text = "what's the weather like"
    assert talk.plan(text, scheduler=steps).read
    written = asked_at.pop()
    assert written >= 2
    for cut_at in range(0, written, 3):
        steps.count = 0
        plan = talk.plan(text, scheduler=steps, cancelled=lambda at=cut_at: steps.count > at)
        assert plan.cut
        assert talk.dialogue.execute(plan, 9) == []
    assert not asked_at


class _Counted(UnscheduledLlm):
    """Counts what the model writes."""

    def __init__(self) -> None:
        self.count = 0

    def at_token(self) -> None:
        self.count += 1


def garage(run: Callable[[Any], Any]) -> AgentTool:
    words: dict[Language, tuple[str, ...]] = {"en": ("garage",), "zh": ("车库",)}
    name: dict[Language, str] = {"en": "the garage door", "zh": "车库门"}
    return AgentTool("open_garage", name, "open the garage door at home", NO_ARGUMENTS, run, acts=True, words=words)


@pytest.mark.parametrize(("confirmed", "said"), [(True, "confirmed it"), (False, "did not confirm")])
def test_a_tool_that_acts_does_so_once_the_turn_is_over(
    talk_of: Callable[..., Talk], confirmed: bool, said: str
) -> None:
    done: list[int] = []

    def act(_: Any) -> dict[str, bool]:
        done.append(1)
        return {"confirmed": confirmed}

    talk = talk_of(None, garage(act))
    plan = talk.plan("open the garage at home")
    if not plan.acts:
        pytest.fail(f"the model did not call it: {plan}")
    assert not done, "a plan may be thrown away"
    results = talk.dialogue.execute(plan, 1)
    assert done == [1]
    reply = talk.dialogue.reply(plan, results, "en", turn_id=1)
    assert said in reply
    if confirmed:
        with pytest.raises(SignalError, match="not_taken_back"):
            talk.dialogue.roll_back(1)


def test_a_taken_back_turn_is_forgotten(talk_of: Callable[..., Talk]) -> None:
    talk = talk_of()
    talk.turn("what chargers are nearby")
    talk.dialogue.roll_back(1)
    assert talk.dialogue.memory.latest() is None


def test_what_stands_in_a_name_or_a_result_orders_nothing(talk_of: Callable[..., Talk]) -> None:
    """In the names of places and in a tool's texts: one call each, the one that was asked for, and nothing is done."""
    note = ""
    talk = talk_of(None, weather(lambda _: {"celsius": 17, "note": note, "notes": [note]}))
    toolbox = talk.dialogue.toolbox
    before = talk.tree.snapshot()
    for injection in injections()[SAMPLE]:
        note = injection.text[:2000]
        toolbox.places = index_of(Place("bad", "museum", note, note, 31.23, 121.47, ()))
        assert names(talk.turn("what museums are nearby")[1]) == ["find_places"], note
        assert names(talk.turn("what's the weather like")[1]) == ["weather"], note
        assert talk.tree.snapshot() == before
        assert toolbox.route.place is None
