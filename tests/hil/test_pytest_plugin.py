"""Scenarios as tests: collected by id, faulty files told, verdicts as outcomes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

BENCH = """
from types import SimpleNamespace
from hil import pytest_plugin

class Bench:
    def run(self, loaded):
        outcome = {"one-bad": "FAIL", "one-off": "SKIPPED"}.get(loaded.scenario.id, "PASS")
        return SimpleNamespace(loaded=loaded, outcome=outcome, why="the reason", reasons=["the reason"])

pytest_plugin.ScenarioItem._bench = lambda self: Bench()
"""


def run(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "hil.pytest_plugin", "-p", "no:cacheprovider", "-c", os.devnull]
    done = subprocess.run(
        [*command, "--rootdir", str(folder), *arguments],
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


def test_each_scenario_is_a_test_and_its_verdict_the_outcome(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(BENCH)
    for name in ("one-good", "one-bad", "one-off"):
        (tmp_path / f"{name}.yaml").write_text(f"id: {name}\nstimulus: {{wav: en05.wav}}\n")
    (tmp_path / "faulty.yaml").write_text("id: faulty-one\nstimulus: {wav: en05.wav}\nlimits: {asr: 5}\n")
    told = run(tmp_path, "-v", "-rs", "--continue-on-collection-errors")
    assert "limits.asr" in told
    assert "one-good PASSED" in told
    assert "one-bad FAILED" in told
    assert "one-off SKIPPED" in told
    assert "again: cockpit hil run" in told
    assert "1 failed, 1 passed, 1 skipped, 1 error" in told
