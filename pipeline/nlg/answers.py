"""Spoken answers to questions about the car."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.frames import Language, ToolResult
from pipeline.vehicle.writes import FAVOURITES, RADIO

_SEATS_EN = ("driver", "passenger", "rear left", "rear right")
_SEATS_ZH = ("主驾", "副驾", "左后", "右后")
_WEEKDAYS_EN = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_WEEKDAYS_ZH = "一二三四五六日"


def number(value: Any) -> str:
    """A number without needless decimals."""
    rounded = round(float(value), 1)
    return str(int(rounded)) if rounded == int(rounded) else str(rounded)


def say_answer(result: ToolResult, language: Language) -> str:
    """The answer of an ask_vehicle result."""
    return _ANSWERS[result.detail["item"]](result, language == "zh")


def _plain(en: str, zh_text: str, scale: float = 1.0) -> Callable[[ToolResult, bool], str]:
    return lambda result, zh: (zh_text if zh else en).format(number(float(result.value) * scale))


def _on(en: str, zh_name: str) -> Callable[[ToolResult, bool], str]:
    def sentence(result: ToolResult, zh: bool) -> str:
        active = bool(result.value)
        return f"{zh_name}{'开着' if active else '关着'}。" if zh else f"The {en} is {'on' if active else 'off'}."

    return sentence


def _seat_of(path: str, zh: bool) -> str:
    index = (2 if "Row2" in path else 0) + (1 if "Passenger" in path else 0)
    return (_SEATS_ZH if zh else _SEATS_EN)[index]


def _openings(en: str, zh_name: str) -> Callable[[ToolResult, bool], str]:
    """Windows or doors: which ones stand open, and how far."""

    def sentence(result: ToolResult, zh: bool) -> str:
        seats: dict[float, list[str]] = {}
        for path, value in zip(result.detail["paths"], result.detail["values"], strict=True):
            seats.setdefault(100.0 * value if isinstance(value, bool) else float(value), []).append(_seat_of(path, zh))
        asked_for = len(result.detail["paths"])
        parts = [_opened(seats.pop(far), far, asked_for) for far in sorted(seats, reverse=True)]
        say_part = _opening_zh if zh else _opening_en
        joined = ("，" if zh else ", ").join(say_part(part, zh_name if zh else en) for part in parts)
        return joined + "。" if zh else joined[0].upper() + joined[1:] + "."

    return sentence


def _per_seat(name: str, zh_name: str, state: Callable[[float, bool], str]) -> Callable[[ToolResult, bool], str]:
    """A value that every seat has of its own: said once where the whole car agrees, else with the seats it is true of.

    state: the words for a value, Mandarin with True.
    """

    def sentence(result: ToolResult, zh: bool) -> str:
        seats: dict[float, list[str]] = {}
        for path, value in zip(result.detail["paths"], result.detail["values"], strict=True):
            seats.setdefault(float(value), []).append(_seat_of(path, zh))
        if len(seats) == 1 and len(result.detail["paths"]) == len(_SEATS_EN):
            every = result.call.arguments.get("zone") == "all"
            said = state(next(iter(seats)), zh)
            if zh:
                return f"{'全车' if every else ''}{zh_name}{said}。"
            return f"The {name} {said}{' on all seats' if every else ''}."
        if zh:
            return "，".join(f"{'、'.join(who)}{zh_name}{state(value, zh)}" for value, who in seats.items()) + "。"
        parts = [f"the {_listed(who)} {name} {state(value, zh)}" for value, who in seats.items()]
        joined = ", ".join(parts)
        return joined[0].upper() + joined[1:] + "."

    return sentence


def _listed(seats: list[str]) -> str:
    return f"{', '.join(seats[:-1])} and {seats[-1]}" if len(seats) > 1 else seats[0]


def _set_to(value: float, zh: bool) -> str:
    return f"设定为{number(value)}度" if zh else f"is set to {number(value)} degrees"


def _fan_at(value: float, zh: bool) -> str:
    return f"是百分之{number(value)}" if zh else f"is at {number(value)} percent"


def _heated(value: float, zh: bool) -> str:
    if value <= 0:
        return "关着" if zh else "is off"
    return f"在百分之{number(value)}" if zh else f"is at {number(value)} percent"


_OPENED = tuple[list[str], float, bool]
"""Seats, how far open in percent, and whether these are all of the car's."""


def _opened(seats: list[str], far: float, asked_for: int) -> _OPENED:
    return seats, far, asked_for == len(seats) == len(_SEATS_EN)


def _opening_en(part: _OPENED, name: str) -> str:
    seats, far, every = part
    state = "closed" if far == 0 else "open" if far == 100 else f"open at {number(far)} percent"
    if every:
        return f"all {name}s are {state}"
    return f"the {_listed(seats)} {name}{'s are' if len(seats) > 1 else ' is'} {state}"


def _opening_zh(part: _OPENED, name: str) -> str:
    seats, far, every = part
    state = "关着" if far == 0 else "开着" if far == 100 else f"开到百分之{number(far)}"
    return f"所有{name}都{state}" if every else f"{'、'.join(seats)}{name}{state}"


def _locks(result: ToolResult, zh: bool) -> str:
    locked = all(result.detail["values"])
    if zh:
        return "车门都锁着。" if locked else "车门没有全部上锁。"
    return "The doors are locked." if locked else "Not all doors are locked."


def _defrost(result: ToolResult, zh: bool) -> str:
    front, rear = result.detail["values"]
    if zh:
        return f"前窗除雾{'开着' if front else '关着'}，后窗除雾{'开着' if rear else '关着'}。"
    return f"The front defroster is {'on' if front else 'off'}, the rear one {'on' if rear else 'off'}."


def _ambient(result: ToolResult, zh: bool) -> str:
    on = any(result.detail["values"])
    return f"氛围灯{'开着' if on else '关着'}。" if zh else f"The ambient light is {'on' if on else 'off'}."


_EXTERIOR_EN = ("low beam", "high beam", "front fog lights", "rear fog light")
_EXTERIOR_ZH = ("近光灯", "远光灯", "前雾灯", "后雾灯")


def _exterior(result: ToolResult, zh: bool) -> str:
    """Which of the lights outside are on."""
    names = _EXTERIOR_ZH if zh else _EXTERIOR_EN
    on = [name for name, value in zip(names, result.detail["values"], strict=True) if value]
    if zh:
        return f"{'、'.join(on)}开着，其他外部灯关着。" if on else "近光灯、远光灯和雾灯都关着。"
    if not on:
        return "The low beam, the high beam and the fog lights are off."
    verb = "are" if len(on) > 1 or on[0].endswith("s") else "is"
    return f"The {_listed(on)} {verb} on, the other lights outside are off."


def _tyres(result: ToolResult, zh: bool) -> str:
    values = result.detail["values"]
    bars = [number(value / 100) for value in values]
    if len(set(bars)) == 1:
        return f"四个轮胎的胎压都是{bars[0]}巴。" if zh else f"All four tires are at {bars[0]} bar."
    if zh:
        return f"胎压：左前{bars[0]}，右前{bars[1]}，左后{bars[2]}，右后{bars[3]}巴。"
    return f"Front left {bars[0]}, front right {bars[1]}, rear left {bars[2]}, rear right {bars[3]} bar."


def _time(result: ToolResult, zh: bool) -> str:
    hour, minute = str(result.value).split(":")
    return f"现在是{int(hour)}点{int(minute)}分。" if zh else f"It is {result.value}."


def _date(result: ToolResult, zh: bool) -> str:
    _, month, day = str(result.value).split("-")
    weekday = result.detail["weekday"]
    if zh:
        return f"今天是{int(month)}月{int(day)}日，星期{_WEEKDAYS_ZH[weekday]}。"
    months = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ]
    return f"It is {_WEEKDAYS_EN[weekday]}, {months[int(month) - 1]} {int(day)}."


def _destination(result: ToolResult, zh: bool) -> str:
    place = result.detail["place"]
    if place is None:
        return "现在没有设置目的地。" if zh else "No destination is set."
    distance = number(result.detail["distance_km"])
    return (
        f"目的地是{place['zh']}，还有大约{distance}公里。"
        if zh
        else f"We are going to {place['en']}, about {distance} kilometers to go."
    )


def _media(result: ToolResult, zh: bool) -> str:
    if str(result.value).startswith(RADIO):
        megahertz = number(str(result.value).removeprefix(RADIO))
        return f"正在播放调频{megahertz}兆赫。" if zh else f"This is F M {megahertz}."
    if result.value == FAVOURITES:
        return "正在播放您的收藏。" if zh else "Your favourites are playing."
    kept = "".join(c for c in str(result.value).removeprefix("media:search?q=") if c.isalnum() or c in " '-&")[
        :40
    ].strip()
    if not kept:
        return "我不知道现在放的是什么。" if zh else "I don't know what is playing."
    return f"正在播放{kept}。" if zh else f"You asked for {kept}."


def _sunroof(result: ToolResult, zh: bool) -> str:
    value = result.value
    if zh:
        return "天窗关着。" if value == 0 else "天窗翘着。" if value < 0 else "天窗开着。"
    return f"The sunroof is {'closed' if value == 0 else 'tilted' if value < 0 else 'open'}."


def _wipers(result: ToolResult, zh: bool) -> str:
    off = result.value == "OFF"
    return f"雨刷{'关着' if off else '开着'}。" if zh else f"The wipers are {'off' if off else 'on'}."


def _trunk(result: ToolResult, zh: bool) -> str:
    return (
        f"后备箱{'开着' if result.value else '关着'}。"
        if zh
        else f"The boot is {'open' if result.value else 'closed'}."
    )


def _gear(result: ToolResult, zh: bool) -> str:
    value = int(result.value)
    en = "neutral" if value == 0 else "reverse" if value < 0 else "drive"
    zh_name = "空挡" if value == 0 else "倒挡" if value < 0 else "前进挡"
    return f"现在是{zh_name}。" if zh else f"The car is in {en}."


def _location(result: ToolResult, zh: bool) -> str:
    latitude, longitude = number(result.detail["latitude"]), number(result.detail["longitude"])
    return (
        f"我们在北纬{latitude}度，东经{longitude}度。"
        if zh
        else f"We are at latitude {latitude}, longitude {longitude}."
    )


_ANSWERS: dict[str, Callable[[ToolResult, bool], str]] = {
    "speed": _plain("We are driving at {} kilometers per hour.", "当前车速{}公里每小时。"),
    "battery": _plain("The battery is at {} percent.", "电量还剩百分之{}。"),
    "range": _plain("About {} kilometers of range are left.", "续航还剩大约{}公里。", 0.001),
    "outside_temperature": _plain("It is {} degrees outside.", "车外温度{}度。"),
    "inside_temperature": _plain("It is {} degrees in the cabin.", "车内温度{}度。"),
    "set_temperature": _per_seat("temperature", "温度", _set_to),
    "odometer": _plain("The car has driven {} kilometers.", "总里程{}公里。"),
    "volume": _plain("The volume is at {} percent.", "音量是百分之{}。"),
    "fan": _per_seat("fan", "风量", _fan_at),
    "air_conditioning": _on("air conditioning", "空调"),
    "recirculation": _on("air recirculation", "内循环"),
    "lights": _on("interior light", "车内灯"),
    "windows": _openings("window", "车窗"),
    "doors": _openings("door", "车门"),
    "locks": _locks,
    "sunroof": _sunroof,
    "seat_heating": _per_seat("seat heating", "座椅加热", _heated),
    "defrost": _defrost,
    "wipers": _wipers,
    "trunk": _trunk,
    "tyre_pressure": _tyres,
    "time": _time,
    "date": _date,
    "destination": _destination,
    "media": _media,
    "gear": _gear,
    "seat_massage": _per_seat("seat massage", "座椅按摩", _heated),
    "ambient_light": _ambient,
    "exterior_lights": _exterior,
    "location": _location,
}
