"""The wake word before the whole chain, on speech of the project's own voice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soxr

from cockpit.arbiter.config import DIALOGUE
from cockpit.assemble import Assembly
from cockpit.profile.load import load_profile
from cockpit.profile.sections import WakeSection
from cockpit.runtime import Runtime
from cockpit.scheduling.engine_turns import ChainVoice
from cockpit.scheduling.warmup import STALE_NS
from cockpit.wake_word import open_wake
from models.engines.tts.piper import PiperVoice
from models.errors import ConfigError
from pipeline.audio.source import WavSource
from pipeline.audio.wav import write_wav
from pipeline.endpointing.wake_word import WakeGate
from pipeline.frames import SAMPLE_RATE_HZ
from tests.support.audio_frames import frames
from tests.support.waiting import until

COMMAND = "set the driver temperature to twenty two degrees."


@pytest.fixture
def assembly(assembly: Assembly, model_dir: Callable[[str], Path], tmp_path: Path) -> Assembly:
    """The shared chain with a wake word before it."""
    path = tmp_path / "wake.yaml"
    path.write_text("extends: cpu\nwake: {engine: microwakeword, model: hey_jarvis}\n", encoding="utf-8")
    profile = load_profile(str(path)).profile
    assert "microwakeword" in profile.model_names
    assert assembly.warm_ups is not None
    gate = open_wake(profile.wake, {"microwakeword": model_dir("microwakeword")}, assembly.warm_ups.at_wake)
    return replace(assembly, parts=replace(assembly.parts, wake=gate))


def wav(assembly: Assembly, text: str, path: Path, after_s: float = 1.0) -> Path:
    """The English voice's own speech, without its chance, which may blur a word, and with silence around it."""
    shared = assembly.parts.tts._voices["en"]
    voice = shared._engine if isinstance(shared, ChainVoice) else shared
    assert isinstance(voice, PiperVoice)
    config = voice.config
    voice.config = replace(config, noise_scale=0.0, noise_w=0.0)
    try:
        said = np.concatenate(list(voice.synthesise(text)))
    finally:
        voice.config = config
    speech = soxr.resample(said, voice.sample_rate_hz, SAMPLE_RATE_HZ)
    quiet = [np.zeros(int(seconds * SAMPLE_RATE_HZ), np.float32) for seconds in (1.5, after_s)]
    write_wav(path, np.concatenate([quiet[0], speech.astype(np.float32), quiet[1]]), SAMPLE_RATE_HZ)
    return path


def test_word_and_command_in_one_breath_lose_nothing(assembly: Assembly, runtime: Runtime, tmp_path: Path) -> None:
    gate = assembly.parts.wake
    assert isinstance(gate, WakeGate)
    wakes = gate.counters.wakes
    runtime.listen(WavSource(wav(assembly, f"Hey Jarvis, {COMMAND}", tmp_path / "one.wav"), pace="fast"))
    assert runtime.wait_idle(60.0)
    assert gate.counters.wakes == wakes + 1
    (turn,) = runtime.turn_log.closed()
    assert turn.transcript.lower().rstrip(".").endswith("set the driver temperature to 22 degrees")
    assert [(result.status, result.value) for result in turn.tool_results] == [("done", 22.0)]


def test_without_the_word_there_is_no_turn(assembly: Assembly, runtime: Runtime, tmp_path: Path) -> None:
    runtime.listen(WavSource(wav(assembly, COMMAND.capitalize(), tmp_path / "none.wav"), pace="fast"))
    assert runtime.wait_idle(60.0)
    assert runtime.turn_log.closed() == []


class StaysCold(dict[str, int]):
    """When each task ran last; the dialogue for ever too long ago, whatever is prepared for it in idle time."""

    def __setitem__(self, task: str, warm_ns: int) -> None:
        super().__setitem__(task, warm_ns - (10 * STALE_NS if task == DIALOGUE else 0))


def test_a_wake_up_warms_what_has_gone_cold(
    assembly: Assembly, runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert assembly.warm_ups is not None
    warm_ups = assembly.warm_ups
    monkeypatch.setattr(warm_ups, "_warm_ns", StaysCold(dict.fromkeys(warm_ups._warm_ns, 0)))
    for task in list(warm_ups._warm_ns):
        warm_ups.ran(task)
    before = warm_ups.requests
    runtime.listen(WavSource(wav(assembly, f"Hey Jarvis, {COMMAND}", tmp_path / "cold.wav"), pace="realtime"))
    assert runtime.wait_idle(60.0)
    until(lambda: warm_ups.requests >= before + 3)  # in a thread of its own, which the turn does not wait for
    assert runtime.turn_log.closed()[0].tool_results[0].status == "done"


def test_without_an_engine_every_frame_passes_unchanged_and_nothing_wakes() -> None:
    woken: list[int] = []
    stage = open_wake(WakeSection(), {}, woken.append)
    given = list(frames(np.zeros(5 * SAMPLE_RATE_HZ, np.float32)))
    passed = [frame for one in given for frame in stage.push(one)]
    assert len(passed) == len(given)
    assert all(left is right for left, right in zip(given, passed, strict=True))
    assert woken == []


def test_an_unknown_word_names_the_known_ones(model_dir: Callable[[str], Path]) -> None:
    section = WakeSection(engine="microwakeword", model="hey_car")
    with pytest.raises(ConfigError, match="hey_jarvis"):
        open_wake(section, {"microwakeword": model_dir("microwakeword")}, print)
