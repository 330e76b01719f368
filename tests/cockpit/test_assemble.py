"""What a profile says reaches the parts that it is about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cockpit.assemble import assemble
from cockpit.profile.load import load_profile
from cockpit.profile.sections import Profile
from cockpit.runtime import NullSink
from models.store.store import Store
from pipeline.frames import Language
from pipeline.vehicle import kuksa
from pipeline.vehicle.signals import EmbeddedTree


@pytest.fixture(autouse=True)
def built(model_dir: Callable[[str], Path]) -> None:
    for name in Profile().models:
        model_dir(name)


def test_speed_and_the_databrokers_token_reach_their_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    socket, token = tmp_path / "broker.sock", tmp_path / "token"
    socket.touch()
    token.write_text("narrow-scope\n", encoding="utf-8")
    file = tmp_path / "p.yaml"
    vehicle = f"vehicle: {{backend: kuksa, socket: {socket}, token_file: {token}}}\n"
    file.write_text(f"extends: base\ntts: {{speed: 1.5}}\n{vehicle}", encoding="utf-8")
    asked: list[tuple[Path, Path | None]] = []

    def connect(where: Path, *, token_file: Path | None = None) -> EmbeddedTree:
        asked.append((where, token_file))
        return EmbeddedTree()

    monkeypatch.setattr(kuksa.KuksaTree, "connect", connect)
    seconds: dict[Language, list[float]] = {"en": [], "zh": []}
    texts: dict[Language, str] = {"en": "The passenger window is open now.", "zh": "副驾车窗已打开。"}
    for name in ("base", str(file)):
        assembly = assemble(load_profile(name).profile, Store.open(), NullSink())
        try:
            for language, text in texts.items():
                voice = assembly.parts.tts._voices[language]
                seconds[language].append(sum(map(len, voice.synthesise(text))) / voice.sample_rate_hz)
        finally:
            assembly.close()
    assert asked == [(socket, token)]
    for usual, fast in seconds.values():
        assert fast < 0.9 * usual
