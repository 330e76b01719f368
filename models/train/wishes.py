"""One wish: words for one call, and the call."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field, replace
from typing import Any

from models.train import numbers
from models.train.bank import bank_of
from models.train.devices import COLORS, DEVICES, FRACTIONS, MANY, PAGES, SEAT_MOVES, Device, result_of
from models.train.grammar import Chunks, Writer, text_of

Call = dict[str, Any]
"""{"tool": name, "args": {...}}; an argument FROM_TEXT is the words of the span of its name."""
FROM_TEXT = "\0"
LITTLE = re.compile(r"\b(?:bit|little|touch|tad|notch|slightly|smidge)\b|(?<!有)点|些|稍|略")
"""Words by which "more" is half a step."""


@dataclass(frozen=True, slots=True)
class Wish:
    """Words and what they ask for. `verbal`: begins with a verb in its plain form. `device`, `op`, `zone`: what it is
    about, empty where it is no device.
    """

    chunks: Chunks
    calls: tuple[Call, ...] = ()
    verbal: bool = False
    device: str = ""
    op: str = ""
    zone: str = ""
    reason: str | None = None
    last: Call | None = None
    question: bool = False


def call(tool: str, **args: Any) -> Call:
    """One call."""
    return {"tool": tool, "args": args}


@dataclass(slots=True)
class Maker:
    """Makes wishes of one language."""

    language: str
    rng: random.Random
    writer: Writer = field(init=False)

    def __post_init__(self) -> None:
        self.writer = Writer(bank_of(self.language), self.rng)

    @property
    def english(self) -> bool:
        return self.language == "en"

    def is_verbal(self, text: str) -> bool:
        """Whether the words begin with a verb in its plain form."""
        if self.english:
            return text.split(" ", 1)[0] in self.writer.bank["verbs"]
        return text.startswith(tuple(self.writer.bank["verbs"]))

    def has(self, name: str) -> bool:
        return name in self.writer.bank

    # --- nouns ---------------------------------------------------------------------------------------------------
    def noun(self, device: Device, zone: str) -> Chunks:
        """The thing by name, with its place where one is given."""
        name = device.noun
        if not zone:
            bare = f"{name}.bare"
            return self.writer.phrase(bare if self.has(bare) else name)
        if zone == "all" and self.has(f"{name}.all"):
            return self.writer.phrase(f"{name}.all")
        if zone == "driver" and self.has(f"{name}.driver") and self.rng.random() < 0.4:
            return self.writer.phrase(f"{name}.driver")
        form = f"{name}.many" if zone in MANY and self.has(f"{name}.many") else f"{name}.one"
        template = self.writer.pick(form)
        if self.english and zone == "all":
            while "{za}" in template:
                template = self.writer.pick(form)
        return self.writer.write(template, self.zone_slots(zone))

    def zone_slots(self, zone: str) -> dict[str, Chunks | str]:
        """{za}: the place as an adjective; {zl}: as words behind (English)."""
        slots: dict[str, Chunks | str] = {"za": self.writer.pick(f"zone.{zone}.adj")}
        if self.english:
            slots["zl"] = self.writer.pick(f"zone.{zone}.loc")
        return slots

    def about_x(self, name: str) -> str:
        """A template of the bank that names the thing: "开窗" alone cannot say which one."""
        while True:
            template = self.writer.pick(name)
            if "{x}" in template:
                return template

    def zone_tail(self, zone: str) -> str:
        """{z} of a thing's own templates: where, or nothing."""
        if not zone:
            return ""
        return " " + self.writer.pick(f"zone.{zone}.loc") if self.english else self.writer.pick(f"zone.{zone}.adj")

    # --- numbers -------------------------------------------------------------------------------------------------
    def degrees(self, value: float, *, unit: bool) -> Chunks:
        """A temperature or its change."""
        said = numbers.said(value, self.language, self.rng, degrees=True)
        if self.english and said == "one":
            said = "1"  # at the beginning "one" is no number to the product
        tag = "0.value"
        if "度" in said:
            return ((said, tag),)
        if said == "一":
            return ((said, tag), ("度", ""))
        if self.english:
            single = value == 1 and self.rng.random() < 0.9
            units = (
                ["", "", " degree"] if single else ["", "", " degrees", " degrees", " degrees celsius", " celsius", "°"]
            )
            tail = self.rng.choice(units if not unit else units[2:])
        else:
            tail = self.rng.choice(["", "度", "度", "度", "摄氏度", "℃"] if not unit else ["度", "度", "度", "摄氏度"])
        return ((said, tag), (tail, ""))

    def percent(self, value: float, *, bare: bool) -> Chunks:
        """A share of a hundred. bare: also without the unit."""
        whole = int(value)
        if self.english:
            said = numbers.said(whole, "en", self.rng)
            return (
                (said, "0.value"),
                (self.rng.choice([" percent", " percent", " per cent", "%"] + [""] * 3 * bare), ""),
            )
        if whole % 10 == 0 and 10 <= whole < 100 and self.rng.random() < 0.06:
            return ((numbers.mandarin(whole // 10), "0.value"), ("成", ""))
        said = numbers.said(whole, "zh", self.rng)
        if whole == 100 and self.rng.random() < 0.5:
            said = self.rng.choice(["百", "一百"])
            return (("百分之", ""), (said, "0.value"))
        if bare and self.rng.random() < 0.5:
            return ((said, "0.value"),)
        if said[0].isdigit() and self.rng.random() < 0.8:
            return ((said, "0.value"), ("%", ""))
        return (("百分之", ""), (said, "0.value"))

    def level(self, value: int, *, bare: bool) -> Chunks:
        """A counted level."""
        said = numbers.said(value, self.language, self.rng)
        if self.english:
            if said == "one":
                return (("level ", ""), (said, "0.value"))
            if bare and self.rng.random() < 0.3:
                return ((said, "0.value"),)
            return ((self.rng.choice(["level ", "level ", "stage ", "speed "]), ""), (said, "0.value"))
        if said == "二" and self.rng.random() < 0.5:
            said = "两"
        if bare and said not in ("一", "两") and self.rng.random() < 0.2:
            return ((said, "0.value"),)
        return ((said, "0.value"), (self.rng.choice("档挡档挡级"), ""))

    def amount(self, device: Device, op: str) -> tuple[float, Chunks]:
        """A value for `op` and how it is said."""
        rng = self.rng
        if device.name == "temperature":
            if op == "set":
                value = rng.randint(16, 30) if rng.random() < 0.85 else rng.randint(32, 59) / 2
                return float(value), self.degrees(value, unit=False)
            value = rng.choice([1, 2, 2, 3, 3, 4, 5, 0.5, 1.5, 2.5])
            if self.english and value == 0.5:
                value = 1
            return float(value), self.degrees(value, unit=True)
        if device.levels and rng.random() < 0.5:
            if op == "set":
                level = rng.randint(1, device.levels)
                return float(round(level * 100 / device.levels)), self.level(level, bare=True)
            level = rng.randint(1, 2)
            if self.english:
                words = numbers.said(level, "en", rng) if level > 1 else "1"  # "one level" is no number to the product
                said: Chunks = ((words, "0.value"), (" level" if level == 1 else " levels", ""))
            else:
                said = ((rng.choice(["一", "1"] if level == 1 else ["两", "2"]), "0.value"), (rng.choice("档挡"), ""))
            return float(round(level * 100 / device.levels)), said
        if op == "set":
            value = rng.choice(
                [rng.randrange(10, 101, 5), rng.randrange(10, 101, 10), rng.randint(int(device.low) + 10, 100)]
            )
            return float(value), self.percent(
                value, bare=device.name in ("volume", "nav_volume", "call_volume", "brightness") or value > 9
            )
        value = rng.choice([5, 10, 10, 15, 20, 20, 25, 30, 40])
        return float(value), self.percent(value, bare=False)

    # --- wishes --------------------------------------------------------------------------------------------------
    def device_wish(self, name: str = "", op: str = "", zone: str | None = None) -> Wish:
        """A wish about one of the car's things."""
        rng = self.rng
        device = DEVICES[name or rng.choice(_WEIGHTED)]
        op = op or rng.choice(device.ops)
        if zone is None:
            zone = rng.choice(device.zones) if device.zones and rng.random() < 0.45 else ""
        if device.name == "window":
            return self.window_wish(device, op, zone)
        if device.name == "reading" and op in ("on", "off") and not zone:
            device = DEVICES["dome"]  # without a place the cabin's light is meant
        value, slots = self.slots_of(device, op)
        template, taken = self.template(device, op, zone)
        if template is None:
            raise ValueError(f"no words for {device.name} {op}")
        if taken:
            slots |= {"z": self.zone_tail(zone)} | (self.zone_slots(zone) if zone else {})
            if "{z}" not in template and "{za}" not in template and "{zl}" not in template and "{x}" not in template:
                zone = ""
        slots["x"] = self.noun(device, zone)
        chunks = self.writer.write(template, slots)
        if op in ("up", "down") and LITTLE.search("".join(text for text, tag in chunks if not tag)):
            op += "_little"
        args = result_of(device, op, zone, value)
        return Wish(chunks, (call(device.tool, **args),), self.is_verbal(text_of(chunks)), device.name, op, zone)

    def slots_of(self, device: Device, op: str) -> tuple[float, dict[str, Chunks | str]]:
        """The value of an operation that names one, and the slots {n} or {f}."""
        slots: dict[str, Chunks | str] = {}
        value = 0.0
        if op in ("set", "up_by", "down_by"):
            value, slots["n"] = self.amount(device, op)
        elif op in ("open_to", "open_by"):
            value = float(self.rng.choice([10, 15, 20, 25, 30, 40, 50, 60, 70, 75, 80, 90]))
            if op == "open_by":
                value = float(self.rng.choice([5, 10, 15, 20, 25, 30]))
            slots["n"] = self.percent(value, bare=False)
        elif op == "half":
            part = self.rng.choice(list(FRACTIONS))
            value = FRACTIONS[part]
            slots["f"] = self.writer.phrase(f"part.{part}")
        elif op == "open_part":
            part = self.rng.choice(["half", "half", "half", "quarter", "third", "two_thirds", "three_quarters"])
            value = FRACTIONS[part]
            slots["f"] = self.writer.phrase(part)
        return value, slots

    def template(self, device: Device, op: str, zone: str) -> tuple[str | None, bool]:
        """Words for an operation: the thing's own ones (True) or those for any thing."""
        own = [f"{device.own}.{op}_zone" if zone else f"{device.own}.{op}"]
        if device.own.startswith("own.defrost") and op == "on":
            own = [device.own]
        own = [name for name in own if device.own and self.has(name)]
        if device.own and zone and device.name in ("temperature", "fan", "doors") and self.has(f"{device.own}.{op}"):
            own = [f"{device.own}.{op}"]
        if op == "half":
            op = "part"
        general = [f"frame.{op}"] if self.has(f"frame.{op}") else []
        if op == "set" and self.rng.random() < 0.15:
            general = ["frame.set_up" if self.rng.random() < 0.5 else "frame.set_down"]
        if device.own == "own.recirc" and op == "off" and self.rng.random() < 0.3:
            return self.fresh_air(), True
        if not own and not general:
            return None, False
        if own and (not general or self.rng.random() < 0.45):
            return self.writer.pick(own[0]), True
        return self.writer.pick(general[0]), False

    def fresh_air(self) -> str:
        """Fresh air on is recirculation off."""
        return self.writer.pick("frame.on").replace("{x}", "{recirc_off}")

    def window_wish(self, device: Device, op: str, zone: str) -> Wish:
        """Windows: one said bare is the driver's, except that all close in Mandarin."""
        every = self.rng.random() < 0.3
        zone = "all" if every else zone
        if not zone and not self.english and op == "close_little":
            zone = "driver"
        value, slots = self.slots_of(device, op)
        slots["x"] = self.noun(device, zone)
        own = f"own.window.{op}"
        use_own = self.has(own) and self.rng.random() < 0.45
        form = own if use_own else f"frame.{op}"
        chunks = self.writer.write(self.about_x(form) if zone else self.writer.pick(form), slots)
        where = zone or ("all" if op == "close" and not self.english else "driver")
        args = result_of(device, op, where, value)
        return Wish(chunks, (call("set_window", **args),), self.is_verbal(text_of(chunks)), "window", op, zone)

    def media_wish(self) -> Wish:
        """Music: player, source, sound on and off, what to play."""
        rng = self.rng
        kind = rng.choice(["control", "control", "source", "mute", "unmute", "play", "play", "play", "guidance"])
        if kind == "control":
            action = rng.choice([*_PLAYER, *_LISTS] if rng.random() < 0.7 else _LISTS)
            if action in ("play", "stop") and rng.random() < 0.25:
                x = self.writer.phrase("music")
                chunks = self.writer.phrase("frame.on" if action == "play" else "frame.off", {"x": x})
            else:
                chunks = self.writer.phrase(f"own.media.{action}")
            return self._plain(chunks, call("control_media", action=action), op=action)
        if kind == "source":
            source = rng.choice(["FM", "FM", "AM", "DAB", "USB", "BLUETOOTH", "BLUETOOTH", "AUX", "CD", "INTERNET"])
            chunks = self.writer.phrase("own.source", {"s": self.writer.phrase(f"source.{source}")})
            return self._plain(chunks, call("set_media_source", source=source))
        if kind == "mute":
            return self._plain(
                self.writer.phrase("own.mute"), call("set_volume", target="media", action="set", value=0.0)
            )
        if kind == "unmute":
            return self._plain(self.writer.phrase("own.unmute"), call("restore_volume", target="media"))
        if kind == "guidance":
            return self.guidance_wish()
        return self.play_wish()

    def guidance_wish(self) -> Wish:
        """The navigation's voice."""
        state = self.rng.choice(["MUTED", "UNMUTED", "MUTED", "UNMUTED", "ALERT_ONLY"])
        own = {"MUTED": "mute", "UNMUTED": "unmute", "ALERT_ONLY": "alerts"}[state]
        if state != "ALERT_ONLY" and self.rng.random() < 0.5:
            frame = "frame.off" if state == "MUTED" else "frame.on"
            chunks = self.writer.phrase(frame, {"x": self.writer.phrase("guidance")})
        else:
            chunks = self.writer.phrase(f"own.guidance.{own}")
        return self._plain(chunks, call("set_navigation_voice", state=state))

    def play_wish(self, kind: str = "") -> Wish:
        """Free text: a title, an artist, both, a genre."""
        rng = self.rng
        kind = kind or rng.choice(["title", "artist", "genre", "both"])
        title, artist = self.title(), text_of(self.writer.phrase("artist" if rng.random() < 0.6 else "artist.made"))
        if self.english and rng.random() < 0.06:
            artist = rng.choice(bank_of("zh")["artist"])
        if kind == "both":
            query = f"{title} by {artist}" if self.english else f"{artist}的{title}"
        else:
            query = {"title": title, "artist": artist, "genre": text_of(self.writer.phrase("genre"))}[kind]
        form = {"artist": "own.play.artist", "genre": "own.play.genre"}.get(kind, "own.play")
        template = self.writer.pick(form)
        if kind == "title" and rng.random() < 0.12:  # words of a command, told apart by what stands around them
            query = text_of(self.verbal_wish(free_text=False).chunks)
            template = self.writer.pick("own.play.called")
        if kind == "title" and rng.random() < 0.06:  # any words may be a title: what people say of other things
            words = rng.choice(["chat", "remark", "implied.warm", "implied.cool", "cancel"])
            query = text_of(self.writer.phrase(words, {"who": self.writer.pick("person")}))[:80].strip()
            template = self.writer.pick("own.play.called")
        if (
            self.english
            and "{q} music" in template
            and query in ("lullabies", "nursery rhymes", "love songs", "oldies")
        ):
            template = template.replace(" music", "")
        if kind == "title" and not self.english and rng.random() < 0.4 and "《" not in template:
            template = template.replace("{q}", "《{q}》")
        chunks = self.writer.write(template, {"q": ((query, "0.query"),)})
        return self._plain(chunks, call("play_media", query=FROM_TEXT), op="play")

    def title(self) -> str:
        """A song's name: one that is known, or words that no list has."""
        return text_of(self.writer.phrase("title" if self.rng.random() < 0.5 else "title.made"))

    def place(self) -> tuple[str, dict[str, Chunks | str]]:
        """Where to: the templates' suffix, and the place's words and article as slots."""
        kind = self.rng.choice(["", "", "", ".kind", ".kind", ".home", ".work"])
        slots: dict[str, Chunks | str] = {}
        name = {"": "place", ".kind": "kind", ".home": "home", ".work": "work"}[kind]
        if kind == ".kind":
            an = self.rng.random() < 0.2
            name = "kind.an" if an else "kind"
            slots["a"] = ("an" if an else "a") if self.english else ""
        if not kind and self.rng.random() < 0.5:
            name = "place.made"
        said = text_of(self.writer.phrase(name))
        if self.english and not kind and self.rng.random() < 0.04:
            said = self.rng.choice(bank_of("zh")["place"])
        article = ""
        if self.english and said.startswith("the ") and not kind:
            article, said = "the ", said[4:]
        elif self.english and kind == ".home" and said.startswith("back "):
            article, said = "back ", said[5:]
        elif self.english and kind == ".work" and " " in said:
            article, said = said.split(" ")[0] + " ", said.split(" ", 1)[1]
        slots["p"] = ((article, ""), (said, "0.place"))
        return kind, slots

    def navigation_wish(self) -> Wish:
        """A trip, its options, its end."""
        rng = self.rng
        draw = rng.random()
        if draw < 0.15:
            chunks = self.writer.phrase("own.cancel_nav", {"x": self.writer.phrase("navigation")})
            return self._plain(chunks, call("cancel_navigation"))
        if draw < 0.3:
            avoid = rng.sample(["motorway", "toll", "ferry"], rng.choice([1, 1, 1, 2]))
            words = [text_of(self.writer.phrase(item)) for item in avoid]
            joiner = rng.choice([" and ", " or "]) if self.english else rng.choice(["和", "、", "跟"])
            chunks = self.writer.phrase("own.options", {"m": joiner.join(words)})
            return self._plain(chunks, call("set_route_options", avoid=sorted(avoid)))
        kind, slots = self.place()
        chunks = self.writer.phrase(f"own.navigate{kind}", slots)
        avoided: list[str] = []
        if rng.random() < 0.15:
            avoided = [rng.choice(["motorway", "toll", "ferry"])]
            tail = self.writer.phrase("avoid.motorway", {"m": self.writer.phrase(avoided[0])})
            chunks = (*chunks, (" " if self.english else rng.choice(["", "，"]), ""), *tail)
        return self._plain(chunks, call("navigate_to", place=FROM_TEXT, avoid=avoided))

    def distance_wish(self) -> Wish:
        """How far it is."""
        kind, slots = self.place()
        form = "own.ask_distance.kind" if kind == ".kind" else "own.ask_distance"
        wish = self._plain(self.writer.phrase(form, slots), call("ask_distance", place=FROM_TEXT))
        return replace(wish, question=True)

    def question_wish(self) -> Wish:
        """A question about the car's state."""
        rng = self.rng
        items = [name for name in self.writer.bank if name.startswith("ask.") and not name.startswith("ask.zone")]
        name = rng.choice(items)
        item, zone = name[4:], "any"
        if item in ("windows", "seat_heating", "seat_massage", "doors", "set_temperature") and rng.random() < 0.5:
            zone = rng.choice(["driver", "passenger", "rear_left", "rear_right"])
            chunks = self.writer.phrase(f"ask.zone.{item}", self.zone_slots(zone))
            if text_of(chunks).startswith("is my ") and item == "windows":
                zone = "driver"
        else:
            chunks = self.writer.phrase(name)
            said = text_of(chunks)
            if item in ("seat_heating", "seat_massage"):
                zone = (
                    "passenger" if "passenger" in said else "driver" if "my" in said.split() or "我" in said else "any"
                )
        return replace(self._plain(chunks, call("ask_vehicle", item=item, zone=zone)), question=True)

    def implied_wish(self) -> Wish:
        """A feeling with one plain remedy."""
        remedies = {
            "warm": call("set_temperature", zone="all", action="change", value=2.0),
            "cool": call("set_temperature", zone="all", action="change", value=-2.0),
            "hands": call("set_steering_wheel_heating", action="set", value=50.0),
            "seat": call("set_seat_heating", zone="driver", action="set", value=50.0),
            "fog_front": call("set_defrost", area="front", on=True),
            "fog_rear": call("set_defrost", area="rear", on=True),
            "stuffy": call("set_recirculation", on=False),
            "smell": call("set_recirculation", on=True),
            "dark": call("set_interior_light", on=True),
            "loud": call("set_volume", target="media", action="change", value=-10.0),
            "quiet": call("set_volume", target="media", action="change", value=10.0),
            "glare": call("set_brightness", action="change", value=-20.0),
            "dim": call("set_brightness", action="change", value=20.0),
        }
        name = self.rng.choice(list(remedies))
        return self._plain(self.writer.phrase(f"implied.{name}"), remedies[name])

    def chosen_wish(self) -> Wish:
        """A colour, a direction of the air, a move of a seat: one of a few, named."""
        rng = self.rng
        kind = rng.choice(["color", "air", "seat", "page", "radio"])
        if kind == "page":
            return self.page_wish()
        if kind == "radio":
            return self.radio_wish()
        if kind == "color":
            color = rng.choice(COLORS)
            slots: dict[str, Chunks | str] = {
                "c": self.writer.phrase(f"color.{color}"),
                "x": self.noun(DEVICES["ambient"], ""),
            }
            return self._plain(self.writer.phrase("own.color", slots), call("set_ambient_color", color=color))
        if kind == "air":
            direction = rng.choice(["face", "face", "feet", "feet", "windscreen"])
            template = self.writer.pick(f"own.air.{direction}")
            zone = (
                rng.choice(["front", "driver", "passenger", "rear"]) if "{z}" in template and rng.random() < 0.4 else ""
            )
            chunks = self.writer.write(template, {"z": self.zone_tail(zone)})
            return self._plain(chunks, call("set_air_direction", direction=direction, zone=zone or "all"))
        move, zone = rng.choice(SEAT_MOVES), rng.choice(["driver", "driver", "passenger"])
        slots = {"x": self.writer.phrase(f"seat.{zone}"), "y": self.writer.phrase(f"back.{zone}")}
        return self._plain(
            self.writer.phrase(f"own.seat.{move}", slots), call("set_seat_position", move=move, zone=zone)
        )

    def page_wish(self) -> Wish:
        """A page of the screen."""
        page = self.rng.choice(PAGES)
        form = "own.page.home" if page == "home" and self.rng.random() < 0.5 else "own.page"
        chunks = self.writer.phrase(form, {"x": self.writer.phrase(f"page.{page}")})
        return self._plain(chunks, call("show_page", page=page))

    def radio_wish(self) -> Wish:
        """A frequency of the FM band, in steps of 100 kHz."""
        tenths = self.rng.randint(875, 1080)
        value = tenths / 10
        said = numbers.said(value, self.language, self.rng) if tenths // 10 != 100 else f"{value:.1f}"
        if not self.english and (self.rng.random() < 0.5 or not tenths % 10):
            said = "".join(numbers.mandarin(int(digit)) for digit in str(tenths // 10))
            said += f"点{numbers.mandarin(tenths % 10)}"
        tails = ["", "", "", " megahertz"] if self.english else ["", "", "", "兆赫"]
        n: Chunks = ((said, "0.value"), (self.rng.choice(tails), ""))
        return self._plain(self.writer.phrase("own.radio", {"n": n}), call("tune_radio", value=value))

    def any_wish(self) -> Wish:
        """Any wish that is a command."""
        draw = self.rng.random()
        if draw < 0.58:
            return self.device_wish()
        if draw < 0.66:
            return self.chosen_wish()
        return self.media_wish() if draw < 0.86 else self.navigation_wish()

    def verbal_wish(self, *, free_text: bool = True) -> Wish:
        """A wish that begins with a verb. free_text: also one that names a title or place."""
        while True:
            wish = self.any_wish()
            taken = any(FROM_TEXT in one["args"].values() for one in wish.calls)
            plain = not text_of(wish.chunks).endswith(("吗", "了", "please", "吧", "?"))
            if wish.verbal and plain and (free_text or not taken):
                return wish

    def _plain(self, chunks: Chunks, one: Call, op: str = "") -> Wish:
        return Wish(chunks, (one,), self.is_verbal(text_of(chunks)), op=op)


_PLAYER = ("play", "stop", "stop", "next", "next", "previous", "previous", "fast_forward", "rewind")
_LISTS = ("shuffle", "repeat", "in_order", "add_favourite", "play_favourites")
_SHARES = {"temperature": 5, "fan": 3, "window": 5, "volume": 3, "massage": 3, "ambient": 2, "screen_power": 2}
_WEIGHTED = [
    name
    for name, device in DEVICES.items()
    for _ in range(
        _SHARES.get(name, 1 if device.tool in ("set_exterior_light", "set_climate_mode", "set_reading_light") else 2)
    )
]
