"""`python -m benchmarks`: the list, one benchmark, wrong names; and no circles between the modules."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS, main

ROOT = Path(__file__).resolve().parents[2]


def test_the_list_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert main(["--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == [benchmark.name for benchmark in BENCHMARKS]
    assert all(row["measures"] and row["device"] and row["lasts"] for row in rows)
    assert {"llama-cpp-python", "faster-whisper", "piper-tts"} <= {peer for row in rows for peer in row["peers"]}
    for row in rows:
        assert row["name"] in shown


def test_a_benchmark_has_one_name_and_its_module_exists() -> None:
    names = [benchmark.name for benchmark in BENCHMARKS]
    assert len(set(names)) == len(names)
    for benchmark in BENCHMARKS:
        path = ROOT / "benchmarks" / f"{benchmark.module.replace('.', '/')}.py"
        functions = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
        assert "main" in functions, path


@pytest.mark.parametrize(("wrong", "near"), [("tern", "turn"), ("gpu_engin", "gpu_engine"), ("command", "commands")])
def test_a_wrong_name_says_near_ones(wrong: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([wrong]) == 2
    said = capsys.readouterr()
    assert near in said.err
    assert said.out == ""


def test_a_name_like_no_other_points_to_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xyzzy"]) == 2
    assert "python -m benchmarks" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["serialise", "gpu_checkpoint"])
def test_help_goes_to_the_benchmark(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", name, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: python -m benchmarks {name}")
    assert "--json" in done.stdout


def test_a_wrong_option_is_the_benchmarks_to_refuse(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["isolation", "--loads", "matrix"])
    assert left.value.code == 2
    assert "--loads goes with --device cuda" in capsys.readouterr().err


def test_no_circles() -> None:
    """Imports inside functions count too."""
    graph: dict[str, set[str]] = {}
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in (ROOT / "benchmarks").rglob("*.py")
    }
    for module, path in modules.items():
        found = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        graph[module] = {name for name in found if name in modules}
    TopologicalSorter(graph).prepare()
