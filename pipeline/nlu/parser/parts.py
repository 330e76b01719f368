"""Several wishes in one breath, cut apart: 关闭空调打开车窗, "heat my seat and the steering wheel".

The cuts stand before the verb or the thing of a further wish. A part without a verb of its own takes the one before it
("turn on A and B"). Whether the parts are wishes, the reader of the parts finds out; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.nlu.evidence import Evidence, evidence_of, pieces
from pipeline.nlu.lexicon import Lexicon, Match

MOST_PARTS = 5
_ACTS = ("on", "off", "open", "close", "set", "play", "stop", "lock", "unlock", "go", "mute", "unmute", "next")
_ACTS_TAGS = frozenset(f"verb.{name}" for name in _ACTS)
_THINGS = ("device", "unsupported", "music", "source")
_ALONE = frozenset(f"verb.{name}" for name in ("mute", "unmute", "next", "previous", "lock", "unlock", "go", "play"))
"""Verbs that are a wish without a thing."""
_FREE = frozenset(("verb.play", "verb.go", "device.nav"))
"""Verbs that a name follows."""
_LEADS = frozenset("把将给请再帮我先的")
"""Characters that belong to what follows them."""


_SMALL = frozenset(("the", "a", "my", "our", "too", "的", "也", "都"))


@dataclass(frozen=True, slots=True)
class _Role:
    """V a verb, D a thing, N a number; tokens [start, end)."""

    kind: str
    start: int
    end: int
    match: Match | None = None


def parts_of(whole: Evidence, lexicon: Lexicon, kept: Sequence[tuple[int, int]] = ()) -> list[str]:
    """The wishes of a sentence as texts, in order; the whole sentence alone where there is one. kept: characters
    [start, end) that no cut may part, of names and titles.
    """
    texts: list[str] = []
    verb, at = "", 0
    for piece in pieces(whole.text, lexicon):
        start = whole.text.index(piece, at)
        at = start + len(piece)
        if any(low < at < high for low, high in kept):
            return [whole.text]
        evidence = evidence_of(piece, lexicon, whole.language)
        if not evidence.tokens:
            continue
        cuts = [evidence.tokens[cut].start for cut in _cuts(evidence)]
        if any(low < start + cut < high for low, high in kept for cut in cuts):
            return [whole.text]
        for begin, (low, high) in enumerate(zip([0, *cuts], [*cuts, len(piece)], strict=True)):
            text = piece[low:high].strip()
            if not text:
                continue
            said = evidence_of(text, lexicon, whole.language)
            texts.append(text if begin and _is_manner(said) else _with_verb(verb, text, said))
            verb = _leading_verb(said) or verb
    return texts if 1 < len(texts) <= MOST_PARTS else [whole.text]


def _roles(evidence: Evidence) -> list[_Role]:
    roles = [_Role("N", number.start, number.end) for number in evidence.numbers]
    for match in evidence.matches:
        verb, thing = _ACTS_TAGS & match.tags or "device.nav" in match.tags, any(map(match.has, _THINGS))
        named = match.cost == 0 and (match.has("place") or match.has("kind"))
        if verb or named or (thing and not match.has("zone")):
            roles.append(_Role("V" if verb else "D", match.start, match.end, match))
    return sorted(roles, key=lambda role: role.start)


def is_wish(evidence: Evidence) -> bool:
    """Whether a part names a thing, or what needs none: "next song", "mute", a trip."""
    roles = _roles(evidence)
    return any(role.kind == "D" or not _needs_a_thing(role) for role in roles if role.kind != "N")


def _cuts(evidence: Evidence) -> list[int]:
    """Tokens at which another wish begins."""
    roles, cuts = _roles(evidence), []
    seen: list[_Role] = []
    for i, role in enumerate(roles):
        if _begins(role, seen, roles[i + 1 :], evidence):
            compound = _compound(seen, evidence)
            cuts.append(compound if role.kind == "V" and compound else _led(evidence, role.start))
            seen = []
        seen.append(role)
    return [cut for cut in cuts if cut]


def _compound(seen: Sequence[_Role], evidence: Evidence) -> int:
    """Where the second thing of 打开空调风量调至一挡 begins: the two are one word elsewhere."""
    if [one.kind for one in seen] != ["V", "D"] or evidence.language != "zh":
        return 0
    thing = seen[-1]
    named = "".join(evidence.words[thing.start : thing.end])
    return thing.start + 2 if named.startswith("空调") and len(named) > 2 else 0


def _begins(role: _Role, seen: Sequence[_Role], following: Sequence[_Role], evidence: Evidence) -> bool:
    kinds = "".join(one.kind for one in seen)
    if "D" not in kinds or role.kind == "N" or _in_free_text(seen, role, evidence) or _by_sound(role):
        return False
    after = "".join(one.kind for one in following)
    if role.kind == "V":
        return ("V" in kinds or "N" in kinds) and not (after[:1] in ("", "V") and _needs_a_thing(role))
    if role.match is not None and (role.match.has("music") or "device.media" in role.match.tags):
        return False
    if kinds == "DV" and after[:1] in ("", "D"):
        return False  # 空调打开座椅通风: the verb may belong to either
    before = seen[-1].match
    if kinds.endswith("D") and before is not None and "device.ac" in before.tags:
        return kinds.startswith("V") and after[:1] in ("V", "N")  # 空调风量 is one thing
    return "V" in kinds or "N" in kinds


def _by_sound(role: _Role) -> bool:
    return role.match is not None and role.match.cost > 0


def _needs_a_thing(role: _Role) -> bool:
    return role.match is not None and not _ALONE & role.match.tags


def _in_free_text(seen: Sequence[_Role], role: _Role, evidence: Evidence) -> bool:
    """Whether what precedes may be a name that goes on: after "play" and "take me to", until the car's own list has
    the whole name.
    """
    free = [one for one in seen if one.match is not None and _FREE & one.match.tags]
    if not free or evidence.language == "en":
        return bool(free)
    named = [match for group in ("place", "kind", "music") for match in evidence.of(group)]
    named += [match for match in evidence.matches if "device.media" in match.tags]
    return not any(match.cost == 0 and free[-1].end <= match.start and match.end == role.start for match in named)


def _led(evidence: Evidence, at: int) -> int:
    """The first token of what leads to the one `at`: a place, 把, 再, and words that nobody knows: 快速|制冷."""
    known = {i for match in evidence.matches if not match.has("zone") for i in range(match.start, match.end)}
    known |= {i for number in evidence.numbers for i in range(number.start, number.end)}
    while at and (at - 1 not in known or evidence.words[at - 1] in _LEADS):
        at -= 1
    return at


_MANNERS = frozenset(("rapid_cooling", "rapid_heating"))


def _is_manner(said: Evidence) -> bool:
    """Whether the part names nothing but a way to heat or cool, a wish without a verb: 关闭车窗|快速制冷."""
    return bool(said.of("device")) and set(said.names("device")) <= _MANNERS


def _leading_verb(said: Evidence) -> str:
    """The verb before the thing, as it was said."""
    verbs = [match for match in said.matches if _ACTS_TAGS & match.tags]
    things = [match for match in said.matches if any(map(match.has, _THINGS))]
    if not verbs or not things or verbs[0].start > things[0].start:
        return ""
    return said.slice_text(verbs[0].start, verbs[0].end)


def _with_verb(verb: str, text: str, said: Evidence) -> str:
    """The part with the verb of the one before, where it has none and says no amount either."""
    own = said.of("verb") or said.numbers or said.of("amount") or said.of("feel") or {"on", "off"} & set(said.words)
    known = {at for match in said.matches for at in range(match.start, match.end)}
    strange = [word for at, word in enumerate(said.words) if at not in known and word not in _SMALL]
    if not verb or own or strange or not any(said.of(group) for group in _THINGS):
        return text
    return f"{verb}{text}" if said.language == "zh" else f"{verb} {text}"
