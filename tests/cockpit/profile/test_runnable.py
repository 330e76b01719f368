"""Whether a profile can run here: every command and the start give the same answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cockpit.assemble import assemble
from cockpit.cli import main
from cockpit.profile import runnable
from cockpit.profile.load import LoadedProfile, load_profile
from cockpit.profile.runnable import findings, require_runnable
from cockpit.runtime import NullSink
from models.errors import ConfigError, ModelMissing, StartupError
from models.store.store import Store


@pytest.fixture(autouse=True)
def built(model_dir: Callable[[str], Path]) -> None:
    for name in load_profile("cpu").profile.model_names:
        model_dir(name)


def load(folder: Path, text: str) -> LoadedProfile:
    path = folder / "p.yaml"
    path.write_text(f"extends: cpu\n{text}", encoding="utf-8")
    return load_profile(str(path))


KUKSA = "vehicle: {backend: kuksa, socket: /nowhere/databroker.sock, token_file: /nowhere/token}\n"
CANNOT_START = {
    "privacy: {store_transcripts: true, folder: /tmp/kept}\n": ("privacy.store_transcripts", ConfigError),
    "privacy: {store_audio: true, folder: /tmp/kept}\n": ("privacy.store_audio", ConfigError),
    "wake: {engine: microwakeword, model: hey_car}\n": ("wake.model", StartupError),
    "tasks: {dialogue_task: {memory_budget_mb: 9000000}}\n": ("tasks.dialogue_task.memory_budget_mb", ConfigError),
    "orchestration: {clusters: {cores_b: 4000}}\n": ("orchestration.clusters", ConfigError),
    "tasks: {dialogue_task: {memory_budget_mb: 1}}\n": ("memory", ConfigError),
    "tasks: {dialogue_task: null}\n": ("the voice chain runs as dialogue_task", ConfigError),
    KUKSA: ("vehicle.socket", StartupError),
}


@pytest.mark.parametrize("text", CANNOT_START)
def test_what_cannot_start_is_told_by_every_command_and_refused_by_the_start(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = load(tmp_path, text)
    key, error = CANNOT_START[text]
    file = str(tmp_path / "p.yaml")
    for command in (["profile", "check", file], ["profile", "apply", file, "--dry-run"], ["doctor", "--profile", file]):
        with pytest.raises(SystemExit) as ended:
            main([*command, "--json"])
        assert ended.value.code in (2, 3), command
        answer = json.loads(capsys.readouterr().out)
        assert answer["ok"] is False, command
        assert key in json.dumps(answer), command
    with pytest.raises((ConfigError, StartupError), match=key):
        require_runnable(loaded.profile, loaded.arbiter, Store.open())
    if loaded.profile.wake.engine == "none" and "tasks" not in text and "orchestration" not in text:
        with pytest.raises(error, match=key):
            assemble(loaded.profile, Store.open(), NullSink())


def test_the_shipped_profile_can_start(tmp_path: Path) -> None:
    loaded = load_profile("cpu")
    assert [found for found in findings(loaded.profile, loaded.arbiter, Store.open()) if found.status != "ok"] in (
        [],
        [found for found in findings(loaded.profile, loaded.arbiter, Store.open()) if found.name == "gpu"],
    )
    require_runnable(loaded.profile, loaded.arbiter, Store.open())


def test_a_finding_of_a_key_names_the_users_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load(tmp_path, "privacy: {store_audio: true, folder: /tmp/kept}\n")
    with pytest.raises(SystemExit) as ended:
        main(["profile", "check", str(tmp_path / "p.yaml")])
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert f"{tmp_path}/p.yaml:2:11: privacy.store_audio: nothing can be stored yet; set it false" in err
    assert err.endswith("cannot start here: 1 missing\n")


def test_kuksa_without_its_extra_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(tmp_path, KUKSA)
    monkeypatch.setattr(runnable, "_installed", lambda module: module != "grpc")
    with pytest.raises(StartupError, match=r"needs grpc, which is not installed; pip install .*\[vss\]"):
        require_runnable(loaded.profile, loaded.arbiter, Store.open())


def test_models_that_are_not_built_name_one_command(tmp_path: Path) -> None:
    loaded = load_profile("cpu")
    with pytest.raises(ModelMissing) as caught:
        require_runnable(loaded.profile, loaded.arbiter, Store.open(tmp_path))
    assert [line.split()[0] for line in str(caught.value).splitlines()[:-1]] == list(loaded.profile.model_names)
    assert str(caught.value).endswith("run: cockpit models fetch --build")


def test_a_word_that_its_user_added_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runnable, "_installed", lambda _module: True)
    loaded = load(tmp_path, "wake: {engine: microwakeword, model: hey_car}\n")
    folder = tmp_path / "words"
    folder.mkdir()
    (folder / "hey_car.tflite").touch()
    monkeypatch.setattr(Store, "is_built", lambda self, name: True)
    monkeypatch.setattr(Store, "built", lambda self, name: folder)
    words = [found for found in runnable._wake_word(loaded.profile, Store.open())]
    assert [found.status for found in words] == ["ok"]
