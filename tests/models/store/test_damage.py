"""Damaged models: whatever happens to a file of a build, `verify` names it, and no start runs on with it."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from cockpit.cli import main
from models.engines.placement import CpuPlacement
from models.errors import ModelDamaged
from models.store.fetch import Origins
from models.store.manifest import FILE_NAME, SAMPLE_BYTES, SAMPLES
from models.store.store import Store
from tests.support.store_fakes import file_entry, registry

LARGE = bytes(range(1, 251)) * 8000
BUILT = {"model.onnx": LARGE, "config.json": b"{}\n" * 50, "data/voices/one": b"0123456789", "data/empty": b""}
RULE = {"builder": "models.build.fake:build_fake", "arguments": {"weights": "w.bin"}}
UNSAMPLED = SAMPLE_BYTES + 100
"""An offset of a large file that no sample holds."""


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def zero_filled(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def replaced(path: Path) -> None:
    path.write_bytes(path.read_bytes()[::-1])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[min(UNSAMPLED, len(data) - 1)] ^= 1
    path.write_bytes(data)


def gone(path: Path) -> None:
    path.unlink()


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: list[Callable[[Path], None]] = [cut_off, emptied, zero_filled, replaced, flipped, gone, a_folder]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    def build_fake(weights: Path, out: Path) -> None:
        for name, data in BUILT.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_bytes(data)

    module = types.ModuleType("models.build.fake")
    module.build_fake = build_fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "models.build.fake", module)
    (tmp_path / "w.bin").write_bytes(b"weights")
    source = {"type": "path", "path": str(tmp_path / "w.bin")}
    made = Store(tmp_path / "cache", registry({"w.bin": file_entry(b"weights", source)}, build=RULE))
    made.ensure("fake", origins=Origins())
    return made


@pytest.mark.parametrize("name", [*BUILT, FILE_NAME])
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_verify_names_the_file_and_the_command_mends_it(
    store: Store, name: str, damage: Callable[[Path], None]
) -> None:
    path = store.built("fake") / name
    if not path.stat().st_size and damage not in {gone, a_folder}:
        pytest.skip("an empty file has nothing to damage")
    damage(path)
    assert [fault.path for fault in store.verify("fake")] == [path]
    if damage is flipped and name == "model.onnx":
        assert store.is_built("fake")  # one bit, in no sample: what a start does not look for
    else:
        with pytest.raises(ModelDamaged, match="run: cockpit models fetch --build fake") as caught:
            store.built("fake")
        assert str(path) in str(caught.value)
    store.ensure("fake", origins=Origins(), whole=True)
    assert store.verify("fake") == []
    assert path.is_file()


def test_a_sample_holds_the_ends_and_no_large_hole(store: Store) -> None:
    assert len(LARGE) > SAMPLE_BYTES * SAMPLES
    path = store.built("fake") / "model.onnx"
    hole = len(LARGE) // (SAMPLES - 1) + SAMPLE_BYTES
    for start in (0, len(LARGE) // 3, len(LARGE) - hole):
        path.write_bytes(LARGE[:start] + bytes(hole) + LARGE[start + hole :])
        assert not store.is_built("fake"), start
    path.write_bytes(LARGE)
    assert store.is_built("fake")


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_model_that_is_loaded_as_it_was_fetched(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    (tmp_path / "w.bin").write_bytes(LARGE)
    source = {"type": "path", "path": str(tmp_path / "w.bin")}
    store = Store(tmp_path / "cache", registry({"w.bin": file_entry(LARGE, source)}))
    path = store.ensure("fake", origins=Origins()) / "w.bin"
    damage(path)
    assert not store.is_built("fake")
    assert len(store.verify("fake")) == 1
    store.ensure("fake", origins=Origins(), whole=True)
    assert store.verify("fake") == []


@pytest.mark.parametrize("data", [b"", b"no graph", b"\x08\x08\x12\x04" + bytes(100)])
def test_what_is_no_graph_is_no_traceback(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.onnx").write_bytes(data)
    with pytest.raises(ModelDamaged, match="run: cockpit models fetch --build"):
        CpuPlacement(1).open(tmp_path / "model.onnx")


# --- a start of the product ----------------------------------------------------------------------------------------
STARTS = [
    ("qwen2.5-coder-0.5b-instruct", ("model.onnx", "head.onnx", "model.bin", "tokenizer.json", FILE_NAME)),
    ("whisper-base", ("encoder.onnx", "decoder.onnx", "config.json", "tokenizer.json", FILE_NAME)),
    ("piper-en-joe", ("encoder.onnx", "vocoder.onnx", "voice.json", FILE_NAME)),
    ("silero-vad", ("silero_vad.onnx", FILE_NAME)),
    ("espeak-ng", ("libespeak-ng.so.1", "espeak-ng-data/phondata", "espeak-ng-data/cmn_dict", FILE_NAME)),
]  # fmt: skip


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory, model_store: Store) -> Path:
    """A cache of the default models that are built here, every file a link: damage replaces the link."""
    root = tmp_path_factory.mktemp("cache")
    for name in model_store.registry.default_names:
        folder = model_store.ensure(name)
        for path in folder.rglob("*"):
            if path.is_file():
                link = root / "built" / name / path.relative_to(folder)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(path)
    return root


def damaged_link(path: Path, how: str) -> None:
    """As above, for large files: nothing is copied."""
    size = path.stat().st_size
    path.unlink()
    if how != "gone":
        with path.open("wb") as file:
            file.truncate(size if how == "zero-filled" else size - 1)


@pytest.mark.parametrize("how", ["cut-off", "zero-filled", "gone"])
@pytest.mark.parametrize(("model", "file"), [(model, file) for model, files in STARTS for file in files])
def test_a_start_with_a_damaged_file_exits_3_with_the_command(
    linked: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: str, file: str, how: str
) -> None:
    monkeypatch.setenv("COCKPIT_CACHE", str(linked))
    path = linked / "built" / model / file
    target = path.readlink()
    damaged_link(path, how)
    try:
        with pytest.raises(SystemExit) as ended:
            main(["ask", "what is the speed"])
    finally:
        path.unlink(missing_ok=True)
        path.symlink_to(target)
    captured = capsys.readouterr()
    assert ended.value.code == 3
    assert str(path) in captured.err
    assert captured.err.rstrip().endswith(f"run: cockpit models fetch --build {model}")
    assert captured.out == ""
