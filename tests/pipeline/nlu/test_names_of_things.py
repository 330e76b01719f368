"""Words of the car inside the names of other things: a dish, a song, a lamp that is named by where it is."""

from __future__ import annotations

import pytest

from pipeline.frames import Language, ToolCall
from pipeline.nlu.interpreter import Interpreter
from pipeline.nlu.lexicon import build_lexicon
from pipeline.vehicle.places import load_places


@pytest.fixture(scope="module")
def interpreter() -> Interpreter:
    return Interpreter(build_lexicon(load_places()))


def calls(interpreter: Interpreter, text: str, language: Language) -> list[ToolCall]:
    read = [clause.call for clause in interpreter.parse(text, language).clauses]
    return [call for call in read if call.name != "refuse"]


@pytest.mark.parametrize("text", ["来一道烤冷面", "来两份热干面", "点一杯热咖啡", "我想吃冷面", "给我来碗热汤面"])
def test_an_order_for_food_is_no_feeling(text: str, interpreter: Interpreter) -> None:
    assert calls(interpreter, text, "zh") == []


@pytest.mark.parametrize("text", ["I'd like a hot dog", "get me a cold brew", "could I have some hot soup"])
def test_nor_is_one_in_english(text: str, interpreter: Interpreter) -> None:
    assert calls(interpreter, text, "en") == []


@pytest.mark.parametrize(
    ("text", "language"), [("太冷了", "zh"), ("我好热", "zh"), ("it's a bit cold", "en"), ("I'm too hot", "en")]
)
def test_a_feeling_stays_one(text: str, language: Language, interpreter: Interpreter) -> None:
    assert [call.name for call in calls(interpreter, text, language)] == ["set_temperature"]


@pytest.mark.parametrize(
    ("text", "on"),
    [("车顶那盏灯打开", True), ("把车顶上的灯关掉", False), ("头顶的灯开一下", True), ("头顶那盏灯关了", False)],
)
def test_a_lamp_under_the_roof_is_no_headlight(text: str, on: bool, interpreter: Interpreter) -> None:
    assert calls(interpreter, text, "zh") == [ToolCall("set_interior_light", {"on": on})]


@pytest.mark.parametrize(
    ("text", "title"),
    [("播放歌曲关掉月亮", "关掉月亮"), ("播放曲子打开明天", "打开明天"), ("放歌曲停止流浪", "停止流浪")],
)
def test_a_title_that_is_announced_may_begin_with_a_verb(text: str, title: str, interpreter: Interpreter) -> None:
    assert calls(interpreter, text, "zh") == [ToolCall("play_media", {"query": title})]


def test_a_second_wish_behind_it_is_no_title(interpreter: Interpreter) -> None:
    assert ToolCall("set_sunroof", {"position": "closed"}) in calls(interpreter, "播放歌曲关上天窗", "zh")
