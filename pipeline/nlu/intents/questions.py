"""Questions about the car, and questions that only look like commands."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipeline.frames import ToolCall
from pipeline.nlu.evidence import Evidence
from pipeline.nlu.lexicon import Match
from pipeline.nlu.slots import seat_zone

_LEAD = r"^\W*(?:(?:hey|ok|okay|please|hello|hi|so|well|and|cockpit|uh|um)\W+)*"
"""Small words before what is said."""


def _any(*phrases: str) -> str:
    return "(?:" + "|".join(phrases) + ")"


_POLITE = re.compile(
    _LEAD
    + _any(
        r"(?:can|could|would|will) (?:you|we|i) (?:please |just |kindly |quickly )?"
        r"(?!tell|explain|see|feel|hear|imagine)",
        r"(?:can|could) (?:it|the \w+(?: \w+)?) (?:please )?(?:be|go|get)\b(?!.*\b(?:while|when|during|if)\b)",
        "would you mind",
        "is it possible to",
        "may i have",
        "can i have",
        "can i get",
    )
)
_QUESTION_WORDS = (
    "what|what's|how|how's|is|are|was|were|which|where|where's|when|why|who|who's|whose|do(?! not)|does|did|am|have"
    "|has|should|can|could|would|may|might|must|shall|(?:is|are|was|were|does|did|has|have|ca|could|would|wo|should)n't"
)
_QUESTION_PHRASES = (
    "tell me|show me|check|let me know|i want to know|explain|can you tell|could you tell|can you explain|do you know"
    "|give me the|read me|can i|can we|could we|will"
)
_ENGLISH_QUESTION = re.compile(_LEAD + _any(_QUESTION_WORDS, _QUESTION_PHRASES) + r"\b")
_CHINESE_QUESTION = re.compile(
    r"吗|多少|几[点度号挡档格公千分]|什么(?![都也])|怎么|怎样|哪|是不是|有没有|多[远久快大高长冷热重]|为什么|告诉我|查一下|查看"
    r"|看一下|查询|如何|是否|请问|谁|远不远|冷不冷|热不热|[开关]没[开关]|[了好着上开]没有?\W*$|(.)[不没]\1"
)
_CHINESE_REQUEST = re.compile(r"(?:能不能|可不可以|可以|能|好)[^，。]*(?:吗|么|不)?[？?]?$")
_EXPLAIN_ENGLISH = re.compile(
    _LEAD
    + _any(
        r"what is (?:a|an|the (?:meaning|difference|capital|point|purpose))\b",
        r"what(?:'s| is) (?:a|an) ",
        r"how do(?:es)?\b(?! i get to| we get to)",
        "why|how can|who|explain|what does|write|sing|define|how come|what happens|should|recommend|what are",
        "tell me (?:about|a|an|some|something)",
        r".*\b(?:cost|price of|worth)\b",
        # who asks what may or can be has turned subject and verb round; a request speaks to "you" (_POLITE)
        r"(?:can|could|would|may|might|must|shall|(?:ca|could|would|wo|should)n't) ",
        "can i|can we|could we|do you|are you|how is (?:a|an)",
        "is it (?:safe|legal|good|bad|ok|okay|possible)",
    )
)
_EXPLAIN_CHINESE = re.compile(
    r"什么是|为什么|是什么(?!时候|歌)|什么意思|怎么[用回工开关]|咋(?!不)|讲个|讲一个|笑话|故事|解释|介绍|如何|原理|有什么用"
    r"|多少钱|等于|谁是|你是谁|你叫|区别|推荐|聊聊|说说|安全吗|翻译|写一首|背一首"
)
_DISTANCE = re.compile(
    r"how far|far to|far is|far away|is it far|how long (?:to|till|until|does|will|is|would)|distance to|how close"
    r"|how (?:much )?(?:further|farther|longer)"
    r"|how many (?:more )?(?:kilometers|kilometres|miles|minutes|hours)"
    r"|where is|where's|where are|where can"
    r"|(?:when|what time) (?:will|do|would) (?:we|i) (?:be|get|arrive|reach)"
    r"|多远|多久|远吗|远不远|(?:多少|几)(?:公里|千米|里|分钟|个小时|小时)|多少路|距离|多长时间|在哪|有没有|哪里有|哪有|哪儿有"
)
_TAG_TO_ITEM = {
    "speed": "speed",
    "battery": "battery",
    "range": "range",
    "outside_temperature": "outside_temperature",
    "inside_temperature": "inside_temperature",
    "tyre": "tyre_pressure",
    "time": "time",
    "date": "date",
    "odometer": "odometer",
    "destination": "destination",
    "song": "media",
    "gear": "gear",
    "location": "location",
}
_DEVICE_TO_ITEM = {
    "window": "windows",
    "sunroof": "sunroof",
    "volume": "volume",
    "fan": "fan",
    "ac": "air_conditioning",
    "recirculation": "recirculation",
    "seat_heating": "seat_heating",
    "rear_defrost": "defrost",
    "front_defrost": "defrost",
    "defrost": "defrost",
    "dome_light": "lights",
    "light": "lights",
    "wiper": "wipers",
    "trunk": "trunk",
    "door": "doors",
    "media": "media",
    "nav": "destination",
    "temperature": "inside_temperature",
    "seat_massage": "seat_massage",
    "ambient_light": "ambient_light",
    "headlight": "exterior_lights",
    "high_beam": "exterior_lights",
    "fog_light": "exterior_lights",
    "front_fog": "exterior_lights",
    "rear_fog": "exterior_lights",
    "reading_light": "lights",
}


_TOLD = re.compile(
    r"\b(?:yesterday|last (?:night|week|month|year|summer|winter)|was|were|years ago|used to"
    r"|i (?:love|hate|bought|closed|opened))\b"
    r"|^\W*(?:and |but |so )?my (?:friend|brother|sister|house|wife|husband|boss)"
    r"(?!.{0,20}(?:would like|wants|needs|'d like|is |prefers))\b"
    r"|昨天|昨晚|上次|去年|以前|我喜欢|我讨厌|我家的|他们|(?<!其)[他她]"
)
"""Something told about another time, person or place: talk, not a wish."""


_TEMPERATURE_ASKED = re.compile(
    r"\bhow (?:cold|hot|warm|chilly|cool|freezing|icy)\b|\bis it (?:cold|hot|warm|chilly|cool|freezing)\b"
    r"|\bwhat.*\blike out|多少度|几度|冷不冷|热不热|多[冷热]|[冷热]吗"
)
_OUTSIDE = re.compile(r"\bout\b|\boutside\b|\boutdoors\b|外[面头边]|室外|车外|户外")
_INSIDE = re.compile(r"\bin here\b|\binside\b|\bin the (?:car|cabin)\b|车[里内]|里[面头]|室内")


@dataclass(frozen=True, slots=True)
class Question:
    """`call`: the question about the car, if it is one. `explain`: wants words, not the car. `is_question`: asks
    at all.
    """

    is_question: bool = False
    explain: bool = False
    call: ToolCall | None = None


def asked(evidence: Evidence) -> Question:
    """Judge the clause as a question."""
    text = evidence.text.lower().replace("’", "'")
    if _TOLD.search(text) and not evidence.has("verb.play", "verb.go"):
        return Question(True, True)
    if _is_distance(evidence):
        return Question(True, False, _distance(evidence))
    about_car = evidence.names("ask")
    chinese = any("㐀" <= c <= "鿿" for c in text)
    if chinese:
        asks = _CHINESE_QUESTION.search(evidence_text(evidence)) is not None
        request = (
            evidence.of("verb")
            and _CHINESE_REQUEST.search(text) is not None
            and re.search("能不能|可不可以|可以|能", text)
        )
        asks = asks and not (request and not about_car)
        explain = _EXPLAIN_CHINESE.search(evidence_text(evidence)) is not None or _consequence(evidence)
    else:
        polite = _POLITE.search(text) is not None
        opened = _ENGLISH_QUESTION.search(text) is not None
        asks = not polite and (opened or (evidence.question_mark and not _imperative(evidence, text)))
        explain = (_EXPLAIN_ENGLISH.search(text) is not None and not polite) or _about_doing(evidence)
    if asks and _TEMPERATURE_ASKED.search(text) and not evidence.has("verb.set"):
        where = "outside_temperature" if _OUTSIDE.search(text) else "inside_temperature" if _INSIDE.search(text) else ""
        if where:
            return Question(True, False, ToolCall("ask_vehicle", {"item": where, "zone": "any"}))
    item = _item(evidence, asks, explain)
    if item is not None:
        return Question(True, False, ToolCall("ask_vehicle", {"item": item, "zone": _zone(evidence, item)}))
    if evidence.has("verb.go") and (evidence.of("place") or evidence.of("kind")) and "how do" not in text:
        return Question()
    if explain and not evidence.has("verb.play"):
        return Question(True, True)
    if explain and chinese:
        return Question(True, True)
    return Question(bool(asks), False)


def asked_further(evidence: Evidence, last_call: ToolCall | None) -> ToolCall | None:
    """ "All the windows", "the sunroof" after a question: the same is asked of what is named. Nothing else is said."""
    if last_call is None or last_call.name != "ask_vehicle":
        return None
    if evidence.numbers or any(evidence.of(group) for group in ("verb", "feel", "amount", "unit", "place", "kind")):
        return None
    covered = {i for match in evidence.matches for i in range(match.start, match.end)}
    devices = [name for name in evidence.names("device") if name in _DEVICE_TO_ITEM]
    if not devices or any(i not in covered and word != "the" for i, word in enumerate(evidence.words)):
        return None
    item = _DEVICE_TO_ITEM[devices[0]]
    if devices[0] == "temperature" and last_call.arguments["item"] == "set_temperature":
        item = "set_temperature"
    return ToolCall("ask_vehicle", {"item": item, "zone": _zone(evidence, item)})


def evidence_text(evidence: Evidence) -> str:
    """The clause in simple characters."""
    return evidence.slice_text(0, len(evidence.tokens))


def _uncovered(evidence: Evidence) -> list[int]:
    covered = {i for match in evidence.matches for i in range(match.start, match.end)}
    covered |= {i for number in evidence.numbers for i in range(number.start, number.end)}
    return [i for i in range(len(evidence.tokens)) if i not in covered]


def _consequence(evidence: Evidence) -> bool:
    """ "空调开多了会生病": what would come of it, with 会 as a word of its own (not 会展, 一会, 等会)."""
    words = evidence.words
    return bool(evidence.of("device")) and any(
        words[i] == "会" and not {"一", "等", "待"} & set(words[max(i - 1, 0) : i]) for i in _uncovered(evidence)
    )


def _about_doing(evidence: Evidence) -> bool:
    """ "Opening the windows makes it noisy": the act is what the sentence speaks of, and more is said of it."""
    first = evidence.matches[0] if evidence.matches else None
    devices = evidence.of("device")
    if first is None or not devices or first.start or not first.has("verb") or not evidence.words[0].endswith("ing"):
        return False
    end = devices[-1].end
    return len(evidence.tokens) >= end + 2 and any(i >= end for i in _uncovered(evidence))


_OBJECT = frozenset(("the", "my", "our", "his", "her", "all", "both", "it", "that", "this", "a", "an", "some"))


def _imperative(evidence: Evidence, text: str) -> bool:
    """ "Set the temperature to 24?": a rising end makes no question of a verb in its plain form, at the beginning and
    with its object. "Open windows?", "louder?" and "closed the door?" may be one: they are not acted on.
    """
    small = re.match(_LEAD, text)
    begin = small.end() if small else 0
    first = next((i for i, token in enumerate(evidence.tokens) if token.start >= begin), 0)
    verbs = [match for match in evidence.of("verb") if match.start == first and match.cost == 0.0]
    if not verbs or evidence.words[first].endswith(("ed", "ing")) or evidence.words[first] in ("more", "less"):
        return False
    after = evidence.words[verbs[0].end : verbs[0].end + 1]
    return verbs[0].end - first > 1 or bool(evidence.numbers) or not _OBJECT.isdisjoint(after)


def _zone(evidence: Evidence, item: str) -> str:
    if item not in ("windows", "doors", "locks", "seat_heating", "seat_massage", "fan", "set_temperature"):
        return "any"
    return seat_zone(evidence, "any")


def _item(evidence: Evidence, asks: bool, explain: bool) -> str | None:
    names = [name for name in evidence.names("ask") if name in _TAG_TO_ITEM]
    text = evidence.text.lower()
    # a value to set makes "temperature inside" a thing, not a question
    commanded = evidence.has("verb.set", "verb.up", "verb.down", "verb.on", "verb.off") and not asks
    if names and not commanded and not evidence.of("forbid"):
        clear = asks or _only_asks(evidence)
        strong = [
            n
            for n in names
            if n
            in (
                "battery",
                "range",
                "time",
                "destination",
                "song",
                "speed",
                "outside_temperature",
                "tyre",
                "location",
                "odometer",
                "date",
                "gear",
                "inside_temperature",
            )
        ]
        if clear and strong and not (explain and not _state_question(text, evidence)):
            if "range" in strong:
                return "range"
            return _TAG_TO_ITEM[strong[0]]
    if not asks or explain:
        return None
    devices = [name for name in evidence.names("device") if name in _DEVICE_TO_ITEM]
    if not devices:
        return None
    if "door" in devices and evidence.has("verb.lock", "verb.unlock"):
        return "locks"
    if devices[0] == "temperature":
        if re.search(r"\boutside\b|\boutdoors?\b|外面|室外|车外|户外", text):
            return "outside_temperature"
        if evidence.of("zone") or re.search(r"\bset\b|设|调", text):
            return "set_temperature"
        return "inside_temperature"
    return _DEVICE_TO_ITEM[devices[0]]


def _state_question(text: str, evidence: Evidence) -> bool:
    """ "What is the range", "tell me the time", "车速是什么": asks for a state although it opens like an
    explanation.
    """
    return (
        re.search(
            r"^\W*(?:what(?:'s| is|s)? (?:the|our|my|current)|tell me (?:the|our|my|how|what)|what are the)", text
        )
        is not None
    )


def _only_asks(evidence: Evidence) -> bool:
    """Nothing but the thing asked for and small words: "battery level, please", "车速"."""
    rest = [
        m
        for m in evidence.matches
        if not (m.has("ask") or m.has("filler") or m.has("mark") or m.has("device") or m.has("amount"))
    ]
    covered = sum(match.end - match.start for match in evidence.matches)
    return not rest and covered >= len(evidence.tokens) - 2


def _is_distance(evidence: Evidence) -> bool:
    if not (evidence.of("place") or evidence.of("kind")):
        return False
    text = evidence.text.lower()
    if evidence.has("mark.far") or _DISTANCE.search(text):
        return True
    return re.search(r"^\W*(?:is|are) there (?:a|an|any)", text) is not None


def _distance(evidence: Evidence) -> ToolCall:
    match = (evidence.of("place") or evidence.of("kind"))[-1]
    return ToolCall("ask_distance", {"place": place_key(evidence, match)})


_NO_NAME_WORDS = (
    "the a an to my our your some any of in on at near by from for with into me us we i you it is are be this that "
    "next last first nearest closest other another and or there here up down back way how far out go going get find no "
    "not need want"
)
_NO_NAME = frozenset(_NO_NAME_WORDS.split()) | frozenset(
    "的个家间所座这那到去回往在离有找想要我你们给把从一下前后旁附近上里最再先就还也"
)
"""Words before a kind of place that are no part of a name."""
_INDEFINITE = frozenset(("a", "an", "some", "any", "another"))
_BESIDE_A_PLACE = ("filler", "mark", "verb", "ask", "option")


def place_key(evidence: Evidence, match: Match, after: int = 0) -> str:
    """The argument for a place match: the kind when only the kind (or "nearest") was said, else the place itself; the
    words as said where they name a place that the list does not hold ("Heathrow airport"): the tool refuses it by name.
    A name begins at word `after` at the earliest.
    """
    unknown = _unknown_name(evidence, match, after)
    if unknown is not None:
        return unknown
    kinds = sorted(tag.removeprefix("kind.") for tag in match.tags if tag.startswith("kind."))
    places = sorted(tag.removeprefix("place.") for tag in match.tags if tag.startswith("place."))
    if kinds and (evidence.has("mark.nearest") or not places or len(places) > 1):
        return kinds[0]
    return places[0] if places else kinds[0]


def _unknown_name(evidence: Evidence, match: Match, after: int) -> str | None:
    """The name that the words around a place make with it; None where they only describe ("a cheap hotel")."""
    beside = {
        i
        for other in evidence.matches
        if any(other.has(group) for group in _BESIDE_A_PLACE) and other.cost == 0.0
        for i in range(other.start, other.end)
    }
    start = match.start
    while start > after and start - 1 not in beside and evidence.words[start - 1] not in _NO_NAME:
        start -= 1
    end = _end_of_name(evidence, match)
    if (start, end) == (match.start, match.end):
        return None
    heard = evidence.text[evidence.tokens[start].start : evidence.tokens[match.start].start]
    described = not _INDEFINITE.isdisjoint(evidence.words[max(start - 1, 0) : start]) and heard == heard.lower()
    return None if described and end == match.end else evidence.slice_text(start, end)[:80]


def _end_of_name(evidence: Evidence, match: Match) -> int:
    """Behind the words directly after a place that belong to its name: another place ("北京|大学") or a name of their
    own ("hotel Adlon").
    """
    end = match.end
    for other in evidence.matches:
        if other.start == end and (other.has("place") or other.has("kind")) and other.cost == 0.0:
            end = other.end
    covered = {i for other in evidence.matches for i in range(other.start, other.end)}
    while end < len(evidence.tokens) and end not in covered and evidence.text[evidence.tokens[end].start].isupper():
        end += 1
    return end
