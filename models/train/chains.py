"""Short wishes in a row, as people say them in one breath: 关闭空调打开车窗, "AC on, fan at sixty"."""

from __future__ import annotations

from dataclasses import dataclass

from models.train.devices import DEVICES, SEATS, result_of
from models.train.grammar import Chunk, Chunks, renumbered, text_of
from models.train.wishes import FROM_TEXT, Call, Maker, Wish, call

_SWITCHES = (
    "ac",
    "recirculation",
    "dome",
    "seat_heating",
    "seat_ventilation",
    "wheel",
    "rear_defrost",
    "front_defrost",
    "massage",
    "ambient",
    "fog",
    "position",
    "headlights",
    "high_beam",
    "rapid_cooling",
    "swing",
    "natural_wind",
    "screen_power",
)
"""Among them lights that the car itself refuses to switch off: what is wished beside that is done."""
_WANTED = ("massage", "seat_ventilation", "ac")
"""Said beside others more often than the rest."""
_OPENERS = ("window", "window", "sunroof", "sunshade", "trunk")
_LEVELS = ("temperature", "temperature", "fan", "fan", "volume", "brightness", "seat_heating", "seat_ventilation")
_SEATED = {
    "all": frozenset(("driver", "passenger", "rear_left", "rear_right")),
    "front": frozenset(("driver", "passenger")),
    "rear": frozenset(("rear_left", "rear_right")),
}
_VERBS = {
    "zh": {
        "on": ("打开", "打开", "打开", "开启", "开", "把{x}打开", "{x}打开"),
        "off": ("关闭", "关闭", "关掉", "关上", "关", "把{x}关了", "{x}关闭", "停掉"),
        "open": ("打开", "打开", "打开", "开启", "开", "把{x}打开", "{x}打开"),
        "close": ("关闭", "关闭", "关上", "关", "把{x}关上", "{x}关上", "关了"),
        "set": (
            "{x}调到{n}",
            "{x}调到{n}",
            "{x}{n}",
            "{x}{n}",
            "{x}调至{n}",
            "{x}开到{n}",
            "将{x}调到{n}",
            "把{x}调成{n}",
        ),
    },
    "en": {
        "on": ("turn on", "turn on", "switch on", "{x} on", "{x} on", "turn {x} on", "put {x} on"),
        "off": ("turn off", "turn off", "switch off", "{x} off", "{x} off", "turn {x} off", "kill"),
        "open": ("open", "open", "open", "open up", "{x} open"),
        "close": ("close", "close", "shut", "{x} closed", "close up"),
        "set": (
            "{x} to {n}",
            "{x} to {n}",
            "{x} at {n}",
            "set {x} to {n}",
            "put {x} on {n}",
            "{x} {n}",
            "turn {x} to {n}",
        ),
    },
}
"""Words for an operation; without {x} the thing follows."""
_SHORT = {
    "zh": (
        ("开窗", call("set_window", zone="driver", action="set", value=100.0)),
        ("关窗", call("set_window", zone="all", action="set", value=0.0)),
        ("开空调", call("set_air_conditioning", on=True)),
        ("关空调", call("set_air_conditioning", on=False)),
        ("关冷气", call("set_air_conditioning", on=False)),
        ("开天窗", call("set_sunroof", position="open")),
        ("关天窗", call("set_sunroof", position="closed")),
        ("开灯", call("set_interior_light", on=True)),
        ("关灯", call("set_interior_light", on=False)),
        ("开大灯", call("set_headlights", on=True)),
        ("锁车", call("set_door_locks", locked=True, zone="all")),
        ("锁门", call("set_door_locks", locked=True, zone="all")),
        ("解锁", call("set_door_locks", locked=False, zone="all")),
        ("关尾门", call("set_trunk", open=False)),
        ("开尾门", call("set_trunk", open=True)),
        ("开雨刮", call("set_wipers", mode="medium")),
        ("关雨刮", call("set_wipers", mode="off")),
        ("开内循环", call("set_recirculation", on=True)),
        ("开外循环", call("set_recirculation", on=False)),
        ("静音", call("set_volume", target="media", action="set", value=0.0)),
        ("放歌", call("control_media", action="play")),
        ("放点音乐", call("control_media", action="play")),
        ("播放音乐", call("control_media", action="play")),
        ("停歌", call("control_media", action="stop")),
        ("下一首", call("control_media", action="next")),
        ("声音大一点", call("set_volume", target="media", action="change", value=5.0)),
        ("声音小一点", call("set_volume", target="media", action="change", value=-5.0)),
        ("风大一点", call("set_fan", zone="all", action="change", value=10.0)),
        ("风小一点", call("set_fan", zone="all", action="change", value=-10.0)),
        ("温度高一点", call("set_temperature", zone="all", action="change", value=1.0)),
        ("温度低一点", call("set_temperature", zone="all", action="change", value=-1.0)),
        ("温度调高", call("set_temperature", zone="all", action="change", value=2.0)),
        ("温度调低", call("set_temperature", zone="all", action="change", value=-2.0)),
        ("风量调高", call("set_fan", zone="all", action="change", value=20.0)),
        ("风量调低", call("set_fan", zone="all", action="change", value=-20.0)),
        ("开按摩", call("set_seat_massage", zone="driver", action="set", value=50.0)),
        ("关按摩", call("set_seat_massage", zone="driver", action="set", value=0.0)),
        ("按摩一下", call("set_seat_massage", zone="driver", action="set", value=50.0)),
        ("开雾灯", call("set_exterior_light", which="fog", on=True)),
        ("关雾灯", call("set_exterior_light", which="fog", on=False)),
        ("开远光", call("set_exterior_light", which="high_beam", on=True)),
        ("关远光", call("set_exterior_light", which="high_beam", on=False)),
        ("关屏", call("set_screen", on=False)),
        ("息屏", call("set_screen", on=False)),
        ("关屏幕", call("set_screen", on=False)),
        ("吹脚", call("set_air_direction", direction="feet", zone="all")),
        ("对着我吹", call("set_air_direction", direction="face", zone="all")),
        ("扫风", call("set_climate_mode", mode="swing", on=True)),
        ("快速制冷", call("set_climate_mode", mode="rapid_cooling", on=True)),
        ("极速降温", call("set_climate_mode", mode="rapid_cooling", on=True)),
        ("空调自动", call("set_climate_mode", mode="auto", on=True)),
        ("氛围灯调成红色", call("set_ambient_color", color="red")),
        ("氛围灯换成蓝色", call("set_ambient_color", color="blue")),
        ("随机播放", call("control_media", action="shuffle")),
        ("单曲循环", call("control_media", action="repeat")),
        ("播放我的收藏", call("control_media", action="play_favourites")),
        ("座椅往后一点", call("set_seat_position", move="back", zone="driver")),
    ),
    "en": (
        ("windows up", call("set_window", zone="all", action="set", value=0.0)),
        ("windows down", call("set_window", zone="all", action="set", value=100.0)),
        ("lock up", call("set_door_locks", locked=True, zone="all")),
        ("lock the doors", call("set_door_locks", locked=True, zone="all")),
        ("headlights on", call("set_headlights", on=True)),
        ("wipers on", call("set_wipers", mode="medium")),
        ("wipers off", call("set_wipers", mode="off")),
        ("fast wipers", call("set_wipers", mode="fast")),
        ("mute", call("set_volume", target="media", action="set", value=0.0)),
        ("music on", call("control_media", action="play")),
        ("music off", call("control_media", action="stop")),
        ("play some music", call("control_media", action="play")),
        ("next song", call("control_media", action="next")),
        ("skip this one", call("control_media", action="next")),
        ("a bit louder", call("set_volume", target="media", action="change", value=5.0)),
        ("a bit quieter", call("set_volume", target="media", action="change", value=-5.0)),
        ("a bit warmer", call("set_temperature", zone="all", action="change", value=1.0)),
        ("a bit cooler", call("set_temperature", zone="all", action="change", value=-1.0)),
        ("more fan", call("set_fan", zone="all", action="change", value=20.0)),
        ("less fan", call("set_fan", zone="all", action="change", value=-20.0)),
        ("fresh air", call("set_recirculation", on=False)),
        ("sunroof open", call("set_sunroof", position="open")),
        ("boot open", call("set_trunk", open=True)),
        ("clear the windscreen", call("set_defrost", area="front", on=True)),
        ("massage on", call("set_seat_massage", zone="driver", action="set", value=50.0)),
        ("massage off", call("set_seat_massage", zone="driver", action="set", value=0.0)),
        ("fog lights on", call("set_exterior_light", which="fog", on=True)),
        ("fog lights off", call("set_exterior_light", which="fog", on=False)),
        ("high beams on", call("set_exterior_light", which="high_beam", on=True)),
        ("screen off", call("set_screen", on=False)),
        ("air to my feet", call("set_air_direction", direction="feet", zone="all")),
        ("max cooling", call("set_climate_mode", mode="rapid_cooling", on=True)),
        ("ac on auto", call("set_climate_mode", mode="auto", on=True)),
        ("ambient light blue", call("set_ambient_color", color="blue")),
        ("shuffle on", call("control_media", action="shuffle")),
        ("repeat this song", call("control_media", action="repeat")),
        ("play my favourites", call("control_media", action="play_favourites")),
        ("seat back a bit", call("set_seat_position", move="back", zone="driver")),
    ),
}
_JOINTS = {
    "zh": [""] * 8 + ["，"] * 3 + ["再", "然后", "并", "和", "、", "还有", "顺便", "同时"],
    "en": [" and "] * 5 + [", "] * 4 + [" then ", ", then ", ", and ", " plus ", " and also ", ". "],
}


@dataclass(frozen=True, slots=True)
class _Part:
    """Words for at most one call; without one, the thing named `what` is missing."""

    chunks: Chunks
    one: Call | None = None


def chain(maker: Maker, *, lacking: bool = False) -> Wish:
    """Two to four short wishes one after another; lacking: one of them is for something this car lacks."""
    rng = maker.rng
    form = rng.random()
    if form < 0.25:
        return _listed(maker, lacking)
    if form < 0.4 and not lacking:
        return _places(maker)
    count = rng.choice([2, 2, 2, 3, 3, 4])
    parts: list[_Part] = []
    while len(parts) < count:
        last = len(parts) == count - 1
        part = _part(maker, last=last)
        if part.one is None or not any(_touches(part.one, other.one) for other in parts if other.one):
            parts.append(part)
    if lacking:
        parts[rng.randrange(count)] = _missing(maker)
    return _joined(maker, parts, _JOINTS[maker.language], lacking)


def _joined(maker: Maker, parts: list[_Part], joints: list[str], lacking: bool) -> Wish:
    calls: list[Call] = []
    chunks: list[Chunk] = []
    usual = maker.rng.choice(joints)
    for part in parts:
        words = renumbered(part.chunks, len(calls))
        if chunks:
            joint = usual if maker.rng.random() < 0.6 else maker.rng.choice(joints)
            if not maker.english and text_of(tuple(chunks))[-1:] in _NUMERALS and text_of(words)[:1] in _NUMERALS:
                joint = "，然后"
            chunks.append((joint, ""))
        chunks += words
        if part.one is not None:
            calls.append(part.one)
    reason = "unsupported" if lacking else None
    return Wish(tuple(chunks), tuple(calls), maker.is_verbal(text_of(parts[0].chunks)), reason=reason)


_NUMERALS = frozenset("0123456789零一二三四五六七八九十百两半%")


def _part(maker: Maker, *, last: bool) -> _Part:
    rng = maker.rng
    draw = rng.random()
    if draw < 0.2:
        words, one = rng.choice(_SHORT[maker.language])
        return _Part(((words, ""),), one)
    if draw < 0.45:
        return _level(maker)
    if last and draw < 0.6:
        return _ended(maker)
    name = rng.choice((*_SWITCHES, *_WANTED, *_OPENERS))
    op = rng.choice(["open", "close"] if name in _OPENERS else ["on", "off"])
    return _switched(maker, name, op)


def _zone(maker: Maker, name: str) -> str:
    zones = DEVICES[name].zones
    return maker.rng.choice(zones) if zones and maker.rng.random() < 0.4 else ""


def _form(maker: Maker, op: str, slots: dict[str, Chunks | str]) -> Chunks:
    form = maker.rng.choice(_VERBS[maker.language][op])
    if "{x}" not in form:
        form = f"{form} {{x}}" if maker.english else f"{form}{{x}}"
    return maker.writer.write(form, slots)


def _switched(maker: Maker, name: str, op: str) -> _Part:
    device, zone = DEVICES[name], _zone(maker, name)
    if name == "window" and maker.rng.random() < 0.35:
        zone = "all"
    meant = "all" if name == "window" and not zone and op == "close" and not maker.english else zone
    return _Part(_form(maker, op, {"x": maker.noun(device, zone)}), call(device.tool, **result_of(device, op, meant)))


def _level(maker: Maker) -> _Part:
    device = DEVICES[maker.rng.choice(_LEVELS)]
    zone = _zone(maker, device.name)
    value, said = maker.amount(device, "set")
    return _Part(
        _form(maker, "set", {"x": maker.noun(device, zone), "n": said}),
        call(device.tool, **result_of(device, "set", zone, value)),
    )


def _ended(maker: Maker) -> _Part:
    """A trip or a song: free text is said last."""
    if maker.rng.random() < 0.5:
        wish = maker.play_wish()
    else:
        kind, slots = maker.place()
        wish = Wish(
            maker.writer.phrase(f"own.navigate{kind}", slots), (call("navigate_to", place=FROM_TEXT, avoid=[]),)
        )
    return _Part(wish.chunks, wish.calls[0])


def _missing(maker: Maker) -> _Part:
    rng = maker.rng
    kind = rng.choice(["switch", "switch", "switch", "opener"])
    op = rng.choice(["on", "on", "off"]) if kind == "switch" else rng.choice(["open", "close"])
    name = text_of(maker.writer.phrase(f"lacking.{kind}"))
    if not maker.english and kind == "switch" and rng.random() < 0.2:
        name = maker.writer.pick(f"zone.{rng.choice(SEATS)}.adj") + name
    return _Part(_form(maker, op, {"x": ((name, "what"),)}))


def _touches(first: Call, second: Call) -> bool:
    """Whether two calls set the same thing at a common place."""
    if first["tool"] != second["tool"]:
        return {first["tool"], second["tool"]} == {"play_media", "control_media"}
    here, there = first["args"].get("zone"), second["args"].get("zone")
    if here is None or there is None or first["tool"] == "set_door_locks":
        return bool(first["args"].get("area") == second["args"].get("area"))
    return not _SEATED.get(here, frozenset((here,))).isdisjoint(_SEATED.get(there, frozenset((there,))))


def _listed(maker: Maker, lacking: bool) -> Wish:
    """One verb, several things, with or without words between them: 打开座椅按摩座椅通风."""
    rng = maker.rng
    opens = rng.random() < 0.5
    switches = maker.english or rng.random() < 0.6
    pool = _SWITCHES if switches else tuple(dict.fromkeys(_OPENERS))
    names = rng.sample(pool, rng.choice([2, 2, 3]) - lacking)
    at = rng.randrange(len(names) + 1) if lacking else -1
    shared = ("on" if opens else "off") if switches else ("open" if opens else "close")
    things: list[_Part] = []
    for name in names:
        device, zone = DEVICES[name], _zone(maker, name)
        meant = "all" if name == "window" and not zone and shared == "close" and not maker.english else zone
        things.append(_Part(maker.noun(device, zone), call(device.tool, **result_of(device, shared, meant))))
    if lacking:
        kind = "lacking.switch" if switches else "lacking.opener"
        things.insert(at, _Part(((text_of(maker.writer.phrase(kind)), "what"),)))
    chunks: list[Chunk] = []
    calls: list[Call] = []
    for i, thing in enumerate(things):
        if i:
            ends = i == len(things) - 1
            between = (" and " if ends else ", ") if maker.english else rng.choice(["", "", "和", "、", "还有"])
            chunks.append((between, ""))
        chunks += renumbered(thing.chunks, len(calls))
        if thing.one is not None:
            calls.append(thing.one)
    said = _form(maker, shared, {"x": tuple(chunks)})
    return Wish(said, tuple(calls), maker.is_verbal(text_of(said)), reason="unsupported" if lacking else None)


def _places(maker: Maker) -> Wish:
    """One thing at two places, each its own way: 主驾二十二度副驾二十五度, 关上主驾车窗打开副驾车窗."""
    rng = maker.rng
    pairs = [("driver", "passenger"), ("front", "rear"), ("rear_left", "rear_right"), ("passenger", "rear")]
    zones = list(rng.choice(pairs))
    rng.shuffle(zones)
    name = rng.choice(["temperature", "temperature", "fan", "window", "window", "seat_heating", "seat_ventilation"])
    device = DEVICES[name]
    if name == "window" and rng.random() < 0.4:
        return _windows(maker, zones)
    if name not in ("temperature", "fan"):
        ops = [rng.choice(["open", "close"] if name == "window" else ["on", "off"]) for _ in zones]
        parts = [
            _Part(_form(maker, op, {"x": maker.noun(device, zone)}), call(device.tool, **result_of(device, op, zone)))
            for op, zone in zip(ops, zones, strict=True)
        ]
        return _joined(maker, parts, _JOINTS[maker.language], lacking=False)
    parts = []
    bare = rng.random() < 0.6 and name == "temperature"
    for zone in zones:
        value, said = maker.amount(device, "set")
        one = call(device.tool, **result_of(device, "set", zone, value))
        if bare:
            words = maker.writer.phrase("place.value", {"x": maker.writer.phrase(f"zone.{zone}.who"), "n": said})
        else:
            words = _form(maker, "set", {"x": maker.noun(device, zone), "n": said})
        parts.append(_Part(words, one))
    joints = [" ", " ", ", ", " and ", ", and "] if bare and maker.english else _JOINTS[maker.language]
    return _joined(maker, parts, joints, lacking=False)


def _windows(maker: Maker, zones: list[str]) -> Wish:
    """Two windows, the second without its name: "passenger window up, mine down"."""
    device = DEVICES["window"]
    ops = maker.rng.sample(["open", "close"], 2)
    words = [maker.noun(device, zones[0]), maker.writer.phrase(f"zone.{zones[1]}.who")]
    parts = [
        _Part(maker.writer.phrase(f"place.window.{op}", {"x": x}), call(device.tool, **result_of(device, op, zone)))
        for x, op, zone in zip(words, ops, zones, strict=True)
    ]
    joints = [" ", ", ", ", ", " and ", ", and ", " but "] if maker.english else ["", "，", "，", "，再", "然后"]
    return _joined(maker, parts, joints, lacking=False)
