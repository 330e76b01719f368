"""What is said after tools ran: short, in the person's language, with the value that was read back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pipeline.frames import Language, ToolResult
from pipeline.nlg.answers import number, say_answer
from pipeline.nlg.refusals import say_failure, say_refusal
from pipeline.nlg.zones import ZONE_EN, ZONE_ZH
from pipeline.vehicle.writes import RADIO

_AVOID_EN = {"motorway": "motorways", "toll": "toll roads", "ferry": "ferries"}
_AVOID_ZH = {"motorway": "高速", "toll": "收费路段", "ferry": "轮渡"}


def say(results: Sequence[ToolResult], language: Language) -> str:
    """One short sentence per result."""
    sentences = [_one(result, language) for result in results]
    return ("" if language == "zh" else " ").join(sentence for sentence in sentences if sentence)


def _one(result: ToolResult, language: Language) -> str:
    if result.status == "refused":
        return say_refusal(result, language)
    if result.status == "failed":
        return say_failure(result, language)
    if result.call.name == "ask_vehicle":
        return say_answer(result, language)
    return _DONE[result.call.name](result, language == "zh")


def _same_value(result: ToolResult) -> bool:
    values = result.detail.get("values", [result.value])
    return all(value == values[0] for value in values)


def _temperature(result: ToolResult, zh: bool) -> str:
    zone = result.call.arguments["zone"]
    degrees = number(result.value)
    change = result.call.arguments["action"] == "change" and not _same_value(result)
    if zh:
        return f"{ZONE_ZH[zone]}温度已{'调整，主驾' if change else '调到'}{degrees}度。"
    name = "The temperature" if zone == "all" else f"The {ZONE_EN[zone]} temperature"
    return f"{name} is now {degrees} degrees."


def _percent(en: str, zh_name: str, *, zoned: bool = True) -> Callable[[ToolResult, bool], str]:
    def sentence(result: ToolResult, zh: bool) -> str:
        zone = result.call.arguments.get("zone", "") if zoned else ""
        value = abs(float(result.value))
        if value == 0:
            return f"{ZONE_ZH.get(zone, '')}{zh_name}已关闭。" if zh else f"The {_zone(zone)}{en} is off."
        if zh:
            return f"{ZONE_ZH.get(zone, '')}{zh_name}已调到百分之{number(value)}。"
        return f"The {_zone(zone)}{en} is at {number(value)} percent."

    return sentence


def _zone(zone: str) -> str:
    return "" if zone in ("", "all") else ZONE_EN[zone] + " "


def _window(result: ToolResult, zh: bool) -> str:
    zone, value = result.call.arguments["zone"], result.value
    plural = zone in ("all", "front", "rear")
    if zh:
        state = "已关闭" if value == 0 else "已完全打开" if value == 100 else f"已打开到百分之{number(value)}"
        return f"{ZONE_ZH[zone]}车窗{state}。"
    name = "All windows are" if zone == "all" else f"The {ZONE_EN[zone]} window{'s are' if plural else ' is'}"
    state = "closed" if value == 0 else "fully open" if value == 100 else f"{number(value)} percent open"
    return f"{name} {state}."


def _volume(result: ToolResult, zh: bool) -> str:
    en, name = {"navigation": ("navigation ", "导航"), "call": ("call ", "通话")}.get(
        result.call.arguments["target"], ("", "")
    )
    value = number(result.value)
    if result.value == 0:
        return f"{name}已静音。" if zh else f"The {en.strip() or 'sound'} is muted."
    if zh:
        return f"{name}音量已调到百分之{value}。"
    return f"The {en}volume is at {value} percent."


def _switch(en: str, zh_name: str) -> Callable[[ToolResult, bool], str]:
    def sentence(result: ToolResult, zh: bool) -> str:
        if zh:
            return f"{zh_name}已{'打开' if result.value else '关闭'}。"
        return f"The {en} is {'on' if result.value else 'off'}."

    return sentence


def _defrost(result: ToolResult, zh: bool) -> str:
    area = result.call.arguments["area"]
    if zh:
        return (
            f"{ {'front': '前窗', 'rear': '后窗', 'all': '前后窗'}[area] }除雾已{'打开' if result.value else '关闭'}。"
        )
    name = {"front": "front defroster is", "rear": "rear defroster is", "all": "defrosters are"}[area]
    return f"The {name} {'on' if result.value else 'off'}."


def _sunroof(result: ToolResult, zh: bool) -> str:
    position = result.call.arguments["position"]
    if zh:
        return f"天窗正在{ {'open': '打开', 'closed': '关闭', 'tilted': '翘起'}[position] }。"
    return f"The sunroof is {'opening' if position == 'open' else 'closing' if position == 'closed' else 'tilting'}."


def _sunshade(result: ToolResult, zh: bool) -> str:
    value = 100 - result.value  # VSS: 0 is open
    if zh:
        return "遮阳帘已关闭。" if value == 0 else f"遮阳帘已打开到百分之{number(value)}。"
    return "The sunshade is closed." if value == 0 else f"The sunshade is {number(value)} percent open."


def _locks(result: ToolResult, zh: bool) -> str:
    if zh:
        return "车门已上锁。" if result.value else "车门已解锁。"
    return "The doors are locked." if result.value else "The doors are unlocked."


def _trunk(result: ToolResult, zh: bool) -> str:
    if zh:
        return "后备箱已打开。" if result.value else "后备箱已关闭。"
    return "The boot is open." if result.value else "The boot is closed."


def _media(result: ToolResult, zh: bool) -> str:
    words = {
        "play": ("Playing.", "继续播放。"),
        "stop": ("Playback stopped.", "已停止播放。"),
        "next": ("Next track.", "下一首。"),
        "previous": ("Previous track.", "上一首。"),
        "fast_forward": ("Fast forwarding.", "正在快进。"),
        "rewind": ("Rewinding.", "正在快退。"),
        "shuffle": ("Shuffle is on.", "已切换到随机播放。"),
        "repeat": ("This track repeats.", "已切换到单曲循环。"),
        "in_order": ("Playing in order.", "已切换到顺序播放。"),
        "add_favourite": ("Added to your favourites.", "已加入收藏。"),
        "play_favourites": ("Playing your favourites.", "正在播放您的收藏。"),
    }
    return words[result.call.arguments["action"]][zh]


def _play(result: ToolResult, zh: bool) -> str:
    query = spoken_name(str(result.value).removeprefix("media:search?q="))
    return f"正在播放{query}。" if zh else f"Playing {query}."


def spoken_name(text: str) -> str:
    """A heard name as it may be repeated: letters, digits, spaces and a few signs, at most 40 characters."""
    kept = "".join(c for c in text if c.isalnum() or c in " '-&")
    return " ".join(kept.split())[:40]


def _source(result: ToolResult, zh: bool) -> str:
    names = {
        "BLUETOOTH": ("Bluetooth", "蓝牙"),
        "INTERNET": ("internet radio", "网络电台"),
        "FM": ("F M radio", "调频收音机"),
        "AM": ("A M radio", "中波收音机"),
        "DAB": ("digital radio", "数字广播"),
        "USB": ("U S B", "U盘"),
        "CD": ("the C D", "光盘"),
        "AUX": ("the aux input", "辅助输入"),
    }
    name = names[str(result.detail["values"][0])]
    return f"正在播放{name[1]}。" if zh else f"Playing from {name[0]}."


def _navigation_voice(result: ToolResult, zh: bool) -> str:
    muted = result.value == "MUTED"
    if zh:
        return "导航已静音。" if muted else "导航语音已打开。"
    return "The navigation voice is muted." if muted else "The navigation voice is on."


def _avoiding(avoid: list[str], zh: bool) -> str:
    if not avoid:
        return ""
    if zh:
        return "，避开" + "和".join(_AVOID_ZH[name] for name in avoid)
    return ", avoiding " + " and ".join(_AVOID_EN[name] for name in avoid)


def _navigate(result: ToolResult, zh: bool) -> str:
    detail = result.detail
    distance, avoid = number(detail["distance_km"]), _avoiding(detail["avoid"], zh)
    if zh:
        return f"开始导航去{detail['place']['zh']}，全程约{distance}公里{avoid}。"
    return f"Navigating to {detail['place']['en']}, about {distance} kilometers away{avoid}."


def _distance(result: ToolResult, zh: bool) -> str:
    detail = result.detail
    if zh:
        return f"到{detail['place']['zh']}大约{number(detail['distance_km'])}公里。"
    return f"It is about {number(detail['distance_km'])} kilometers to {detail['place']['en']}."


def _cancelled(result: ToolResult, zh: bool) -> str:
    if result.detail["was_active"]:
        return "导航已取消。" if zh else "The route is cancelled."
    return "现在没有正在进行的导航，已取消。" if zh else "The route is cancelled; no guidance was running."


def _options(result: ToolResult, zh: bool) -> str:
    return f"好的{_avoiding(list(result.value), zh)}。" if zh else f"Okay{_avoiding(list(result.value), zh)}."


def _wipers(result: ToolResult, zh: bool) -> str:
    words: dict[str, tuple[str, str]] = {
        "OFF": ("off", "已关闭"),
        "SLOW": ("on slow", "已调到慢速"),
        "MEDIUM": ("on", "已打开"),
        "FAST": ("on fast", "已调到快速"),
        "INTERVAL": ("on interval", "已调到间歇"),
    }
    word = words[str(result.value)]
    return f"雨刷{word[1]}。" if zh else f"The wipers are {word[0]}."


EXTERIOR_NAMES = {
    "high_beam": ("high beam", "远光灯"),
    "fog": ("fog lights", "雾灯"),
    "front_fog": ("front fog lights", "前雾灯"),
    "rear_fog": ("rear fog light", "后雾灯"),
    "position": ("position lights", "示廓灯"),
}
COLOR_NAMES = {
    "white": "白色",
    "red": "红色",
    "orange": "橙色",
    "yellow": "黄色",
    "green": "绿色",
    "cyan": "青色",
    "blue": "蓝色",
    "purple": "紫色",
    "pink": "粉色",
}
MODE_NAMES = {
    "auto": ("automatic mode of the climate control", "空调自动模式"),
    "eco": ("eco mode of the climate control", "空调节能模式"),
    "rapid_cooling": ("rapid cooling", "极速制冷"),
    "rapid_heating": ("rapid heating", "快速制热"),
    "swing": ("swing of the air vents", "扫风模式"),
    "natural": ("natural wind", "自然风模式"),
}
DIRECTION_NAMES = {"windscreen": ("the windscreen", "挡风玻璃"), "face": ("the face", "脸"), "feet": ("the feet", "脚")}


def _exterior(result: ToolResult, zh: bool) -> str:
    en, name = EXTERIOR_NAMES[result.call.arguments["which"]]
    if zh:
        return f"{name}已{'打开' if result.value else '关闭'}。"
    return f"The {en} {'are' if en.endswith('s') else 'is'} {'on' if result.value else 'off'}."


def _color(result: ToolResult, zh: bool) -> str:
    color = result.call.arguments["color"]
    return f"氛围灯已换成{COLOR_NAMES[color]}。" if zh else f"The ambient light is {color}."


def _mode(result: ToolResult, zh: bool) -> str:
    return _switch(*MODE_NAMES[result.call.arguments["mode"]])(result, zh)


def _direction(result: ToolResult, zh: bool) -> str:
    zone = result.call.arguments["zone"]
    en, name = DIRECTION_NAMES[result.call.arguments["direction"]]
    if zh:
        return f"{'' if zone == 'all' else ZONE_ZH[zone]}现在吹{name}。"
    return f"The {_zone(zone)}air now blows to {en}."


PAGE_NAMES = {
    "home": ("the home screen", "主页"),
    "navigation": ("the map", "导航页面"),
    "media": ("the media page", "音乐页面"),
    "climate": ("the climate page", "空调页面"),
    "phone": ("the phone page", "电话页面"),
    "vehicle": ("the vehicle page", "车辆页面"),
    "settings": ("the settings", "设置页面"),
}


def _page(result: ToolResult, zh: bool) -> str:
    en, name = PAGE_NAMES[result.call.arguments["page"]]
    return f"已打开{name}。" if zh else f"Showing {en}."


def _radio(result: ToolResult, zh: bool) -> str:
    megahertz = number(str(result.value).removeprefix(RADIO))
    return f"正在播放调频{megahertz}兆赫。" if zh else f"Playing F M {megahertz}."


def _seat(result: ToolResult, zh: bool) -> str:
    move, zone = result.call.arguments["move"], result.call.arguments["zone"]
    if move in ("recline", "upright"):
        name = f"{ZONE_ZH[zone]}靠背" if zh else f"The {ZONE_EN[zone]} backrest"
        return f"{name}现在是{number(result.value)}度。" if zh else f"{name} is at {number(result.value)} degrees."
    words = {
        "forward": ("forward", "前移"),
        "back": ("back", "后移"),
        "up": ("up", "升高"),
        "down": ("down", "降低"),
    }[move]
    if zh:
        return f"{ZONE_ZH[zone]}座椅已{words[1]}。"
    return f"The {ZONE_EN[zone]} seat has moved {words[0]}."


_DONE: dict[str, Callable[[Any, bool], str]] = {
    "set_temperature": _temperature,
    "set_fan": _percent("fan", "风量"),
    "set_window": _window,
    "set_sunroof": _sunroof,
    "set_sunshade": _sunshade,
    "set_seat_heating": _percent("seat heating", "座椅加热"),
    "set_seat_ventilation": _percent("seat ventilation", "座椅通风"),
    "set_steering_wheel_heating": _percent("steering wheel heating", "方向盘加热", zoned=False),
    "set_volume": _volume,
    "restore_volume": _volume,
    "set_brightness": _percent("screen brightness", "屏幕亮度", zoned=False),
    "set_defrost": _defrost,
    "set_air_conditioning": _switch("air conditioning", "空调"),
    "set_recirculation": _switch("air recirculation", "内循环"),
    "set_interior_light": _switch("interior light", "车内灯"),
    "set_headlights": _switch("low beam", "近光灯"),
    "set_wipers": _wipers,
    "set_door_locks": _locks,
    "set_trunk": _trunk,
    "set_seat_massage": _percent("seat massage", "座椅按摩"),
    "set_ambient_light": _percent("ambient light", "氛围灯"),
    "set_reading_light": _percent("reading light", "阅读灯"),
    "set_exterior_light": _exterior,
    "set_ambient_color": _color,
    "set_climate_mode": _mode,
    "set_air_direction": _direction,
    "set_screen": _switch("screen", "屏幕"),
    "set_seat_position": _seat,
    "show_page": _page,
    "tune_radio": _radio,
    "control_media": _media,
    "play_media": _play,
    "set_media_source": _source,
    "set_navigation_voice": _navigation_voice,
    "navigate_to": _navigate,
    "set_route_options": _options,
    "cancel_navigation": _cancelled,
    "ask_distance": _distance,
}
