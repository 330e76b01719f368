"""`models.registry`: an OEM's own models beside and over the shipped ones, in every command that takes a profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cockpit.cli import main
from cockpit.profile.load import load_profile
from cockpit.service.install import planned
from models.errors import ConfigError, FingerprintMismatch, LibraryMissing, ModelDamaged
from models.store import declared, store
from models.store.registry import load_registry
from models.store.store import Store
from tests.support.store_fakes import file_entry

WEIGHTS = b"weights"


def entry(name: str, **more: Any) -> dict[str, Any]:
    files = {"w.bin": file_entry(WEIGHTS, {"type": "path", "path": "w.bin"})}
    return {"name": name, "kind": "vad", "summary": "of an OEM", "licence": "MIT", "files": files, **more}


def profile(folder: Path, *entries: dict[str, Any], more: str = "") -> str:
    (folder / "w.bin").write_bytes(WEIGHTS)
    (folder / "own.json").write_text(json.dumps({"format": 1, "models": entries}))
    path = folder / "car.yaml"
    path.write_text(f"extends: cpu\nmodels:\n  registry: own.json\n{more}")
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["models", *words])
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out + captured.err


def test_its_models_are_added_and_one_of_the_same_name_takes_the_shipped_ones_place(tmp_path: Path) -> None:
    found = load_profile(profile(tmp_path, entry("oem"), entry("silero-vad", engine="silero", roles=["vad"]))).registry
    assert found.names == (*load_registry().names, "oem")
    assert found.get("silero-vad").summary == "of an OEM"
    assert found.get("whisper-base") == load_registry().get("whisper-base")


def test_a_profile_that_extends_it_from_another_folder_finds_it(tmp_path: Path) -> None:
    base = profile(tmp_path, entry("oem"))
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "own.yaml").write_text(f"extends: {base}\n")
    loaded = load_profile(str(tmp_path / "below" / "own.yaml"))
    assert loaded.profile.models.registry == tmp_path / "own.json"
    assert "oem" in loaded.registry.names


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("{", r"car\.yaml:3:3: models\.registry: .*own\.json:1:2: not JSON"),
        ('{"format": 2, "models": []}', r"car\.yaml:3:3: models\.registry: .*own\.json: format"),
        (
            json.dumps({"format": 1, "models": [entry("a"), entry("oem", kind="ear")]}),
            r"own\.json: models\.1\.kind.*\(oem\)",
        ),
        (json.dumps({"format": 1, "models": [entry("a"), entry("a")]}), r"own\.json: model a is listed twice"),
        (
            json.dumps({"format": 1, "models": [entry("a", required_libs={"numpy": "two"})]}),
            r"own\.json: models\.0\.required_libs\.numpy: 'two' is no version specifier",
        ),
    ],
)
def test_a_wrong_registry_is_told_at_the_line_that_names_it(tmp_path: Path, written: str, message: str) -> None:
    named = profile(tmp_path)
    (tmp_path / "own.json").write_text(written)
    with pytest.raises(ConfigError, match=message):
        load_profile(named)


def test_a_registry_that_is_not_there_is_named(tmp_path: Path) -> None:
    named = profile(tmp_path)
    (tmp_path / "own.json").unlink()
    with pytest.raises(ConfigError, match=r"car\.yaml:3:3: .*own\.json: No such file"):
        load_profile(named)


def test_commands_use_it_and_their_remedies_name_the_profile(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COCKPIT_CACHE", str(tmp_path / "cache"))
    named = profile(tmp_path, entry("oem", engine="silero", roles=["vad"]))
    assert "oem" in run(capsys, "list", "--profile", named)[1]
    assert "unknown model 'oem'" in run(capsys, "verify", "oem")[1]
    code, said = run(capsys, "verify", "--profile", named, "--json")
    assert (code, f"--profile {named}" in json.loads(said)["remedy"]) == (3, True)
    cache = load_profile(named).store()
    cache.fetch("oem")
    assert cache.fault("oem") is None, "a relative source begins at the registry"
    assert f"cockpit models validate --profile {named} oem" in run(capsys, "hash", "oem", "--profile", named)[1]
    assert "name that profile" in run(capsys, "gc")[1]
    assert cache.is_fetched("oem"), "gc took what only the profile's registry knows"
    (tmp_path / "cache" / "sources" / "gone").mkdir()
    assert "gone" in run(capsys, "gc", "--profile", named)[1]
    assert (cache.is_fetched("oem"), (tmp_path / "cache" / "sources" / "gone").exists()) == (True, False)


def test_installing_a_profile_takes_its_registry_along(tmp_path: Path) -> None:
    named = profile(tmp_path, entry("oem"))
    laid = {str(file.path): file.text for file in planned(tmp_path / "image", named, Path("/bin/cockpit")).files}
    assert json.loads(laid["etc/cockpit/own.json"])["models"][0]["name"] == "oem"


# --- what an entry declares ----------------------------------------------------------------------------------------
def test_a_package_in_another_version_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_profile(profile(tmp_path, entry("oem", required_libs={"onnxruntime": ">=99", "numpy": ">=2"})))
    cache = loaded.store(tmp_path / "cache")
    cache.fetch("oem")
    with pytest.raises(LibraryMissing, match=r"oem needs onnxruntime>=99 \(1\..* is here\); install the packages"):
        cache.built("oem")
    monkeypatch.setattr(declared, "_version", lambda _name: None)
    with pytest.raises(LibraryMissing, match=r"numpy>=2 \(not installed\)"):
        cache.built("oem")


def build_text(weights: Path, out: Path) -> None:
    (out / "weights.bin").write_bytes(weights.read_bytes())
    (out / "config.json").write_text('{"stop_ids": [2, 1], "quant": "q4", "layers": 1, "kv_heads": 2, "head_dim": 3}')
    (out / "tokenizer.json").write_text('{"added_tokens": [{"id": 1, "content": "<end>"}]}')


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"stop_ids": [1]}, r"generation stops at \[2, 1\], the registry declares \[1\]"),
        ({"memory_layout": "q4, kv 2 x 9 x 2 x 3"}, "the registry declares 'q4, kv 2 x 9 x 2 x 3'"),
        ({"special_tokens": {"<end>": 7}}, "<end> is token 1, the registry declares 7"),
    ],
)
def test_a_build_that_is_not_as_declared_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(store, "_call_builder", lambda _rule, sources, out, _progress: build_text(**sources, out=out))
    rule = {"builder": "models.build.llm:build_llm", "arguments": {"weights": "w.bin"}}
    right = {"stop_ids": [1, 2], "memory_layout": "q4, kv 2 x 1 x 2 x 3", "special_tokens": {"<end>": 1}}

    def opened(**declares: Any) -> Store:
        named = profile(tmp_path, entry("oem", **{"kind": "llm", "build": rule, **declares}))
        return load_profile(named).store(tmp_path / "cache")

    cache = opened(**wrong)
    cache.fetch("oem")
    with pytest.raises(ModelDamaged, match=message):
        cache.build("oem")
    assert not cache.folder("oem").exists()
    opened(**right).build("oem")
    assert opened(**right).verify("oem") == []
    assert any(fault.path.suffix == ".json" for fault in opened(**wrong).verify("oem"))
    if "special_tokens" not in wrong:
        with pytest.raises((ModelDamaged, FingerprintMismatch), match=message):
            opened(**wrong).built("oem")
