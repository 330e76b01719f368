"""What a profile says reaches the parts that it is about."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cockpit import assemble
from cockpit.assemble import Assembly
from cockpit.profile.sections import Profile
from cockpit.scheduling.placements import engine_placements
from models.engines.tts.espeak import EspeakWorker
from models.store.store import Store
from pipeline.frames import Language
from pipeline.vehicle import kuksa
from pipeline.vehicle.signals import EmbeddedTree, Signal, load_signals

TEXTS: dict[Language, str] = {"en": "The passenger window is open now.", "zh": "副驾车窗已打开。"}


def test_what_the_profile_says_of_the_databroker_reaches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def connect(where: Path | str, signals: dict[str, Signal], *, ca_file: Path, token_file: Path) -> EmbeddedTree:
        asked.append((where, set(signals) - set(load_signals()), ca_file, token_file))
        return EmbeddedTree(signals)

    monkeypatch.setattr(kuksa.KuksaTree, "connect", connect)
    scent = {"path": "Vehicle.Cabin.Scent", "kind": "actuator", "datatype": "boolean", "initial": False, "write": {}}
    overlay = tmp_path / "signals.json"
    overlay.write_text(json.dumps({"signals": [scent]}), encoding="utf-8")
    token = str(tmp_path / "token")
    local = {"backend": "kuksa", "socket": str(tmp_path / "broker.sock"), "token_file": token}
    remote = {"backend": "kuksa", "address": "car:55555", "ca_file": str(tmp_path / "ca.pem"), "signals": str(overlay)}
    for vehicle in (local, remote):
        assemble.vehicle_of(Profile.model_validate({"vehicle": vehicle}))
    assert asked == [
        (tmp_path / "broker.sock", set(), None, tmp_path / "token"),
        ("car:55555", {scent["path"]}, tmp_path / "ca.pem", None),
    ]


def test_speed_reaches_both_voices(model_dir: Callable[[str], Path]) -> None:
    folders = {name: model_dir(name) for name in ("piper-en-joe", "espeak-ng")}
    models = assemble.BuiltModels(Store.open(), folders, ExitStack())
    worker = EspeakWorker.load(folders["espeak-ng"])

    def seconds(speed: float) -> dict[Language, float]:
        profile = Profile.model_validate({"tts": {"speed": speed}})
        voices = assemble._voices(profile, models, worker, engine_placements(profile, None))
        return {
            language: sum(map(len, voice.synthesise(TEXTS[language]))) / voice.sample_rate_hz
            for language, voice in voices.items()
        }

    try:
        usual, fast = seconds(1.0), seconds(1.8)
    finally:
        worker.close()
    for language in TEXTS:
        assert fast[language] < 0.85 * usual[language], language


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_apology_for_a_lost_turn_can_be_heard(cpu_assembly: Assembly, language: Language) -> None:
    frames = list(cpu_assembly.parts.tts.apology(1, 0, language, 0))
    assert sum(len(frame.samples) for frame in frames) > 8000
    assert frames[-1].last
