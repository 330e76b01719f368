"""The place search over many names: how often what was said finds its place, and how long that takes.

python -m benchmarks places [--count 100000] [--queries 400] [--json]

Names are made up (hil/place_names.py), half of them Mandarin. Each is asked for as it is spelled, with one syllable or
letter misheard, and, for names that are not in the list, whether a trip would start all the same. `linear`: the same
queries by comparing every name (rapidfuzz), without sound: the peer. Reach: P99 <= 20 ms, no trip to a wrong place.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rapidfuzz import fuzz, process
from rich.console import Console

from benchmarks.harness.report import command_line, percentiles
from hil.place_names import made_up_places
from pipeline.nlu.phonetics import readings
from pipeline.vehicle.place_index import PlaceIndex, the_one_meant
from pipeline.vehicle.places import Place

HERE = (48.14, 11.58)
LIMIT_MS = 20.0


def misheard(name: str, homophones: dict[str, list[str]], chance: random.Random) -> str:
    """The name with one syllable that sounds the same, or one wrong vowel."""
    if not name.isascii():
        at = chance.randrange(2)
        same = [other for sound in readings(name[at])[1] for other in homophones[sound] if other != name[at]]
        return name[:at] + chance.choice(same) + name[at + 1 :] if same else name
    vowels = [at for at, letter in enumerate(name) if letter in "aeiou" and at]
    at = chance.choice(vowels)
    return name[:at] + chance.choice("aeiou") + name[at + 1 :]


def homophones_of(places: Iterable[Place]) -> dict[str, list[str]]:
    """Folded syllable -> the characters of the names that may sound so."""
    found: dict[str, list[str]] = defaultdict(list)
    for character in sorted({character for place in places for character in place.zh if not character.isascii()}):
        for sound in readings(character)[1]:
            found[sound].append(character)
    return found


def asked(index: PlaceIndex, said: Sequence[str], wanted: Sequence[Place | None]) -> dict[str, Any]:
    """meant: the right place, without asking; offered: among the five; wrong: a trip to another place would start."""
    times_ms: list[float] = []
    meant = offered = wrong = 0
    for text, place in zip(said, wanted, strict=True):
        start_s = time.perf_counter()
        hits = index.search(text, *HERE)
        times_ms.append((time.perf_counter() - start_s) * 1e3)
        first = the_one_meant(hits)
        name = None if place is None else place.en
        meant += first is not None and first.place.en == name
        offered += name in [hit.place.en for hit in hits]
        wrong += first is not None and first.place.en != name
    count = len(said)
    shares = {"meant": round(meant / count, 4), "offered": round(offered / count, 4), "wrong": round(wrong / count, 4)}
    return {"queries": count, **shares, "ms": percentiles(times_ms)}


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What `work` returns, and seconds."""
    start_s = time.perf_counter()
    result = work()
    return result, round(time.perf_counter() - start_s, 2)


def measure(count: int, queries: int, seed: int) -> dict[str, Any]:
    """All figures."""
    chance = random.Random(seed)
    every = made_up_places(count + queries, seed=seed)
    absent, places = every[:queries], every[queries:]
    index, build_s = timed(lambda: PlaceIndex.build(places))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "places.npz"
        index.save(file)
        size_mb = round(file.stat().st_size / 1e6, 1)
        index, load_s = timed(lambda: PlaceIndex.load(file))
    wanted = chance.sample(places, queries)
    homophones = homophones_of(places)
    rows = {
        "as spelled": asked(index, [place.en for place in wanted], wanted),
        "misheard": asked(index, [misheard(place.en, homophones, chance) for place in wanted], wanted),
        "not in the list": asked(index, [place.en for place in absent], [None] * queries),
    }
    names = [place.en for place in places]
    linear_ms = []
    for place in wanted[: max(1, queries // 10)]:
        _, took_s = timed(partial(process.extract, place.en, names, scorer=fuzz.ratio, limit=5))
        linear_ms.append(took_s * 1e3)
    linear = percentiles(linear_ms)
    search = percentiles([rows[kind]["ms"]["p99"] for kind in rows], (100,))["p100"]
    return {
        "names": len(index),
        "build_s": build_s,
        "load_s": load_s,
        "index_mb": size_mb,
        "rows": rows,
        "linear_ms": linear,
        "ratio_p99": round(search / linear["p99"], 3),
        "reach": {"p99 <= 20 ms": search <= LIMIT_MS, "no wrong trip": not any(row["wrong"] for row in rows.values())},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = command_line(__name__, __doc__)
    parser.add_argument("--count", type=int, default=100_000, help="names in the list")
    parser.add_argument("--queries", type=int, default=400, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    result = measure(options.count, options.queries, options.seed)
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
        return 0
    console = Console(width=120, highlight=False)
    size = f"built in {result['build_s']} s, {result['index_mb']} MB, loaded in {result['load_s']} s"
    console.print(f"{result['names']} names: {size}")
    for kind, row in result["rows"].items():
        console.print(
            f"{kind:16} meant {row['meant']:.1%}  offered {row['offered']:.1%}  wrong {row['wrong']:.1%}  "
            f"P50 {row['ms']['p50']} ms  P99 {row['ms']['p99']} ms"
        )
    console.print(f"comparing every name: P50 {result['linear_ms']['p50']} ms; P99 against that {result['ratio_p99']}")
    for what, reached in result["reach"].items():
        console.print(f"reach: {what}: {'yes' if reached else 'no'}")
    return 0
