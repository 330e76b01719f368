"""Questions that a command needs answered before it is carried out, and what a call would do, in words."""

from __future__ import annotations

from pipeline.frames import Language, ToolCall
from pipeline.nlg.actions import (
    COLOR_NAMES,
    DIRECTION_NAMES,
    EXTERIOR_NAMES,
    MODE_NAMES,
    PAGE_NAMES,
    spoken_name,
)
from pipeline.nlg.answers import number
from pipeline.nlg.zones import ZONE_EN, ZONE_ZH
from pipeline.nlu.asking import Question

_VALUE = {
    "set_temperature": ("To how many degrees?", "调到多少度？"),
    "set_fan": ("To which level, from 1 to 5?", "调到几档，一到五？"),
    "set_volume": ("To what percent?", "调到百分之多少？"),
    "set_brightness": ("To what percent?", "调到百分之多少？"),
}
_ZONE = {
    "set_window": ("Which window?", "哪一个车窗？"),
    "set_seat_heating": ("Which seat?", "哪一个座椅？"),
    "set_seat_ventilation": ("Which seat?", "哪一个座椅？"),
}


def ask(question: Question, language: Language) -> str:
    """The question as it is spoken; of calls to confirm, those that there are words for are named."""
    zh = language == "zh"
    if question.slot == "value":
        return _VALUE[question.call.name][zh]
    if question.slot == "zone":
        return _ZONE[question.call.name][zh]
    if question.slot == "place":
        return "去哪里？" if zh else "Where to?"
    wishes = [wish for call in question.calls if (wish := wish_of(call, language))]
    return f"您是要{'，'.join(wishes)}吗？" if zh else f"Do you want me to {' and '.join(wishes)}?"


def can_be_confirmed(calls: tuple[ToolCall, ...], language: Language) -> bool:
    """Whether there are words for all of them, few enough for a short question."""
    return 0 < len(calls) <= 2 and all(wish_of(call, language) for call in calls)


_SWITCHED = {
    "set_air_conditioning": ("the air conditioning", "空调"),
    "set_recirculation": ("recirculation", "内循环"),
    "set_interior_light": ("the interior light", "车内灯"),
    "set_headlights": ("the headlights", "大灯"),
    "set_screen": ("the screen", "屏幕"),
}
_LEVELS = {
    "set_temperature": ("temperature", "温度"),
    "set_fan": ("fan", "风量"),
    "set_seat_heating": ("seat heating", "座椅加热"),
    "set_seat_ventilation": ("seat ventilation", "座椅通风"),
    "set_steering_wheel_heating": ("steering wheel heating", "方向盘加热"),
    "set_brightness": ("screen brightness", "屏幕亮度"),
    "set_volume": ("volume", "音量"),
    "set_seat_massage": ("seat massage", "座椅按摩"),
    "set_ambient_light": ("ambient light", "氛围灯"),
    "set_reading_light": ("reading light", "阅读灯"),
}
_MEDIA = {
    "play": ("play music", "播放音乐"),
    "stop": ("stop the music", "停止播放"),
    "next": ("play the next track", "播放下一首"),
    "previous": ("play the previous track", "播放上一首"),
    "fast_forward": ("fast forward", "快进"),
    "rewind": ("rewind", "快退"),
    "shuffle": ("shuffle the music", "随机播放"),
    "repeat": ("repeat this track", "单曲循环"),
    "in_order": ("play in order", "顺序播放"),
    "add_favourite": ("add this to your favourites", "收藏这首歌"),
    "play_favourites": ("play your favourites", "播放收藏"),
}
_SEAT_MOVES = {
    "forward": ("move the {} seat forward", "把{}座椅往前移"),
    "back": ("move the {} seat back", "把{}座椅往后移"),
    "up": ("raise the {} seat", "把{}座椅升高"),
    "down": ("lower the {} seat", "把{}座椅降低"),
    "recline": ("recline the {} backrest", "把{}靠背往后调"),
    "upright": ("raise the {} backrest", "把{}靠背往前调"),
}
_WIPERS = {
    "off": ("switch the wipers off", "关闭雨刮"),
    "interval": ("set the wipers to interval", "把雨刮调到间歇"),
    "slow": ("set the wipers to slow", "把雨刮调到慢速"),
    "medium": ("switch the wipers on", "打开雨刮"),
    "fast": ("set the wipers to fast", "把雨刮调到快速"),
}
_AREAS = {"front": ("the front defroster", "前窗除雾"), "rear": ("the rear defroster", "后窗除雾")}


_OTHER = {
    "cancel_navigation": ("end the navigation", "结束导航"),
    "restore_volume": ("switch the sound back on", "恢复声音"),
}


def wish_of(call: ToolCall, language: Language) -> str:
    """What the call would do, in the words of a wish ("open the sunroof"); empty where there are none for it."""
    zh, arguments = language == "zh", call.arguments
    if call.name in _SWITCHED:
        name = _SWITCHED[call.name][zh]
        return _switch(name, arguments["on"], zh)
    if call.name in _LEVELS:
        return _level(call, zh)
    if call.name == "set_window":
        return _window(call, zh)
    if call.name == "set_defrost":
        return _switch(_AREAS.get(arguments["area"], ("all defrosters", "前后窗除雾"))[zh], arguments["on"], zh)
    if call.name == "set_sunroof":
        words = {"open": ("open", "打开"), "closed": ("close", "关闭"), "tilted": ("tilt", "翘起")}
        return f"{words[arguments['position']][zh]}{'天窗' if zh else ' the sunroof'}"
    if call.name == "set_trunk":
        return _opened("后备箱" if zh else "the boot", arguments["open"], zh)
    if call.name == "set_sunshade" and arguments["action"] == "set" and arguments["value"] in (0.0, 100.0):
        return _opened("遮阳帘" if zh else "the sunshade", arguments["value"] == 100.0, zh)
    if call.name == "set_door_locks":
        locks = ("lock the doors", "锁车门") if arguments["locked"] else ("unlock the doors", "解锁车门")
        return locks[zh]
    if call.name == "control_media":
        return _MEDIA[arguments["action"]][zh]
    if call.name == "play_media":
        return f"播放{spoken_name(arguments['query'])}" if zh else f"play {spoken_name(arguments['query'])}"
    if call.name == "set_wipers":
        return _WIPERS[arguments["mode"]][zh]
    if call.name in _OTHER:
        return _OTHER[call.name][zh]
    if call.name == "set_exterior_light":
        name = EXTERIOR_NAMES[arguments["which"]][zh]
        return _switch(name if zh else f"the {name}", arguments["on"], zh)
    if call.name == "set_climate_mode":
        name = MODE_NAMES[arguments["mode"]][zh]
        return _switch(name if zh else f"the {name}", arguments["on"], zh)
    if call.name == "set_ambient_color":
        color = arguments["color"]
        return f"把氛围灯换成{COLOR_NAMES[color]}" if zh else f"make the ambient light {color}"
    if call.name == "set_air_direction":
        where = DIRECTION_NAMES[arguments["direction"]][zh]
        return f"把风吹向{where}" if zh else f"blow the air to {where}"
    if call.name == "show_page":
        page = PAGE_NAMES[arguments["page"]][zh]
        return f"打开{page}" if zh else f"show {page}"
    if call.name == "tune_radio":
        return f"播放调频{number(arguments['value'])}" if zh else f"tune to F M {number(arguments['value'])}"
    if call.name == "set_seat_position":
        zone = (ZONE_ZH if zh else ZONE_EN)[arguments["zone"]]
        return _SEAT_MOVES[arguments["move"]][zh].format(zone)
    if call.name == "set_navigation_voice":
        on = arguments["state"] != "MUTED"
        return _switch("导航语音" if zh else "the navigation voice", on, zh)
    if call.name == "navigate_to":
        return _trip(arguments["place"], zh)
    return ""


def _trip(place: str, zh: bool) -> str:
    """Empty for a place that is known by its key alone, which nobody would understand."""
    name = spoken_name(place)
    if "_" in place or not name or name.isascii() == zh:
        return ""
    return f"导航去{name}" if zh else f"navigate to {name}"


def _switch(name: str, on: bool, zh: bool) -> str:
    return f"{'打开' if on else '关闭'}{name}" if zh else f"switch {name} {'on' if on else 'off'}"


def _opened(name: str, is_open: bool, zh: bool) -> str:
    return f"{'打开' if is_open else '关闭'}{name}" if zh else f"{'open' if is_open else 'close'} {name}"


def _window(call: ToolCall, zh: bool) -> str:
    zone, value = call.arguments["zone"], call.arguments["value"]
    if zh:
        name = f"{ZONE_ZH[zone]}车窗"
    else:
        name = (
            "all windows" if zone == "all" else f"the {ZONE_EN[zone]} window{'s' if zone in ('front', 'rear') else ''}"
        )
    if call.arguments["action"] == "change":
        words = ("把{x}开大一点", "open {x} a bit more") if value > 0 else ("把{x}关小一点", "close {x} a bit")
        return words[not zh].format(x=name)
    if value in (0.0, 100.0):
        return _opened(name, value == 100.0, zh)
    return f"把{name}打开到百分之{number(value)}" if zh else f"open {name} to {number(value)} percent"


def _level(call: ToolCall, zh: bool) -> str:
    arguments, name = call.arguments, _LEVELS[call.name][zh]
    value, zone = arguments["value"], arguments.get("zone", "all")
    if arguments.get("target") in ("navigation", "call"):
        lead = {"navigation": ("navigation ", "导航"), "call": ("call ", "通话")}[arguments["target"]][zh]
        name = lead + name
    if zone != "all":
        name = f"{ZONE_ZH[zone]}{name}" if zh else f"{ZONE_EN[zone]} {name}"
    if arguments["action"] == "change":
        if zh:
            return f"把{name}调{'高' if value > 0 else '低'}"
        return f"turn the {name} {'up' if value > 0 else 'down'}"
    if value == 0.0:
        return f"关闭{name}" if zh else f"switch the {name} off"
    if call.name == "set_temperature":
        return f"把{name}调到{number(value)}度" if zh else f"set the {name} to {number(value)} degrees"
    return f"把{name}调到百分之{number(value)}" if zh else f"set the {name} to {number(value)} percent"
