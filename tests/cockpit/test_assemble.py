"""What a profile says reaches the parts that it is about."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from cockpit import assemble
from cockpit.assemble import Assembly
from cockpit.profile.sections import Profile
from cockpit.scheduling.placements import engine_placements
from models.engines.tts.espeak import EspeakWorker
from models.store.store import Store
from pipeline.frames import Language
from pipeline.vehicle import kuksa
from pipeline.vehicle.signals import EmbeddedTree

TEXTS: dict[Language, str] = {"en": "The passenger window is open now.", "zh": "副驾车窗已打开。"}


def test_the_databrokers_socket_and_token_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Path, Path | None]] = []

    def connect(where: Path, *, token_file: Path | None = None) -> EmbeddedTree:
        asked.append((where, token_file))
        return EmbeddedTree()

    monkeypatch.setattr(kuksa.KuksaTree, "connect", connect)
    vehicle = {"backend": "kuksa", "socket": str(tmp_path / "broker.sock"), "token_file": str(tmp_path / "token")}
    assemble.vehicle_of(Profile.model_validate({"vehicle": vehicle}))
    assert asked == [(tmp_path / "broker.sock", tmp_path / "token")]


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
