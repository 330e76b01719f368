"""English: numbers, units, times, roads and signs as words. A table of rules, applied from the most specific on."""

from __future__ import annotations

import re
from collections.abc import Callable

from num2words import num2words
from pypinyin import lazy_pinyin

from pipeline.tts.units_en import ABBREVIATIONS, CURRENCIES, LETTERED, SIGNS, STREETS, UNITS, WORDS

AT = " at "
POWER = r" to the power of \1"
_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
LONGEST_NUMBER = 15
"""A number of more digits is read digit by digit. Longer runs go first: every later rule tries each place in them."""
_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_MONTH = rf"(?:{'|'.join(_MONTHS)}|(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\b\.?)"
_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
_SIGNED = rf"(?:(?<![\w.])-)?(?:{_NUMBER})"

_UNIT = "|".join(re.escape(unit) for unit in sorted(UNITS, key=len, reverse=True))

_CURRENCY = "|".join(re.escape(sign) for sign in sorted(CURRENCIES, key=len, reverse=True))

_FRACTIONS = {"½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅛": "1/8", "⅜": "3/8"}
_PARTS = {2: ("half", "halves"), 4: ("quarter", "quarters")}


# --- numbers -------------------------------------------------------------------------------------------------------
def cardinal(number: str) -> str:
    """ "1,234.5" -> one thousand two hundred thirty-four point five. A sign is read as "minus"."""
    number = number.replace(",", "")
    if number.startswith("-"):
        return f"minus {cardinal(number[1:])}"
    whole, _, fraction = number.partition(".")
    if len(whole) > LONGEST_NUMBER or (len(whole) > 1 and whole.startswith("0")):
        words = digits(whole)
    else:
        words = num2words(int(whole)).replace(",", "").replace(" and ", " ")
    return f"{words} point {digits(fraction)}" if fraction else words


def digits(number: str, zero: str = "zero") -> str:
    """ "205" -> two zero five."""
    return " ".join(zero if digit == "0" else _DIGITS[int(digit)] for digit in number)


def ordinal(number: str | int) -> str:
    """ "21" -> twenty-first."""
    return str(num2words(int(number), to="ordinal")).replace(",", "").replace(" and ", " ")


def year(number: str) -> str:
    """ "1905" -> nineteen oh five."""
    return str(num2words(int(number), to="year")).replace("oh-", "oh ").replace(" and ", " ")


def road(number: str) -> str:
    """A road, exit or house number: "101" -> one oh one, "280" -> two eighty, "1600" -> sixteen hundred."""
    if len(number) <= 2:
        return cardinal(number)
    if len(number) == 3:
        if number.endswith("00"):
            return cardinal(number)
        return f"{_DIGITS[int(number[0])]} {_pair(number[1:])}"
    if len(number) == 4 and not number.endswith("000") and number[0] != "0":
        tail = "hundred" if number.endswith("00") else _pair(number[2:])
        return f"{cardinal(number[:2])} {tail}"
    return cardinal(number) if number.endswith("000") else digits(number)


def _pair(two: str) -> str:
    return f"oh {_DIGITS[int(two[1])]}" if two[0] == "0" and two[1] != "0" else cardinal(two.lstrip("0") or "0")


def letters(word: str) -> str:
    """ "EV" -> E V. A lone A is spelled so that it is not taken for the article."""
    return " ".join("eigh" if letter in "Aa" else letter.upper() for letter in word)


def address(name: str) -> str:
    """A host or mail name: "maps.example.com" -> maps dot example dot com."""
    name = re.sub(r"\d+", lambda m: f" {digits(m[0])} ", name)
    return re.sub(r"\s+", " ", name.replace(".", " dot ").replace("-", " dash ").replace("_", " underscore ")).strip()


# --- rules ---------------------------------------------------------------------------------------------------------
def _date(year_digits: str | None, month: int, day: str) -> str:
    if not 1 <= month <= 12 or not 1 <= int(day) <= 31:
        return f"{month} {day} {year_digits or ''}"
    tail = f", {year(year_digits)}" if year_digits else ""
    return f"{_MONTHS[month - 1]} {ordinal(day)}{tail}"


def _month_of(name: str) -> int:
    return next(index for index, month in enumerate(_MONTHS, 1) if month.startswith(name[:3]))


def _time(m: re.Match[str]) -> str:
    hour, minute, half = m["hour"], m["minute"] or "00", (m["half"] or "").lower().replace(".", "").strip()
    if int(hour) > 24 or int(minute) > 59:
        return f"{cardinal(hour)} to {cardinal(minute)}"
    words = cardinal(hour.lstrip("0") or "0")
    if minute == "00":
        words += "" if half else (" o'clock" if 1 <= int(hour) <= 12 else " hundred hours")
    else:
        words += f" {_pair(minute)}"
    if "second" in m.groupdict() and m["second"]:
        words += f" and {cardinal(m['second'].lstrip('0') or '0')} seconds"
    ends = bool(half) and m[0].endswith(".") and re.match(r"\s+[A-Z]|\s*$", m.string[m.end() :])
    return words + ({"am": " eigh em", "pm": " P M"}[half] if half else "") + ("." if ends else "")


def _money(m: re.Match[str]) -> str:
    one, many, one_part, many_parts = CURRENCIES[m["sign"]]
    amount, scale = m["amount"].replace(",", ""), m["scale"]
    if scale:
        return f"{cardinal(amount)} {scale.strip()} {many}"
    whole, _, part = amount.partition(".")
    if len(part) not in (0, 2):
        return f"{cardinal(amount)} {many}"
    words = [] if whole == "0" and int(part or 0) else [f"{cardinal(whole)} {one if whole == '1' else many}"]
    if int(part or 0):
        words.append(f"{cardinal(str(int(part)))} {one_part if int(part) == 1 else many_parts}")
    return " and ".join(words)


def _quantity(m: re.Match[str]) -> str:
    one, many = UNITS[m["unit"]]
    number = m["number"]
    if m["low"]:
        return f"{cardinal(m['low'])} to {cardinal(number)} {many}"
    return f"{cardinal(number)} {one if number in ('1', '-1') else many}"


def _fraction(m: re.Match[str]) -> str:
    top, bottom = int(m["top"]), int(m["bottom"])
    if not m["whole"] and 0 < top <= 12 and bottom <= 31 and (bottom > 20 or bottom in (17, 18, 19)):
        return f"{_MONTHS[top - 1]} {ordinal(bottom)}"  # no one cuts a mile into nineteenths
    if not 0 < top < bottom or bottom > 100:
        return (
            f"{cardinal(m['whole'])} {top}/{bottom}" if m["whole"] else f"{cardinal(m['top'])} {cardinal(m['bottom'])}"
        )
    one, many = _PARTS.get(bottom) or (ordinal(bottom), f"{ordinal(bottom)}s")
    words = f"{cardinal(m['top'])} {one if top == 1 else many}"
    unit = UNITS.get(m["unit"] or "", ("", ""))
    if not m["whole"]:
        return words + (f"{'' if top == 1 else ' of a'} {unit[0]}" if unit[0] else "")
    return f"{cardinal(m['whole'])} and {f'a {one}' if top == 1 else words} {unit[1]}".rstrip()


def _phone(m: re.Match[str]) -> str:
    groups = re.findall(r"\d+", m["phone"])
    return ("plus " if m["phone"].startswith("+") else "") + ", ".join(digits(group) for group in groups)


def _named_number(m: re.Match[str]) -> str:
    name = letters(m["name"]) if m["name"].isupper() else WORDS.get(m["name"], m["name"])
    return f"{name} {road(m['number'])}" + (f" {letters(m['tail'])}" if m["tail"] else "")


def _street(m: re.Match[str]) -> str:
    after = m.string[m.end() :]
    ends = m[0].endswith(".") and (not after or re.match(r" [A-Z]", after))
    return f" {STREETS[m[1]]}" + ("." if ends else "")


def _pinyin(m: re.Match[str]) -> str:
    return f" {' '.join(lazy_pinyin(m[0]))} "


def _plain(m: re.Match[str]) -> str:
    number = m[m.lastindex or 0]
    return cardinal(number) if len(number.split(".")[0].replace(",", "")) <= 9 else digits(re.sub(r"\D", "", number))


Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]


def _rules(*rules: tuple[str, Callable[[re.Match[str]], str]]) -> tuple[Rule, ...]:
    return tuple((re.compile(pattern), function) for pattern, function in rules)


_STREET = "|".join(STREETS)
_HALF = r"(?P<half>\s?(?:[AaPp]\.[Mm]\.|[AaPp][Mm]\b))"
RULES = _rules(
    (rf"\d{{{LONGEST_NUMBER + 1},}}", lambda m: f" {digits(m[0])} "),
    (r"[㐀-䶿一-鿿]+", _pinyin),
    (rf"(?<=\d)\s?({'|'.join(_FRACTIONS)})", lambda m: f" {_FRACTIONS[m[1]]}"),
    (rf"({'|'.join(_FRACTIONS)})", lambda m: _FRACTIONS[m[1]]),
    # dates
    (r"\b(\d{4})-(\d{1,2})-(\d{1,2})\b", lambda m: _date(m[1], int(m[2]), m[3])),
    (r"\b(\d{1,2})/(\d{1,2})/(\d{4})\b", lambda m: _date(m[3], int(m[1]), m[2])),
    (
        rf"\b({_MONTH})\s(\d{{1,2}})(?:st|nd|rd|th)?\b(?:,?\s(\d{{4}}))?(?![\d:%])",
        lambda m: _date(m[3], _month_of(m[1]), m[2]),
    ),
    (
        rf"\b(\d{{1,2}})(?:st|nd|rd|th)?\s({_MONTH})(?![a-z])(?:,?\s(\d{{4}}))?",
        lambda m: f"the {ordinal(m[1])} of {_MONTHS[_month_of(m[2]) - 1]}" + (f", {year(m[3])}" if m[3] else ""),
    ),
    (rf"\b({_MONTH})\s(\d{{4}})\b", lambda m: f"{_MONTHS[_month_of(m[1]) - 1]} {year(m[2])}"),
    (r"(?<!\w)'?\b(\d{2}|\d{3}0)s\b", lambda m: re.sub("y$", "ie", year(m[1])) + "s"),
    (r"\b(in|since|until|till|from|of|year|summer|winter|spring|autumn|fall) ((?:19|20)\d\d)\b(?![.,]?\d|[:%/-])",
     lambda m: f"{m[1]} {year(m[2])}"),
    # times
    (r"(?<=:\d\d)\s?[-–~]\s?(?=\d)|(?<=\d[ap]m)\s?[-–~]\s?(?=\d)|(?<=\d [AP]M)\s?[-–~]\s?(?=\d)", lambda m: " to "),
    (r"(?<=\d)\s?[-–~]\s?(?=[$€£¥]\d)", lambda m: " to "),
    (rf"\b(?P<hour>\d{{1,2}}):(?P<minute>\d{{2}})(?::(?P<second>\d{{2}}))?(?:{_HALF})?(?!\d)", _time),
    (rf"\b(?P<hour>\d{{1,2}})(?P<minute>){_HALF}", _time),
    (r"\b24/7\b", lambda m: "twenty-four seven"),
    # telephone numbers
    (r"(?<![\d.-])(?P<phone>(?:\+?\d{1,3}[ -])?(?:\(\d{3}\) ?|\d{3}[ -])\d{3}-\d{4}|\d{3}-\d{4}|\+\d{7,15}|1\d{10})"
     r"(?![\d-])", _phone),
    (r"(?<=\b[Cc]all )(?P<phone>\d{3,})\b|(?<=\b[Dd]ial )(?P<dial>\d{3,})\b|(?<=[Nn]umber is )(?P<number>\d{3,})\b",
     lambda m: digits(m[0])),
    (r"\b(?P<phone>911)\b(?!\s*(?:meters|miles|km|m|ft)\b)", lambda m: digits(m["phone"])),
    # roads, exits, house numbers
    (r"\b(?P<name>I|US|SR|CA|Hwy|Rte|Interstate|[Hh]ighway|[Rr]oute|[Ee]xit|[Rr]oom|[Ff]light)[ -]?(?P<number>\d{1,4})"
     r"(?P<tail>[A-Z])?\b(?!\.\d|,\d)", _named_number),
    (rf"\b(\d{{3,5}})(?=(?: [A-Z][a-z]+){{1,3}} (?:{_STREET}|{'|'.join(STREETS.values())})\b)", lambda m: road(m[1])),
    (rf"(?<=[a-z]) ({_STREET})\b\.?", _street),
    (r"(?:#|\bNo\. ?)(\d+)\b", lambda m: f"number {cardinal(m[1])}"),
    # money, fractions, quantities
    (rf"(?P<sign>{_CURRENCY})\s?(?P<amount>{_NUMBER})(?P<scale>\s(?:thousand|million|billion|trillion)\b)?", _money),
    (r"(?<![\d/.])(?:(?P<whole>\d+) )?(?P<top>\d{1,2})/(?P<bottom>\d{1,3})(?![\d/])"
     r"(?:\s?(?P<unit>mi|km|m|ft|gal)\b)?", _fraction),
    (rf"(?:(?P<low>{_SIGNED})(?:{_UNIT})?\s?[-–~]\s?)?(?P<number>{_SIGNED})\s?(?P<unit>{_UNIT})(?![\w²³])", _quantity),
    (r"\b(\d+)(?:st|nd|rd|th)\b", lambda m: ordinal(m[1])),
    (rf"(?<![\w.])({_NUMBER})\s?[–~-]\s?({_NUMBER})(?![\w-]|\.\d)", lambda m: f"{cardinal(m[1])} to {cardinal(m[2])}"),
    (r"(?<=[a-z])/(h|hr|hour|min|s|day|week|month|year|km|mi|kWh|gal|person)\b",
     lambda m: f" per {UNITS.get(m[1], (m[1], ''))[0]}"),
    # versions, codes, the rest
    (r"\b[vV]?(\d+(?:\.\d+){2,})\b", lambda m: " point ".join(cardinal(part) for part in m[1].split("."))),
    (r"\b(?P<name>[A-Z]{1,3})-?(?P<number>\d+)(?P<tail>[A-Z])?\b", _named_number),
    (r"\b(\d{1,3})([A-Z])\b", lambda m: f"{road(m[1])} {letters(m[2])}"),
    (rf"({_NUMBER})\s?x(?=\s|$)", lambda m: f"{_plain(m)} times"),
    (rf"({_NUMBER}):({_NUMBER})", lambda m: f"{cardinal(m[1])} to {cardinal(m[2])}"),
    (rf"{_SIGNED}(?=[A-Za-z])", lambda m: f"{_plain(m)} "),
    (rf"{_SIGNED}", _plain),
    (r"\d", lambda m: f" {digits(m[0])} "),
)  # fmt: skip
_ABBREVIATION = re.compile(r"(?<!\w)(?:" + "|".join(re.escape(word) for word in ABBREVIATIONS) + r")(?=\W|$|(?<=/)\w)")
_UPPER = re.compile(r"\b(?:" + "|".join(map(re.escape, [*WORDS, *LETTERED])) + r")\b")
_SIGN = re.compile("[" + re.escape("".join(SIGNS)) + "]")
_TIDY = (
    (re.compile(r"\.{2,}"), ","),
    (re.compile(r"\s+([,.;:!?])"), r"\1"),
    (re.compile(r"([,;:])(?:\s*[,;:])+"), r"\1"),
    (re.compile(r"[,;:]\s*([.!?])"), r"\1"),
    (re.compile(r"([.!?])(?:\s*[,;:.])+"), r"\1"),
    (re.compile(r"([!?])[.!?]+"), r"\1"),
    (re.compile(r"([,;:!?])(?=[^\s\W])"), r"\1 "),
    (re.compile(r"(?<![\w])-+|-+(?![\w])"), " "),
    (re.compile(r"^[\s,.;:!?'-]+|[\s,;:-]+$"), ""),
)


def before_pictures(text: str) -> str:
    """Arrows that mean something become words before pictures are dropped."""
    return text.replace("→", " to ").replace("->", " to ")


def normalise(text: str) -> str:
    """English words for everything in `text` that a voice would have to guess."""
    text = _ABBREVIATION.sub(_expand, text) if "." in text or "/" in text else text
    for pattern, function in RULES:
        text = pattern.sub(function, text)
    text = _UPPER.sub(lambda m: WORDS.get(m[0]) or letters(m[0]), text)
    text = _SIGN.sub(lambda m: SIGNS[m[0]], text)
    text = re.sub(r" {2,}", " ", text)
    for pattern, replacement in _TIDY:
        text = pattern.sub(replacement, text)
    return text


def _expand(m: re.Match[str]) -> str:
    word, before, after = m[0], m.string[: m.start()], m.string[m.end() :]
    if word in ("Dr.", "St.") and re.search(r"[a-z] $", before) and not re.match(r" [A-Z]", after):
        return word  # Mulholland Dr., Main St.: the street rule has it
    if word in ("min.", "max.", "Ft.") and re.search(r"\d\s?$", before):
        return word
    ends = word == "etc." and (not after.strip() or re.match(r"\s+[A-Z]", after))
    return ABBREVIATIONS[word] + ("." if ends else "") + (" " if word.endswith("/") else "")
