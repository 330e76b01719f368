"""`cockpit adapt parser`: data to examples, training, calibration, the adapter and its report. On the bench only.

Into the folder `out` go `parser.safetensors` (what the registry pins and `models build` reads), `report.json`,
`card.md` and two plots; `work` stays there until the run is complete, so that the same command goes on.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.engines.sentence_encoder import SentenceTokenizer
from models.errors import InputError, StartupError
from models.store.store import Store
from models.train.parser.data import Example, Packed
from models.train.parser.examples import constants_in, examples_of
from pipeline.nlu.lexicon import build_lexicon
from pipeline.nlu.parser.features import FeatureReader, tag_names
from pipeline.nlu.parser.labels import Space
from pipeline.vehicle.places import load_places

if TYPE_CHECKING:
    from models.train.parser.fit import FitOptions
    from models.train.parser.result import Labels, Size

Line = Mapping[str, Any]
Say = Callable[[str], None]
ENCODER = "sentence-encoder"
_CHUNK = 2000
HELD_OUT = 25
"""Without a dev file one line of so many is held out, chosen by the hash of its text."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """The sentence encoder whose lower layers the parser reads. weights: the package's file."""

    weights: Path
    tokenizer: SentenceTokenizer

    @classmethod
    def of(cls, store: Store) -> Encoder:
        """That of the registry; fetched and built where it is not there."""
        built = store.ensure(ENCODER)
        (file,) = store.registry.source_entry(ENCODER).files
        return cls(store.source(ENCODER, file), SentenceTokenizer.load(built))


def read_lines(path: Path) -> list[Line]:
    """Lines of a JSON-lines file, or of every `*.jsonl` in a folder but `dev.jsonl`. Raises InputError."""
    files = [path] if path.is_file() else sorted(p for p in path.glob("*.jsonl") if p.name != "dev.jsonl")
    if not files:
        raise InputError(f"{path}: no such file, and no folder with .jsonl files")
    found: list[Line] = []
    for file in files:
        for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            try:
                line = json.loads(text)
                if not isinstance(line["text"], str) or not isinstance(line["calls"], list):
                    raise TypeError("text must be a string and calls a list")
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"{file}:{number}: no line of training data: {error!r}") from error
            found.append(line)
    return found


def digest_of(lines: Iterable[Line]) -> str:
    """sha256 of the data: the same lines in the same order give the same."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(json.dumps(line, ensure_ascii=False, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def held_out_of(lines: Sequence[Line]) -> tuple[list[Line], list[Line]]:
    """(for training, held out), by the hash of each text, so that it depends on no order."""
    train: list[Line] = []
    dev: list[Line] = []
    for line in lines:
        number = int.from_bytes(hashlib.sha256(line["text"].encode()).digest()[:4], "big")
        (dev if number % HELD_OUT == 0 else train).append(line)
    return train, dev


def train_parser(
    lines: Sequence[Line],
    dev: Sequence[Line],
    encoder: Encoder,
    out: Path,
    options: FitOptions,
    *,
    command: str,
    generator: str = "",
    start: Path | None = None,
    size: Size | None = None,
    told: Callable[[int, int, float], None] = lambda _done, _all, _loss: None,
    say: Say = lambda _line: None,
) -> dict[str, Any]:
    """Train on `lines`, calibrate on `dev` (empty: a part of `lines`), write the adapter; returns the report.

    start: an adapter whose weights training begins with. command, generator: for the report, how the adapter and its
    data are made again (the generator's commit).

    Raises InputError where a checkpoint of another run is in the way or too few lines can be used.
    """
    try:
        from models.train.parser.encoder import Lower
        from models.train.parser.fit import fit
        from models.train.parser.result import Labels, Size, written
    except ModuleNotFoundError as error:
        raise StartupError('training needs torch; run: pip install "cockpit-voice[build]"') from error
    began = time.monotonic()
    used, held = (lines, dev) if dev else held_out_of(lines)
    labels = Labels(Space.of(constants_in(lines)), tuple(tag_names()))
    examples, faults = _examples(used, encoder, labels, options.threads)
    calibration, _ = _examples(held, encoder, labels, options.threads)
    say(f"{len(examples)} examples to train on, {len(calibration)} held out, {faults.total()} unusable {dict(faults)}")
    if len(examples) < options.batch or not calibration:
        raise InputError(f"{len(examples)} usable lines and {len(calibration)} held out are too few to train on")
    chosen, work = size or Size(), out / "work"
    work.mkdir(parents=True, exist_ok=True)
    packed, held_out = Packed.of(examples), Packed.of(calibration)
    del examples, calibration
    lower = Lower(encoder.weights, chosen.read, chosen.rank)
    try:
        net, state = fit(
            labels.shape(chosen, lower),
            lower,
            packed,
            held_out,
            options,
            work / "checkpoint.pt",
            start=start,
            told=told,
        )
    except ValueError as error:
        raise InputError(str(error)) from error
    report = {
        "command": command,
        "generator": generator,
        "start_sha256": "" if start is None else hashlib.sha256(start.read_bytes()).hexdigest(),
        "data_sha256": digest_of(lines),
        "lines": len(lines),
        "unusable": dict(faults),
        "options": asdict(options),
        "size": asdict(chosen),
        "seconds": round(time.monotonic() - began),
    }
    report |= written(out, net, state, labels, packed, held_out, report)
    shutil.rmtree(work)
    return report


def _examples(
    lines: Sequence[Line], encoder: Encoder, labels: Labels, processes: int
) -> tuple[list[Example], Counter[str]]:
    """The examples of all lines that can be used, in order, and how many cannot by cause."""
    lexicon = build_lexicon(load_places(), by_sound=False)
    reading = FeatureReader(encoder.tokenizer, labels.tags, labels.space.tools[1:], lexicon), labels.space
    if processes == 1 or len(lines) <= _CHUNK:
        return _some(*reading, lines)
    chunks = [lines[low : low + _CHUNK] for low in range(0, len(lines), _CHUNK)]
    found: list[Example] = []
    faults: Counter[str] = Counter()
    # Children of a fork have the reader as it is: its lexicon cannot be pickled.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, context, initializer=_begin, initargs=reading) as pool:
        for examples, more in pool.map(_some_here, chunks):
            found += examples
            faults += more
    return found, faults


_reading: tuple[FeatureReader, Space] | None = None
"""In a child that reads data: what it reads with."""


def _begin(reader: FeatureReader, space: Space) -> None:
    global _reading
    _reading = reader, space


def _some_here(lines: Sequence[Line]) -> tuple[list[Example], Counter[str]]:
    assert _reading is not None
    return _some(*_reading, lines)


def _some(reader: FeatureReader, space: Space, lines: Sequence[Line]) -> tuple[list[Example], Counter[str]]:
    faults: Counter[str] = Counter()
    return list(examples_of(lines, reader, space, faults)), faults
