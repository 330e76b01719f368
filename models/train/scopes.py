"""What stands around wishes: several at once, exceptions, taken back, later, only told."""

from __future__ import annotations

from collections.abc import Callable

from models.train.devices import DEVICES, MANY, OPENED, SEATS, SWITCHED, Device, result_of
from models.train.grammar import Chunk, Chunks, renumbered, text_of
from models.train.wishes import Call, Maker, Wish, call


def _words(text: str) -> Chunks:
    return ((text, ""),)


def untagged(chunks: Chunks) -> Chunks:
    """The words without what they mean: in a wish that is not to be granted they are only words."""
    return tuple((text, "") for text, _ in chunks)


_JOINTS_EN = [" and "] * 3 + [
    " and then ",
    ", then ",
    ", ",
    ", and ",
    " then ",
    " plus ",
    " and also ",
    ", also ",
    ". ",
]
_JOINTS_EN += [" and please ", ", ah and ", ", and after that ", " and while you're at it ", ", and can you "]
_JOINTS_ZH = [
    "",
    "",
    "",
    "，",
    "，",
    "然后",
    "再",
    "并且",
    "顺便",
    "还有",
    "同时",
    "接着",
    "，然后",
    "，再",
    "并",
    "另外",
    "，顺便",
]
_JOINTS_ZH += ["，还有", "完了", "，接着", "以及", "，另外", "，同时"]


def _joint(maker: Maker) -> str:
    """What stands between two wishes."""
    return maker.rng.choice(_JOINTS_EN if maker.english else _JOINTS_ZH)


def glued(maker: Maker, parts: list[Chunks], joint: Callable[[Maker], str] = _joint) -> Chunks:
    """Wishes one after another; two numbers never touch."""
    done: list[Chunk] = list(parts[0])
    for part in parts[1:]:
        between = joint(maker)
        if not maker.english and text_of(tuple(done))[-1:] in _NUMERALS:
            between = "然后" if text_of(part)[:1] in _NUMERALS else between or "，"
        if (
            maker.english
            and between in (" and can you ", " and please ", ", and can you ")
            and not maker.is_verbal(text_of(part))
        ):
            between = " and "
        done += [(between, ""), *part]
    return tuple(done)


_NUMERALS = frozenset("0123456789零一二三四五六七八九十百两半成%")


def several(maker: Maker, count: int = 0) -> Wish:
    """Two to four wishes in one breath, in order."""
    rng = maker.rng
    if not count and rng.random() < 0.35:
        return shared_verb(maker)
    count = count or rng.choice([2, 2, 2, 2, 3, 3, 4])
    wishes: list[Wish] = []
    while len(wishes) < count:
        wish = maker.any_wish()
        if not any(_same_thing(wish.calls, other.calls) for other in wishes):
            wishes.append(wish)
    parts = [renumbered(wish.chunks, i) for i, wish in enumerate(wishes)]
    return Wish(glued(maker, parts), tuple(one for wish in wishes for one in wish.calls), wishes[0].verbal)


def _same_thing(first: tuple[Call, ...], second: tuple[Call, ...]) -> bool:
    names = {one["tool"] for one in first}
    return any(one["tool"] in names for one in second)


def shared_verb(maker: Maker) -> Wish:
    """ "Turn on A and B": one verb, several things."""
    rng = maker.rng
    op = rng.choice(["on", "off", "open", "close"])
    names = rng.sample(SWITCHED if op in ("on", "off") else OPENED, rng.choice([2, 2, 2, 3]))
    if not maker.english and rng.random() < 0.5 and op in ("on", "off"):
        # 打开 and 关闭 are said of both kinds
        names[-1] = rng.choice(OPENED)
    chunks: list[Chunk] = []
    calls: list[Call] = []
    for i, name in enumerate(names):
        device = DEVICES[name]
        zone = rng.choice(device.zones) if device.zones and rng.random() < 0.35 else ""
        own_op = {"on": "open", "off": "close"}.get(op, op) if name in OPENED else op
        closes_all = name == "window" and not zone and own_op == "close" and not maker.english
        zone_meant = "all" if closes_all else zone
        if i:
            last = i == len(names) - 1
            if maker.english:
                chunks.append((rng.choice([" and ", " and ", " as well as ", " plus "]) if last else ", ", ""))
            else:
                chunks.append((rng.choice(["和", "和", "还有", "跟", "以及", "、"]) if last else "、", ""))
        chunks += maker.noun(device, zone)
        calls.append(call(device.tool, **result_of(device, own_op, zone_meant)))
    chunks = list(maker.writer.phrase(f"frame.{op}", {"x": tuple(chunks)}))
    return Wish(tuple(chunks), tuple(calls), maker.is_verbal(text_of(tuple(chunks))))


# --- exceptions ----------------------------------------------------------------------------------------------------
_REST = {
    "driver": ("passenger", "rear"),
    "passenger": ("driver", "rear"),
    "rear": ("front",),
    "front": ("rear",),
    "rear_left": ("front", "rear_right"),
    "rear_right": ("front", "rear_left"),
}
"""All but one place: the fewest calls for the others, front first."""


def exception(maker: Maker) -> Wish:
    """ "Close all windows except mine": calls for the others."""
    rng = maker.rng
    if rng.random() < 0.2:
        return _kept(maker)
    names = ["window", "window", "window", "seat_heating", "seat_ventilation", "massage", "doors", "temperature", "fan"]
    name = rng.choice(names)
    device = DEVICES[name]
    left_out = rng.choice(SEATS)
    excluded = text_of(maker.writer.phrase(f"zone.{left_out}.who"))
    if name in ("temperature", "fan"):
        return _climate_exception(maker, device, left_out, excluded)
    op = {"window": rng.choice(["open", "close", "close"]), "doors": rng.choice(["lock", "lock", "unlock"])}.get(
        name, rng.choice(["on", "off"])
    )
    if maker.english:
        plural = maker.writer.pick(f"plural.{name}")
        group = text_of(maker.writer.phrase("every", {"d": plural}))
        if rng.random() < 0.3 and name == "window":
            excluded = text_of(maker.noun(device, left_out))
    else:
        plural = maker.writer.pick(f"plural.{name}")
        group = rng.choice(["所有", "全部", "其他", "", "其余"]) + plural
    x = text_of(maker.writer.phrase("except", {"x": group, "d": plural, "e": excluded}))
    apart = rng.random() < 0.35
    frame = f"own.{op}" if name == "doors" else f"frame.{op}"
    if name == "window" and rng.random() < 0.4:
        frame = f"own.window.{op}"
    said = text_of(maker.writer.write(maker.about_x(frame), {"x": group if apart else x}))
    if apart:
        said = text_of(maker.writer.phrase("except.apart", {"w": said, "e": excluded}))
    calls = tuple(call(device.tool, **result_of(device, op, zone)) for zone in _REST[left_out])
    return Wish(_words(said), calls, maker.is_verbal(said))


def _kept(maker: Maker) -> Wish:
    """The place that stays is named and what shall be done elsewhere: "keep mine open and close the rest"; or that
    place stays and another is named: 前排不动，把后面的窗户关上.
    """
    rng = maker.rng
    device = DEVICES["window"]
    left_out = rng.choice(SEATS)
    excluded = text_of(maker.writer.phrase(f"zone.{left_out}.who"))
    op = rng.choice(["open", "close", "close"])
    if rng.random() < 0.5:
        said = text_of(maker.writer.phrase(f"except.kept.{op}", {"e": excluded}))
        calls = tuple(call(device.tool, **result_of(device, op, zone)) for zone in _REST[left_out])
        return Wish(_words(said), calls, False)
    name = rng.choice(["window", "window", "seat_heating", "seat_ventilation", "massage"])
    device = DEVICES[name]
    op = op if name == "window" else rng.choice(["on", "off"])
    meant = rng.choice(_REST[left_out])
    wish = maker.device_wish(name, op, meant)
    while wish.zone != meant or not _names_zone(maker, wish):
        wish = maker.device_wish(name, op, meant)
    chunks = maker.writer.phrase("except.stays", {"e": excluded, "w": wish.chunks})
    return Wish(chunks, wish.calls, False)


def _names_zone(maker: Maker, wish: Wish) -> bool:
    """Whether its words say which place: "open the window" does not."""
    words = [*maker.writer.bank[f"zone.{wish.zone}.adj"], *maker.writer.bank.get(f"zone.{wish.zone}.loc", ())]
    return any(word in text_of(wish.chunks) for word in words)


def _climate_exception(maker: Maker, device: Device, left_out: str, excluded: str) -> Wish:
    value, said = maker.amount(device, "set")
    noun = maker.noun(device, "")
    rest = _REST[left_out]
    everywhere = maker.writer.phrase("zone.all.loc") if maker.english else ()
    slots: dict[str, Chunks | str] = {"x": noun, "n": said, "e": excluded, "l": everywhere}
    chunks = maker.writer.phrase("except.climate", slots)
    calls = tuple(call(device.tool, **result_of(device, "set", zone, value)) for zone in rest)
    return Wish(chunks, calls, maker.is_verbal(text_of(chunks)))


# --- nothing now ---------------------------------------------------------------------------------------------------
def taken_back(maker: Maker) -> Wish:
    """A wish and its end: "open the sunroof, never mind"."""
    wish = several(maker, 2) if maker.rng.random() < 0.1 else maker.any_wish()
    if maker.english:
        between = maker.rng.choice([" ", ", ", ", ", "... ", " uh ", ". ", " oh ", " hmm "])
    else:
        between = maker.rng.choice(["", "，", "，", "呃", "嗯"])
    chunks = (*untagged(wish.chunks), (between, ""), *maker.writer.phrase("cancel"))
    return Wish(chunks, (), wish.verbal, reason="taken_back")


def negation(maker: Maker) -> Wish:
    """A command not to act."""
    if maker.rng.random() < 0.2:
        name = maker.rng.choice(list(DEVICES))
        device = DEVICES[name]
        zone = maker.rng.choice(device.zones) if device.zones and maker.rng.random() < 0.3 else ""
        chunks = maker.writer.phrase("negated.noun", {"x": maker.noun(device, zone)})
    else:
        chunks = maker.writer.phrase("negated", {"w": untagged(maker.verbal_wish().chunks)})
    return Wish(untagged(chunks), (), reason="taken_back")


def delayed(maker: Maker) -> Wish:
    """Later, at a time, for a time: nothing can be done now."""
    rng = maker.rng
    wish = untagged(maker.verbal_wish().chunks)
    if rng.random() < 0.2:
        time = text_of(maker.writer.phrase("duration"))
        if maker.english:
            chunks: Chunks = (*wish, (f" {time}", ""))
        else:
            chunks = maker.writer.phrase("duration.form", {"w": wish, "t": time})
        return Wish(chunks, (), True, reason="delayed")
    chunks = maker.writer.phrase("delayed", {"w": wish, "t": maker.writer.phrase("delay")})
    return Wish(chunks, (), maker.is_verbal(text_of(chunks)), reason="delayed")


def condition(maker: Maker) -> Wish:
    """ "If it rains close the windows": nothing now."""
    wish = untagged(maker.verbal_wish().chunks)
    chunks = maker.writer.phrase("delayed", {"w": wish, "t": maker.writer.phrase("condition")})
    return Wish(chunks, (), maker.is_verbal(text_of(chunks)), reason="condition")


def any_noun(maker: Maker) -> Chunks:
    """A thing of the car, one of those this car lacks now and then."""
    rng = maker.rng
    if rng.random() < 0.2:
        return untagged(maker.writer.phrase(rng.choice(["lacking.switch", "lacking.opener", "lacking.level"])))
    name = rng.choice([*DEVICES, "music", "navigation", "guidance"])
    if name not in DEVICES:
        return maker.writer.phrase(name)
    device = DEVICES[name]
    zone = (
        rng.choice([zone for zone in device.zones if zone not in MANY]) if device.zones and rng.random() < 0.3 else ""
    )
    return maker.noun(device, zone)


def told(maker: Maker, form: str, reason: str, noun_form: str = "") -> Wish:
    """Words about a wish or a thing that ask for nothing: statements, what others said, what could be."""
    if noun_form and maker.rng.random() < 0.6:
        chunks = maker.writer.phrase(noun_form, {"x": any_noun(maker)})
    else:
        slots: dict[str, Chunks | str] = {"w": untagged(maker.verbal_wish().chunks)}
        if "teller" in maker.writer.bank:
            slots["who"] = maker.writer.pick("teller")
        chunks = maker.writer.phrase(form, slots)
    return Wish(untagged(chunks), (), reason=reason)
