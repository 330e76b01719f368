"""Rules of massage, lights, climate modes, the screen, the player's lists and moves of a seat."""

from __future__ import annotations

import re
from collections.abc import Callable

from pipeline.frames import ToolCall
from pipeline.nlu.evidence import Evidence
from pipeline.nlu.intents.devices import (
    CallCandidate,
    direction_of,
    level_calls,
    levelled,
    make_call,
    only,
    refusal,
    switch,
    switched,
)
from pipeline.nlu.slots import Amount, seat_zone

Rule = Callable[[Evidence, Amount], list[CallCandidate]]
_COLORS = {
    "white": r"\bwhite\b|白",
    "red": r"\bred\b|红",
    "orange": r"\borange\b|橙|橘",
    "yellow": r"\byellow\b|黄",
    "green": r"\bgreen\b|绿",
    "cyan": r"\b(?:cyan|turquoise|teal)\b|青",
    "blue": r"\bblue\b|蓝",
    "purple": r"\b(?:purple|violet)\b|紫",
    "pink": r"\bpink\b|粉",
}
_BRIGHT = re.compile(r"bright|\bdim|亮度|[亮暗]")
_BRIGHTER = re.compile(r"\bbrighter|\bbrighten|亮[一点些]|更亮")
_DIMMER = re.compile(r"\bdim|\bdarker|暗[一点些]|更暗")


_ON_OR_OFF = {"verb.on": True, "verb.open": True, "verb.off": False, "verb.close": False, "verb.stop": False}


def switched_here(evidence: Evidence, *devices: str) -> bool | None:
    """On or off for a thing beside which another may be switched the other way: the verb right before it counts."""
    at = next((match.start for match in evidence.matches if any(f"device.{name}" in match.tags for name in devices)), 0)
    said = [match for match in evidence.matches if match.end <= at and not match.tags.isdisjoint(_ON_OR_OFF)]
    if len(said) > 1:
        return _ON_OR_OFF[next(tag for tag in said[-1].tags if tag in _ON_OR_OFF)]
    return switched(evidence)


def massage(evidence: Evidence, amount: Amount) -> list[CallCandidate]:
    """Seat massage: on, off, a level; a kind of massage is something that the car has not."""
    if re.search(r"\bmode\b|模式|时长", evidence.text.lower()):
        return only(refusal("unsupported", "massage_kind"))
    if _BODY.search(evidence.text) and not evidence.numbers:  # a lower back is neither less nor the back row
        return only(make_call("set_seat_massage", zone="driver", action="set", value=50.0))
    zone = seat_zone(evidence, "driver")
    if _ENOUGH.search(evidence.text):
        return only(make_call("set_seat_massage", zone=zone, action="set", value=0.0))
    return levelled("set_seat_massage", evidence, amount, zone=zone)


_ENOUGH = re.compile(r"\bno\b.*\bany ?more\b|\b(?:plenty|enough)\b|够了|不用.*了|不要.*了", re.IGNORECASE)
_BODY = re.compile(r"\b(?:my|the) (?:lower |upper )?(?:back|shoulders?|neck|legs?)\b(?! (?:row|seat))", re.IGNORECASE)


def _light_level(name: str, evidence: Evidence, amount: Amount, zone: str) -> list[CallCandidate]:
    text = evidence.text.lower()
    brighter, dimmer = _BRIGHTER.search(text), _DIMMER.search(text)
    if amount.value is None and (brighter or dimmer) and not direction_of(evidence):
        step = 12.0 if amount.word == "little" else 25.0
        return only(make_call(name, zone=zone, action="change", value=step if brighter else -step))
    calls = level_calls(name, evidence, amount, zone=zone)
    if calls and switched(evidence) is not False:
        return calls
    is_on = switched(evidence)
    if is_on is None:
        return []
    return only(make_call(name, zone=zone, action="set", value=50.0 if is_on else 0.0))


def ambient_light(evidence: Evidence, amount: Amount) -> list[CallCandidate]:
    """Decorative light: a colour, a brightness, on and off."""
    text = evidence.text.lower()
    colors = [name for name, words in _COLORS.items() if re.search(words, text)]
    if len(colors) == 1 and evidence.has("verb.off", "verb.close"):  # whatever its colour is now
        return only(make_call("set_ambient_light", zone=seat_zone(evidence, "all"), action="set", value=0.0))
    if len(colors) == 1:
        return only(make_call("set_ambient_color", color=colors[0]))
    if colors or re.search(r"\bcolou?r|颜色|模式|\bmode\b|同步|提醒", text):
        return only(refusal("unsupported", "ambient_effect"))
    zone = seat_zone(evidence, "all")
    if _ENOUGH.search(evidence.text):
        return only(make_call("set_ambient_light", zone=zone, action="set", value=0.0))
    return _light_level("set_ambient_light", evidence, amount, zone)


def reading_light(evidence: Evidence, amount: Amount) -> list[CallCandidate]:
    """A reading light at a place or at a level; without either the cabin's light is meant."""
    if evidence.of("zone") or amount.value is not None or amount.word or direction_of(evidence):
        return _light_level("set_reading_light", evidence, amount, seat_zone(evidence, "driver"))
    if _BRIGHTER.search(evidence.text.lower()) or _DIMMER.search(evidence.text.lower()):
        return _light_level("set_reading_light", evidence, amount, "driver")
    return switch("set_interior_light")(evidence, amount)


def exterior_light(which: str) -> Rule:
    """One of the lights outside, on or off."""

    def calls(evidence: Evidence, amount: Amount) -> list[CallCandidate]:
        if _AUTO.search(evidence.text.lower()):
            return only(refusal("unsupported", "light_automatic"))
        is_on = False if _DIPPED.search(evidence.text) else switched_here(evidence, *_LIGHTS)
        if is_on is None:
            said = evidence.has("verb.set", "verb.play") or _SHINES.search(evidence.text) or len(evidence.tokens) <= 4
            is_on = True if said and "闪" not in evidence.text else None
        light = _fog_end(evidence.text, which)
        return [] if is_on is None else only(make_call("set_exterior_light", which=light, on=is_on))

    return calls


def _fog_end(text: str, which: str) -> str:
    """Which fog lights are meant where their end stands apart from them: 后面那个雾灯, 前后雾灯."""
    if "雾灯" not in text:
        return which
    front, rear = re.search("前.{0,4}雾灯", text), re.search("后.{0,4}雾灯", text)
    return "fog" if front and rear else "front_fog" if front else "rear_fog" if rear else which


_SHINES = re.compile("(?<![太好很真挺更最这那])亮(?!得|吗|不)")
"""Let it shine; 太亮 says how it is."""
_DIPPED = re.compile(r"\b(?:drop|dip|lower|lose)\b", re.IGNORECASE)
_LIGHTS = ("front_fog", "rear_fog", "fog_light", "high_beam", "position_light")
_AUTO = re.compile(r"\bauto(?:matic)?\b|自动|智能")
_AIR = re.compile(r"\b(?:ac|a c|air|climate|fan|vents?|blow\w*)\b|空调|风|吹|温|制冷|制热")
_MODES = frozenset(("rapid_cooling", "rapid_heating", "swing", "natural_wind", "climate_eco", "climate_auto"))
_CLIMATE_WORDS = _MODES | {"ac", "fan", "temperature"}
_ECO = re.compile(r"\beco\b|节能|经济|省电", re.IGNORECASE)


def climate_mode(mode: str) -> Rule:
    """A mode of the air conditioning; said bare it is switched on."""

    def calls(evidence: Evidence, amount: Amount) -> list[CallCandidate]:
        if re.search(r"页|\bpage\b|\bsettings\b", evidence.text):
            return only(refusal("unsupported", "screen"))
        if set(evidence.names("device")) - _CLIMATE_WORDS or (
            mode == "auto" and not _AIR.search(evidence.text.lower())
        ):
            return []
        return only(make_call("set_climate_mode", mode=mode, on=switched_here(evidence, *_MODES) is not False))

    return calls


def eco_mode(evidence: Evidence) -> ToolCall | None:
    """The eco mode of the air conditioning, named apart from it (空调切到节能模式); the car's own is a driving mode."""
    if not evidence.has("device.ac") or not _ECO.search(evidence.text) or set(evidence.names("device")) - {"ac"}:
        return None
    return make_call("set_climate_mode", mode="eco", on=switched(evidence) is not False)


def air_direction(direction: str) -> Rule:
    """Where the air blows."""

    def calls(evidence: Evidence, amount: Amount) -> list[CallCandidate]:
        stops = evidence.has("verb.off", "verb.stop", "verb.close", "mark.negate")
        if stops or not _AIR.search(evidence.text.lower()):
            return []
        others = {name for name in evidence.names("device") if name.startswith("air_")}
        if len(others) > 1:
            return only(refusal("unsupported", "air_directions"))
        return only(make_call("set_air_direction", direction=direction, zone=seat_zone(evidence, "all")))

    return calls


def screen(evidence: Evidence, amount: Amount) -> list[CallCandidate]:
    """The screen's brightness, or on and off."""
    calls = level_calls("set_brightness", evidence, amount)
    if calls:
        return calls
    text = evidence.text.lower()
    if _BRIGHTER.search(text) or _DIMMER.search(text):
        step = 10.0 if amount.word == "little" else 20.0
        return only(make_call("set_brightness", action="change", value=step if _BRIGHTER.search(text) else -step))
    is_on = False if _DARK.search(text) else True if _LIT.search(text) else switched(evidence)
    bright = _BRIGHT.search(_LIT.sub("", text))
    spelt = any("device.screen" in match.tags and match.cost == 0.0 for match in evidence.matches)  # 兵模 is no 屏幕
    whole = spelt and is_on is not None and not evidence.of("zone") and not bright and not _PAGE.search(text)
    if whole:
        return only(make_call("set_screen", on=is_on))
    return only(refusal("unsupported", "screen")) if evidence.names("verb") else []


_DARK = re.compile("[息熄黑灭关]屏")
_LIT = re.compile("亮屏|点亮|唤醒")
_PAGE = re.compile(
    r"\b(?:page|menu|full|mirror|lock|clean|show|cluster|instrument|passenger|rear)\b|页|全屏|投|界面|锁|清洁|仪表|设置|副驾|娱乐"
)


_PAGES = (
    ("home", r"\bhome\b|\bmain\b|主页|首页|桌面|主界面|主屏"),
    ("navigation", r"\bnav|\bmap\b|\broute\b|导航|地图"),
    ("media", r"\bmusic\b|\bmedia\b|\bradio\b|\baudio\b|音乐|媒体|收音机|歌"),
    ("climate", r"\bclimate\b|\bair con|\bac\b|空调"),
    ("phone", r"\bphone\b|\bcalls?\b|\bcontacts\b|电话|通讯录"),
    ("settings", r"\bsettings?\b|设置"),
    ("vehicle", r"\bvehicle\b|\bcar\b|车辆|车况"),
)


def page(evidence: Evidence, amount: Amount) -> list[CallCandidate]:
    """A page of the screen, by what it is about; none is closed."""
    text = evidence.text.lower()
    named = [name for name, words in _PAGES if re.search(words, text)]
    if switched(evidence) is False or not named or not (evidence.of("verb") or _SHOWS.search(text)):
        return only(refusal("unsupported", "screen"))
    return only(make_call("show_page", page=named[0])) if len(named) == 1 else only(refusal("unsupported", "screen"))


_SHOWS = re.compile(r"\bshow|\bgo\b|\bback\b|\bsee\b|返回|回到|回|看|进入|显示")
_FM = re.compile(
    r"(?<![a-z])f ?m(?![a-z])|\bm(?:ega)? ?h(?:ert)?z\b|\btune\b|\bfrequency\b|调频|兆赫|频率", re.IGNORECASE
)


def radio_station(evidence: Evidence) -> ToolCall | None:
    """A frequency of the FM band; None where none is said."""
    if len(evidence.numbers) != 1 or evidence.has("device.volume"):
        return None
    tenths = evidence.has("source.FM") and evidence.numbers[0].value % 1 != 0
    if not tenths and not _FM.search(evidence.text):
        return None
    return make_call("tune_radio", value=round(evidence.numbers[0].value, 1))


def player_list(evidence: Evidence) -> ToolCall | None:
    """Shuffle, repeat and favourites; None where none of them is said."""
    ends = switched(evidence) is False or evidence.has("verb.cancel", "verb.stop")
    mixed = evidence.has("device.shuffle") or _MIXED.search(evidence.text)
    if mixed or evidence.has("device.repeat") or _AGAIN.search(evidence.text):
        action = "in_order" if ends else "shuffle" if mixed else "repeat"
        return make_call("control_media", action=action)
    if (evidence.has("device.add_favourite") or _KEEP.search(evidence.text)) and not ends:
        return make_call("control_media", action="add_favourite")
    liked = evidence.has("device.favourites") or _LIKED.search(evidence.text)
    if liked and not ends and (evidence.of("verb") or len(evidence.tokens) <= 6):
        return make_call("control_media", action="play_favourites")
    return None


_MIXED = re.compile("打乱.{0,4}[放播听]")
_AGAIN = re.compile("(?:这首|这歌).{0,3}(?:来回|反复|一直|循环)[放播听]")
_LIKED = re.compile(
    r"[放播听].{0,3}我?收藏过的|\b(?:songs?|music|tracks?) (?:that )?i(?: have|'ve)? (?:liked?|saved)\b", re.IGNORECASE
)
_KEEP = re.compile("(?:这|首|歌).{0,8}加[进入到].{0,5}收藏")
_MOVES = (
    ("upright", r"\bupright\b|\bsit(?:ting)? straight|backrest.*\b(?:forward|up|straight)\b|(?:靠背|椅背).*[前直立起]"),
    (
        "recline",
        r"\breclin|\b(?:lie|lay|lean|tilt)\b.*\bback\b|backrest.*\b(?:back|down|lower)\b|(?:靠背|椅背).*[后倒躺低]|放倒|往?后躺",
    ),
    ("forward", r"\bforwards?\b|往前|向前|前移|靠前|[挪移]前|前[挪移]"),
    ("back", r"(?<!the )\bback(?:wards?)?\b(?! (?:seat|row))|往后|向后|后移|靠后|[挪移]后|后[挪移]"),
    ("up", r"\b(?:up|raise|higher|lift)\b|升高|调高|往上|抬高|高[一点些]"),
    ("down", r"\b(?:down|lower)\b|降低|调低|往下|[低矮][一点些]"),
)
_REAR_SEAT = re.compile(
    r"\b(?:rear|back|second|third)[ -](?:seats?|row|bench)\b|\brear\b|后排|后座|二排|三排|左后|右后"
)
_FAR = re.compile(
    r"\ball the way|\bflat\b|\bfully\b|最[前后高低]|到底|放平|平躺|零重力|记忆|\bmemory\b|位置[一二三123]"
)


def seat_move(evidence: Evidence) -> ToolCall | None:
    """One step of a front seat. None where no move is said; a rear seat, an amount or a place of its own is refused."""
    if not evidence.has("device.seat", "device.seat_position"):
        return None
    text = evidence.text.lower()
    move = next((name for name, words in _MOVES if re.search(words, text)), None)
    if move is None or (move in ("up", "down") and not (evidence.has("device.seat_position") or _HEIGHT.search(text))):
        return None
    if evidence.numbers or _REAR_SEAT.search(text) or _FAR.search(text):
        return refusal("unsupported", "seat_position")
    other = {"passenger", "right", "front_right"} & set(evidence.names("zone"))
    return make_call("set_seat_position", move=move, zone="passenger" if other else "driver")


_HEIGHT = re.compile(r"\bseats?\b|座椅|座位|坐")


def seat_position(evidence: Evidence, amount: Amount) -> list[CallCandidate]:
    """A seat's move, or that this one is not known."""
    return only(seat_move(evidence) or refusal("forbidden", "seat_position"))


FURTHER_DEVICES: list[tuple[str, Rule]] = [
    ("page", page),
    ("seat_massage", massage),
    ("ambient_light", ambient_light),
    ("front_fog", exterior_light("front_fog")),
    ("rear_fog", exterior_light("rear_fog")),
    ("fog_light", exterior_light("fog")),
    ("high_beam", exterior_light("high_beam")),
    ("position_light", exterior_light("position")),
    ("reading_light", reading_light),
    ("rapid_cooling", climate_mode("rapid_cooling")),
    ("rapid_heating", climate_mode("rapid_heating")),
    ("swing", climate_mode("swing")),
    ("natural_wind", climate_mode("natural")),
    ("climate_eco", climate_mode("eco")),
    ("climate_auto", climate_mode("auto")),
    ("air_feet", air_direction("feet")),
    ("air_face", air_direction("face")),
    ("air_windscreen", air_direction("windscreen")),
    ("seat_position", seat_position),
]
"""Devices before those of `devices.DEVICES`, whose words stand inside theirs (座椅按摩, "seat massage")."""
