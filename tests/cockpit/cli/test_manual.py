"""`cockpit manual`: a file is checked and built, and a question finds its section or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from typer.testing import CliRunner

from cockpit.cli import full_app
from cockpit.cli.manual import ENCODER

TEXT = "# Mirrors\n\nChoose a mirror with the switch.\n\n# Roof\n\nIt carries 75 kilograms.\n"


def test_the_command_checks_builds_and_asks(tmp_path: Path, model_dir: Callable[[str], Path]) -> None:
    assert model_dir(ENCODER).is_dir()
    file = tmp_path / "car.md"
    file.write_text(TEXT)
    runner, app = CliRunner(), full_app()
    checked = runner.invoke(app, ["manual", "check", str(file)])
    assert "2 subjects, 2 sections in English, 0 in Mandarin" in checked.stdout
    built = runner.invoke(app, ["manual", "build", str(file)])
    assert (built.exit_code, file.with_suffix(".npz").is_file()) == (0, True)
    found = runner.invoke(app, ["manual", "ask", "How do I choose a mirror?", "--file", str(file), "--json"])
    assert '"section": "Mirrors"' in found.stdout
    assert '"by": "meaning"' in found.stdout
