"""The README's program runs as it stands there, and prints what the README says."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cockpit.profile.load import load_profile
from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """The one code block of a language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    return str(found)


def test_the_program_prints_the_turn(model_dir: Callable[[str], Path]) -> None:
    for name in load_profile("cpu").profile.model_names:
        model_dir(name)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", block("python")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = ast.literal_eval(done.stdout)
    (shown,) = json.loads(block("json"))["turns"]
    assert list(printed["ms"]) == list(shown["ms"])
    assert [*printed] == [*shown]
    assert {**printed, "ms": None} == {**shown, "ms": None}
