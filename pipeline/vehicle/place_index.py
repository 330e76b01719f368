"""Search among many place names by spelling and by sound, the nearest first.

Every name is cut into short overlapping pieces of its sound (Mandarin: pairs of folded syllables; otherwise trigrams of
the consonant code). A query adds up the weights of the pieces that it shares with each name (rare pieces weigh more),
and only the best of these are compared letter by letter. 100,000 names take a few milliseconds and about 50 MB.
"""

from __future__ import annotations

import heapq
import os
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pypinyin import Style, lazy_pinyin

from models.errors import InputError
from pipeline.json_codec import dumps, loads
from pipeline.nlu.phonetics import character_cost, english_code, english_likeness, fold_syllable, is_cjk, tokens_of
from pipeline.vehicle.places import Place, distance_km

CERTAIN: Final = 0.9
"""From this likeness on a name counts as the one that was said; below it is only similar, and asked about."""
_COMPARED = 48
"""Names compared letter by letter; the true one is among them when it shares most of its pieces."""
_SAME_SOUND = 0.97
"""Likeness of a name whose syllables are those that were said, in other characters."""
_CONTAINED = 0.88
"""Likeness of a name that holds what was said as a whole run of its words: "Union Square" in "Union Square Garage"."""
_ONLY_LIKE = 0.87
"""The most that a name can have that is neither spelled nor pronounced as it was said: Hazelden is not Hazelton."""
_LEAST = 0.5
_APART = 0.05
"""Two names whose likeness differs by less are equally good guesses, and a guess is not acted on."""
_WORTH_ASKING = 0.65
"""From this likeness on a name is offered: "did you mean ...?"."""
_EDGE = "^"


@dataclass(frozen=True, slots=True)
class PlaceHit:
    """One name found. likeness: 0..1, see CERTAIN. distance_km: estimated by road from where the car is."""

    place: Place
    likeness: float
    distance_km: float


@dataclass(frozen=True, slots=True)
class _Postings:
    """rows: int32, the names that hold each piece, piece after piece; starts: where each piece's rows stand in it.
    weights: by piece; sizes: float32 (N,), what each name's pieces weigh together.
    """

    rows: NDArray[np.int32]
    starts: dict[str, tuple[int, int]]
    weights: dict[str, float]
    sizes: NDArray[np.float32]


class PlaceIndex:
    """Built once from all places; `search` changes nothing and may be called from any thread."""

    def __init__(
        self,
        places: Sequence[Place],
        names: Sequence[tuple[str, ...]],
        owners: NDArray[np.int32],
        postings: _Postings,
    ) -> None:
        """names: tokens of each name; owners: int32 (N,), the place of each. See `build` and `load`."""
        self._places = places
        self._names = names
        self._owners = owners
        self._postings = postings
        self._kinds: dict[str, list[Place]] = {}
        for place in places:
            self._kinds.setdefault(place.kind, []).append(place)

    @classmethod
    def build(cls, places: Sequence[Place]) -> PlaceIndex:
        """Index every name and alias of `places`; about 15 s for 100,000 names on one core: keep it with `save`."""
        names: list[tuple[str, ...]] = []
        owners: list[int] = []
        for number, place in enumerate(places):
            for name in dict.fromkeys((place.en, place.zh, *place.aliases)):
                tokens = tuple(token.text for token in tokens_of(name))
                if tokens:
                    names.append(tokens)
                    owners.append(number)
        postings = _postings([_pieces(name) for name in names])
        return cls(places, names, np.array(owners, np.int32), postings)

    def save(self, file: Path) -> None:
        """Write everything to `file` (.npz), whole or not at all. Raises OSError."""
        rows = [(p.id, p.kind, p.en, p.zh, p.latitude, p.longitude, p.aliases) for p in self._places]
        pieces = list(self._postings.starts)
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".npz", delete=False) as made:
            try:
                np.savez(
                    made,
                    places=_bytes(dumps(rows)),
                    names=_bytes(dumps([" ".join(name) for name in self._names])),
                    pieces=_bytes(dumps(pieces)),
                    owners=self._owners,
                    rows=self._postings.rows,
                    ends=np.array([self._postings.starts[piece][1] for piece in pieces], np.int64),
                    weights=np.array([self._postings.weights[piece] for piece in pieces], np.float32),
                    sizes=self._postings.sizes,
                )
                made.flush()
                os.replace(made.name, file)
            except BaseException:
                os.unlink(made.name)
                raise

    @classmethod
    def load(cls, file: Path) -> PlaceIndex:
        """What `save` wrote. Raises InputError for a file that is none or is damaged."""
        try:
            with np.load(file, allow_pickle=False) as kept:
                pieces: list[str] = loads(kept["pieces"].tobytes())
                ends = kept["ends"].tolist()
                starts = dict(zip(pieces, pairwise([0, *ends]), strict=True))
                weights = dict(zip(pieces, kept["weights"].tolist(), strict=True))
                postings = _Postings(kept["rows"], starts, weights, kept["sizes"])
                names = [tuple(name.split(" ")) for name in loads(kept["names"].tobytes())]
                places = [Place(a, b, c, d, e, f, tuple(g)) for a, b, c, d, e, f, g in loads(kept["places"].tobytes())]
                return cls(places, names, kept["owners"], postings)
        except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile, InputError) as error:
            raise InputError(f"{file} is no place index, or is damaged ({error}): delete it") from error

    def __len__(self) -> int:
        return len(self._names)

    def nearest(self, kind: str, latitude: float, longitude: float) -> Place | None:
        """The nearest place of a kind, such as "hotel"; None where there is none."""
        of_kind = self._kinds.get(kind, ())
        return min(of_kind, key=lambda place: distance_km(latitude, longitude, place), default=None)

    def nearby(self, kind: str, latitude: float, longitude: float, count: int) -> list[Place]:
        """See pipeline.vehicle.places.PlaceSearch."""
        return heapq.nsmallest(
            count, self._kinds.get(kind, ()), key=lambda place: distance_km(latitude, longitude, place)
        )

    def search(self, said: str, latitude: float, longitude: float, *, limit: int = 5) -> list[PlaceHit]:
        """The places whose names are most like `said`: certain ones by distance, then the others by likeness.

        said: a name in either language, as heard. latitude, longitude: of the car, WGS 84 degrees. Empty when nothing
        is similar.
        """
        tokens = tuple(token.text for token in tokens_of(said))
        if not tokens:
            return []
        best: dict[int, float] = {}
        for row in self._alike(tokens):
            likeness = _likeness(tokens, self._names[row])
            owner = int(self._owners[row])
            if likeness >= _LEAST and likeness > best.get(owner, 0.0):
                best[owner] = likeness
        hits = [
            PlaceHit(self._places[owner], likeness, round(distance_km(latitude, longitude, self._places[owner]), 1))
            for owner, likeness in best.items()
        ]
        return sorted(hits, key=_order)[:limit]

    def meant(self, said: str, latitude: float, longitude: float) -> Place | None:
        """See pipeline.vehicle.places.PlaceSearch."""
        hit = the_one_meant(self.search(said, latitude, longitude))
        return None if hit is None else hit.place

    def similar(self, said: str, latitude: float, longitude: float) -> list[Place]:
        """See pipeline.vehicle.places.PlaceSearch."""
        hits = self.search(said, latitude, longitude)
        return list({hit.place.en: hit.place for hit in hits if hit.likeness >= _WORTH_ASKING}.values())[:2]

    def _alike(self, tokens: tuple[str, ...]) -> Iterable[int]:
        """Rows that share the most weight with the query, most first."""
        kept = self._postings
        found = [(kept.starts[piece], kept.weights[piece]) for piece in _pieces(tokens) if piece in kept.starts]
        if not found:
            return []
        rows = np.concatenate([kept.rows[start:end] for (start, end), _ in found])
        weights = np.repeat([weight for _, weight in found], [end - start for (start, end), _ in found])
        scores = np.bincount(rows, weights=weights, minlength=len(self._names))
        hit = np.flatnonzero(scores)
        ranked = scores[hit] / np.sqrt(kept.sizes[hit])  # what a name has beyond the query counts a little against it
        if len(hit) > _COMPARED:
            best = np.argpartition(ranked, -_COMPARED)[-_COMPARED:]
            hit, ranked = hit[best], ranked[best]
        return [int(row) for row in hit[np.argsort(-ranked)]]


def _order(hit: PlaceHit) -> tuple[float, float]:
    """Likeness in steps that hearing can tell apart; among equals the nearest."""
    return (-1.0 if hit.likeness == 1.0 else -round(hit.likeness - 0.015, 2) * 0.98), hit.distance_km


def the_one_meant(hits: Sequence[PlaceHit]) -> PlaceHit | None:
    """The first hit when it is certain and no other name comes near; None where one would have to guess."""
    if not hits or hits[0].likeness < CERTAIN:
        return None
    first = hits[0]
    rivals = [hit for hit in hits[1:] if hit.place.en != first.place.en or hit.place.zh != first.place.zh]
    if first.likeness < 1.0 and any(hit.likeness > first.likeness - _APART for hit in rivals):
        return None
    return first


def _postings(pieces: Sequence[Counter[str]]) -> _Postings:
    """pieces: of each name."""
    numbers: dict[str, int] = {}
    flat_piece: list[int] = []
    flat_row: list[int] = []
    for row, counted in enumerate(pieces):
        for piece in counted:
            flat_piece.append(numbers.setdefault(piece, len(numbers)))
            flat_row.append(row)
    piece_array, row_array = np.array(flat_piece, np.int32), np.array(flat_row, np.int32)
    order = np.argsort(piece_array, kind="stable")
    counts = np.bincount(piece_array, minlength=len(numbers))
    ends = np.cumsum(counts)
    starts = {piece: (int(ends[i] - counts[i]), int(ends[i])) for piece, i in numbers.items()}
    weight = np.log1p(len(pieces) / np.maximum(counts, 1)).astype(np.float32)
    sizes = np.bincount(row_array, weights=weight[piece_array], minlength=len(pieces)).astype(np.float32)
    weights = {piece: float(weight[i]) for piece, i in numbers.items()}
    return _Postings(row_array[order], starts, weights, np.maximum(sizes, 1e-3))


def _bytes(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


def _pieces(tokens: tuple[str, ...]) -> Counter[str]:
    """Overlapping pieces of the sound: enough of them survive one misheard syllable."""
    if any(map(is_cjk, tokens)):
        syllables = [_EDGE, *_syllables(tokens), _EDGE]
        return Counter(f"{a} {b}" for a, b in pairwise(syllables))
    code = f"{_EDGE}{english_code(tokens)}{_EDGE}"
    digits = [token for token in tokens if token.isdigit()]
    return Counter([code[i : i + 3] for i in range(max(1, len(code) - 2))] + digits)


@lru_cache(maxsize=65_536)
def _syllables(tokens: tuple[str, ...], *, folded: bool = True) -> tuple[str, ...]:
    """One syllable per character, as its neighbours make it sound; other tokens as they are.

    folded: one spelling for syllables that are often mixed up.
    """
    said = lazy_pinyin("".join(token if is_cjk(token) else f" {token} " for token in tokens), style=Style.NORMAL)
    flat = [part for syllable in said for part in syllable.split()]
    if len(flat) != len(tokens):
        flat = [lazy_pinyin(token, style=Style.NORMAL)[0] for token in tokens]
    fold = fold_syllable if folded else str
    return tuple(fold(part) if is_cjk(token) else part for token, part in zip(tokens, flat, strict=True))


def _likeness(said: tuple[str, ...], name: tuple[str, ...]) -> float:
    """0..1: 1 for the same letters, `_SAME_SOUND` for the same syllables, below CERTAIN for what is only like."""
    if said == name or "".join(said) == "".join(name):
        return 1.0
    if _numbers(said) != _numbers(name) and _numbers(said):
        return 0.0  # "Gate 3" is not "Gate 8", however alike they sound
    mandarin = any(map(is_cjk, said))
    if mandarin != any(map(is_cjk, name)):
        return 0.0
    if mandarin and _syllables(said, folded=False) == _syllables(name, folded=False):
        return _SAME_SOUND
    whole = _mandarin(said, name) if mandarin else english_likeness(said, name)
    return max(whole * _ONLY_LIKE, _CONTAINED if _contains(name, said) else 0.0)


def _numbers(tokens: tuple[str, ...]) -> list[str]:
    return [token for token in tokens if token.isdigit()]


def _contains(name: tuple[str, ...], said: tuple[str, ...]) -> bool:
    """What was said stands in the name as one run, and is more than a single short word of it."""
    long_enough = len(said) >= 3 if any(map(is_cjk, said)) else sum(map(len, said)) >= 6
    return long_enough and any(name[i : i + len(said)] == said for i in range(len(name) - len(said) + 1))


def _mandarin(said: tuple[str, ...], name: tuple[str, ...]) -> float:
    """1 less the mean cost of turning what was said into the name, character by character, by sound."""
    longest = max(len(said), len(name))
    if abs(len(said) - len(name)) > longest * (1 - _LEAST):
        return 0.0
    row = [float(j) for j in range(len(name) + 1)]
    for i, heard in enumerate(said, 1):
        above, row = row, [float(i)]
        for j, wanted in enumerate(name, 1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + character_cost(heard, wanted)))
    return max(0.0, 1 - row[-1] / longest)
