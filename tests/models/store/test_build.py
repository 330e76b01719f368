"""Registry checks, building, fingerprints."""

from __future__ import annotations

import importlib
import inspect
import json
import platform
import sys
import time
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from models.errors import ConfigError, FingerprintMismatch, ModelMissing, StartupError
from models.store import fingerprint
from models.store.fetch import Origins
from models.store.fingerprint import builder_sha256, read_fingerprint
from models.store.registry import ArchiveFolder, load_registry
from models.store.store import Store
from tests.support.store_fakes import file_entry, part, registry, wheel

CONTENT = b"weights" * 100
RULE = {"builder": "models.build.fake:build_fake", "arguments": {"weights": "w.bin"}, "options": {"quant": "served"}}


def build_fake(weights: Path, out: Path, *, quant: str, progress: Callable[[str, float], None] | None = None) -> None:
    (out / "model.onnx").write_bytes(weights.read_bytes() + quant.encode())
    if progress:
        progress("writing", 1.0)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("models.build.fake")
    module.build_fake = build_fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "models.build.fake", module)
    return module


@pytest.fixture
def store(tmp_path: Path, fake: types.ModuleType) -> Store:
    (tmp_path / "w.bin").write_bytes(CONTENT)
    source = {"type": "path", "path": str(tmp_path / "w.bin")}
    made = Store(tmp_path / "cache", registry({"w.bin": file_entry(CONTENT, source)}, build=RULE))
    return made


def test_every_state_names_its_remedy(store: Store) -> None:
    with pytest.raises(ModelMissing, match="cockpit models build fake"):
        store.built("fake")
    with pytest.raises(ModelMissing, match="cockpit models fetch fake"):
        store.build("fake")
    store.fetch("fake", origins=Origins())
    steps: list[str] = []
    folder = store.build("fake", progress=lambda step, share: steps.append(step))
    assert (folder / "model.onnx").read_bytes() == CONTENT + b"served"
    assert steps == ["writing"]
    assert store.verify("fake") == []
    assert store.built("fake") == folder == store.ensure("fake")


@pytest.mark.parametrize(
    ("field", "value"),
    [("onnxruntime", "0.0.1"), ("device", "cuda"), ("builder_sha256", "0" * 64), ("sources", {"w.bin": "0" * 64})],
)
def test_a_build_for_something_else_is_refused_then_rebuilt(store: Store, field: str, value: object) -> None:
    folder = store.ensure("fake", origins=Origins())
    path = folder / fingerprint.FILE_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(FingerprintMismatch, match=f"{field}.*run: cockpit models build fake"):
        store.built("fake")
    assert [fault.remedy for fault in store.verify("fake")] == ["cockpit models build fake"]
    store.build("fake")
    assert store.is_built("fake")


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"model": "fake"'])
def test_an_unreadable_fingerprint_is_a_mismatch(store: Store, text: str) -> None:
    folder = store.ensure("fake", origins=Origins())
    (folder / fingerprint.FILE_NAME).write_text(text)
    assert read_fingerprint(folder) is None
    with pytest.raises(FingerprintMismatch, match="cockpit models build fake"):
        store.built("fake")


def test_a_build_that_fails_leaves_the_old_one(store: Store, fake: types.ModuleType) -> None:
    folder = store.ensure("fake", origins=Origins())

    def broken(weights: Path, out: Path, *, quant: str) -> None:
        (out / "half").write_bytes(b"x")
        raise OSError("disk full")

    fake.build_fake = broken  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="disk full"):
        store.build("fake", force=True)
    assert (folder / "model.onnx").exists()
    assert sorted(path.name for path in folder.parent.iterdir()) == ["fake"]


def test_two_that_want_a_model_at_once_build_it_once(store: Store, fake: types.ModuleType) -> None:
    store.fetch("fake", origins=Origins())
    calls = []

    def slow(weights: Path, out: Path, *, quant: str) -> None:
        calls.append(quant)
        time.sleep(0.1)
        (out / "model.onnx").write_bytes(b"x")

    fake.build_fake = slow  # type: ignore[attr-defined]
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: store.ensure("fake"), range(4)))
    assert folders == {store.built("fake")}
    assert calls == ["served"]


def test_without_the_build_extra_the_remedy_is_said(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.fetch("fake", origins=Origins())
    monkeypatch.delitem(sys.modules, "models.build.fake")
    with pytest.raises(StartupError, match=r'pip install "cockpit-voice\[build\]"'):
        store.build("fake")


def test_an_archive_is_handed_to_the_builder_unzipped(tmp_path: Path, fake: types.ModuleType) -> None:
    data = wheel({"pkg/a.txt": b"A", "pkg/sub/b.txt": b"B", "other/c.txt": b"C"})
    (tmp_path / "p.whl").write_bytes(data)
    files = {
        "foreign.whl": file_entry(data, {"type": "path", "path": "/nowhere"}) | {"machine": "vax"},
        "here.whl": file_entry(data, {"type": "package", "parts": [part("p.whl", data, None)]})
        | {"machine": platform.machine()},
    }

    def build(package_dir: Path, out: Path) -> None:
        (out / "seen").write_text(",".join(sorted(str(p.relative_to(package_dir)) for p in package_dir.rglob("*.txt"))))

    fake.build_fake = build  # type: ignore[attr-defined]
    folder = {"archives": ["foreign.whl", "here.whl"], "folder": "pkg"}
    rule = {"builder": "models.build.fake:build_fake", "arguments": {"package_dir": folder}}
    store = Store(tmp_path / "cache", registry(files, build=rule))
    built = store.ensure("fake", origins=Origins(local_folders=(tmp_path,)))
    assert (built / "seen").read_text() == "a.txt,sub/b.txt"
    assert not (store.source_folder("fake") / "foreign.whl").exists()


# --- the registry that ships ---------------------------------------------------------------------------------------
def test_the_registry_that_ships_is_consistent() -> None:
    found = load_registry()
    kinds = {found.get(name).kind for name in found.default_names}
    assert {"asr", "llm", "tts", "vad", "phonemes"} <= kinds
    assert all(found.get(name).commercial_use for name in found.default_names)
    for entry in found.models:
        assert entry.licence
        assert entry.commercial_use or entry.licence_note


def test_every_build_rule_fits_its_builder() -> None:
    for entry in load_registry().models:
        if entry.build is None:
            continue
        module, _, name = entry.build.builder.partition(":")
        signature = inspect.signature(getattr(importlib.import_module(module), name))
        signature.bind(**dict.fromkeys(entry.build.arguments, Path()), out=Path(), **entry.build.options)


def test_an_unknown_model_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean whisper-base"):
        load_registry().get("wisper-base")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "registry.json:1:2"),
        ('{"format": 2, "models": []}', "format"),
        ('{"format": 1, "models": [{"name": "x"}]}', "models.0.kind"),
        ('{"format": 1, "models": [], "more": 1}', "more"),
    ],
)
def test_a_wrong_registry_says_where(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "registry.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_registry(path)
    with pytest.raises(ConfigError, match="cannot read"):
        load_registry(tmp_path / "absent.json")


def test_builder_hash_follows_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "models"
    (package / "build").mkdir(parents=True)
    (package / "build" / "a.py").write_text("from models.build.b import thing\nfrom models.build import c\n")
    (package / "build" / "b.py").write_text("import models.build.c\nthing = 1\n")
    (package / "build" / "c.py").write_text("x = 1\n")
    monkeypatch.setattr(fingerprint, "_PACKAGE", package)
    builder_sha256.cache_clear()
    first = builder_sha256("models.build.a")
    (package / "build" / "c.py").write_text("x = 2\n")
    builder_sha256.cache_clear()
    assert builder_sha256("models.build.a") != first
    builder_sha256.cache_clear()


def test_the_archive_rule_is_used_by_a_default_model() -> None:
    rule = load_registry().get("espeak-ng").build
    assert rule is not None
    assert isinstance(rule.arguments["package_dir"], ArchiveFolder)


def test_a_real_model_builds_and_verifies(model_dir: Callable[[str], Path], model_store: Store) -> None:
    folder = model_dir("silero-vad")
    assert read_fingerprint(folder) is not None
    assert model_store.verify("silero-vad") == []
