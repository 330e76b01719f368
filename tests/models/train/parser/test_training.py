"""A run of seconds over a few sentences: it learns, goes on after a stop, and its graph computes what torch does."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.build.parser import build_parser
from models.engines.parser import ParserEngine
from models.errors import InputError
from models.store.store import Store
from models.store.tensor_file import read_tensors, write_tensors
from models.train.parser import run
from models.train.parser.encoder import Lower
from models.train.parser.examples import constants_in
from models.train.parser.fit import FitOptions, device_of
from models.train.parser.net import Inputs, NetShape, ParserNet
from models.train.parser.result import Labels, Size
from models.train.parser.run import Encoder, read_lines, train_parser
from pipeline.nlu.lexicon import build_lexicon
from pipeline.nlu.parser.features import tag_names
from pipeline.nlu.parser.labels import Space
from pipeline.nlu.parser.reader import ParserReader
from pipeline.vehicle.places import load_places

SMALL = Size(read=(1,), rank=2, width=32, layers=1, heads=2, inner=32)


def lines() -> list[dict[str, Any]]:
    made = []
    for number in range(24):
        value, text = 16 + number % 12, f"set the temperature to {16 + number % 12}" + " now" * (number // 12)
        start = text.index(str(value))
        args = {"zone": "all", "action": "set", "value": value}
        call = {"tool": "set_temperature", "args": args, "spans": {"value": [start, start + 2]}}
        made.append({"text": text, "calls": [call], "reason": None, "what": None})
        made.append({"text": f"the window is open {number}", "calls": [], "reason": "statement", "what": None})
    return made


@pytest.fixture(scope="module")
def encoder(model_store: Store) -> Encoder:
    return Encoder.of(model_store)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, encoder: Encoder) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("adapter")
    options = FitOptions(seed=3, epochs=10, batch=8, rate=1e-2, threads=1)
    report = train_parser(lines(), lines()[:6], encoder, out, options, command="a test", size=SMALL)
    return out, report


def test_it_learns_and_its_adapter_reads_sentences(
    trained: tuple[Path, dict[str, Any]], encoder: Encoder, tmp_path: Path
) -> None:
    out, report = trained
    assert report["losses"][-1] < report["losses"][0] / 4
    assert report["held_out_accuracy"][-1]["whole"] == 1.0
    assert {path.name for path in out.iterdir()} == {
        "parser.safetensors",
        "report.json",
        "card.md",
        "loss.svg",
        "reliability.svg",
    }
    build_parser(out / "parser.safetensors", encoder.weights, tmp_path)
    reader = ParserReader(ParserEngine.load(tmp_path), build_lexicon(load_places(), by_sound=False))
    program = reader.read("set the temperature to 19")
    assert program is not None
    assert [read.call.arguments.get("value") for read in program.calls] == [19.0]
    told = reader.read("the window is open 77")
    assert told is not None
    assert (told.reason, told.calls) == ("statement", ())
    assert reader.read("...") is None


def test_several_processes_read_what_one_reads(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they read with holds a cache, which no pickle takes."""
    labels = Labels(Space.of(constants_in(lines())), tuple(tag_names()))
    monkeypatch.setattr(run, "_CHUNK", 10)
    bad: list[dict[str, Any]] = [{"text": "", "calls": [], "reason": None, "what": None}]
    alone, faults = run._examples([*lines(), *bad], encoder, labels, 1)
    found, same_faults = run._examples([*lines(), *bad], encoder, labels, 2)
    assert faults == same_faults
    assert faults.total() == 1
    for one, other in zip(alone, found, strict=True):
        for each in fields(one):
            assert np.array_equal(getattr(one, each.name), getattr(other, each.name))


def test_a_run_that_was_cut_short_ends_as_one_that_was_not(encoder: Encoder, tmp_path: Path) -> None:
    class Cut(Exception):
        pass

    def cut(done: int, total: int, _loss: float) -> None:
        if done > 0.7 * total:
            raise Cut

    options = FitOptions(seed=3, epochs=4, batch=4, threads=1)
    train = partial(train_parser, lines(), lines()[:6], encoder, options=options, command="a test", size=SMALL)
    whole = train(tmp_path / "whole")
    with pytest.raises(Cut):
        train(tmp_path / "cut", told=cut)
    resumed = train(tmp_path / "cut")
    assert resumed["adapter_sha256"] == whole["adapter_sha256"]
    assert resumed["losses"] == whole["losses"]


def test_a_checkpoint_of_another_run_is_not_gone_on_from(encoder: Encoder, tmp_path: Path) -> None:
    class Cut(Exception):
        pass

    def cut(done: int, total: int, _loss: float) -> None:
        if done > 0.7 * total:
            raise Cut

    options = FitOptions(seed=3, epochs=2, batch=2, threads=1)
    with pytest.raises(Cut):
        train_parser(lines(), lines()[:6], encoder, tmp_path, options, command="", size=SMALL, told=cut)
    with pytest.raises(InputError, match="delete it, or choose another folder"):
        train_parser(lines(), lines()[:6], encoder, tmp_path, FitOptions(seed=4, batch=2), command="", size=SMALL)


def test_the_graph_computes_what_torch_does(
    trained: tuple[Path, dict[str, Any]], encoder: Encoder, tmp_path: Path
) -> None:
    out, _ = trained
    build_parser(out / "parser.safetensors", encoder.weights, tmp_path)
    tensors, metadata = read_tensors(out / "parser.safetensors")
    shape = NetShape(**json.loads(metadata["parser"])["shape"])
    net = ParserNet(shape, Lower(encoder.weights, tuple(shape.read), shape.rank)).eval()
    net.load_state_dict({name: torch.from_numpy(np.array(value, np.float32)) for name, value in tensors.items()})
    assert any("lower" in name and np.abs(value).max() > 0.01 for name, value in tensors.items() if name.endswith("up"))
    rng = np.random.default_rng(5)
    length, pieces = 9, 7
    ids = rng.integers(4, 1000, pieces)
    cover = np.zeros((length, pieces), bool)
    cover[np.arange(length), np.arange(length) % pieces] = cover[3, 3:6] = True
    shares, sizes = rng.integers(0, shape.shares, length), rng.integers(0, shape.sizes, length)
    tags, last = rng.integers(0, shape.tags, (length, 3)), np.array([2, 3])
    every, each = np.ones(pieces, bool), np.ones(length, bool)
    with torch.no_grad():
        taken = [torch.from_numpy(part)[None] for part in (ids, every, cover, shares, sizes, tags, last, each)]
        wanted = net(Inputs(*taken))
    parts = (cover / cover.sum(1, keepdims=True)).astype(np.float32)
    found = ParserEngine.load(tmp_path).run(ids, parts, shares, sizes, tags, last)
    for mine, theirs in zip((found.reasons, found.choices, found.points, found.what), wanted, strict=True):
        scale = theirs.abs().max()
        np.testing.assert_allclose(mine / scale, theirs[0].numpy() / scale, atol=0.06)  # the graph rounds to int8


def test_a_device_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of("auto") == "cpu"
    for name in ("cuda", "tpu"):
        with pytest.raises(ValueError, match="finds no GPU"):
            device_of(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_of("auto") == device_of("cuda") == "cuda"


@pytest.mark.parametrize("text", ["no json", '{"text": 3, "calls": []}', '{"calls": []}', '{"text": "a", "calls": {}}'])
def test_a_bad_line_is_named(text: str, tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text('{"text": "a", "calls": []}\n' + text + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"data\.jsonl:2: no line of training data"):
        read_lines(tmp_path)


def test_what_is_no_adapter_is_refused(encoder: Encoder, tmp_path: Path) -> None:
    file = tmp_path / "parser.safetensors"
    file.write_bytes(b"\x00" * 40)
    with pytest.raises(InputError, match="take a fresh copy"):
        build_parser(file, encoder.weights, tmp_path / "out")
    write_tensors(file, {"a": np.zeros(4, np.float16)}, {})
    with pytest.raises(InputError, match="no adapter of the parser"):
        build_parser(file, encoder.weights, tmp_path / "out")
    write_tensors(file, {"a": np.arange(400, dtype=np.float16)}, {"b": "c"})
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(InputError, match="no tensor file"):
        read_tensors(file)
