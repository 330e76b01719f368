"""`cockpit profile apply --dry-run`: what it counts, what it refuses, what it says about changes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
from typer.testing import CliRunner

from cockpit.cli.profile import app
from cockpit.profile.load import load_profile
from cockpit.profile.memory_plan import ACTIVATION_BYTES, KV_SESSIONS, PROCESS_BYTES, estimate_latency, plan_memory
from cockpit.profile.sections import ControlSection
from models.errors import InputError
from models.store.registry import load_registry
from models.store.store import Store
from tests.support.paths import ROOT


@pytest.fixture
def profile_file(tmp_path: Path, model_dir: Callable[[str], Path]) -> Callable[[str], str]:
    for name in load_profile("cpu").profile.model_names:
        model_dir(name)

    def write(text: str) -> str:
        path = tmp_path / "new.yaml"
        path.write_text(f"extends: cpu\n{text}", encoding="utf-8")
        return str(path)

    return write


def test_weights_are_the_built_files_and_the_cache_is_the_models_shape(
    profile_file: Callable[[str], str], model_dir: Callable[[str], Path]
) -> None:
    plan = plan_memory(load_profile(profile_file("llm: {context_tokens: 4096}\n")), Store.open())
    sizes = {line.name: line.count_bytes for line in plan.lines}
    folder = model_dir("qwen2.5-coder-0.5b-instruct")
    files = sum((folder / name).stat().st_size for name in ("model.onnx", "head.onnx", "model.bin"))
    assert sizes["qwen2.5-coder-0.5b-instruct"] == files
    assert sizes["kv arena"] == KV_SESSIONS * 4096 * 2 * 24 * 2 * 64 * 4
    assert plan.sum_bytes == sum(sizes.values())
    assert plan.fits


def test_models_that_are_not_built_count_as_their_sources(tmp_path: Path) -> None:
    registry = load_registry()
    plan = plan_memory(load_profile("cpu"), Store(tmp_path, registry))
    sizes = {line.name: line for line in plan.lines}
    assert sizes["whisper-base"].count_bytes == registry.get("whisper-base").size_bytes
    assert "not built" in sizes["whisper-base"].note
    assert sum(ACTIVATION_BYTES.values()) + PROCESS_BYTES < plan.sum_bytes


def test_a_plan_that_does_not_fit_is_refused_with_its_sum(profile_file: Callable[[str], str]) -> None:
    file = profile_file(
        "llm: {context_tokens: 32768}\norchestration:\n  global_limits: {max_gpu_memory_percent: 1}\n"
        "tasks:\n  navigation_task: {memory_budget_mb: 10}\n  dialogue_task: {memory_budget_mb: 10}\n"
    )
    result = CliRunner().invoke(app, ["apply", file, "--dry-run", "--json"])
    assert result.exit_code == 2
    shown = json.loads(result.stdout)
    assert not shown["ok"]
    assert (
        f"{KV_SESSIONS * 768} MiB  kv arena ({KV_SESSIONS} texts x 768 MiB: 32768 tokens of float32)"
        in shown["refused"]
    )
    assert f"{shown['memory']['sum_bytes'] / 2**20:.0f} MiB  sum" in shown["refused"]
    assert f"KV of dialogue_task {KV_SESSIONS * 768} MiB is above its memory_budget_mb of 10 MiB" in shown["refused"]


def test_budgets_above_the_limit_are_refused(profile_file: Callable[[str], str]) -> None:
    file = profile_file("tasks:\n  dialogue_task: {memory_budget_mb: 9000000}\n")
    result = CliRunner().invoke(app, ["apply", file, "--dry-run"])
    assert result.exit_code == 2
    assert "tasks.dialogue_task.memory_budget_mb: 9000000 MB is above the limit" in result.stderr


def test_changes_say_what_needs_a_restart(profile_file: Callable[[str], str]) -> None:
    file = profile_file("endpoint: {end_silence: 600ms}\nllm: {threads: 1}\n")
    result = CliRunner().invoke(app, ["apply", file, "--dry-run", "--json"])
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    changes = {change["key"]: change for change in shown["changes"]}
    assert set(changes) == {"endpoint.end_silence", "llm.dialogue.threads"}
    assert all(change["restart"] for change in changes.values())
    assert changes["llm.dialogue.threads"]["because"] == "models are loaded at start"
    assert shown["latency"]["command_ms"] > 200


def test_longer_silence_makes_later_answers(profile_file: Callable[[str], str]) -> None:
    usual = estimate_latency(load_profile("cpu").profile)
    patient = estimate_latency(load_profile(profile_file("endpoint: {early_end_silence: 450ms}\n")).profile)
    assert usual.command_ms is not None
    assert patient.command_ms is not None
    assert patient.command_ms > usual.command_ms + 200


def english_first_audio_ms(device: str) -> list[float]:
    """Of the turns that docs/results reports."""
    if device == "cpu":
        table = (ROOT / "docs" / "results" / "turn-cpu.md").read_text(encoding="utf-8")
        return [float(found) for found in re.findall(r"^en\d\d +(\d+)", table, re.MULTILINE)]
    report = json.loads((ROOT / "docs" / "results" / "gpu-turn-h200.json").read_text(encoding="utf-8"))
    return [turn["first_audio_ms"] for turn in report["turns"]["commands"] if turn["lang"] == "en"]


@pytest.mark.parametrize("name", ["cpu", "h200"])
def test_the_estimate_is_what_was_measured(name: str) -> None:
    loaded = load_profile(name)
    measured = english_first_audio_ms(loaded.profile.device)
    early, late = ([ms for ms in measured if (ms < 400) == ended_early] for ended_early in (True, False))
    estimate = estimate_latency(loaded.profile)
    assert estimate.command_ms == pytest.approx(median(early), rel=0.03)
    assert estimate.question_ms == pytest.approx(median(late), rel=0.03)  # the whole silence was waited for


def test_a_gpus_baselines_are_its_own() -> None:
    ours, theirs = (estimate_latency(load_profile(name).profile) for name in ("h200", "cpu"))
    assert "H200" in ours.source
    assert ours.command_ms is not None
    assert theirs.command_ms is not None
    assert 200 < ours.command_ms < theirs.command_ms


def test_nothing_is_estimated_that_was_not_measured(profile_file: Callable[[str], str]) -> None:
    other = estimate_latency(load_profile(profile_file("llm: {model: gemma-3-270m}\n")).profile)
    assert other.command_ms is None
    assert "gemma-3-270m" in other.source


def test_applying_to_a_running_process_is_refused_plainly() -> None:
    result = CliRunner().invoke(app, ["apply", "cpu"])
    assert isinstance(result.exception, InputError)
    assert result.exception.exit_code == 2
    assert "--dry-run" in str(result.exception)


@pytest.mark.parametrize(
    ("socket", "default", "path"),
    [
        ("auto", None, None),
        ("auto", Path("/run/x"), Path("/run/x")),
        ("off", Path("/run/x"), None),
        ("/tmp/y", None, Path("/tmp/y")),
    ],
)
def test_where_the_control_socket_goes(socket: str, default: Path | None, path: Path | None) -> None:
    assert ControlSection(socket=socket).path(default) == path
