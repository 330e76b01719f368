"""Scenarios on the real chain."""

from __future__ import annotations

from pathlib import Path

import pytest

from cockpit.assemble import Assembly
from cockpit.cli.talk import Talk
from cockpit.profile.load import load_profile
from cockpit.runtime import Runtime
from hil.dut.in_process import InProcess
from hil.rig.bench import Bench, environment
from hil.rig.scenario import load
from pipeline.frames import SAMPLE_RATE_HZ

WINDOW = "Vehicle.Cabin.Door.Row1.DriverSide.Window.Position"
ROOF = "Vehicle.Cabin.Sunroof.Position"


@pytest.fixture
def bench(runtime: Runtime, assembly: Assembly, tmp_path: Path) -> Bench:
    loaded = load_profile("cpu")
    return Bench(InProcess(Talk(runtime, assembly, loaded.profile, loaded.registry)), tmp_path)


def test_a_scenario_finds_what_the_car_did_and_puts_it_back(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(
        f"id: one-two\nstimulus: {{wav: en05.wav}}\nnoise: {{snr_db: 30}}\nbefore: {{{ROOF}: 50}}\n"
        f"expect: {{transcript: open the driver window halfway, state: {{{WINDOW}: 50}}, reply: [window]}}\n"
        "repetitions: 2\nlimits: {first_audio: 60s}\n"
    )
    result = bench.run(load(file))
    assert (result.outcome, result.reasons) == ("PASS", [])
    assert [repetition.changed for repetition in result.repetitions] == [{WINDOW: (0, 50)}] * 2
    assert result.snr_db == pytest.approx(30, abs=0.5)
    shown = result.as_json()
    assert shown["repetitions"][0]["turns"][0]["tool_calls"][0]["name"] == "set_window"
    file.write_text(f"id: one-two\nstimulus: {{wav: en05.wav}}\nexpect: {{state: {{{ROOF}: 100}}}}\n")
    wrong = bench.run(load(file))
    assert wrong.outcome == "FAIL"
    assert wrong.reasons == [f"{ROOF} is 0, not 100", f"{WINDOW} changed from 0 to 50"]


def test_words_are_spoken_by_the_profiles_voice(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text("id: one-two\nstimulus: {say: Close all the windows.}\nexpect: {unchanged: false}\n")
    result = bench.run(load(file))
    assert result.outcome == "PASS", result.reasons
    assert "window" in result.repetitions[0].turns[0]["transcript"].lower()
    assert len(result.audio) > 1.5 * SAMPLE_RATE_HZ


def test_what_the_rig_lacks_is_an_error_and_not_a_verdict(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text("id: one-two\nstimulus: {say: 打开天窗, language: zh}\n")
    loaded = load(file)
    assert isinstance(bench.device, InProcess)
    engines = bench.device.talk.assembly.engines
    voices = engines.voices
    missing = {name: voice for name, voice in voices.items() if name != "zh"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(engines), "voices", property(lambda _self: missing))
        result = bench.run(loaded)
    assert (result.outcome, result.why) == ("ERROR", "the profile has no voice for zh")


def test_a_result_says_where_it_was_made() -> None:
    env = environment("cpu")
    assert "command-parser" in env["models"]
    assert env["profile_files"][0].endswith("cpu.yaml")
