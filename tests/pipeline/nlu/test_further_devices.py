"""What the rules read of massage, lights, climate modes, the screen, lists of the player and seat moves."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.frames import ToolCall
from pipeline.nlu.intents.rules import kept_in_mind
from pipeline.nlu.interpreter import Interpreter
from pipeline.nlu.lexicon import build_lexicon
from pipeline.vehicle.places import load_places


@pytest.fixture(scope="module")
def interpreter() -> Interpreter:
    return Interpreter(build_lexicon(load_places()))


def read(interpreter: Interpreter, text: str, last: ToolCall | None = None) -> list[tuple[str, dict[str, Any]]]:
    language = "zh" if any("㐀" <= c <= "鿿" for c in text) else "en"
    clauses = interpreter.parse(text, language, last).clauses  # type: ignore[arg-type]
    return [(clause.call.name, clause.call.arguments) for clause in clauses]


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("rub my back with the massage", "set_seat_massage", {"zone": "driver", "action": "set", "value": 50.0}),
        ("后排座椅按摩关掉", "set_seat_massage", {"zone": "rear", "action": "set", "value": 0.0}),
        ("make the mood lighting red", "set_ambient_color", {"color": "red"}),
        ("把氛围灯调暗一点", "set_ambient_light", {"zone": "all", "action": "change", "value": -12.0}),
        ("打开副驾阅读灯", "set_reading_light", {"zone": "passenger", "action": "set", "value": 50.0}),
        ("打开阅读灯", "set_interior_light", {"on": True}),
        ("switch the rear fog light on", "set_exterior_light", {"which": "rear_fog", "on": True}),
        ("关掉示宽灯", "set_exterior_light", {"which": "position", "on": False}),
        ("set the ac to eco mode", "set_climate_mode", {"mode": "eco", "on": True}),
        ("空调切到自动模式", "set_climate_mode", {"mode": "auto", "on": True}),
        ("blow the air at my face", "set_air_direction", {"direction": "face", "zone": "all"}),
        ("关闭中控屏", "set_screen", {"on": False}),
        ("通话音量调到百分之六十", "set_volume", {"target": "call", "action": "set", "value": 60.0}),
        ("turn shuffle off", "control_media", {"action": "in_order"}),
        ("播放我收藏的歌", "control_media", {"action": "play_favourites"}),
        ("move the passenger seat back a bit", "set_seat_position", {"move": "back", "zone": "passenger"}),
        ("靠背调直一点", "set_seat_position", {"move": "upright", "zone": "driver"}),
        ("座椅挪后一点", "set_seat_position", {"move": "back", "zone": "driver"}),
        ("后面那盏雾灯开开", "set_exterior_light", {"which": "rear_fog", "on": True}),
        ("前后雾灯都打开", "set_exterior_light", {"which": "fog", "on": True}),
        ("dip the high beam", "set_exterior_light", {"which": "high_beam", "on": False}),
        ("no more ambient light", "set_ambient_light", {"zone": "all", "action": "set", "value": 0.0}),
        ("听FM一零三点九", "tune_radio", {"value": 103.9}),
        ("这首歌加到我的收藏夹里", "control_media", {"action": "add_favourite"}),
        ("把歌打乱了放", "control_media", {"action": "shuffle"}),
        ("这首歌反复放", "control_media", {"action": "repeat"}),
        ("play the songs I have saved", "control_media", {"action": "play_favourites"}),
        ("息屏", "set_screen", {"on": False}),
        ("点亮屏幕", "set_screen", {"on": True}),
        ("播放上一频道", "control_media", {"action": "previous"}),
        ("skip to the next station", "control_media", {"action": "next"}),
        ("关闭低速警示音打开扫风模式", "set_climate_mode", {"mode": "swing", "on": True}),
        ("返回桌面", "show_page", {"page": "home"}),
        ("open the settings page", "show_page", {"page": "settings"}),
        ("设置调频一零一点零", "tune_radio", {"value": 101.0}),
        ("tune the radio to 98.7", "tune_radio", {"value": 98.7}),
        ("收音机音量调到九十", "set_volume", {"target": "media", "action": "set", "value": 90.0}),
        ("is the high beam on", "ask_vehicle", {"item": "exterior_lights", "zone": "any"}),
    ],
)
def test_read(interpreter: Interpreter, text: str, name: str, arguments: dict[str, Any]) -> None:
    assert read(interpreter, text) == [(name, arguments)]


@pytest.mark.parametrize(
    "text",
    [
        "turn on eco mode",
        "打开节能模式",
        "打开儿童锁",
        "put the rear seats flat",
        "recline my seat to thirty degrees",
        "set the high beam to automatic",
        "the massage mode to waves",
        "氛围灯跟音乐同步模式",
        "打开全屏页面",
        "关闭设置页面",
        "把空调自然风关了设置页",
        "the auto wipers on",
    ],
)
def test_nothing_is_written(interpreter: Interpreter, text: str) -> None:
    written = [name for name, _ in read(interpreter, text) if name not in ("refuse", "ask_vehicle", "set_wipers")]
    assert not written


@pytest.mark.parametrize(
    "text", ["put a repeating event in", "读一下我的信息", "开启哨兵模式", "去阳光酒店", "send the messages"]
)
def test_words_that_sound_like_them_are_others(interpreter: Interpreter, text: str) -> None:
    assert all(name in ("refuse", "navigate_to") for name, _ in read(interpreter, text))


def test_it_means_the_light_before(interpreter: Interpreter) -> None:
    last = ToolCall("set_exterior_light", {"which": "front_fog", "on": True})
    assert read(interpreter, "turn it off again", last) == [("set_exterior_light", {"which": "front_fog", "on": False})]
    last = ToolCall("set_climate_mode", {"mode": "swing", "on": True})
    assert read(interpreter, "关掉它", last) == [("set_climate_mode", {"mode": "swing", "on": False})]


def test_after_a_question_about_the_lights_outside_it_is_none_of_the_things_before(interpreter: Interpreter) -> None:
    last = ToolCall("ask_vehicle", {"item": "exterior_lights", "zone": "any"})
    assert kept_in_mind(last)
    assert [name for name, _ in read(interpreter, "turn it off", last) if name != "refuse"] == []


def test_a_second_wish_about_the_light_is_not_lost(interpreter: Interpreter) -> None:
    dimmed = ("set_ambient_light", {"zone": "all", "action": "change", "value": -12.0})
    assert read(interpreter, "make the ambient light purple and dim it a bit")[1:] == [dimmed]
