"""`cockpit pack` on a real model: bench to head unit, and what a service says of models that nobody signed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cockpit.cli import main, talk
from cockpit.lifecycle.refresh import refresh
from cockpit.lifecycle.trust import untrusted_models
from cockpit.profile.load import load_profile
from cockpit.service.notify import Notifier
from cockpit.service.state import ServiceState
from models.errors import PackRefused, StartupError
from models.pack.record import record_of
from models.store.validation import Validation

VAD = "silero-vad"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def called(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out + captured.err

    return called


def test_from_the_bench_to_the_head_unit_and_its_status(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[..., tuple[int, str]],
    model_dir: Callable[[str], Path],
) -> None:
    shutil.copytree(model_dir(VAD), tmp_path / "bench" / "built" / VAD)
    monkeypatch.setenv("COCKPIT_CACHE", str(tmp_path / "bench"))
    assert run("pack", "keygen", str(tmp_path / "fleet.key"))[0] == 0
    profile = tmp_path / "car.yaml"
    profile.write_text("extends: cpu\nmodels: {trusted_keys: [fleet.key.pub]}\n")
    build = ("pack", "build", str(tmp_path / "vad.tar"), VAD)
    assert run(*build) == (2, "cockpit: name a key by --key, or say --unsigned\n")
    assert run(*build, "--key", str(tmp_path / "fleet.key"), "--counter", "7")[0] == 0
    assert run("pack", "build", str(tmp_path / "bare"), VAD, "--unsigned", "--counter", "8")[0] == 0
    assert run("models", "sign", VAD, "--key", str(tmp_path / "fleet.key"))[0] == 0
    assert run("models", "verify", VAD)[0] == 0
    code, said = run("models", "verify", "--profile", "cpu", VAD)
    assert (code, "is not trusted" in said) == (3, True), said

    monkeypatch.setenv("COCKPIT_CACHE", str(tmp_path / "car"))
    code, said = run("pack", "verify", str(tmp_path / "vad.tar"), "--profile", str(profile), "--json")
    assert (code, json.loads(said)["models"]) == (0, [VAD])
    code, said = run("pack", "install", str(tmp_path / "vad.tar"))
    assert (code, "which is not trusted (models.trusted_keys: none)" in said) == (3, True), said
    code, said = run("pack", "install", str(tmp_path / "vad.tar"), "--profile", str(profile))
    assert (code, "installed: models 7, signed by key" in said) == (0, True), said
    loaded = load_profile(str(profile))
    store = loaded.store()
    kept = Validation.read(store.folder(VAD))
    assert (store.unvalidated(VAD), kept is not None and kept.passed) == ("", True), "it was seen to work here"
    assert untrusted_models(store, loaded.profile) == {}
    assert untrusted_models(store, load_profile("cpu").profile).keys() == {VAD}, "its key is not trusted there"

    code, said = run("pack", "install", str(tmp_path / "bare"), "--profile", str(profile))
    assert (code, "it is not signed" in said) == (3, True), said
    profile.write_text("extends: cpu\nmodels: {trusted_keys: [fleet.key.pub], unsigned: allow}\n")
    code, said = run("pack", "install", str(tmp_path / "bare"), "--profile", str(profile))
    assert (code, "NOT SIGNED" in said) == (0, True), said
    state = ServiceState(Notifier())
    talk._require_trusted(store, load_profile(str(profile)).profile, state)
    assert "came by the pack models 8, which is not signed" in state.status().modes["unsigned"]
    with pytest.raises(PackRefused, match="install a signed pack"):
        talk._require_trusted(store, loaded.profile, state)

    record = record_of(store.root, "models")
    assert record is not None
    record.model_copy(update={"state": "installing"}).write(store.root)
    with pytest.raises(StartupError, match="was not installed to its end; run: cockpit models refresh"):
        talk._require_trusted(store, loaded.profile, state)
    done = refresh(store, [VAD])
    assert done.events == ("pack models: its interrupted installation is finished",)
    assert untrusted_models(store, loaded.profile).keys() == {VAD}
