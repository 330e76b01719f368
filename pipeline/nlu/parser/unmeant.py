"""What the wording of a sentence excludes, however sure the model is of it: then no call of it is made unasked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from pipeline.frames import ToolCall
from pipeline.nlu.evidence import Evidence
from pipeline.nlu.parser.guards import OPENS, SMALL, opens, unknown_words
from pipeline.nlu.parser.scope import contrasted_at, turned


def stops_doing(whole: Evidence) -> bool:
    """Whether what shall stop is something that is done, in nobody's words, and not the trip: "stop nagging me"."""
    return whole.language == "en" and any(
        match.end < len(whole.words)
        and whole.words[match.end].endswith("ing")
        and whole.words[match.end] in unknown_words(whole)
        for match in whole.matches
        if "verb.stop" in match.tags
    )


def undoes(call: ToolCall) -> bool:
    """Whether the call switches off, closes, lowers, stops or avoids something."""
    arguments = call.arguments
    value = arguments.get("value")
    if value is not None and (value == 0 or (arguments.get("action") == "change" and value < 0)):
        return True
    ends = arguments.get("action") in ("stop", "next", "previous", "in_order")
    ends = ends or arguments.get("state") in ("MUTED", "ALERT_ONLY")
    return ends or opens(call) is False or call.name in ("cancel_navigation", "set_route_options")


def denied(calls: Sequence[ToolCall], whole: Evidence) -> bool:
    """Whether the sentence says that it shall not be so, and the calls make it so: 不要吹脸. In a sentence of several
    parts the negation may belong to another one.
    """
    negated = any("mark.negate" in match.tags and match.cost == 0 for match in whole.matches)
    if not negated or _PARTS.search(whole.text) or contrasted_at(whole.text) is not None:
        return False
    return bool(calls) and not any(undoes(call) or names_words(call) for call in calls)


def names_words(call: ToolCall) -> bool:
    """Whether a place or a title is part of the call: any word may stand in it."""
    return bool(call.arguments.keys() & {"place", "query"})


_PARTS: Final = re.compile(
    r"[，,;；。](?=.)|\b(?:but|just|instead|forget|why|if)\b|忘|为什么|怎么|能不能|不要.+要|^not\b|\bnot mine\b",
    re.IGNORECASE,
)
"""Where a negation may belong to another part, or to the asking: "don't forget to lock the doors"."""


def shows_what_goes_off(calls: Sequence[ToolCall], whole: Evidence) -> bool:
    """Whether the one verb of the sentence switches off or closes, and a call does what has no off: "turn off the blue
    ambient light" gives it no colour.
    """
    verbs = {verb for match in whole.matches if match.cost == 0 for verb in match.tags & OPENS.keys()}
    if not verbs or any(OPENS[verb] for verb in verbs) or whole.has("verb.set"):
        return False
    return any(call.name in ("set_ambient_color", "show_page", "tune_radio") for call in calls)


_ANOTHERS: Final = re.compile(
    r"\b(?:that|the other|another|his|her|their|oncoming|somebody's|someone's)\b[^,.]{0,12}"
    r"\b(?:car|truck|van|lorry|bus|vehicle)(?:'s|s)?\b|\bphone(?:'s)? screen\b"
    "|(?:前面|后面|旁边|对面|别人|人家|隔壁|那辆)的?(?:那辆)?(?:车(?![窗门灯厢内])|司机)|[前后]车(?![窗门灯厢内轮])|对面的|手机的?屏",
    re.IGNORECASE,
)


_SCREEN: Final = ("set_screen", "set_brightness")
_ALIKE: Final = (
    *("set_exterior_light", "set_headlights", "set_interior_light", "set_window", "set_wipers", "set_door_locks"),
    *("set_trunk", *_SCREEN),
)
"""What other cars and devices have, too."""


def of_anothers(calls: Sequence[ToolCall], whole: Evidence) -> bool:
    """Whether a call switches on what, by the sentence, may be another car's or another device's."""
    if _ANOTHERS.search(whole.text) is None:
        return False
    return any(call.name in _ALIKE and (not undoes(call) or call.name in _SCREEN) for call in calls)


_SWITCHES: Final = (*OPENS, "verb.stop")


def keeps_on(calls: Sequence[ToolCall], whole: Evidence) -> bool:
    """Whether every verb of the sentence stops or switches off, and a call changes a temperature: 后座加热都停了,
    凉快够了空调关 wish nothing warmer or cooler.
    """
    verbs = [verb for match in whole.matches if match.cost == 0 for verb in match.tags if verb in _SWITCHES]
    if not verbs or any(OPENS.get(verb) for verb in verbs) or whole.numbers or len(calls) != 1:
        return False
    return calls[0].name == "set_temperature" and not (
        whole.has("device.temperature") or whole.has("verb.set", "verb.down", "verb.up")
    )


_CHOICE: Final = re.compile(
    r"(?:度|档|挡|级|%| ?percent| ?degrees)?\W*(?:\bor\b|还是|或者?是?|要么)\W*"
    r"(?:the |a |an |to |at |on |在|开到?|调?到)*",
    re.IGNORECASE,
)


def leaves_choice(calls: Sequence[ToolCall], whole: Evidence) -> bool:
    """Whether one of two numbers or places is to be chosen, and the calls choose: "to fifteen or fifty"."""
    if turned(whole.text) or any(map(names_words, calls)):
        return False
    spans = [(number.start, number.end, "number") for number in whole.numbers]
    spans += [(match.start, match.end, "zone") for match in whole.of("zone")]
    spans.sort()
    return any(
        first[2] == second[2]
        and _CHOICE.fullmatch(whole.text[whole.tokens[first[1] - 1].end : whole.tokens[second[0]].start])
        for first, second in pairwise(spans)
    )


_COLORS: Final = "红|橙|黄|绿|青|蓝|紫|粉|白|red|orange|yellow|green|cyan|blue|purple|pink|white"
_NO_COLOR: Final = re.compile(
    r"(?:别|不要|不想要?|不用|甭|不喜欢|除了|\bno\b|\bnot\b|\bdon't\b|\banything but\b)"
    r"(?:再|用|是|换成?|调成?|变成?|弄成?|开|那个"
    rf"|make|turn|it|that|them|the|so|to|use|set|want|be|any|more|\W)*(?:{_COLORS})",
    re.IGNORECASE,
)


def refuses_color(calls: Sequence[ToolCall], whole: Evidence) -> bool:
    """Whether a colour is named only to say that it shall not be: neither that colour nor darkness is wished."""
    found = _NO_COLOR.search(whole.text)
    lit = any(call.name in ("set_ambient_color", "set_ambient_light") for call in calls)
    return lit and found is not None and len(re.findall(_COLORS, whole.text, re.IGNORECASE)) == 1


_ENOUGH: Final = re.compile("太|那么|这么|多|完|全|到|停")
_WITHDRAWN: Final = re.compile(
    r"(?:[，,。.！!\s]|哎|唉|诶|欸|哦|啊|呃)(?:别|先别|不用|不)(?P<verb>[^，。\W]{1,3}?)了?[吧啊呀呗]?\W*$"
    r"|[,.!]\s*(?:no,? |oh |wait,? )*(?:don't|do not|please don't)\W*$",
    re.IGNORECASE,
)


def withdraws(calls: Sequence[ToolCall], whole: Evidence) -> bool:
    """Whether the last words take back the verb before them: 锁车门，哎别锁了. What they forbid of another thing
    (打开天窗，别开车窗) or how far (别开太大) takes nothing back.
    """
    found = _WITHDRAWN.search(whole.text)
    if found is None or not found.start() or not calls:
        return False
    verb = found.group("verb")
    if verb is None:
        return True
    after = [one.start for one in whole.numbers] + [one.start for one in whole.of("device")]
    if _ENOUGH.search(verb) or any(whole.tokens[at].start >= found.start() for at in after):
        return False  # 二十，啊不二十二
    stops = verb[0] not in "关停锁闭" and any(undoes(call) for call in calls)  # 太吵了，别放了
    return verb[0] in whole.text[: found.start()] and not stops


_ENDS: Final = re.compile(
    r"\b(?:stop|end|cancel|quit|exit|abort|close|kill|off|drop|forget|finish|no|not|don't|enough|clear|leave|done|over"
    r"|delete|scrap|dismiss|remove|turn|need)"
    "|停|关|退|取消|结束|不|别|终止|算了|甭|中断|删|清",
    re.IGNORECASE,
)


def ends_nothing(calls: Sequence[ToolCall], whole: Evidence) -> bool:
    """Whether the trip would be ended though no word of the sentence ends anything: 导航一下."""
    return any(call.name == "cancel_navigation" for call in calls) and _ENDS.search(whole.text) is None


def names_nothing(calls: Sequence[ToolCall], whole: Evidence) -> bool:
    """Whether a title is made of small words alone: "give me the song after this", 唱一个歌给我听一听. In quotation
    marks or behind "called" any words are one.
    """
    if _CALLED.search(whole.text):
        return False
    words = [str(call.arguments["query"]).lower() for call in calls if call.name == "play_media"]
    return any(_NOTHING.fullmatch(query) or all(part in SMALL for part in query.split()) for query in words)


_CALLED: Final = re.compile(
    r"[《「“\"]|\b(?:called|titled|named|song)\b(?! (?:after|before|that|we|i|you|again))|叫", re.IGNORECASE
)
_NOTHING: Final = re.compile("[一听下个首点吧呗看来放]+")


_OTHER_SENSE: Final = {
    "set_media_source": re.compile(
        r"(?:蓝牙|bluetooth)[^，。,]{0,4}(?:连接|配对|设置|开关|connect\w*|pair\w*|settings?)"
        r"|(?:连接|配对|搜索|\bpair|\bconnect)[^，。,]{0,14}(?:蓝牙|bluetooth)",
        re.IGNORECASE,
    ),
    "navigate_to": re.compile(
        r"中途|途经|途径|途中|经停|沿途点|\bwaypoint|\bstopover|\bvia\b|\bon the way to\b.+\bstop\b", re.IGNORECASE
    ),
}
"""Words by which a tool's thing is another one, which the car lacks: the connection itself, a stop on the way."""


def other_sense(calls: Sequence[ToolCall], whole: Evidence) -> str:
    """What of it the car lacks, in the sentence's words; empty where nothing is."""
    found = (_OTHER_SENSE[call.name].search(whole.text) for call in calls if call.name in _OTHER_SENSE)
    return next((one.group() for one in found if one is not None), "")


_SEAT: Final = re.compile(r"\bseats?\b|座", re.IGNORECASE)
_HEATS: Final = re.compile(r"\bheat|\bwarm(?:er|ing)?\b|加热|加温", re.IGNORECASE)


def warms_the_air(calls: Sequence[ToolCall], whole: Evidence) -> bool:
    """Whether the heating of a seat is spoken of, and a call changes the temperature of the air."""
    if whole.numbers or (whole.has("device.temperature") and not _HEATS.search(whole.text)):
        return False
    changes = [call for call in calls if call.name == "set_temperature" and call.arguments["action"] == "change"]
    return bool(changes) and _SEAT.search(whole.text) is not None and _HEATS.search(whole.text) is not None


_GUARDS: Final = (
    *(denied, shows_what_goes_off, of_anothers, keeps_on, leaves_choice, refuses_color, withdraws, ends_nothing),
    *(names_nothing, warms_the_air),
)


def unmeant(calls: Sequence[ToolCall], whole: Evidence) -> bool:
    """Whether the calls are against the sentence's own words, by any of these."""
    return any(guard(calls, whole) for guard in _GUARDS)
