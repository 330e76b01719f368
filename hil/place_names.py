"""Made-up place lists of any size, for measuring the search: names in both languages put together from parts."""

from __future__ import annotations

import random

from pipeline.vehicle.places import Place

_EN_FIRST = (
    "Ash", "Birch", "Cedar", "Clay", "Crane", "Dale", "East", "Elm", "Fair", "Fern", "Glen", "Gold", "Green",
    "Hart", "Hazel", "High", "Iron", "King", "Lake", "Lang", "Lime", "Long", "Maple", "Marsh", "Mill", "Moor",
    "North", "Oak", "Old", "Park", "Pine", "Queen", "Red", "River", "Rock", "Rose", "Salt", "Silver", "South",
    "Spring", "Stone", "Summer", "Thorn", "Upper", "Wal", "West", "White", "Wind", "Winter", "Wood",
)  # fmt: skip
_EN_SECOND = (
    "bridge", "brook", "burn", "bury", "by", "combe", "cote", "dale", "den", "field", "ford", "gate", "ham",
    "haven", "hill", "holm", "hurst", "land", "leigh", "ley", "mere", "mont", "more", "port", "shaw", "side",
    "stead", "ston", "thorpe", "ton", "vale", "view", "ville", "water", "well", "wick", "worth",
)  # fmt: skip
_EN_KIND = (
    ("hotel", "Hotel"), ("hospital", "General Hospital"), ("school", "Primary School"), ("park", "Park"),
    ("railway_station", "Station"), ("museum", "Museum"), ("cafe", "Coffee House"), ("restaurant", "Grill"),
    ("pharmacy", "Pharmacy"), ("shopping_centre", "Shopping Centre"), ("cinema", "Cinema"), ("library", "Library"),
    ("", "Road"), ("", "Avenue"), ("", "Lane"), ("", "Square"),
)  # fmt: skip
_ZH_FIRST = (
    "安白宝北昌长城春翠大德东丰福高光广海汉和红湖华惠吉嘉江金锦景静康兰乐黎丽临龙陆绿"
    "洛茂梅明南宁平青清泉荣瑞三山上盛石曙松泰天桐万文武西溪仙湘新兴秀雪阳瑶银永玉园月云泽正中紫"
)
_ZH_KIND = (
    ("hotel", "大酒店"), ("hospital", "人民医院"), ("school", "小学"), ("park", "公园"), ("railway_station", "站"),
    ("museum", "博物馆"), ("cafe", "咖啡馆"), ("restaurant", "饭店"), ("pharmacy", "药房"),
    ("shopping_centre", "购物广场"),
    ("cinema", "影城"), ("library", "图书馆"), ("", "路"), ("", "大道"), ("", "街"), ("", "花园小区"),
)  # fmt: skip


def made_up_places(count: int, *, seed: int = 1, latitude: float = 48.14, longitude: float = 11.58) -> list[Place]:
    """`count` places with different names, half of them Mandarin, within about 100 km of the position (degrees)."""
    chance = random.Random(seed)
    names: set[str] = set()
    places: list[Place] = []
    while len(places) < count:
        kind, name = _mandarin(chance) if len(places) % 2 else _english(chance)
        if name in names:
            continue
        names.add(name)
        where = latitude + chance.uniform(-0.9, 0.9), longitude + chance.uniform(-1.3, 1.3)
        places.append(Place(f"p{len(places)}", kind, name, name, *where, ()))
    return places


def _english(chance: random.Random) -> tuple[str, str]:
    kind, suffix = chance.choice(_EN_KIND)
    town = chance.choice(_EN_FIRST) + chance.choice(_EN_SECOND)
    other = chance.choice(_EN_FIRST) + chance.choice(_EN_SECOND)
    return kind, f"{town} {other} {suffix}" if chance.random() < 0.7 else f"{town} {suffix}"


def _mandarin(chance: random.Random) -> tuple[str, str]:
    kind, suffix = chance.choice(_ZH_KIND)
    return kind, "".join(chance.choice(_ZH_FIRST) for _ in range(chance.choice((2, 3, 3, 4)))) + suffix
