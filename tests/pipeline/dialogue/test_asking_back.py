"""Questions that complete a call: asked where something is lacking, answered by the next turn, never done without."""

from __future__ import annotations

import pytest

from pipeline.agent.memory import ANSWER_S, Offer
from pipeline.dialogue.manager import DialogueManager
from pipeline.dialogue.plan import plan_of_question
from pipeline.frames import Language, ToolCall
from pipeline.nlg.questions import ask, can_be_confirmed, wish_of
from pipeline.nlu.asking import Question, answer_of
from pipeline.nlu.interpreter import Interpreter
from pipeline.nlu.lexicon import build_lexicon
from pipeline.vehicle.places import load_places
from pipeline.vehicle.schemas import TOOL_NAMES
from pipeline.vehicle.signals import EmbeddedTree


class Talk:
    """Text turns with a clock of their own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.dialogue = DialogueManager.create()
        self.dialogue.clock = lambda: self.now_s
        self.turn_id = 0

    def say(self, text: str) -> str:
        """The reply."""
        language: Language = "en" if text.isascii() else "zh"
        self.turn_id += 1
        self.now_s += 1.0
        plan = self.dialogue.plan(text, language, turn_id=self.turn_id)
        self.calls = [call for call in plan.calls if call.name != "refuse"]
        results = self.dialogue.execute(plan, self.turn_id)
        if plan.chat:
            list(self.dialogue.chat(text, language, turn_id=self.turn_id))
        self.asked = self.dialogue.memory.asks(self.turn_id)
        return self.dialogue.reply(plan, results, language, turn_id=self.turn_id)

    def value(self, name: str) -> object:
        assert len(self.calls) == 1, self.calls
        return self.calls[0].arguments[name]


@pytest.fixture
def talk() -> Talk:
    return Talk()


@pytest.mark.parametrize(
    ("command", "slot", "question", "answer", "tool", "expected"),
    [
        ("Set the temperature", "value", "To how many degrees?", "22", "set_temperature", {"zone": "all", "value": 22}),
        ("change the temperature please", "value", "To how many degrees?", "23 and a half for the driver",
         "set_temperature", {"zone": "driver", "value": 23.5}),
        ("set the passenger temperature", "value", "To how many degrees?", "make it 21", "set_temperature",
         {"zone": "passenger", "value": 21}),
        ("set the volume", "value", "To what percent?", "forty percent", "set_volume", {"value": 40}),
        ("adjust the fan speed", "value", "To which level, from 1 to 5?", "three", "set_fan", {"value": 60}),
        ("把温度调一下", "value", "调到多少度？", "二十三度", "set_temperature", {"value": 23}),
        ("调节音量", "value", "调到百分之多少？", "百分之三十", "set_volume", {"value": 30}),
        ("Open a window", "zone", "Which window?", "the driver's", "set_window", {"zone": "driver", "value": 100}),
        ("open one of the windows", "zone", "Which window?", "the one behind the passenger", "set_window",
         {"zone": "rear_right", "value": 100}),
        ("open a window a bit", "zone", "Which window?", "mine", "set_window",
         {"zone": "driver", "action": "change", "value": 20}),
        ("打开一个窗户", "zone", "哪一个车窗？", "副驾的", "set_window", {"zone": "passenger", "value": 100}),
        ("关一扇窗", "zone", "哪一个车窗？", "左后", "set_window", {"zone": "rear_left", "value": 0}),
        ("start navigation", "place", "Where to?", "the airport", "navigate_to", {"place": "airport"}),
        ("开始导航", "place", "去哪里？", "虹桥机场", "navigate_to", {"place": "airport_hongqiao"}),
    ],
)  # fmt: skip
def test_the_answer_completes_the_call(
    command: str, slot: str, question: str, answer: str, tool: str, expected: dict[str, object], talk: Talk
) -> None:
    assert talk.say(command) == question
    assert (talk.asked, talk.calls) == (slot, [])
    assert talk.say(answer) != question
    assert [call.name for call in talk.calls] == [tool]
    assert expected.items() <= talk.calls[0].arguments.items()
    assert talk.asked is None


@pytest.mark.parametrize(
    ("command", "answer", "reply"),
    [
        ("set the temperature", "never mind", "Okay, I leave it as it is."),
        ("设置温度", "算了", "好的，保持不变。"),
        ("open a window", "no thanks", "Okay, I leave it as it is."),
    ],
)
def test_never_mind_drops_it(command: str, answer: str, reply: str, talk: Talk) -> None:
    talk.say(command)
    assert talk.say(answer) == reply
    talk.say("22" if answer.isascii() else "二十二")
    assert talk.calls == []


def test_another_command_drops_it(talk: Talk) -> None:
    talk.say("set the temperature")
    talk.say("open the sunroof")
    assert [call.name for call in talk.calls] == ["set_sunroof"]
    talk.say("22")
    assert [call.name for call in talk.calls] != ["set_temperature"]


def test_it_waits_no_longer_than_its_time(talk: Talk) -> None:
    talk.say("set the temperature")
    talk.now_s += ANSWER_S
    talk.say("22")
    assert talk.calls == []


def test_what_does_not_fit_is_asked_once_more(talk: Talk) -> None:
    question = talk.say("set the temperature")
    assert talk.say("purple") == question
    assert talk.asked == "value"
    talk.say("twenty two")
    assert talk.value("value") == 22
    other = Talk()
    other.say("set the temperature")
    assert other.say("purple") == question
    assert other.say("purple") != question
    other.say("22")
    assert other.calls == []


def test_a_value_out_of_range_is_refused_with_the_range(talk: Talk) -> None:
    talk.say("set the temperature")
    assert "16 to 30" in talk.say("80")


def test_a_turn_that_is_taken_back_asked_nothing(talk: Talk) -> None:
    talk.say("set the temperature")
    talk.dialogue.roll_back(talk.turn_id)
    talk.say("22")
    assert talk.calls == []


def test_a_doubtful_answer_is_not_acted_on(talk: Talk) -> None:
    talk.say("set the temperature")
    plan = talk.dialogue.plan("22", "en", turn_id=9, avg_logprob=-2.0)
    assert (plan.calls, plan.said) == ((), "To how many degrees?")


@pytest.mark.parametrize(
    "text",
    ["set the temperature to 22", "open the window", "打开车窗", "turn up the volume", "close all windows"],
)
def test_what_is_whole_is_not_asked_about(text: str, talk: Talk) -> None:
    talk.say(text)
    assert talk.asked is None


ROOF = ToolCall("set_sunroof", {"position": "open"})


@pytest.mark.parametrize(("yes", "no", "language"), [("yes please", "no", "en"), ("对", "不是", "zh")])
def test_yes_does_what_was_offered_and_no_does_not(yes: str, no: str, language: Language, talk: Talk) -> None:
    """What the parser's model is not sure of is offered (see tests of the decision for when)."""
    for said, done in ((yes, [ROOF]), (no, [])):
        talk.turn_id += 1
        talk.dialogue.execute(plan_of_question(Question("confirm", (ROOF,)), "x", language), talk.turn_id)
        assert talk.dialogue.memory.asks(talk.turn_id) == "confirm"
        talk.say(said)
        assert talk.calls == done


def test_a_place_that_is_offered_is_asked_for(talk: Talk) -> None:
    """ "Did you mean ...?" is of the same kind, and is told as one."""
    meant = load_places().by_id["airport_hongqiao"]
    talk.say("open the sunroof")
    trip = ToolCall("navigate_to", {"place": "the hong airport", "avoid": []})
    talk.dialogue.memory.keep(Offer(talk.turn_id, "asked", (meant,), trip))
    assert talk.dialogue.memory.asks(talk.turn_id) == "place"
    talk.say("yes")
    assert talk.value("place") == "airport_hongqiao"


def test_questions_end_as_questions_do() -> None:
    """Nothing said over one is taken for "go on": see Runtime."""
    for tool in ("set_temperature", "set_fan", "set_volume", "set_brightness"):
        for language in ("en", "zh"):
            assert ask(Question("value", (ToolCall(tool, {}),)), language).endswith(("?", "？"))


def test_offers_are_said_as_wishes() -> None:
    window = ToolCall("set_window", {"zone": "driver", "action": "set", "value": 100.0})
    assert ask(Question("confirm", (window,)), "en") == "Do you want me to open the driver window?"
    assert ask(Question("confirm", (window, ROOF)), "zh") == "您是要打开主驾车窗，打开天窗吗？"
    assert not can_be_confirmed((), "en")
    assert not can_be_confirmed((ROOF, window, ROOF), "en")


def test_every_tool_with_words_has_them_in_both_languages() -> None:
    calls = [
        ToolCall("set_temperature", {"zone": "driver", "action": "set", "value": 22.0}),
        ToolCall("set_fan", {"zone": "all", "action": "change", "value": -20.0}),
        ToolCall("set_air_conditioning", {"on": True}),
        ToolCall("set_defrost", {"area": "rear", "on": False}),
        ToolCall("set_trunk", {"open": True}),
        ToolCall("set_door_locks", {"locked": False, "zone": "all"}),
        ToolCall("control_media", {"action": "next"}),
        ToolCall("play_media", {"query": "jazz"}),
        ToolCall("set_wipers", {"mode": "fast"}),
        ToolCall("set_volume", {"target": "navigation", "action": "set", "value": 0.0}),
        ToolCall("cancel_navigation", {}),
        ToolCall("restore_volume", {"target": "media"}),
        ToolCall("set_navigation_voice", {"state": "MUTED"}),
    ]
    for call in calls:
        assert call.name in TOOL_NAMES
        assert wish_of(call, "en").isascii(), call
        assert wish_of(call, "zh"), call


def test_a_key_is_not_spoken() -> None:
    assert wish_of(ToolCall("navigate_to", {"place": "airport_hongqiao", "avoid": []}), "en") == ""
    assert wish_of(ToolCall("navigate_to", {"place": "Elm Street", "avoid": []}), "en") == "navigate to Elm Street"


@pytest.mark.parametrize("text", ["what time is it?", "open the sunroof", "play jazz", "22 or so I guess mate"])
def test_other_words_are_no_answer(text: str) -> None:
    rules = Interpreter(build_lexicon(load_places()))
    held = ToolCall("set_temperature", {"zone": "all"})
    assert answer_of(text, "en", Question("value", (held,)), rules) is None


def standing() -> EmbeddedTree:
    tree = EmbeddedTree()
    tree.simulate("Vehicle.Speed", 0.0)
    tree.simulate("Vehicle.IsMoving", False)
    return tree


@pytest.mark.parametrize(
    ("command", "question", "yes"),
    [
        ("unlock the doors", "Do you want me to unlock the doors?", "yes"),
        ("打开后备箱", "您是要打开后备箱吗？", "是的"),
        (
            "turn off the air conditioning, set the volume to 30 and unlock the doors",
            "Do you want me to switch the air conditioning off and set the volume to 30 percent and unlock the doors?",
            "yes please",
        ),
    ],
)
def test_what_opens_the_car_is_confirmed_where_the_profile_says(
    talk: Talk, command: str, question: str, yes: str
) -> None:
    talk.dialogue = DialogueManager.create(tree=standing(), confirm=("set_door_locks", "set_trunk"))
    assert (talk.say(command), talk.calls) == (question, [])
    reply = talk.say(yes)
    assert talk.calls
    assert "?" not in reply
    assert (talk.say(command), talk.calls) == (question, []), "asked every time"
    talk.say("不用了" if yes == "是的" else "no, leave it")
    assert talk.calls == []


def test_what_closes_the_car_is_done(talk: Talk) -> None:
    talk.dialogue = DialogueManager.create(confirm=("set_door_locks", "set_trunk"))
    for command in ("lock the doors", "close the boot"):
        talk.say(command)
        assert len(talk.calls) == 1, command


def test_on_the_move_it_is_refused_and_not_asked(talk: Talk) -> None:
    tree = EmbeddedTree()
    talk.dialogue = DialogueManager.create(tree=tree, confirm=("set_trunk",))
    tree.simulate("Vehicle.Speed", 30.0)
    tree.simulate("Vehicle.IsMoving", True)
    assert "?" not in talk.say("open the boot")
    assert not tree.read("Vehicle.Body.Trunk.Rear.IsOpen")
