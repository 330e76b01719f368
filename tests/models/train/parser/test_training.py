"""A run of seconds over a few sentences: it learns, goes on after a stop, and its graph computes what torch does."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.build.parser import build_parser
from models.engines.parser import ParserEngine
from models.errors import InputError
from models.store.tensor_file import read_tensors, write_tensors
from models.train.parser.fit import FitOptions
from models.train.parser.net import NetShape, ParserNet
from models.train.parser.run import Size, read_lines, train_parser
from models.train.parser.vocabulary import Vocabulary
from pipeline.nlu.lexicon import build_lexicon
from pipeline.nlu.parser.reader import ParserReader
from pipeline.vehicle.places import load_places
from tests.support.nlu.parser_scores import PIECES

SMALL = Size(width=32, layers=1, heads=2, inner=32)


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
def vocabulary() -> Vocabulary:
    rng = np.random.default_rng(0)
    return Vocabulary(PIECES, rng.normal(0, 1, (len(PIECES), 16)).astype(np.float32), 1.0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, vocabulary: Vocabulary) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("adapter")
    options = FitOptions(seed=3, epochs=10, batch=8, rate=1e-2, threads=1)
    report = train_parser(lines(), lines()[:6], vocabulary, out, options, command="a test", size=SMALL)
    return out, report


def test_it_learns_and_its_adapter_reads_sentences(trained: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
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
    build_parser(out / "parser.safetensors", tmp_path)
    reader = ParserReader(ParserEngine.load(tmp_path), build_lexicon(load_places(), by_sound=False))
    program = reader.read("set the temperature to 19")
    assert program is not None
    assert [read.call.arguments.get("value") for read in program.calls] == [19.0]
    told = reader.read("the window is open 77")
    assert told is not None
    assert (told.reason, told.calls) == ("statement", ())
    assert reader.read("...") is None


def test_a_run_that_was_cut_short_ends_as_one_that_was_not(vocabulary: Vocabulary, tmp_path: Path) -> None:
    class Cut(Exception):
        pass

    def cut(done: int, total: int, _loss: float) -> None:
        if done > 0.7 * total:
            raise Cut

    options = FitOptions(seed=3, epochs=4, batch=4, threads=1)
    run = partial(train_parser, lines(), lines()[:6], vocabulary, options=options, command="a test", size=SMALL)
    whole = run(tmp_path / "whole")
    with pytest.raises(Cut):
        run(tmp_path / "cut", told=cut)
    resumed = run(tmp_path / "cut")
    assert resumed["adapter_sha256"] == whole["adapter_sha256"]
    assert resumed["losses"] == whole["losses"]


def test_a_checkpoint_of_another_run_is_not_gone_on_from(vocabulary: Vocabulary, tmp_path: Path) -> None:
    class Cut(Exception):
        pass

    def cut(done: int, total: int, _loss: float) -> None:
        if done > 0.7 * total:
            raise Cut

    options = FitOptions(seed=3, epochs=2, batch=2, threads=1)
    with pytest.raises(Cut):
        train_parser(lines(), lines()[:6], vocabulary, tmp_path, options, command="", size=SMALL, told=cut)
    with pytest.raises(InputError, match="delete it, or choose another folder"):
        train_parser(lines(), lines()[:6], vocabulary, tmp_path, FitOptions(seed=4, batch=2), command="", size=SMALL)


def test_the_graph_computes_what_torch_does(trained: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    out, _ = trained
    build_parser(out / "parser.safetensors", tmp_path)
    tensors, metadata = read_tensors(out / "parser.safetensors")
    shape = NetShape(**json.loads(metadata["parser"])["shape"])
    net = ParserNet(shape).eval()
    rows = tensors["table"].astype(np.float32) * tensors["table.scale"][:, None].astype(np.float32)
    own = {name: torch.from_numpy(np.array(value, np.float32)) for name, value in tensors.items()
           if name not in ("table", "table.scale", "vocabulary")}  # fmt: skip
    net.load_state_dict({**own, "table.weight": torch.from_numpy(rows)})
    rng = np.random.default_rng(5)
    length = 9
    inputs = (
        rng.integers(0, len(PIECES), (length, 4)),
        rng.integers(0, len(PIECES), length),
        rng.integers(0, shape.sizes, length),
        rng.integers(0, shape.tags, (length, 3)),
        np.array([2, 3]),
    )
    with torch.no_grad():
        wanted = net(*(torch.from_numpy(part)[None] for part in inputs), torch.ones(1, length, dtype=torch.bool))
    found = ParserEngine.load(tmp_path).run(*inputs)
    for mine, theirs in zip((found.reasons, found.choices, found.points, found.what), wanted, strict=True):
        np.testing.assert_allclose(mine, theirs[0].numpy(), atol=1e-4)


@pytest.mark.parametrize("text", ["no json", '{"text": 3, "calls": []}', '{"calls": []}', '{"text": "a", "calls": {}}'])
def test_a_bad_line_is_named(text: str, tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text('{"text": "a", "calls": []}\n' + text + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"data\.jsonl:2: no line of training data"):
        read_lines(tmp_path)


def test_what_is_no_adapter_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "parser.safetensors"
    file.write_bytes(b"\x00" * 40)
    with pytest.raises(InputError, match="take a fresh copy"):
        build_parser(file, tmp_path / "out")
    write_tensors(file, {"a": np.zeros(4, np.float16)}, {})
    with pytest.raises(InputError, match="no adapter of the parser"):
        build_parser(file, tmp_path / "out")
    write_tensors(file, {"a": np.arange(400, dtype=np.float16)}, {"b": "c"})
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(InputError, match="no tensor file"):
        read_tensors(file)
