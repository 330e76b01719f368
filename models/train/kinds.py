"""Every kind of sentence, and how large a share of the data it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from models.train import chains, numbers, scopes, turns
from models.train.devices import DEVICES, SEATS, result_of
from models.train.grammar import Chunks, text_of
from models.train.scopes import untagged
from models.train.wishes import LITTLE, Maker, Wish, call


def _talk(name: str, reason: str) -> Callable[[Maker], Wish]:
    def make(maker: Maker) -> Wish:
        slots: dict[str, Chunks | str] = {"who": maker.writer.pick("person")}
        chunks = maker.writer.phrase(name, slots)
        text = text_of(chunks)
        return Wish(chunks, (), maker.is_verbal(text), reason=reason, question=False)

    return make


def plain(maker: Maker) -> Wish:
    """One command; now and then a remark before or behind it."""
    wish = maker.any_wish()
    if maker.rng.random() < 0.06:
        return _beside(maker, maker.writer.phrase("remark"), wish)
    return wish


def _beside(maker: Maker, words: Chunks, wish: Wish) -> Wish:
    """Something said before or behind a wish."""
    before = maker.rng.random() < 0.75
    space = (
        ([" ", ", ", ", ", " so ", ", so ", ", please "] if before else [", ", ". ", " because "])
        if maker.english
        else ["", "，", "，"]
    )
    gap = ((maker.rng.choice(space), ""),)
    parts = (*words, *gap, *wish.chunks) if before else (*wish.chunks, *gap, *words)
    return replace(wish, chunks=parts, verbal=False)


def side_number(maker: Maker) -> Wish:
    """A number beside a wish that is no value: "it's 30 degrees outside, turn the AC on"."""
    value = maker.rng.choice([*range(2, 40), 40, 45, 50, 60, 80, 100])
    side = maker.writer.phrase("side", {"v": numbers.said(value, maker.language, maker.rng)})
    wish = maker.any_wish()
    while wish.chunks[0][1] == "0.value" or (not wish.chunks[0][0] and wish.chunks[1][1] == "0.value"):
        wish = maker.any_wish()  # two numbers with only a pause between are one to the product
    if not maker.english:
        return replace(wish, chunks=(*untagged(side), ("，", ""), *wish.chunks), verbal=False)
    return _beside(maker, untagged(side), wish)


def implied(maker: Maker) -> Wish:
    """A feeling; now and then with the wish that it explains."""
    wish = maker.implied_wish()
    if maker.rng.random() < 0.25:
        matching = {
            "set_temperature": "temperature",
            "set_seat_heating": "seat_heating",
            "set_defrost": "front_defrost",
        }
        name = matching.get(wish.calls[0]["tool"])
        if name == "temperature":
            op = "up" if wish.calls[0]["args"]["value"] > 0 else "down"
            explained = maker.device_wish("temperature", maker.rng.choice([op, f"{op}_little", "set"]), "")
            return _beside(maker, wish.chunks, explained)
    return wish


def mixed(maker: Maker) -> Wish:
    """Mandarin with English names, English with Mandarin ones."""
    english = Maker("zh" if maker.english else "en", maker.rng)
    if maker.english:
        title = maker.rng.choice(english.writer.bank["artist"])
        if maker.rng.random() < 0.5:
            chunks = maker.writer.phrase("own.play.artist", {"q": ((title, "0.query"),)})
            return Wish(chunks, (call("play_media", query="\0"),), maker.is_verbal(text_of(chunks)))
        place = maker.rng.choice(english.writer.bank["place"])
        chunks = maker.writer.phrase("own.navigate", {"p": ((place, "0.place"),)})
        return Wish(chunks, (call("navigate_to", place="\0", avoid=[]),), maker.is_verbal(text_of(chunks)))
    name = maker.rng.choice(
        ["ac", "volume", "window", "sunroof", "fan", "temperature", "seat_heating", "trunk", "wipers"]
    )
    device = DEVICES[name]
    ops = [op for op in device.ops if maker.has(f"frame.{op}") and op != "half"]
    op = maker.rng.choice(ops)
    value, slots = maker.slots_of(device, op)
    zone = ""
    if name == "window":
        zone = maker.rng.choice(["driver", "passenger", "rear"])
    noun = english.noun(device, zone)
    bare = text_of(noun).removeprefix("the ").removeprefix("my ")
    chunks = maker.writer.phrase(f"frame.{op}", {**slots, "x": bare})
    return Wish(chunks, (call(device.tool, **result_of(device, op, zone, value)),), maker.is_verbal(text_of(chunks)))


# --- what this car cannot or must not do ----------------------------------------------------------------------------
def lacking(maker: Maker) -> Wish:
    """A function that cars have and this one lacks."""
    rng = maker.rng
    kind = rng.choice(["act", "switch", "switch", "switch", "opener", "level", "mode"])
    if kind == "act":
        chunks = maker.writer.phrase("lacking.act")
        return Wish(chunks, (), maker.is_verbal(text_of(chunks)), reason="unsupported")
    name = text_of(maker.writer.phrase(f"lacking.{kind}"))
    if not maker.english and kind in ("switch", "level") and rng.random() < 0.2:
        name = maker.writer.pick(f"zone.{rng.choice(SEATS)}.adj") + name
    noun: Chunks = ((name, "what"),)
    if kind == "mode":
        if not maker.english:
            head = rng.choice(["", "把", "帮我把", "将", "", "请把"])
            return Wish(((head, ""), *noun), (), reason="unsupported")
        chunks = (
            (rng.choice(["set ", "switch ", "change ", "turn ", "put ", "please set ", "i want ", "adjust "]), ""),
            *noun,
        )
        return Wish(chunks, (), True, reason="unsupported")
    if kind == "switch":
        op = rng.choice(["on", "on", "off"])
    elif kind == "opener":
        op = rng.choice(["open", "close"])
    else:
        op = rng.choice(["set", "up", "down", "up_little", "down_little", "max", "min", "up_by", "half"])
    slots: dict[str, Chunks | str] = {"x": noun}
    if op in ("set", "up_by"):
        slots["n"] = untagged(maker.amount(DEVICES[rng.choice(["fan", "volume", "brightness"])], "set")[1])
    chunks = maker.writer.phrase(f"frame.{op}", slots)
    return Wish(chunks, (), maker.is_verbal(text_of(chunks)), reason="unsupported")


def several(maker: Maker) -> Wish:
    """Two to four wishes in one breath: short ones in a row, or each in its own words."""
    return chains.chain(maker) if maker.rng.random() < 0.55 else scopes.several(maker)


_assistant = _talk("assistant", "unsupported")


def several_lacking(maker: Maker) -> Wish:
    """Wishes of which one is for something this car lacks: the others are done, that one is named."""
    if maker.rng.random() < 0.65:
        return chains.chain(maker, lacking=True)
    missing = lacking(maker) if maker.rng.random() < 0.7 else _assistant(maker)
    wish = maker.any_wish() if maker.rng.random() < 0.75 else scopes.several(maker, 2)
    parts = [missing.chunks, wish.chunks] if maker.rng.random() < 0.5 else [wish.chunks, missing.chunks]
    return Wish(scopes.glued(maker, parts), wish.calls, False, reason="unsupported")


def forbidden(maker: Maker) -> Wish:
    """Something no voice may do; beside it nothing else is done either."""
    chunks = maker.writer.phrase("forbidden")
    verbal = maker.is_verbal(text_of(chunks)) or maker.english
    if maker.rng.random() < 0.15:
        other = untagged(maker.any_wish().chunks)
        parts = [chunks, other] if maker.rng.random() < 0.5 else [other, chunks]
        return Wish(scopes.glued(maker, parts), (), False, reason="forbidden")
    return Wish(chunks, (), verbal, reason="forbidden")


def out_of_range(maker: Maker) -> Wish:
    """A value that the tool refuses: the call is right and its value is not."""
    rng = maker.rng
    device = DEVICES[rng.choice(["temperature", "temperature", "volume", "fan", "brightness", "window"])]
    op = "open_to" if device.name == "window" else "set"
    if device.name == "temperature":
        value = rng.choice([*range(0, 16), *range(31, 60), 80, 100])
        unit = rng.choice([" degrees", ""]) if maker.english else "度"
    else:
        value = rng.choice([*range(105, 260, 5), 300, 500, 999])
        unit = rng.choice([" percent", "%"]) if maker.english else ""
    said = numbers.said(value, maker.language, rng) if value > 1 else str(value)
    n: Chunks = ((said, "0.value"), (unit, ""))
    if not maker.english and device.name != "temperature":
        n = (("百分之", ""), *n)
    zone = rng.choice(["driver", "passenger", "rear_left"]) if device.zones and rng.random() < 0.4 else ""
    chunks = maker.writer.phrase(f"frame.{op}", {"x": maker.noun(device, zone), "n": n})
    return Wish(
        chunks, (call(device.tool, **result_of(device, op, zone, float(value))),), maker.is_verbal(text_of(chunks))
    )


def wrong_unit(maker: Maker) -> Wish:
    """A unit that the car does not use."""
    rng = maker.rng
    name = rng.choice(["temperature", "temperature", "volume", "fan", "window"])
    english_units = {
        "temperature": ["degrees fahrenheit", "fahrenheit", "ºF", "kelvin", "°F", "degrees f", "degree fahrenheit"],
        "volume": ["decibels", "db", "watts", "decibel"],
        "fan": ["miles per hour", "rpm", "meters per second"],
        "window": ["centimeters", "centimetres", "inches", "cm", "millimetres", "centimetre", "feet", "hands"],
    }
    zh_units = {
        "temperature": ["华氏度", "开尔文", "℉"],
        "volume": ["分贝", "瓦"],
        "fan": ["米每秒", "转每分钟"],
        "window": ["厘米", "英寸", "公分", "毫米", "米"],
    }
    unit = rng.choice((english_units if maker.english else zh_units)[name])
    value = rng.choice([*range(60, 90), 290, 300]) if name == "temperature" else rng.randint(5, 90)
    said = numbers.said(value, maker.language, rng)
    gap = " " if maker.english and unit[0].isalpha() else ""
    n: Chunks = ((said + gap, ""), (unit, "what"))
    frame = "frame.open_to" if name == "window" else "frame.set"
    chunks = maker.writer.phrase(frame, {"x": maker.noun(DEVICES[name], ""), "n": n})
    return Wish(chunks, (), maker.is_verbal(text_of(chunks)), reason="unsupported")


# --- what the last turn means ---------------------------------------------------------------------------------------
def follow_up(maker: Maker) -> Wish:
    """ "A bit more", "and the passenger's too": what "it" is was said before."""
    rng = maker.rng
    kind = rng.choice(["more", "more", "set", "zone", "undo", "switch"])
    if kind == "more":
        names = [
            "temperature",
            "fan",
            "volume",
            "nav_volume",
            "brightness",
            "seat_heating",
            "wheel",
            "massage",
            "ambient",
        ]
        name = rng.choice([*names, "call_volume"])
        up = rng.random() < 0.5
        device = DEVICES[name]
        zone = rng.choice(device.zones) if device.zones and rng.random() < 0.6 else ""
        before = rng.choice(["up", "up_little", "on" if device.on else "up"] if up else ["down", "down_little"])
        last = call(device.tool, **result_of(device, before, zone))
        words = maker.writer.phrase("more.up" if up else "more.down")
        little = LITTLE.search(text_of(words)) is not None
        op = ("up" if up else "down") + ("_little" if little else "")
        return Wish(words, (call(device.tool, **result_of(device, op, zone)),), last=last)
    if kind == "set":
        device = DEVICES[rng.choice(["temperature", "temperature", "fan", "volume", "brightness"])]
        zone = rng.choice(device.zones) if device.zones and rng.random() < 0.6 else ""
        old, _ = maker.amount(device, "set")
        value, said = maker.amount(device, "set")
        words = maker.writer.phrase("follow.set", {"n": said})
        last = call(device.tool, **result_of(device, "set", zone, old))
        return Wish(words, (call(device.tool, **result_of(device, "set", zone, value)),), last=last)
    if kind == "zone":
        names = ["temperature", "window", "window", "seat_heating", "seat_ventilation", "fan", "massage"]
        device = DEVICES[rng.choice(names)]
        first, second = rng.sample(SEATS, 2)
        op = rng.choice(["open", "close"]) if device.name == "window" else rng.choice(["on", "off"])
        if device.name == "temperature":
            op = "set"
        value = float(rng.randint(17, 27))
        words = maker.writer.phrase("follow.zone", {"who": maker.writer.phrase(f"zone.{second}.who")})
        last = call(device.tool, **result_of(device, op, first, value))
        return Wish(words, (call(device.tool, **result_of(device, op, second, value)),), last=last)
    if kind == "undo":
        device = DEVICES[rng.choice(["window", "window", "sunroof", "sunshade", "trunk"])]
        zone = rng.choice(device.zones) if device.zones else ""
        before, op = rng.choice([("open", "close"), ("close", "open")])
        words = maker.writer.phrase(f"follow.undo_{before}")
        last = call(device.tool, **result_of(device, before, zone))
        return Wish(words, (call(device.tool, **result_of(device, op, zone)),), last=last)
    device = DEVICES[
        rng.choice(["ac", "recirculation", "dome", "front_defrost", "rear_defrost", "seat_heating", "wheel", *_FURTHER])
    ]
    zone = rng.choice(device.zones) if device.zones else ""
    before, op = rng.choice([("on", "off"), ("off", "on")])
    words = maker.writer.phrase(f"follow.{op}")
    last = call(device.tool, **result_of(device, before, zone))
    return Wish(words, (call(device.tool, **result_of(device, op, zone)),), last=last)


_FURTHER = ("massage", "ambient", "high_beam", "fog", "screen_power", "swing")
KINDS: dict[str, tuple[float, Callable[[Maker], Wish]]] = {
    "plain": (20.0, plain),
    "several": (14.0, several),
    "exception": (5.0, scopes.exception),
    "contrast": (4.5, turns.contrast),
    "correction": (5.0, turns.correction),
    "follow_up": (2.5, follow_up),
    "title": (2.5, lambda maker: maker.play_wish("title")),
    "side_number": (2.0, side_number),
    "implied": (1.5, implied),
    "question_state": (3.0, Maker.question_wish),
    "ask_distance": (1.5, Maker.distance_wish),
    "mixed": (1.5, mixed),
    "range": (1.0, out_of_range),
    "wrong_unit": (0.5, wrong_unit),
    "lacking": (10.0, lacking),
    "several_lacking": (6.0, several_lacking),
    "assistant": (4.0, _assistant),
    "forbidden": (4.5, forbidden),
    "chat": (3.5, _talk("chat", "none_talk")),
    "statement": (4.5, lambda maker: scopes.told(maker, "statement.wish", "statement", "statement")),
    "reported": (1.5, lambda maker: scopes.told(maker, "reported", "statement")),
    "hypothetical": (3.0, lambda maker: scopes.told(maker, "hypothetical", "hypothetical")),
    "how_to": (4.5, lambda maker: scopes.told(maker, "how_to", "how_to", "how_to.noun")),
    "delayed": (3.5, scopes.delayed),
    "condition": (3.0, scopes.condition),
    "taken_back": (2.5, scopes.taken_back),
    "negation": (3.0, scopes.negation),
    "fragment": (1.0, _talk("fragment", "not_understood")),
    "nonsense": (1.0, _talk("nonsense", "not_understood")),
    "backchannel": (0.3, _talk("backchannel", "none_talk")),
}
"""Kind -> its share (per hundred, about) and how one is made."""

AS_SAID = frozenset(("fragment", "backchannel", "implied"))
"""Kinds whose words nothing polite goes around."""
NOT_SPOILED = frozenset(("fragment", "nonsense", "backchannel", "chat", "title", "assistant"))
"""Kinds whose words are not confused with others of the same sound."""
QUESTIONS = frozenset(("how_to", "question_state", "ask_distance"))
