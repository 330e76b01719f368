"""MAC-SLU's labels (domain, intent, slots) as this project's calls, as far as they can be told.

Conservative: what a label does not say clearly is `None`, and a sentence with such a label is counted apart. A `Wish`
without a tool is for something that this car lacks or that is no command to it: nothing may be done for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.frames import ToolCall
from pipeline.nlu.numbers import find_numbers
from pipeline.nlu.phonetics import tokens_of

_ON = ("打开", "开启", "开", "开一下", "启动", "开开", "启用")
_OFF = ("关闭", "关掉", "关了", "关上", "关", "关一下", "关下", "关了吧")
_DOWN = ("降下", "下降", "摇下")
_UP = ("上升", "升起", "摇上")
_ZONES = {
    "主驾": "driver",
    "主驾驶": "driver",
    "主驾位置": "driver",
    "副驾": "passenger",
    "副驾驶": "passenger",
    "后排": "rear",
    "后": "rear",
    "二排": "rear",
    "前排": "front",
    "前": "front",
    "主副驾的": "front",
    "左后": "rear_left",
    "右后": "rear_right",
    "左前面": "driver",
    "右前": "passenger",
    "所有": "all",
    "全部": "all",
    "全车": "all",
    "整车": "all",
}
_WINDOWS = ("车窗", "窗户", "窗户玻璃", "车上窗户")
_TRUNK = ("后备箱", "尾门", "后尾箱")
_SHADE = ("遮阳帘",)
_DOME = ("阅读灯", "车内灯", "顶灯")
_EXTERIOR = {
    "远光灯": "high_beam",
    "雾灯": "fog",
    "前雾灯": "front_fog",
    "后雾灯": "rear_fog",
    "示廓灯": "position",
    "示宽灯": "position",
    "轮廓灯": "position",
    "位置灯": "position",
}
_AMBIENT = ("氛围灯", "车内氛围灯")
_SCREENS = ("屏幕", "中控屏", "中控大屏", "显示屏")
_MODES = {
    "自然风": "natural",
    "扫风": "swing",
    "极速制冷": "rapid_cooling",
    "快速制冷": "rapid_cooling",
    "极速降温": "rapid_cooling",
    "快速降温": "rapid_cooling",
    "极速制热": "rapid_heating",
    "快速制热": "rapid_heating",
    "极速升温": "rapid_heating",
    "自动": "auto",
    "节能": "eco",
}
_HEADLIGHTS = ("大灯", "车大灯", "近光灯")
_KNOWN = (
    *_WINDOWS,
    *_TRUNK,
    *_SHADE,
    *_DOME,
    *_HEADLIGHTS,
    *_EXTERIOR,
    *_AMBIENT,
    *_SCREENS,
    "空调",
    "靠背",
    "座椅",
    "椅",
    "天窗",
    "方向盘",
    "车灯",
    "车门",
)
"""Things this car has: a label about one of them that no rule below maps is left out, not taken for a missing one."""
_KNOWN_WORDS = re.compile("温度|风|音量|声|雾|霜|循环|亮度|锁|加热|通风|AC|冷气|制冷|导航声音|雨刷|雨刮|时间|电量")


@dataclass(frozen=True, slots=True)
class Wish:
    """What must come of one label. tool: "" for nothing; args: what the call must hold; contains: words that its text
    must hold; sign: of its value, or of the change (0 for any).
    """

    tool: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)
    contains: tuple[str, ...] = ()
    sign: int = 0

    def met_by(self, call: ToolCall) -> bool:
        """Whether the call is what was wished for."""
        if call.name != self.tool or any(call.arguments.get(name) != value for name, value in self.args.items()):
            return False
        text = str(call.arguments.get("query", call.arguments.get("place", "")))
        if not all(word in text for word in self.contains):
            return False
        return not self.sign or call.arguments["value"] * self.sign > 0


NOTHING = Wish()


def wishes_of(gold: Sequence[Mapping[str, Any]]) -> list[Wish] | None:
    """What must come of all labels of a sentence; None where one of them cannot be told."""
    wishes = []
    for label in gold:
        wish = _DOMAINS.get(label["domain"], _unclear)(label["intent"], label["slots"])
        if wish is None:
            return None
        wishes.append(wish)
    return wishes


def _unclear(intent: str, slots: Mapping[str, str]) -> Wish | None:
    return None


def _missing(intent: str, slots: Mapping[str, str]) -> Wish | None:
    return NOTHING


def _music(intent: str, slots: Mapping[str, str]) -> Wish | None:
    if {"页面", "位置", "应用名称"} & set(slots):
        return None
    if intent == "播放收藏" and not {"播放列表", "歌手名"} & set(slots):
        return Wish("control_media", {"action": "play_favourites"})
    if intent == "播放控制":
        action = slots.get("操作", "")
        if "随机" in action or "循环" in action:
            which = "歌曲名" in slots  # which song to repeat: a wish of two parts
            return None if which else Wish("control_media", {"action": "shuffle" if "随机" in action else "repeat"})
        if action in ("下一首", "换", "换一首", "切"):
            return Wish("control_media", {"action": "next"})
        if action == "上一首":
            return Wish("control_media", {"action": "previous"})
        return Wish("control_media", {"action": "play"}) if action == "继续" else None
    if intent != "播放音乐":
        return None
    named = tuple(slots[name] for name in ("歌手名", "歌曲名", "专辑名") if name in slots)
    if named:
        return Wish("play_media", contains=named)
    if set(slots) <= {"操作", "对象", "操作_concrete"}:
        return Wish("control_media", {"action": "play"}) if slots.get("对象") in ("音乐", "歌", "歌曲") else None
    return None


def _map(intent: str, slots: Mapping[str, str]) -> Wish | None:
    if intent in ("导航", "导航到常用地址"):
        if {"途经点类型", "途经点名称", "起点名称", "终点类型"} & set(slots) or "终点名称" not in slots:
            return None
        return Wish("navigate_to", contains=(slots["终点名称"],))
    if intent == "查询路程" and slots.get("poi名称", "目的地") != "目的地":
        return Wish("ask_distance", contains=(slots["poi名称"],))
    if intent == "查询定位":
        return Wish("ask_vehicle", {"item": "location"})
    if intent in ("收藏", "增加途经点", "删除途经点", "设置常用地址", "地图操作", "查询路况"):
        return NOTHING
    return None


def _car(intent: str, slots: Mapping[str, str]) -> Wish | None:
    place = slots.get("位置")
    if (place is not None and place not in _ZONES) or "车机模块" in slots:
        return None
    zone = {} if place is None else {"zone": _ZONES[place]}
    action = slots.get("操作", "")
    is_on = True if action in _ON else False if action in _OFF else None
    thing = slots.get("对象", "")
    function = slots.get("对象功能") or slots.get("功能") or slots.get("模式") or ""
    what, amount = slots.get("调节内容", ""), slots.get("value", "")
    if "页面" in slots:
        return NOTHING
    if slots.get("调节内容") == "方向" and thing != "靠背" and "屏" in thing:
        return NOTHING
    for rule in (_further, _openings, _seats, _switches, _air, _sound):
        wish = rule(thing, function, what, amount, is_on, action, zone)
        if wish is not None:
            return wish
    said = thing + function + what
    if thing in _KNOWN or _KNOWN_WORDS.search(said) or not said:
        return _missing_mode(thing, function)
    return NOTHING


_MISSING_MODES = ("商务", "驻车", "清洁")


def _missing_mode(thing: str, function: str) -> Wish | None:
    return NOTHING if any(word in function for word in _MISSING_MODES) else None


def _further(
    thing: str, function: str, what: str, amount: str, is_on: bool | None, action: str, zone: Mapping[str, str]
) -> Wish | None:
    """Massage, lights outside, decorative light, climate modes, the screen."""
    if "按摩" in function + thing:
        if what in ("模式", "时长", "时间"):
            return NOTHING
        if amount or is_on is None:
            return None
        return Wish("set_seat_massage", {**zone, "action": "set"} | ({} if is_on else {"value": 0.0}), sign=int(is_on))
    if thing in _EXTERIOR and is_on is not None and not function and not amount:
        which = _EXTERIOR[thing]
        return (
            NOTHING if which == "position" and not is_on else Wish("set_exterior_light", {"which": which, "on": is_on})
        )
    if thing in _AMBIENT:
        if what or function or amount:
            return NOTHING if what == "模式" else None
        if is_on is None:
            return None
        return Wish("set_ambient_light", {**zone, "action": "set"} | ({} if is_on else {"value": 0.0}), sign=int(is_on))
    if function in _MODES and thing in ("", "空调") and (is_on is not None or not action):
        return Wish("set_climate_mode", {"mode": _MODES[function], "on": is_on is not False})
    if thing in _SCREENS and is_on is not None and not (function or what or amount or zone):
        return Wish("set_screen", {"on": is_on})
    return NOTHING if thing in _SCREENS and what != "亮度" else None


def _openings(
    thing: str, function: str, what: str, amount: str, is_on: bool | None, action: str, zone: Mapping[str, str]
) -> Wish | None:
    if function or what or amount:
        return None
    opens = is_on if is_on is not None else True if action in _DOWN else False if action in _UP else None
    if opens is None:
        return None
    if thing in _WINDOWS:
        return Wish("set_window", {**zone, "action": "set", "value": 100.0 if opens else 0.0})
    if thing == "天窗" and is_on is not None:
        return Wish("set_sunroof", {"position": "open" if is_on else "closed"})
    if thing in _SHADE and is_on is not None:
        return Wish("set_sunshade", {"action": "set", "value": 100.0 if is_on else 0.0})
    if thing in _TRUNK and is_on is not None:
        return Wish("set_trunk", {"open": is_on})
    if thing == "车门" or (thing in _HEADLIGHTS and is_on is False):
        return NOTHING
    if thing in _HEADLIGHTS:
        return Wish("set_headlights", {"on": True})
    return Wish("set_interior_light", {"on": is_on}) if thing in _DOME and is_on is not None else None


_HEATED = {"通风": "set_seat_ventilation", "加热": "set_seat_heating"}


def _seats(
    thing: str, function: str, what: str, amount: str, is_on: bool | None, action: str, zone: Mapping[str, str]
) -> Wish | None:
    if thing in ("座椅", "椅", "座位") and function in _HEATED:
        tool = _HEATED[function]
        if not amount and not what and is_on is not None:
            return Wish(tool, {**zone, "action": "set"} | ({} if is_on else {"value": 0.0}), sign=1 if is_on else 0)
        level = _number(amount)
        if level is not None and 1 <= level <= 3 and re.search("[档挡]", amount):
            return Wish(tool, {**zone, "action": "set", "value": float(round(level * 100 / 3))})
        return None
    if thing == "方向盘" and function == "加热" and is_on is not None:
        return Wish("set_steering_wheel_heating", {} if is_on else {"value": 0.0}, sign=1 if is_on else 0)
    return None


def _switches(
    thing: str, function: str, what: str, amount: str, is_on: bool | None, action: str, zone: Mapping[str, str]
) -> Wish | None:
    if is_on is None or amount:
        return None
    if thing == "空调" and not function and not what:
        return Wish("set_air_conditioning", {"on": is_on})
    if thing in ("", "空调") and "内循环" in function:
        return Wish("set_recirculation", {"on": is_on})
    if thing in ("", "空调") and "外循环" in function:
        return Wish("set_recirculation", {"on": not is_on})
    return None


def _air(
    thing: str, function: str, what: str, amount: str, is_on: bool | None, action: str, zone: Mapping[str, str]
) -> Wish | None:
    if thing not in ("", "空调") or function:
        return None
    value = _number(amount)
    if what == "温度":
        if value is not None and value.is_integer() and 16 <= value <= 30 and re.search("[0-9十]", amount):
            return Wish("set_temperature", {**zone, "action": "set", "value": value})
        return _relative("set_temperature", amount, action, zone)
    if what in ("风量", "风速", "风力", "风挡", "风"):
        if value is not None and 1 <= value <= 5 and not re.search("[高低大小]", amount):
            return Wish("set_fan", {**zone, "action": "set", "value": 20 * value})
        if amount in ("最大", "max", "最大挡", "最大档"):
            return Wish("set_fan", {**zone, "action": "set", "value": 100.0})
        return _relative("set_fan", amount, action, zone)
    return None


def _relative(tool: str, amount: str, action: str, zone: Mapping[str, str]) -> Wish | None:
    if re.search("最|有点|太", amount + action) or _number(amount) is not None:
        return None
    up = re.search(r"[高大升强]|^\+$", amount + action)
    down = re.search(r"[低小降弱]|^-$", amount + action)
    if (up is None) == (down is None):
        return None
    return Wish(tool, {**zone, "action": "change"}, sign=1 if up else -1)


def _sound(
    thing: str, function: str, what: str, amount: str, is_on: bool | None, action: str, zone: Mapping[str, str]
) -> Wish | None:
    if thing or function or what not in ("音量", "声音"):
        return None
    value = _number(amount)
    media = {"target": "media"}
    if value is not None and re.fullmatch(r"(?:百分之)?[零一二三四五六七八九十百]+|\d+%?", amount) and 1 < value <= 100:
        return Wish("set_volume", {**media, "action": "set", "value": value})
    named = {"最大": 100.0, "max": 100.0, "一半": 50.0}
    if amount in named:
        return Wish("set_volume", {**media, "action": "set", "value": named[amount]})
    return _relative("set_volume", amount, action, media)


def _number(text: str) -> float | None:
    numbers = find_numbers([token.text for token in tokens_of(text)])
    return numbers[0].value if len(numbers) == 1 else None


def _radio(intent: str, slots: Mapping[str, str]) -> Wish | None:
    if intent == "播放控制" and slots.get("操作") in ("下一个", "下一", "上一个", "上一"):
        return Wish("control_media", {"action": "next" if slots["操作"].startswith("下") else "previous"})
    value = _number(slots.get("频道", ""))
    if intent == "播放电台" and slots.get("频道类型") == "调频" and value is not None:
        return Wish("tune_radio", {"value": value})
    return None


_DOMAINS: dict[str, Callable[[str, Mapping[str, str]], Wish | None]] = {
    "音乐": _music,
    "地图": _map,
    "车载控制": _car,
    "收音机": _radio,
    "打电话": _missing,
    "天气": _missing,
}
