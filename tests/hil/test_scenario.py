"""Scenario files: what is good, and what each fault is told as."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from hil import AUDIO
from hil.rig.scenario import SHIPPED, find, load
from models.errors import ConfigError, InputError

GOOD = "id: good-one\nstimulus: {wav: en05.wav}\n"
WINDOW = "Vehicle.Cabin.Door.Row1.DriverSide.Window.Position"


def written(folder: Path, text: str, name: str = "one.yaml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_what_ships_is_good_and_named_after_its_file() -> None:
    shipped = find(())
    assert len(shipped) >= 6
    assert all(one.file.stem == one.scenario.id for one in shipped)
    assert {one.scenario.stimulus.wav is None for one in shipped} == {True, False}
    assert [one.scenario.id for one in find(["window-*"])] == [
        "window-from-the-rear",
        "window-halfway",
        "window-in-road-noise",
    ]


def test_the_digest_is_of_the_file_and_the_recording(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes((AUDIO / "en05.wav").read_bytes())
    file = written(tmp_path, "id: own-recording\nstimulus: {wav: a.wav}\n")
    first = load(file)
    assert first.wav == tmp_path / "a.wav"
    (tmp_path / "a.wav").write_bytes((AUDIO / "en06.wav").read_bytes())
    assert load(file).digest != first.digest


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("id: Bad Id\nstimulus: {wav: en05.wav}\n", "id: "),
        ("id: good-one\n", "stimulus: Field required"),
        ("id: good-one\nstimulus: {wav: en05.wav, say: hello}\n", "either wav or say"),
        ("id: good-one\nstimulus: {say: hello, sha256: " + "f" * 64 + "}\n", "sha256 belongs to wav"),
        (GOOD + "limits: {first_audio: 800}\n", "limits.first_audio"),
        (GOOD + "limits: {first_sound: 800ms}\n", "limits.first_sound"),
        (GOOD + "noise: {snr_db: 90}\n", "snr_db: Input should"),
        (GOOD + "expect: {state: {Vehicle.Cabin.Sunroof.Positio: 1}}\n", "did you mean Vehicle.Cabin.Sunroof.Position"),
        (GOOD + "expect: {calls: [{set_window: {zone: driver}}]}\n", "set_window"),
        (GOOD + "repetitions: 0\n", "repetitions"),
        (GOOD + "surprise: 1\n", "surprise"),
        ("id: [", "one.yaml:"),
        ("- 1\n", "the file"),
        ("", "the file"),
    ],
)
def test_a_fault_is_told_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=r"one\.yaml") as caught:
        load(written(tmp_path, text))
    assert told in str(caught.value)


def test_another_recording_than_the_one_that_is_meant_is_refused(tmp_path: Path) -> None:
    right = hashlib.sha256((AUDIO / "en05.wav").read_bytes()).hexdigest()
    assert load(written(tmp_path, f"id: good-one\nstimulus: {{wav: en05.wav, sha256: {right}}}\n")).wav
    with pytest.raises(InputError, match="another recording"):
        load(written(tmp_path, f"id: good-one\nstimulus: {{wav: en05.wav, sha256: {'f' * 64}}}\n"))
    with pytest.raises(InputError, match=r"no recording nothing\.wav"):
        load(written(tmp_path, "id: good-one\nstimulus: {wav: nothing.wav}\n"))


def test_patterns_that_find_nothing_and_ids_used_twice(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere: no such file .*window-halfway"):
        find(["nowhere"])
    with pytest.raises(InputError, match="no such file"):
        find([str(tmp_path)])
    written(tmp_path, GOOD, "a.yaml")
    written(tmp_path, GOOD, "b.yaml")
    with pytest.raises(ConfigError, match="the id good-one is that of"):
        find([str(tmp_path)])
    assert len(find([str(SHIPPED / "window-halfway.yaml"), "window-halfway"])) == 1, "one file named twice is one"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("faults: [{microphone: lost, disk: full}]\n", "one fault has one of"),
        ("faults: [{at: 1s}]\n", "one fault has one of"),
        ("faults: [{vehicle: slow}]\n", "delay belongs to vehicle: slow"),
        ("faults: [{vehicle: fails, path: Vehicle.Nothing}]\n", "no signal Vehicle.Nothing"),
        ("faults: [{gpu: lost, path: Vehicle.Speed}]\n", "path belongs to vehicle"),
        ("faults: [{vehicle: gone}, {gpu: lost}]\n", "the rig's own process"),
        ("faults: [{gpu: lost}]\nexpect: {state: {Vehicle.Speed: 1}}\n", "shows no signals"),
        ("expect: {recovers: 1s}\n", "are of faults"),
        ("expect: {mode: gone}\n", "is of a fault"),
        ("noise: {kind: rain, speed: 50, snr_db: 5}\n", "speed is of road and engine"),
        ("cabin: {mouth: boot}\n", "cabin.mouth"),
    ],
)
def test_faults_noise_and_cabin_are_checked_too(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=r"one\.yaml") as caught:
        load(written(tmp_path, GOOD + text))
    assert told in str(caught.value)


def test_where_a_scenario_runs_follows_from_its_faults(tmp_path: Path) -> None:
    for text, own in (("faults: [{vehicle: gone}]", False), ("faults: [{gpu: lost}]", True), ("", False)):
        assert load(written(tmp_path, GOOD + text)).scenario.own_process is own
