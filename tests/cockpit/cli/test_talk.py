"""say, ask and listen as a user runs them: once in a process of its own, else in this one on the shared chain."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import wave
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from cockpit.assemble import Assembly
from cockpit.cli import main, talk
from cockpit.profile.load import load_profile
from cockpit.profile.sections import Profile
from cockpit.runtime import Sink
from models.store.store import Store
from pipeline.trace import Tracer
from tests.support.paths import ROOT

AUDIO = ROOT / "hil" / "audio"


@pytest.fixture(scope="module", autouse=True)
def built(model_dir: Callable[[str], Path]) -> None:
    for name in load_profile("cpu").profile.model_names:
        model_dir(name)


def cockpit(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cockpit", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, check=False)


Here = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def here(cpu_assembly: Assembly, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Here:
    """`cockpit` in this process, on the chain that is there already instead of one that it assembles."""
    cpu_assembly.parts.dialogue._history.clear()

    def lend(_profile: Profile, _store: Store, sink: Sink, *, tracer: Tracer, **_: object) -> SimpleNamespace:
        parts = replace(cpu_assembly.parts, sink=sink, tracer=tracer)
        return SimpleNamespace(parts=parts, turn_ids=cpu_assembly.turn_ids, close=lambda: None)

    monkeypatch.setattr(talk, "assemble", lend)

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        words = [str(argument) for argument in arguments]
        with pytest.raises(SystemExit) as ended:
            main(words)
        return subprocess.CompletedProcess(words, int(ended.value.code or 0), *capsys.readouterr())

    return run


def test_say_prints_one_json_object_and_writes_replies_and_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    ran = cockpit(
        "say", AUDIO / "en12.wav", AUDIO / "zh16.wav", "--fast", "--json", "--out", tmp_path, "--trace", trace
    )
    assert ran.returncode == 0, ran.stderr
    asked, refused = json.loads(ran.stdout)["turns"]
    assert (asked["turn_id"], refused["turn_id"]) == (1, 2)
    assert asked["tool_calls"][0]["result"]["path"] == "Vehicle.Speed"
    assert refused["tool_calls"][0]["result"]["status"] == "refused"
    for turn in (asked, refused):
        with wave.open(str(tmp_path / f"turn-{turn['turn_id']:04d}.wav")) as reply:
            assert reply.getnframes() > reply.getframerate() // 4
    written = trace.read_text(encoding="utf-8")
    assert not [turn for turn in (asked, refused) if turn["reply"][:8] in written or turn["transcript"] in written]
    assert _tracks(trace) >= {"vad", "endpoint", "asr", "understand", "car", "tts", "play"}


def test_say_shows_a_timeline(here: Here) -> None:
    ran = here("say", AUDIO / "en15.wav", "--fast")
    assert ran.returncode == 0, ran.stderr
    for expected in ("heard", "refused (out_of_range)", "16 to 30", "first audio"):
        assert expected in ran.stdout


def test_say_without_speech_says_so(here: Here, tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "quiet.wav"), "wb") as quiet:
        quiet.setnchannels(2)
        quiet.setsampwidth(2)
        quiet.setframerate(44_100)
        quiet.writeframes(bytes(4 * 44_100))
    ran = here("say", tmp_path / "quiet.wav", "--fast")
    assert ran.returncode == 0, ran.stderr
    assert "no speech heard" in ran.stdout


def test_ask_answers_text(here: Here) -> None:
    ran = here("ask", "turn on the rear defroster", "--json")
    assert ran.returncode == 0, ran.stderr
    (turn,) = json.loads(ran.stdout)["turns"]
    result = turn["tool_calls"][0]["result"]
    assert (result["status"], result["value"]) == ("done", True)
    assert turn["ms"]["first_audio"] > 0


def test_ask_answers_line_by_line_in_one_process(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "turn on the driver seat heating\n\n  把主驾温度调到二十二度\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode()), encoding="utf-8"))
    ran = here("ask", "--json", "--log-level", "info")
    assert ran.returncode == 0, ran.stderr
    turns = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [(turn["language"], turn["failed"]) for turn in turns] == [("en", None), ("zh", None)]
    assert turns[1]["turn_id"] == turns[0]["turn_id"] + 1
    assert [turn["tool_calls"][0]["result"]["status"] for turn in turns] == ["done", "done"]
    logged = [line for line in ran.stderr.splitlines() if "cockpit.runtime: turn " in line]
    assert len(logged) == 2
    assert "seat heating" not in ran.stderr  # nothing heard or said is logged


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("ask", "  "), 2, "nothing to ask"),
        (("ask", "hello", "--language", "fr"), 2, "choose en, zh or auto"),
        (("say", "no-such-file.wav"), 2, "no such file"),
        (("say", ROOT / "README.md"), 2, "no WAV file"),
        (("say", AUDIO / "en01.wav", "--profile", "cpuu"), 2, "did you mean cpu"),
        (("listen",), 3, ""),
        (("ask", "hello", "--trace", "/no/such/folder/trace.json"), 2, "choose another --trace"),
        (("say", AUDIO / "en01.wav", "--trace", ROOT), 2, "it is a folder"),
    ],
)
def test_wrong_input_names_the_remedy(here: Here, arguments: tuple[str, ...], code: int, message: str) -> None:
    ran = here(*arguments)
    assert ran.returncode == code, ran.stderr
    assert message in ran.stderr
    assert ran.stderr.startswith("cockpit: ")
    assert "Traceback" not in ran.stderr


def _tracks(trace: Path) -> set[str]:
    events = json.loads(trace.read_text())["traceEvents"]
    return {event["args"]["name"] for event in events if event["name"] == "thread_name"}
