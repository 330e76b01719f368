"""Where to and what to play: commands whose argument is a piece of what was said."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pipeline.frames import ToolCall
from pipeline.nlu.evidence import Evidence, match_names
from pipeline.nlu.intents.questions import place_key
from pipeline.nlu.lexicon import Lexicon, Match
from pipeline.nlu.phonetics import tokens_of

_WEAK_GO = {
    "find",
    "find a",
    "find me a",
    "go",
    "drive",
    "search for",
    "look for a",
    "search for a",
    "去",
    "回",
    "到",
    "drive me",
    "take me",
    "navigate",
    "i need a",
    "we need a",
    "附近的",
    "最近的",
    "找个",
    "找一个",
    "找一下",
    "搜索",
    "查找",
    "find the nearest",
    "next stop",
}
"""Words that mean a trip only together with a known place."""
_SOUNDS_LIKE_GO = "取趣曲区渠"
_ARTICLES = re.compile(r"^(?:the|a|an|to|my|our|nearest|closest|next|some|any)\s+", re.IGNORECASE)
_TAIL = re.compile(
    r"\s*(?:please|thanks|thank you|for me|now|right now|吧|啊|呢|谢谢|好吗|可以吗|去)\W*$", re.IGNORECASE
)
_MEDIA_HEAD = re.compile(
    r"^(?:(?:some|a bit of|a little|a|the|me|us|any|something by|songs? by|music by|something from|songs from|song"
    r"|track|album|to|artist)\s+|(?:一首|首|一点|点|一些|些|几首|个|一下|一段|段)\s*)(?=\S)",
    re.IGNORECASE,
)
_MEDIA_TAIL = re.compile(
    r"(?:的歌曲|的音乐|的歌|的曲子|歌曲|\s+music|\s+songs?|\s+tracks?|\s+please|\s+for me|吧|给我听|来听|听听)$",
    re.IGNORECASE,
)
_GENERIC = {
    "music",
    "song",
    "songs",
    "a song",
    "something",
    "the music",
    "音乐",
    "歌",
    "歌曲",
    "首歌",
    "一首歌",
    "点音乐",
    "it",
    "that",
    "again",
    "tunes",
    "some music",
    "my music",
    "my playlist",
    "playlist",
    "the song",
    "playing",
    "",
    "点歌",
    "on",
    "track",
    "the playlist",
    "something good",
    "anything",
    "曲子",
    "podcast",
}


def options_of(evidence: Evidence) -> list[str]:
    """What the route is to avoid."""
    if not evidence.of("option"):
        return []
    if not evidence.has("verb.avoid", "mark.negate") and not re.search(
        r"不|避|别|without|no |avoid|don't|not ", evidence.text.lower()
    ):
        return []
    return sorted(set(evidence.names("option")))


def navigation_call(evidence: Evidence) -> ToolCall | None:
    """A trip, its end, or its options; None when the clause is about something else."""
    avoid = options_of(evidence)
    places = [match for match in evidence.matches if match.has("place") or match.has("kind")]
    gos = [match for match in evidence.of("verb") if "verb.go" in match.tags]
    if (
        evidence.has("device.nav")
        and evidence.has("verb.cancel", "verb.stop", "verb.off", "verb.close")
        and not evidence.has("device.nav_voice", "device.volume", "verb.mute")
    ):
        return ToolCall("cancel_navigation", {})
    if re.search(r"不去了|不用导航|不要导航|别导航|不导航", evidence.text):
        return ToolCall("cancel_navigation", {})
    if places and not gos and evidence.words[0] in _SOUNDS_LIKE_GO and places[0].start == 1:
        return ToolCall("navigate_to", {"place": place_key(evidence, places[0], 1), "avoid": avoid})
    if gos and places:
        target = next((match for match in places if match.start >= gos[0].end), places[-1])
        if _blocked(evidence, gos[0], target):
            return None
        return ToolCall("navigate_to", {"place": place_key(evidence, target), "avoid": avoid})
    if places and (evidence.has("device.nav") or (avoid and not evidence.of("device"))):
        return ToolCall("navigate_to", {"place": place_key(evidence, places[-1]), "avoid": avoid})
    if places and (evidence.has("mark.nearest") or _only_place(evidence, places)) and not evidence.of("device"):
        return ToolCall("navigate_to", {"place": place_key(evidence, places[-1]), "avoid": avoid})
    if places and _NEED.search(evidence.text) and not evidence.of("device") and not evidence.of("forbid"):
        return ToolCall("navigate_to", {"place": place_key(evidence, places[-1]), "avoid": avoid})
    if gos and not places and not evidence.has("verb.next", "verb.previous"):
        return _unknown_trip(evidence, gos[0], avoid)
    if avoid and not evidence.of("device"):
        return ToolCall("set_route_options", {"avoid": avoid})
    return None


_NEED = re.compile(r"\b(?:i|we) (?:need|want)\b|\b(?:low on|out of)\b|我(?:想|要)(?:喝|吃|加油|充电)", re.IGNORECASE)
_THERE = re.compile(r"\bthere\b|过去|那里|那儿|那边|这里|这儿")


def trip_there(evidence: Evidence, last_call: ToolCall | None) -> ToolCall | None:
    """ "Take me there": to the place just asked about."""
    if last_call is None or last_call.name not in ("ask_distance", "navigate_to"):
        return None
    if evidence.of("place") or evidence.of("kind") or evidence.of("device"):
        return None
    goes = evidence.has("verb.go") or re.search(r"[带送领]我|去那|过去", evidence.text)
    if not goes or not _THERE.search(evidence.text.lower()):
        return None
    return ToolCall("navigate_to", {"place": last_call.arguments["place"], "avoid": options_of(evidence)})


def _said(evidence: Evidence, match: Match) -> str:
    words = evidence.words[match.start : match.end]
    return "".join(words) if any("㐀" <= w[0] <= "鿿" for w in words) else " ".join(words)


def _blocked(evidence: Evidence, go: Match, target: Match) -> bool:
    """ "调到家" is no trip: a bare 到 or 去 after another command's verb."""
    bare = _said(evidence, go) in ("到", "回", "去", "go", "drive")
    return bare and bool(evidence.of("device")) and not evidence.has("device.nav")


def _only_place(evidence: Evidence, places: list[Match]) -> bool:
    covered = sum(m.end - m.start for m in evidence.matches if m in places or m.has("filler") or m.has("mark"))
    return covered >= len(evidence.tokens)


def _unknown_trip(evidence: Evidence, go: Match, avoid: list[str]) -> ToolCall | None:
    """A trip to a place the list does not hold: the tool refuses it by name."""
    said = _said(evidence, go)
    if said in _WEAK_GO and not (said in ("去", "drive me", "navigate") and go.start <= 2):
        return None
    if (evidence.of("device") and not evidence.has("device.nav")) or evidence.of("unsupported"):
        return None
    option = next(
        (m.start for m in evidence.matches if m.has("option") or "verb.avoid" in m.tags), len(evidence.tokens)
    )
    rest = evidence.slice_text(go.end, max(option, go.end)).strip(" ,，。.!！?？")
    rest = _TAIL.sub("", rest)
    while _ARTICLES.match(rest):
        rest = _ARTICLES.sub("", rest)
    if not rest or rest in ("掉", "过", "年"):
        return None
    return ToolCall("navigate_to", {"place": rest[:80], "avoid": avoid})


_PAUSE = re.compile(r"\bpause\b|暂停", re.IGNORECASE)


# --- media ---------------------------------------------------------------------------------------------------------
def media_call(evidence: Evidence, lexicon: Lexicon | None = None) -> ToolCall | None:
    """What to play, or what the player is to do."""
    for verb in ("next", "previous", "fast_forward", "rewind"):
        if evidence.has("verb." + verb) and not _other_device(evidence):
            return ToolCall("control_media", {"action": verb})
    source = evidence.names("source")
    plays = [match for match in evidence.of("verb") if "verb.play" in match.tags]
    stops = evidence.has("verb.stop")
    title = _announced_title(evidence, plays)
    if title:
        return ToolCall("play_media", {"query": title[:80]})
    if _PAUSE.search(evidence.text) and not _other_device(evidence) and not evidence.has("device.nav"):
        return ToolCall("control_media", {"action": "stop"})
    if (
        stops
        and not _other_device(evidence)
        and (evidence.has("device.media") or source or plays or len(evidence.tokens) <= 4)
    ):
        return ToolCall("control_media", {"action": "stop"})
    off = evidence.has("verb.off", "verb.close") or "off" in evidence.words
    if source and not _other_device(evidence) and not evidence.has("device.volume") and not _loudness(evidence):
        if off:
            return ToolCall("control_media", {"action": "stop"})
        if evidence.of("verb") or "on" in evidence.words or len(evidence.tokens) <= 4:
            return ToolCall("set_media_source", {"source": source[0]})
    if not plays or off or _other_device(evidence):
        return None
    query = _query(evidence, plays[0], lexicon)
    if query.lower() in _GENERIC:
        return ToolCall("control_media", {"action": "play"})
    return ToolCall("play_media", {"query": query[:80]})


_SONG = frozenset(("歌曲", "曲子", "song", "track"))


def _announced_title(evidence: Evidence, plays: Sequence[Match]) -> str:
    """What is said behind "play the song", 播放歌曲, where it begins with a verb: a name, unless it names a thing of
    the car, and then it may be a second wish. Empty for none.
    """
    said = [match for match in evidence.of("device") if plays and match.start in (plays[0].end, plays[0].end + 1)]
    if not said or _said(evidence, said[0]).lower() not in _SONG:
        return ""
    rest = [match for match in evidence.matches if match.start >= said[0].end]
    verb = bool(rest) and rest[0].start == said[0].end and rest[0].has("verb")
    if not verb or rest[0].end == len(evidence.tokens) or any(match.has("device") for match in rest):
        return ""
    return evidence.slice_text(said[0].end, len(evidence.tokens)).strip(" ,，。.!！?？《》")


def _loudness(evidence: Evidence) -> bool:
    return evidence.has("verb.up", "verb.down", "verb.louder", "verb.quieter", "verb.mute")


def _other_device(evidence: Evidence) -> bool:
    plays = [match for match in evidence.of("verb") if "verb.play" in match.tags]
    after = plays[0].end if plays else 0
    words = evidence.words
    strong_play = bool(plays) and _said(evidence, plays[0]) not in ("put on", "resume", "continue", "放", "听")
    names = [
        name
        for match in evidence.matches
        for name in match_names(match, "device")
        if name not in ("media", "volume") and not (strong_play and match.start >= after)
    ]
    return bool(names) and bool(words)


def _query(evidence: Evidence, play: Match, lexicon: Lexicon | None) -> str:
    known = [match for match in evidence.of("music") if match.start >= play.end]
    rest = evidence.slice_text(play.end, len(evidence.tokens)).strip(" ,，。.!！?？")
    before = None
    while rest != before:
        before = rest
        rest = _TAIL.sub("", _MEDIA_HEAD.sub("", rest)).strip()
    if rest.lower() in _GENERIC:
        return rest.lower()
    rest = _MEDIA_TAIL.sub("", rest).strip()
    if not known and play.end < len(evidence.tokens) and lexicon is not None:
        return _known_name(rest, lexicon) or rest
    if len(known) == 1:
        name = match_names(known[0], "music")[0]
        covered = evidence.slice_text(known[0].start, known[0].end)
        return rest.replace(covered, name) if known[0].cost > 0 else rest
    return rest


def _known_name(rest: str, lexicon: Lexicon) -> str | None:
    """An artist the words sound like, where only an artist can stand."""
    return lexicon.whole(tokens_of(rest), "music")
