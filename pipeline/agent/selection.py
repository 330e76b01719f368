"""Which of the places named before is meant: "the second one", "第二个", and yes or no to "did you mean ...?".

Only a whole utterance counts, so that "second gear" or "yes, I like that song" choose nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pipeline.agent.memory import Offer
from pipeline.frames import Language
from pipeline.nlu.phonetics import simple_form
from pipeline.vehicle.places import Place

_NUMBERS = ("one", "two", "three", "four", "five")
_ORDINALS = ("first", "second", "third", "fourth", "fifth")
_SHORT = ("1st", "2nd", "3rd", "4th", "5th")
_LEAD_EN = r"(?:(?:ok|okay|yes|yeah|well|and|please|then|no|actually|oh|hm|um|uh)[\s,.!]+)*"
_TAIL_EN = r"(?:[\s,]+(?:please|then|thanks|thank you|instead|now))*"
_GO_EN = (
    r"(?:(?:can you |could you |please )*(?P<go>take (?:me|us) to|navigate(?: me)? to|drive(?: me| us)? to|go to"
    r"|head to|let's go to|i want to go to|route to|start (?:navigation|navigating) to"
    r"|let's take|let's do|i(?:'d| would)? like|i want|i(?:'ll| will) take|we(?:'ll| will) take|choose|pick"
    r"|take|i mean|i meant|it's|it is)\s+)?"
)
_FAR_EN = r"(?:how far (?:is|away is|is it to)|what's the distance to|and how far is)\s+"
_WHICH_EN = (
    rf"(?:the\s+)?(?:(?P<ordinal>{'|'.join((*_ORDINALS, *_SHORT))}|last|nearest|closest|nearer|closer|other)"
    rf"(?:\s+(?:one|place|option|result))?|(?:number|option|no\.?)\s*(?P<number>{'|'.join(_NUMBERS)}|[1-5]))"
)
_EN = re.compile(rf"{_LEAD_EN}{_GO_EN}{_WHICH_EN}{_TAIL_EN}", re.IGNORECASE)
_FAR_ONE_EN = re.compile(rf"{_LEAD_EN}{_FAR_EN}{_WHICH_EN}(?:\s+away)?{_TAIL_EN}", re.IGNORECASE)
_YES_EN = re.compile(
    r"(?:(?:yes|yeah|yep|yup|right|correct|exactly|sure|ok|okay|that's it|that's right|that's the one|that one"
    r"|please do|please|of course|indeed|i do|i did|take me there|let's go|go there|yes it is|do it"
    r"|go ahead)[\s,.!]*)+",
    re.IGNORECASE,
)
_NO_EN = re.compile(
    r"(?:(?:no|nope|neither|none of them|none|not that|never mind|nevermind|forget it|wrong|no thanks|thanks)"
    r"[\s,.!]*)+",
    re.IGNORECASE,
)
_DIGITS_ZH = "一二三四五"
_LEAD_ZH = r"(?:那|就|嗯|好的?|对|是的?|请|哦|呃|，|,|。|\s)*"
_GO_ZH = (
    r"(?:(?:我要|我想|我选|带我|帮我|给我|请)*(?:导航)?(?P<go>去|到|开往)?(?:选择?|要|走|是|说的是)?(?:那个|那家)?)?"
)
_WHICH_ZH = (
    rf"(?:第?(?P<number>[{_DIGITS_ZH}1-5两])(?:个|家|座|号|站)|第(?P<bare>[{_DIGITS_ZH}1-5])"
    r"|(?P<word>最后|最近|近一点|近点|近|另外?一)(?:的)?(?:那?一?[个家座]|的)?)"
)
_TAIL_ZH = r"(?:吧|好了|好|啊|呢|就行|可以|那个|地方|的|谢谢|，|。|！|\s)*"
_ZH = re.compile(rf"{_LEAD_ZH}{_GO_ZH}{_WHICH_ZH}{_TAIL_ZH}")
_FAR_ONE_ZH = re.compile(
    rf"{_LEAD_ZH}(?:到|去|离)?{_WHICH_ZH}(?:那个|有|离这里|离我|离这儿|还有|到底|要)*"
    r"(?:多远|多少公里|几公里|远吗|远不远).*"
)
_YES_ZH = re.compile(
    r"(?:是的?|对的?|对啊|对对|没错|正确|嗯|好的?|可以|行|就是(?:它|那个|这个|那里)?|是这个|是那个|去吧|带我去(?:吧|那里)?"
    r"|走吧|就去那里|当然|[，,。！!\s])+"
)
_NO_ZH = re.compile(r"(?:不是的?|不对|都不是|不用了?|不要了?|算了|不了|没有|不|谢谢|[，,。！!\s])+")
_THERE_EN = re.compile(
    rf"{_LEAD_EN}(?:take (?:me|us)|drive(?: me| us)?|go|navigate|let's go|let us go|bring me)\s+there{_TAIL_EN}",
    re.IGNORECASE,
)
_THERE_ZH = re.compile(rf"{_LEAD_ZH}(?:请|我要|我想|带我|导航|开车|我们)*(?:去|到|过)(?:那里|那儿|那边|去)?{_TAIL_ZH}")

Verb = Literal["go", "distance", "declined", "which"]


@dataclass(frozen=True, slots=True)
class Selection:
    """verb: "go" does what the offer is for, "distance" tells how far the place is, "declined" does nothing, "which"
    asks back: several places would fit. place: None for the last two.
    """

    verb: Verb
    place: Place | None
    offer: Offer
    by_pronoun: bool = False
    """ "There": what was spoken of since may be meant."""


def selection_of(
    text: str, language: Language, offer: Offer | None, question: Offer | None, *, recent: bool = True
) -> Selection | None:
    """What was chosen; None where the text chooses nothing.

    offer: the newest one. question: the one that the turn before asked, which alone yes and no can answer. recent:
    whether the offer is; a choice from an older one is asked back, unless the trip is named ("take me to ...").
    """
    said = simple_form(text).strip(" \t.。!！?？,，").replace("’", "'")
    if question is not None:
        answered = _answered(said, language, question)
        if answered is not None:
            return answered
    if offer is None or not said:
        return None
    place_asked = (_FAR_ONE_ZH if language == "zh" else _FAR_ONE_EN).fullmatch(said)
    if place_asked is not None:
        place = _nth(place_asked, offer.places)
        return Selection("distance", place, offer) if place is not None else Selection("which", None, offer)
    chosen = (_ZH if language == "zh" else _EN).fullmatch(said)
    if chosen is not None:
        place = _nth(chosen, offer.places)
        if place is not None and not recent and not chosen["go"]:
            return Selection("which", None, Offer(offer.turn_id, "asked", (place,), offer.call))
        return Selection("go", place, offer) if place is not None else Selection("which", None, offer)
    if (_THERE_ZH if language == "zh" else _THERE_EN).fullmatch(said):
        return replace(_only_one(offer), by_pronoun=True)
    return None


def _answered(said: str, language: Language, question: Offer) -> Selection | None:
    zh = language == "zh"
    if (_NO_ZH if zh else _NO_EN).fullmatch(said):
        return Selection("declined", None, question)
    if (_YES_ZH if zh else _YES_EN).fullmatch(said):
        return _only_one(question)
    named = [place for place in question.places if _names(said, place, language)]
    return Selection("go", named[0], question) if len(named) == 1 else None


def _only_one(offer: Offer) -> Selection:
    return Selection("go", offer.places[0], offer) if len(offer.places) == 1 else Selection("which", None, offer)


def _names(said: str, place: Place, language: Language) -> bool:
    """Whether what was said is the name of the place, or its name among small words."""
    name = place.name(language)
    if language == "zh":
        return re.fullmatch(rf"{_LEAD_ZH}{_GO_ZH}{re.escape(name)}{_TAIL_ZH}", said) is not None
    bare = re.escape(name.removeprefix("the "))
    return re.fullmatch(rf"{_LEAD_EN}{_GO_EN}(?:the )?{bare}{_TAIL_EN}", said, re.IGNORECASE) is not None


def _nth(match: re.Match[str], places: Sequence[Place]) -> Place | None:
    """The place that an ordinal means; None where there is none such, so that nobody guesses."""
    found = {name: value.lower() for name, value in match.groupdict().items() if value}
    word = found.get("ordinal") or found.get("word") or ""
    if word in ("last", "最后"):
        return places[-1]
    if word in ("nearest", "closest", "nearer", "closer", "最近", "近一点", "近点", "近"):
        return places[0]
    if word in ("other", "另一", "另外一"):
        return places[1] if len(places) == 2 else None
    said = word or found.get("number") or found.get("bare") or ""
    tables = (_NUMBERS, _ORDINALS, _SHORT, tuple(_DIGITS_ZH), tuple("12345"))
    index = next((table.index(said) for table in tables if said in table), 1 if said == "两" else -1)
    return places[index] if 0 <= index < len(places) else None
