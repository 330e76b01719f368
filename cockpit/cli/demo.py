"""`cockpit demo`: makes the models ready and plays recorded commands through the whole chain."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import typer

from cockpit.cli.models import fetch
from cockpit.cli.talk import LogOption, OutFolder, ProfileName, TraceFile, say
from cockpit.telemetry.logs import LogLevel
from models.errors import StartupError

PLAYED = ("en01", "en05", "en12", "en15", "en18", "en17", "zh01", "zh03", "zh13", "zh15", "zh16")
LEGEND = """How to read a turn: what was heard, what was called and read back from the car, the reply, milliseconds:
  endpoint   from the end of speech until it was certain that the turn was over; asr ran inside that silence
  llm_ttft, llm   the language model, where the words left it a choice (- where they did not)
  tts_first, first_audio   the voice's first sound; first_audio counts from the end of speech
The bar runs from the end of speech to the first sound: = waiting in silence, # deciding, ~ voice, . the rest."""
NEXT = """Next:
  cockpit ask                     type commands, in English or Mandarin
  cockpit listen                  speak them (needs a microphone; cockpit doctor says what is missing)
  cockpit profile show cpu        what can be tuned, and where it is set"""


def demo(
    profile: ProfileName = "cpu",
    out: OutFolder = None,
    trace: TraceFile = None,
    log_level: LogOption = LogLevel.warning,
) -> None:
    """Fetch and build what is missing, then play recorded commands through the whole chain as they were spoken."""
    recordings = _recordings()
    typer.echo("== models: fetched once (about 1 GB, sha256-checked), built once, kept in the model cache")
    fetch(profile=profile, build=True)
    typer.echo(f"== {len(recordings)} recorded commands at the speed they were spoken")
    say(recordings, profile=profile, out=out, trace=trace, fast=False, json=False, log_level=log_level)
    typer.echo(LEGEND)
    if out is not None:
        typer.echo(f"The replies are in {out}")
    if trace is not None:
        typer.echo(f"Every stage over time: open {trace} in https://ui.perfetto.dev")
    typer.echo(f"\n{NEXT}")


def _recordings() -> list[Path]:
    """The recordings that ship with the rig. Raises StartupError when they were left out."""
    folder = Path(str(files("hil"))) / "audio"
    found = [folder / f"{name}.wav" for name in PLAYED]
    missing = [path.name for path in found if not path.is_file()]
    if missing:
        raise StartupError(f"{folder} lacks {', '.join(missing)}: install cockpit-voice again")
    return found
