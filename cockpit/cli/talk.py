"""`cockpit say`, `cockpit listen`, `cockpit ask`: the whole chain, from a file, a microphone or a line of text."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from cockpit.assemble import Announce, Assembly, assemble
from cockpit.cli.output import JsonFlag, print_json
from cockpit.cli.timeline import check_text, timeline
from cockpit.cli.values import language_values, profile_values
from cockpit.profile.load import LoadedProfile, load_profile
from cockpit.profile.sections import Profile
from cockpit.runtime import NullSink, Runtime, Sink
from cockpit.scheduling.control_socket import default_socket
from cockpit.scheduling.voice_task import SharingPlan
from cockpit.telemetry.trace import TraceRecorder
from models.errors import InputError, StartupError
from models.store.store import Store
from pipeline.audio.sink import SpeakerSink, WavSink
from pipeline.audio.source import MicSource, Pace, WavSource
from pipeline.frames import Language
from pipeline.trace import NullTracer, Tracer

ProfileName = Annotated[
    str,
    typer.Option(
        "--profile", help="A profile that ships (cpu) or a path to a YAML file.", autocompletion=profile_values
    ),
]
OutFolder = Annotated[Path | None, typer.Option("--out", help="Write one reply WAV per turn into this folder.")]
TraceFile = Annotated[Path | None, typer.Option("--trace", help="Write a Chrome/Perfetto trace of every stage.")]

TURN_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Talk:
    """A started runtime and what the commands need around it."""

    runtime: Runtime
    assembly: Assembly
    profile: Profile


@contextmanager
def talking(profile_name: str, sink: Sink, trace: Path | None, *, live: bool, quiet: bool) -> Iterator[Talk]:
    """Assemble, start, hand over, stop; the trace is written whatever happens."""
    loaded = load_profile(profile_name)
    profile, store = loaded.profile, Store.open()
    tracer: TraceRecorder | None = TraceRecorder() if trace else None
    used: Tracer = tracer or NullTracer()
    sharing = _sharing(loaded, store, live=live)
    assembly = assemble(profile, store, sink, tracer=used, announce=_announce(quiet), sharing=sharing)
    runtime = Runtime(assembly.parts, live=live, barge_in=profile.audio.barge_in)
    runtime.start()
    try:
        yield Talk(runtime, assembly, profile)
        runtime.stop()
    finally:
        assembly.close()
        if tracer is not None and trace is not None:
            tracer.write(trace)


def say(
    files: Annotated[list[Path], typer.Argument(metavar="FILE.wav...", help="Recorded speech, any rate and width.")],
    profile: ProfileName = "cpu",
    out: OutFolder = None,
    trace: TraceFile = None,
    fast: Annotated[bool, typer.Option("--fast", help="Feed the files as fast as they are taken.")] = False,
    json: JsonFlag = False,
) -> None:
    """Play WAV files through the whole chain, one after another, at the speed they were spoken."""
    sources = [WavSource(file) for file in files]
    sink: Sink = WavSink(out, pace="fast") if out else NullSink()
    with talking(profile, sink, trace, live=False, quiet=json) as talk:
        pace: Pace = "fast" if fast else talk.profile.audio.pace
        shown: set[int] = set()
        for source in sources:
            talk.runtime.listen(WavSource(source.path, pace=pace, frame_samples=talk.profile.audio.frame_samples))
            if not talk.runtime.wait_idle(TURN_TIMEOUT_S):
                raise StartupError(f"{source.path.name}: no answer within {TURN_TIMEOUT_S:.0f} s")
            _show_new(talk.runtime, shown, source.path.name, quiet=json)
        if json:
            _print_turns(talk.runtime)


def ask(
    text: Annotated[str, typer.Argument(help="What the driver says.")],
    profile: ProfileName = "cpu",
    language: Annotated[
        str, typer.Option("--language", help="en, zh or auto.", autocompletion=language_values)
    ] = "auto",
    out: OutFolder = None,
    trace: TraceFile = None,
    json: JsonFlag = False,
) -> None:
    """Answer one line of text: the same chain, less the ears."""
    words = check_text(text)
    spoken_in = _language(words, language)
    sink: Sink = WavSink(out, pace="fast") if out else NullSink()
    with talking(profile, sink, trace, live=False, quiet=json) as talk:
        talk.runtime.ask(words, spoken_in, talk.assembly.turn_ids.next())
        if not talk.runtime.wait_idle(TURN_TIMEOUT_S):
            raise StartupError(f"no answer within {TURN_TIMEOUT_S:.0f} s")
        if json:
            _print_turns(talk.runtime)
        else:
            _show_new(talk.runtime, set(), "asked", quiet=False)


def listen(profile: ProfileName = "cpu", trace: TraceFile = None, json: JsonFlag = False) -> None:
    """Listen to the microphone and answer through the speaker until Ctrl-C."""
    loaded = load_profile(profile).profile
    source = MicSource(_device(loaded.audio.input_device), frame_samples=loaded.audio.frame_samples)
    sink = SpeakerSink(_device(loaded.audio.output_device))
    sink.start()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a service's stop ends it as Ctrl-C does
    with talking(profile, sink, trace, live=True, quiet=json) as talk:
        if not json:
            typer.echo(f"listening on {source.name} at {source.rate_hz} Hz; Ctrl-C ends it")
        try:
            talk.runtime.listen(source)
        except KeyboardInterrupt:
            source.stop()
        talk.runtime.wait_idle(5.0)
        if json:
            _print_turns(talk.runtime)
        else:
            _show_new(talk.runtime, set(), "microphone", quiet=False)
            typer.echo(f"xruns {source.xruns}, samples lost {source.overrun_samples}")


def _sharing(loaded: LoadedProfile, store: Store, *, live: bool) -> SharingPlan | None:
    """How the process shares its device. Only one that stays has a socket by itself and learns for the next time."""
    if loaded.arbiter is None:
        return None
    control = loaded.profile.control
    socket = control.path(default_socket() if live else None)
    return SharingPlan(loaded.arbiter, socket, control.group, store.root / "state" if live else None)


def _device(name: str) -> str | None:
    return None if name == "default" else name


def _language(text: str, asked: str) -> Language:
    if asked in ("en", "zh"):
        return "en" if asked == "en" else "zh"
    if asked != "auto":
        raise InputError(f"--language {asked}: choose en, zh or auto")
    return "zh" if any("\u4e00" <= sign <= "\u9fff" for sign in text) else "en"


def _announce(quiet: bool) -> Announce:
    def tell(what: str, milliseconds: float) -> None:
        if not quiet:
            sys.stderr.write(f"  ready: {what} in {milliseconds:.0f} ms\n")

    return tell


def _show_new(runtime: Runtime, shown: set[int], title: str, *, quiet: bool) -> None:
    fresh = [record for record in runtime.turn_log.closed() if record.turn_id not in shown]
    shown.update(record.turn_id for record in fresh)
    if quiet:
        return
    for record in fresh:
        typer.echo(timeline(record, title) + "\n")
    if not fresh:
        typer.echo(f"{title}  no speech heard\n")


def _print_turns(runtime: Runtime) -> None:
    print_json({"turns": [record.as_json() for record in runtime.turn_log.closed()]})
