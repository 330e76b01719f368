"""`cockpit models` over a cache of one small model that is built: states, faults, and the one command that mends."""

from __future__ import annotations

import json
import shutil
import sys
import types
from pathlib import Path

import pytest

from cockpit.cli import main
from models.store import store as storing
from tests.support.store_fakes import file_entry, registry

CONTENT = b"weights" * 1000
RULE = {"builder": "models.build.fake:build_fake", "arguments": {"weights": "w.bin"}}


def build_fake(weights: Path, out: Path) -> None:
    (out / "a.onnx").write_bytes(weights.read_bytes())
    (out / "b.onnx").write_bytes(weights.read_bytes() * 2)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    module = types.ModuleType("models.build.fake")
    module.build_fake = build_fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "models.build.fake", module)
    (tmp_path / "w.bin").write_bytes(CONTENT)
    source = {"type": "path", "path": str(tmp_path / "w.bin")}
    made = registry({"w.bin": file_entry(CONTENT, source)}, build=RULE)
    monkeypatch.setattr(storing, "load_registry", lambda: made)
    monkeypatch.setenv("COCKPIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of one `cockpit models` command."""
    with pytest.raises(SystemExit) as ended:
        main(["models", *arguments])
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def state(capsys: pytest.CaptureFixture[str]) -> str:
    return str(json.loads(run(capsys, "list", "--json")[1])["models"][0]["state"])


def test_one_command_from_nothing_to_built(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    assert state(capsys) == "missing"
    code, _, err = run(capsys, "build")
    assert code == 3
    assert err.rstrip().endswith("run: cockpit models fetch --build fake")
    code, out, err = run(capsys, "fetch", "--build")
    assert (code, out) == (0, "")
    assert "fake: fetched from" in err
    assert "fake: built in" in err
    assert state(capsys) == "built"
    before = (cache / "built" / "fake" / "a.onnx").stat().st_ino
    assert "fake: already built" in run(capsys, "fetch", "--build")[2]
    assert (cache / "built" / "fake" / "a.onnx").stat().st_ino == before


def test_built_models_alone_are_complete(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    run(capsys, "fetch", "--build")
    shutil.rmtree(cache / "sources")
    assert state(capsys) == "built"
    assert run(capsys, "verify")[:2] == (0, "1 model checked, 0 faults\n")
    assert run(capsys, "fetch", "--build")[0] == 0
    assert not (cache / "sources").exists()


def test_verify_has_a_line_for_each_fault_and_one_remedy(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    run(capsys, "fetch", "--build")
    folder = cache / "built" / "fake"
    (folder / "a.onnx").write_bytes(b"")
    (folder / "b.onnx").unlink()
    code, out, _ = run(capsys, "verify")
    assert code == 3
    assert out.splitlines() == [
        f"fake: {folder / 'a.onnx'}: 0 bytes long, was built with {len(CONTENT)}",
        f"fake: {folder / 'b.onnx'}: missing",
        "1 model checked, 2 faults",
        "run: cockpit models fetch --build fake",
    ]
    assert state(capsys) == "damaged"
    said = json.loads(run(capsys, "verify", "--json")[1])
    assert [fault["path"] for fault in said["faults"]] == [str(folder / "a.onnx"), str(folder / "b.onnx")]
    assert said["remedy"] == "cockpit models fetch --build fake"
    assert run(capsys, "fetch", "--build")[0] == 0
    assert run(capsys, "verify")[0] == 0


def test_nothing_here_is_one_fault(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    code, out, _ = run(capsys, "verify")
    assert code == 3
    assert out.splitlines() == [
        f"fake: {cache / 'built' / 'fake'}: is not built",
        "1 model checked, 1 fault",
        "run: cockpit models fetch --build fake",
    ]
