"""The shipped adapter: fetched from the package itself, built without torch, and it reads sentences."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from models.engines.parser import ParserEngine
from models.errors import FetchError
from models.store.registry import ShippedSource
from models.store.store import Store
from pipeline.nlu.lexicon import build_lexicon
from pipeline.nlu.parser.reader import ParserReader
from pipeline.vehicle.places import load_places

NAME = "command-parser"
ENCODER_FILE = "e5-small-q4.bin"


@pytest.fixture(scope="module")
def reader(model_dir: Callable[[str], Path]) -> ParserReader:
    return ParserReader(ParserEngine.load(model_dir(NAME)), build_lexicon(load_places(), by_sound=False))


def test_a_fresh_machine_makes_it_without_torch(
    reader: ParserReader, model_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    fresh = Store.open(tmp_path)
    fresh.source_folder(NAME).mkdir(parents=True)
    shutil.copyfile(model_store.source(NAME, ENCODER_FILE), fresh.source_folder(NAME) / ENCODER_FILE)  # not 91 MB
    built = fresh.ensure(NAME)
    assert {"parser.onnx", "parser.json", "tokenizer.json"} <= {path.name for path in built.iterdir()}


def test_a_shipped_file_that_is_gone_is_named(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    entry = store.registry.get(NAME)
    file = entry.files["parser.safetensors"]
    gone = ShippedSource(type="shipped", path="adapters/none.safetensors")
    changed = entry.model_copy(update={"files": {"parser.safetensors": file.model_copy(update={"sources": (gone,)})}})
    others = tuple(changed if other.name == NAME else other for other in store.registry.models)
    with pytest.raises(FetchError, match=r"none\.safetensors: no such file"):
        Store.open(tmp_path, store.registry.model_copy(update={"models": others})).fetch(NAME)


@pytest.mark.parametrize(
    ("text", "reason", "tool"),
    [
        ("Turn on the air conditioning", "act", "set_air_conditioning"),
        ("打开空调", "act", "set_air_conditioning"),
        ("set the temperature to 22 degrees", "act", "set_temperature"),
        ("Open the sunroof in ten minutes", "delayed", None),
        ("打开香氛", "unsupported", None),
    ],
)
def test_it_reads(text: str, reason: str, tool: str | None, reader: ParserReader) -> None:
    program = reader.read(text)
    assert program is not None
    assert program.reason == reason
    assert [read.call.name for read in program.calls] == ([] if tool is None else [tool])
