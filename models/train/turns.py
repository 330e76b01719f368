"""A thing meant and one that is not: contrast ("to fifteen, not fifty") and correction ("to 20, no wait, 22")."""

from __future__ import annotations

from dataclasses import replace

from models.train.devices import DEVICES, OPENED, SEATS, SWITCHED, Device, result_of
from models.train.grammar import Chunks, text_of
from models.train.scopes import untagged
from models.train.wishes import FROM_TEXT, LITTLE, Maker, Wish, call

_OPPOSITES = {
    "own.temp.up": ("own.temp.down", call("set_temperature", zone="all", action="change", value=2.0)),
    "own.temp.down": ("own.temp.up", call("set_temperature", zone="all", action="change", value=-2.0)),
    "own.volume.up": ("own.volume.down", call("set_volume", target="media", action="change", value=10.0)),
    "own.volume.down": ("own.volume.up", call("set_volume", target="media", action="change", value=-10.0)),
    "own.fan.up": ("own.fan.down", call("set_fan", zone="all", action="change", value=20.0)),
    "own.fan.down": ("own.fan.up", call("set_fan", zone="all", action="change", value=-20.0)),
    "own.media.next": ("own.media.previous", call("control_media", action="next")),
    "own.media.previous": ("own.media.next", call("control_media", action="previous")),
    "own.media.play": ("own.media.stop", call("control_media", action="play")),
    "own.media.stop": ("own.media.play", call("control_media", action="stop")),
    "own.lock": ("own.unlock", call("set_door_locks", locked=True, zone="all")),
    "own.unlock": ("own.lock", call("set_door_locks", locked=False, zone="all")),
    "own.recirc.on": ("own.recirc.off", call("set_recirculation", on=True)),
    "own.recirc.off": ("own.recirc.on", call("set_recirculation", on=False)),
}
"""Words -> words for the opposite, and what the first ones ask for."""
_BACK = {"open": "close", "close": "open", "on": "off", "off": "on"}


def _opposites(maker: Maker) -> tuple[Wish, Chunks]:
    """A wish, and words for its opposite."""
    name = maker.rng.choice([name for name in _OPPOSITES if maker.has(name)])
    other, one = _OPPOSITES[name]
    slots: dict[str, Chunks | str] = {"z": "", "x": maker.noun(DEVICES["doors"], "")}
    words = maker.writer.phrase(name, slots)
    value = one["args"].get("value")
    if value is not None and LITTLE.search(text_of(words)):
        one = call(one["tool"], **{**one["args"], "value": value / 2})
    return Wish(words, (one,), maker.is_verbal(text_of(words))), untagged(maker.writer.phrase(other, slots))


def _there_and_back(maker: Maker, opposite: str) -> tuple[Wish, Chunks]:
    """A wish whose words leave its thing to the words for the opposite ("close it, no, open it"), and these. opposite:
    the prefix of their templates.
    """
    rng = maker.rng
    name = rng.choice([*OPENED, *OPENED, *SWITCHED])
    op = rng.choice(["open", "close"] if name in OPENED else ["on", "off"])
    device = DEVICES[name]
    zone = rng.choice(device.zones) if device.zones and rng.random() < 0.5 else ""
    if name == "window" and not zone:
        zone = "driver"  # 关窗 alone are all, 开窗 alone is one
    noun = maker.noun(device, zone)
    other = maker.writer.write(maker.about_x(f"{opposite}.{_BACK[op]}"), {"x": noun})
    again = maker.writer.phrase(f"again.{op}")
    return Wish(again, (call(device.tool, **result_of(device, op, zone)),)), untagged(other)


def contrast(maker: Maker) -> Wish:
    """ "Volume to fifteen not fifty", 不是打开车窗是打开天窗."""
    rng = maker.rng
    kind = rng.choice(["value", "thing", "zone", "act", "opposite", "back", "tail", "zone_value", "short"])
    if kind == "opposite":
        wish, undone = _opposites(maker)
        return replace(wish, chunks=maker.writer.phrase("contrast.any", {"a": wish.chunks, "b": undone}), verbal=False)
    if kind == "back":
        wish, undone = _there_and_back(maker, "plainly")
        return replace(wish, chunks=maker.writer.phrase("contrast.back", {"a": wish.chunks, "b": undone}))
    if kind == "tail":
        return _contrast_before(maker)
    if kind == "zone_value":
        return _place_of_value(maker)
    if kind == "short":
        return _short_thing(maker, "contrast.short")
    pattern = maker.writer.pick({"value": "contrast.value", "act": "contrast"}.get(kind, "contrast.noun"))
    if kind == "value":
        device, value, first, second = _two_values(maker)
        zone = rng.choice(device.zones) if device.zones and rng.random() < 0.3 else ""
        n = maker.writer.write(pattern, {"a": first, "b": untagged(second)})
        chunks = maker.writer.phrase("frame.set", {"x": maker.noun(device, zone), "n": n})
        return Wish(
            chunks, (call(device.tool, **result_of(device, "set", zone, value)),), maker.is_verbal(text_of(chunks))
        )
    if kind == "zone":
        device = DEVICES[rng.choice(["window", "window", "seat_heating", "seat_ventilation"])]
        op = rng.choice(["open", "close"] if device.name == "window" else ["on", "off"])
        meant, other = rng.sample(SEATS, 2)
        other_words = maker.writer.phrase(f"zone.{other}.who") if rng.random() < 0.5 else maker.noun(device, other)
        x = maker.writer.write(pattern, {"a": maker.noun(device, meant), "b": other_words})
        chunks = maker.writer.write(_ending(maker, f"frame.{op}", "{x}"), {"x": x})
        return Wish(chunks, (call(device.tool, **result_of(device, op, meant)),), maker.is_verbal(text_of(chunks)))
    if kind == "thing":
        op = rng.choice(["on", "off", "open", "close"])
        names = rng.sample(SWITCHED if op in ("on", "off") else OPENED, 2)
        device = DEVICES[names[0]]
        a, b = maker.noun(device, ""), maker.noun(DEVICES[names[1]], "")
        if not maker.english and rng.random() < 0.5:
            frame = maker.writer.pick(f"frame.{op}")
            chunks = maker.writer.phrase(
                "contrast", {"a": maker.writer.write(frame, {"x": a}), "b": maker.writer.write(frame, {"x": b})}
            )
        else:
            x = maker.writer.write(pattern, {"a": a, "b": b})
            chunks = maker.writer.write(_ending(maker, f"frame.{op}", "{x}"), {"x": x})
        zone = "all" if device.name == "window" and op == "close" and not maker.english else ""
        return Wish(chunks, (call(device.tool, **result_of(device, op, zone)),), maker.is_verbal(text_of(chunks)))
    wish, other_wish = maker.verbal_wish(free_text=False), maker.verbal_wish(free_text=False)
    chunks = maker.writer.write(pattern, {"a": wish.chunks, "b": untagged(other_wish.chunks)})
    return replace(wish, chunks=chunks, verbal=False)


def _contrast_before(maker: Maker) -> Wish:
    """The things first, then what shall be done: "I said the sunroof, not the window, open it"."""
    rng = maker.rng
    op = rng.choice(list(_BACK))
    if rng.random() < 0.4:
        device = DEVICES["window" if op in ("open", "close") else rng.choice(["seat_heating", "seat_ventilation"])]
        zone, other_zone = rng.sample(SEATS, 2)
        a, b = maker.noun(device, zone), maker.writer.phrase(f"zone.{other_zone}.who")
    else:
        names = rng.sample(SWITCHED if op in ("on", "off") else OPENED, 2)
        device, zone = DEVICES[names[0]], "driver" if names[0] == "window" else ""
        a, b = maker.noun(device, zone), maker.noun(DEVICES[names[1]], "")
    slots: dict[str, Chunks | str] = {"a": a, "b": untagged(b), "o": maker.writer.phrase(f"again.{op}")}
    chunks = maker.writer.phrase(rng.choice(["contrast.before", f"contrast.wanted.{op}"]), slots)
    return Wish(chunks, (call(device.tool, **result_of(device, op, zone)),), False)


def _two_values(maker: Maker) -> tuple[Device, float, Chunks, Chunks]:
    device = DEVICES[
        maker.rng.choice(["temperature", "temperature", "volume", "volume", "fan", "brightness", "nav_volume"])
    ]
    value, first = maker.amount(device, "set")
    other, second = maker.amount(device, "set")
    while other == value or ("level" in text_of(first)) != ("level" in text_of(second)):
        value, first = maker.amount(device, "set")
        other, second = maker.amount(device, "set")
    return device, value, first, second


def correction(maker: Maker) -> Wish:
    """ "To 20, no wait, 22": only the last counts."""
    rng = maker.rng
    kind = rng.choice(["value", "value", "zone", "thing", "act", "opposite", "back", "text", "short", "behind"])
    said = text_of(maker.writer.phrase("correct"))
    between = (
        rng.choice([f" {said} ", f", {said}, ", f", {said} "])
        if maker.english
        else rng.choice([said, f"，{said}，", f"{said}，"])
    )
    if kind == "opposite":
        wish, undone = _opposites(maker)
        return replace(wish, chunks=(*undone, (between, ""), *wish.chunks), verbal=False)
    if kind == "back":
        wish, undone = _there_and_back(maker, "frame")
        return replace(wish, chunks=(*undone, (between, ""), *wish.chunks), verbal=maker.is_verbal(text_of(undone)))
    if kind == "text":
        return _other_text(maker, between)
    if kind == "short":
        return _short_thing(maker, "correct.short")
    if kind == "behind":
        return _told_behind(maker)
    if kind == "value":
        device, value, first, second = _two_values(maker)
        zone = rng.choice(device.zones) if device.zones and rng.random() < 0.3 else ""
        frame = maker.writer.pick("frame.set")
        while not frame.endswith("{n}"):
            frame = maker.writer.pick("frame.set")
        begin = maker.writer.write(frame, {"x": maker.noun(device, zone), "n": untagged(second)})
        lead = rng.choice(["", "", "to "]) if maker.english else rng.choice(["", "", "调到"])
        chunks = (*begin, (between, ""), (lead, ""), *first)
        return Wish(
            chunks, (call(device.tool, **result_of(device, "set", zone, value)),), maker.is_verbal(text_of(begin))
        )
    if kind == "zone":
        device = DEVICES[rng.choice(["window", "window", "seat_heating", "seat_ventilation", "doors"])]
        op = {"window": rng.choice(["open", "close"]), "doors": "lock"}.get(device.name, rng.choice(["on", "off"]))
        other, meant = rng.sample(SEATS, 2)
        form = maker.about_x("own.lock" if op == "lock" else f"frame.{op}")
        begin = maker.writer.write(form, {"x": maker.noun(device, other)})
        end = maker.writer.phrase(f"zone.{meant}.who") if rng.random() < 0.6 else maker.noun(device, meant)
        chunks = (*begin, (between, ""), *end)
        return Wish(chunks, (call(device.tool, **result_of(device, op, meant)),), maker.is_verbal(text_of(begin)))
    if kind == "thing":
        op = rng.choice(["on", "off", "open", "close"])
        names = rng.sample(SWITCHED if op in ("on", "off") else OPENED, 2)
        device = DEVICES[names[1]]
        begin = maker.writer.phrase(f"frame.{op}", {"x": maker.noun(DEVICES[names[0]], "")})
        zone = "all" if device.name == "window" and op == "close" and not maker.english else ""
        chunks = (*begin, (between, ""), *maker.noun(device, ""))
        return Wish(chunks, (call(device.tool, **result_of(device, op, zone)),), maker.is_verbal(text_of(begin)))
    wrong, meant_wish = maker.any_wish(), maker.any_wish()
    return replace(meant_wish, chunks=(*untagged(wrong.chunks), (between, ""), *meant_wish.chunks), verbal=wrong.verbal)


def _other_text(maker: Maker, between: str) -> Wish:
    """Another place, another song: "to the airport, no, to the station"."""
    rng = maker.rng
    if rng.random() < 0.5:
        first, second = maker.place()[1], maker.place()[1]
        begin = untagged(maker.writer.write(_ending(maker, "own.navigate", "{p}"), first))
        lead = rng.choice(
            ["", "to ", "to ", "go to ", "take me to "] if maker.english else ["", "", "去", "导航去", "到"]
        )
        one = call("navigate_to", place=FROM_TEXT, avoid=[])
        return Wish((*begin, (between, ""), (lead, ""), *_slot(second["p"])), (one,), maker.is_verbal(text_of(begin)))
    names = [maker.title() if rng.random() < 0.5 else text_of(maker.writer.phrase("artist")) for _ in range(2)]
    begin = maker.writer.write(_ending(maker, "own.play", "{q}"), {"q": names[0]})
    lead = rng.choice(["", "play ", "put on ", "play "] if maker.english else ["", "放", "播放", "听", "来首"])
    end: Chunks = ((lead, ""), (names[1], "0.query"))
    one = call("play_media", query=FROM_TEXT)
    return Wish((*begin, (between, ""), *end), (one,), maker.is_verbal(text_of(begin)))


_SHORT = {
    "heating": "seat_heating",
    "ventilation": "seat_ventilation",
    "front": "front_defrost",
    "rear": "rear_defrost",
}
"""Words that name a thing beside another one of the same: "heat my seat, no, ventilate it", 后面的."""
_BESIDE = {"heating": "ventilation", "ventilation": "heating", "front": "rear", "rear": "front"}


def _short_thing(maker: Maker, form: str) -> Wish:
    """The thing that is meant is said in short, since the one that is not was named: "seat heating, scratch that, the
    ventilation", 不要座椅加热要通风.
    """
    meant = maker.rng.choice(list(_SHORT))
    device, other = DEVICES[_SHORT[meant]], DEVICES[_SHORT[_BESIDE[meant]]]
    zone = maker.rng.choice(device.zones) if device.zones and maker.rng.random() < 0.3 else ""
    op = maker.rng.choice(["on", "on", "off"])
    undone = maker.writer.write(maker.about_x(f"plainly.{op}"), {"x": maker.noun(other, zone)})
    slots: dict[str, Chunks | str] = {"b": untagged(undone), "x": maker.noun(other, zone)}
    slots |= {"s": maker.writer.pick(f"short.{meant}"), "c": maker.writer.phrase("correct")}
    chunks = maker.writer.phrase(f"{form}.{op}", slots)
    return Wish(chunks, (call(device.tool, **result_of(device, op, zone)),), False)


def _place_of_value(maker: Maker) -> Wish:
    """A value for one place and not for another: 是后排二十二度不是前排, "22 for the back, not the front"."""
    device = DEVICES[maker.rng.choice(["temperature", "temperature", "fan"])]
    zone, other = maker.rng.sample(SEATS, 2)
    value, said = maker.amount(device, "set")
    slots: dict[str, Chunks | str] = {"n": said, "x": maker.noun(device, ""), **maker.zone_slots(zone)}
    slots["a"], slots["b"] = (maker.writer.phrase(f"zone.{one}.who") for one in (zone, other))
    named = device.name == "fan" or maker.rng.random() < 0.4
    chunks = maker.writer.phrase("contrast.place_named" if named else "contrast.place", slots)
    return Wish(chunks, (call(device.tool, **result_of(device, "set", zone, value)),), False)


def _told_behind(maker: Maker) -> Wish:
    """That it was a slip is said last: "next song, uh, the previous one i meant"."""
    if maker.rng.random() < 0.5:
        wish, undone = _opposites(maker)
    else:
        wish, undone = _there_and_back(maker, "plainly")
    return replace(wish, chunks=maker.writer.phrase("correct.behind", {"a": wish.chunks, "b": undone}), verbal=False)


def _slot(filled: Chunks | str) -> Chunks:
    return ((filled, ""),) if isinstance(filled, str) else filled


def _ending(maker: Maker, name: str, slot: str) -> str:
    """A template of the bank behind whose slot nothing follows."""
    while True:
        template = maker.writer.pick(name)
        if template.endswith(slot):
            return template
