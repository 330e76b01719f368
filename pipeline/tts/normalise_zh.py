"""Mandarin: numbers, units, times, roads and signs as words. A table of rules, applied from the most specific on."""

from __future__ import annotations

import re
from collections.abc import Callable

from pipeline.tts.units_zh import CURRENCIES, SIGNS, UNITS, WORDS

AT = "艾特"
POWER = r"的\1次方"
LONGEST_NUMBER = 12
"""A number of more digits is read digit by digit."""
_LONGEST_PHONE = 13
_DIGITS = "零一二三四五六七八九"
_NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)"
_SIGNED = rf"(?:(?<![A-Za-z0-9.{_DIGITS}十百千万亿日月号点分秒年度])-)?{_NUMBER}"

_UNIT = "|".join(re.escape(unit) for unit in sorted(UNITS, key=len, reverse=True))
# A lone 2 before these is 两; elsewhere (二号, 二月, 二档) it stays 二.
_COUNTED = (
    "公千米厘毫个位人条辆座台份杯块元只小分秒天年周次点倍种件间家首升吨斤圈句页双张度英美欧万亿百盏扇排层站趟遍步名项段"
)

_CURRENCY = "|".join(re.escape(sign) for sign in sorted(CURRENCIES, key=len, reverse=True))
_FRACTIONS = {"½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅛": "1/8", "⅜": "3/8"}


# --- numbers -------------------------------------------------------------------------------------------------------
def cardinal(number: str, *, two: str = "二") -> str:
    """ "12345.6" -> 一万二千三百四十五点六. `two`: how a lone 2 is read (两 before a measure word)."""
    number = number.replace(",", "")
    if number.startswith("-"):
        return "负" + cardinal(number[1:], two=two)
    whole, _, fraction = number.partition(".")
    if len(whole) > LONGEST_NUMBER or (len(whole) > 1 and whole.startswith("0")):
        words = digits(whole)
    elif whole == "2" and not fraction:
        words = two
    else:
        words = _whole(int(whole))
    return f"{words}点{digits(fraction)}" if fraction else words


def _whole(number: int) -> str:
    if number == 0:
        return "零"
    groups: list[tuple[int, str]] = []
    for scale in ("", "万", "亿"):
        number, group = divmod(number, 10_000)
        groups.insert(0, (group, scale))
    words = ""
    gap = False
    for group, scale in groups:
        if group == 0:
            gap = bool(words)
            continue
        if words and (gap or group < 1000):
            words += "零"
        words += _group(group, leading=not words, scale=scale) + scale
        gap = False
    return words.removeprefix("一") if words.startswith("一十") else words


def _group(group: int, *, leading: bool, scale: str) -> str:
    if group == 2 and scale:
        return "两"
    words, zero = "", False
    for value, unit in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit = group // value % 10
        if digit == 0:
            zero = bool(words)
            continue
        if zero:
            words += "零"
            zero = False
        two = digit == 2 and leading and not words and value >= 100
        words += ("两" if two else _DIGITS[digit]) + unit
    return words


def digits(number: str, one: str = "一") -> str:
    """ "205" -> 二零五. `one`: 幺 for telephone, road and plate numbers."""
    return "".join(one if digit == "1" else _DIGITS[int(digit)] for digit in number if digit.isdigit())


def code(number: str) -> str:
    """The number of a road, plate, train or building: up to two digits as a number, more digit by digit with 幺."""
    return cardinal(number) if len(number) <= 2 and not number.startswith("0") else digits(number, one="幺")


def address(name: str) -> str:
    """A host or mail name: "maps.example.com" -> maps 点 example 点 com."""
    name = re.sub(r"\d+", lambda m: digits(m[0]), name)
    return " " + name.replace(".", " 点 ").replace("-", " 杠 ").replace("_", " 下划线 ") + " "


def _plain(number: str) -> str:
    return cardinal(str(int(number)))


# --- rules ---------------------------------------------------------------------------------------------------------
def _time(m: re.Match[str]) -> str:
    hour, minute, second = m["hour"], m["minute"], m["second"]
    if int(hour) > 24 or int(minute) > 59:
        return f"{cardinal(hour)}比{cardinal(minute)}"
    words = cardinal(str(int(hour)), two="两") + "点"
    if minute != "00" or second:
        words += ("零" if 0 < int(minute) < 10 else "") + cardinal(str(int(minute))) + "分"
    return words + (f"{cardinal(str(int(second)))}秒" if second else "")


def _half_day(m: re.Match[str]) -> str:
    return ("上午" if m["half"].upper().startswith("A") else "下午") + m["time"]


def _phone(m: re.Match[str]) -> str:
    number = m["phone"]
    groups = re.findall(r"\d+", number)
    if len(groups) == 1 and len(groups[0]) == 11:
        groups = [number[-11:-8], number[-8:-4], number[-4:]]
    return m[0].replace(
        number, ("加" if number.startswith("+") else "") + "，".join(digits(g, one="幺") for g in groups)
    )


def _money(m: re.Match[str]) -> str:
    amount = m["amount"].replace(",", "")
    if "." in amount:
        amount = amount.rstrip("0").rstrip(".")
    return cardinal(amount, two="两") + (m["scale"] or "") + CURRENCIES[m["sign"]]


def _quantity(m: re.Match[str]) -> str:
    unit, number = UNITS[m["unit"]], m["number"]
    if "度" in unit and number.startswith("-") and not m["low"]:
        return "零下" + cardinal(number[1:], two="两") + unit
    low = f"{cardinal(m['low'], two='两')}到" if m["low"] else ""
    return low + cardinal(number, two="两") + unit


def _percent(m: re.Match[str]) -> str:
    if m["low"]:
        return f"百分之{cardinal(m['low'])}到百分之{cardinal(m['number'])}"
    sign = "负" if m["number"].startswith("-") else ""
    number = m["number"].removeprefix("-")
    return f"{sign}百分之{'百' if number == '100' else cardinal(number)}"


def _fraction(m: re.Match[str]) -> str:
    top, bottom = int(m["top"]), int(m["bottom"])
    if not 0 < top < bottom:
        return f"{cardinal(m['top'])}，{cardinal(m['bottom'])}"
    return f"{cardinal(m['bottom'])}分之{cardinal(m['top'])}"


def _counted(m: re.Match[str]) -> str:
    number, after = m["number"], m.string[m.end() :].lstrip()
    two = "两" if after and after[0] in _COUNTED else "二"
    low = f"{cardinal(m['low'], two=two)}到" if m["low"] else ""
    if number.startswith("-") and after.startswith("度"):
        return "零下" + cardinal(number[1:], two="两")
    return low + cardinal(number, two=two)


Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]


def _rules(*rules: tuple[str, Callable[[re.Match[str]], str]]) -> tuple[Rule, ...]:
    return tuple((re.compile(pattern), function) for pattern, function in rules)


RULES = _rules(
    # every later rule tries each place in a run of digits, so the long ones go first
    (rf"\d{{{_LONGEST_PHONE + 1},}}", lambda m: digits(m[0])),
    (rf"({'|'.join(_FRACTIONS)})", lambda m: _FRACTIONS[m[1]]),
    # dates
    (r"(?<!\d)(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?!\d)",
     lambda m: f"{digits(m[1])}年{_plain(m[2])}月{_plain(m[3])}日"),
    (r"(?<!\d)(\d{4})(?=年(?!前|后|来|间|以))", lambda m: digits(m[1])),
    (r"(?<!\d)(\d{1,2})月(\d{1,2})(日|号)?", lambda m: f"{_plain(m[1])}月{_plain(m[2])}{m[3] or '日'}"),
    (r"(?<!\d)(\d{2})(?=年代|后出生|后司机)", lambda m: digits(m[1]) if m[1][1] != "0" else cardinal(m[1])),
    # times
    (r"(?P<time>(?<!\d)\d{1,2}:\d{2})\s?(?P<half>[AaPp]\.?[Mm]\b\.?)", _half_day),
    (r"(?<![\d:])(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}))?(?![\d:])", _time),
    (r"(?<![\d:])(\d+):(\d+)(?![\d:])", lambda m: f"{cardinal(m[1])}比{cardinal(m[2])}"),
    (r"(?<=[点分秒])\s?[-~]\s?(?=[零一二三四五六七八九十两])", lambda m: "到"),
    (r"第\s?(\d+)\s?[-~–至到]\s?第?(\d+)", lambda m: f"第{cardinal(m[1])}到{cardinal(m[2])}"),
    (r"(?<=[日月号点分秒年度])\s?[-–~]\s?(?=\d)", lambda m: "到"),
    # telephone numbers
    (r"(?<![\d.-])(?P<phone>(?:\+86[ -]?)?1[3-9]\d{9}|(?:400|800)-?\d{3}-?\d{4}|0\d{2,3}-\d{7,8}|1[3-9]\d-\d{4}-\d{4})"
     r"(?![\d-])", _phone),
    (r"(?:拨打|拨通|呼叫|致电|热线|电话|报警|打|号码)(?:号码|电话)?(?:是|为|：|:)?\s?(?P<phone>\d[\d-]{2,})"
     r"(?!\d|\s?[个次分元折公米])", _phone),
    (r"(?<!\d)(?P<phone>12306|12123|10086|10010|12345|12315|95\d{3})(?!\d|\.\d|\s?[个人元块米公次千万度年kK])", _phone),
    # roads, plates, trains, flights, buildings
    (r"(?<!\d)(\d{3,4})(?=国道|省道|县道|乡道|次列车|次航班|房间|航班)", lambda m: digits(m[1], one="幺")),
    (r"(?<![A-Za-z])([GSXY])(\d{1,4})(?![\d.])", lambda m: f"{m[1]}{digits(m[2], one='幺')}"),
    (r"([京津沪渝冀豫云辽黑湘皖鲁新苏浙赣鄂桂甘晋蒙陕吉闽贵粤青藏川宁琼])([A-Z])[·• ]?([A-Z0-9]{4,6})",
     lambda m: f"{m[1]}{m[2]}" + re.sub(r"\d+", lambda d: digits(d[0], one="幺"), m[3])),
    (r"(?<=[A-Z]{2})(\d{3,4})(?!\d)", lambda m: digits(m[1], one="幺")),
    # money, percent, fractions, quantities
    (rf"(?P<sign>{_CURRENCY})\s?(?P<amount>\d[\d,]*(?:\.\d+)?)(?P<scale>[百千万亿]+)?", _money),
    (r"(?<![\d.])(\d[\d,]*\.\d*?)0+(?=\s?[元块])", lambda m: m[1].removesuffix(".")),
    (rf"(?:(?P<low>{_SIGNED})%?\s?[-–~到至]\s?)?(?P<number>{_SIGNED})\s?%", _percent),
    (r"(?<![\d/.])(?P<top>\d{1,2})/(?P<bottom>\d{1,3})(?![\d/])", _fraction),
    (rf"(?:(?P<low>{_SIGNED})(?:{_UNIT})?\s?[-–~至]\s?)?(?P<number>{_SIGNED})\s?(?P<unit>{_UNIT})"
     r"(?![A-Za-z0-9²³])", _quantity),
    (r"第\s?(\d+)", lambda m: f"第{cardinal(m[1])}"),
    (r"(?:#|No\. ?)(\d+)", lambda m: f"{cardinal(m[1])}号"),
    # versions, codes, the rest
    (r"(?<![\d.])[vV]?(\d+(?:\.\d+){2,})(?![\d.])", lambda m: "点".join(cardinal(part) for part in m[1].split("."))),
    (r"(?<=[A-Za-z])-?(\d+)(?![\d.])", lambda m: code(m[1])),
    (rf"(?:(?P<low>{_SIGNED})\s?[-–~至]\s?)?(?P<number>{_SIGNED})(?!\.?\d)", _counted),
    (r"\d", lambda m: digits(m[0])),
)  # fmt: skip
_WORD = re.compile(r"(?<![A-Za-z])(?:" + "|".join(re.escape(word) for word in WORDS) + r")(?![A-Za-z])")
_SIGN = re.compile("[" + re.escape("".join(SIGNS)) + "]")
_MARKS = "，。；：！？、"
_TIDY = (
    (re.compile(r"(?<=[一-鿿，。；：！？、])\s+(?=[一-鿿，。；：！？、])"), ""),
    (re.compile(r"\s+(?=[，。；：！？、])|(?<=[，。；：！？、])\s+"), ""),
    (re.compile(r"\.{2,}"), "，"),
    (re.compile(r",\s*(?=[一-鿿])|(?<=[一-鿿])\s*,\s*"), "，"),
    (re.compile(r"(?<=[一-鿿])\.(?=\s|$|[一-鿿])"), "。"),
    (re.compile(r"[，；：、]+([，；：、。！？])"), r"\1"),
    (re.compile(r"([。！？])[，；：、。！？]+"), r"\1"),
    (re.compile(r"(?<![A-Za-z])-+|-+(?![A-Za-z])"), " "),
    (re.compile(rf"^[\s{_MARKS},.'-]+|[\s，；：、,-]+$"), ""),
)


def before_pictures(text: str) -> str:
    """Arrows that mean something become words before pictures are dropped."""
    return text.replace("→", "到").replace("->", "到")


def normalise(text: str) -> str:
    """Mandarin words for everything in `text` that a voice would have to guess."""
    text = _WORD.sub(lambda m: WORDS[m[0]], text)
    for pattern, function in RULES:
        text = pattern.sub(function, text)
    text = _SIGN.sub(lambda m: SIGNS[m[0]], text)
    for pattern, replacement in _TIDY:
        text = pattern.sub(replacement, text)
    return text
