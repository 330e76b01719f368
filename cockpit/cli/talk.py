"""`cockpit say`, `cockpit listen`, `cockpit ask`: the whole chain, from files, a microphone or lines of text."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from cockpit import stop_signals
from cockpit.assemble import Announce, Assembly, assemble
from cockpit.cli.output import JsonFlag, print_json, print_json_line
from cockpit.cli.timeline import TurnPrinter, check_text, timeline
from cockpit.cli.values import language_values, profile_values
from cockpit.headunit.observer import Observer, Observers
from cockpit.lifecycle.trust import untrusted_models
from cockpit.profile.load import LoadedProfile, load_profile
from cockpit.profile.sections import Profile
from cockpit.runtime import NullSink, Runtime, Sink
from cockpit.scheduling.control_socket import default_socket
from cockpit.scheduling.service import SchedulingPlan
from cockpit.service import notify
from cockpit.service.audio_devices import AudioDevices
from cockpit.service.devices import DeviceNotices
from cockpit.service.duty import on_duty
from cockpit.service.reload import Reloader
from cockpit.service.retry import until_there
from cockpit.service.stages import chain
from cockpit.service.state import Mode, ServiceState
from cockpit.service.watchdog import Watched
from cockpit.telemetry.logs import LogLevel, configure
from cockpit.telemetry.trace import TraceRecorder, check_writable
from models.errors import CockpitError, DeviceAbsent, GpuAbsent, InputError, PackRefused, StartupError
from models.store.machine import NONE, machine_fields
from models.store.registry import Registry
from models.store.store import Store
from pipeline.audio.front_end import FrontEnd
from pipeline.audio.lasting import LastingMicrophone, LastingSpeaker
from pipeline.audio.piped import taken_in
from pipeline.audio.sink import WavSink
from pipeline.audio.source import Pace, WavSource
from pipeline.channels import Closed
from pipeline.frames import Language
from pipeline.trace import NullTracer, Tracer

log = logging.getLogger("cockpit.cli")

ProfileName = Annotated[
    str,
    typer.Option(
        "--profile", help="A profile that ships (cpu) or a path to a YAML file.", autocompletion=profile_values
    ),
]
OutFolder = Annotated[Path | None, typer.Option("--out", help="Write one reply WAV per turn into this folder.")]
TraceFile = Annotated[Path | None, typer.Option("--trace", help="Write a Chrome/Perfetto trace of every stage.")]
LogOption = Annotated[
    LogLevel, typer.Option("--log-level", help="Least that is logged to stderr. debug may log what was heard.")
]
UnvalidatedFlag = Annotated[
    bool, typer.Option("--allow-unvalidated", help="Serve models that were not seen to work on this machine, too.")
]
LineFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object a line, one per turn, as turns end.")]

TURN_TIMEOUT_S = 120.0
ASKED_S = 8.0
"""How long a command through the control socket may take; its caller waits a little longer."""


@dataclass(frozen=True, slots=True)
class Talk:
    """A started runtime and what the commands need around it."""

    runtime: Runtime
    assembly: Assembly
    profile: Profile
    registry: Registry
    devices: AudioDevices | None = None
    """None where the chain has no microphone and no speaker."""


Servers = Callable[[Talk, ServiceState], AbstractContextManager[Sequence[Watched]]]
"""What else runs around the body; yields what the watchdog is to look after of it."""


def _nothing_beside(_talk: Talk, _service: ServiceState) -> AbstractContextManager[Sequence[Watched]]:
    return nullcontext(())


@contextmanager
def talking(
    profile_name: str,
    sink: Sink,
    trace: Path | None,
    *,
    quiet: bool,
    observer: Observer | None = None,
    api_texts: int = 0,
    service: ServiceState | None = None,
    allow_unvalidated: bool = False,
) -> Iterator[Talk]:
    """Assemble, start, hand over, stop; the trace is written whatever happens, and no signal cuts the closing short.

    api_texts: see `assemble`. service: of a process that stays: it has a control socket, learns for the next time, and
    waits for a device that is not there yet instead of giving up, and takes only models that were validated here unless
    `allow_unvalidated`: then its status says so. Raises NotValidated.
    """
    if trace is not None:
        check_writable(trace)
    loaded = load_profile(profile_name)
    profile = loaded.profile
    store = loaded.store(stand_ins=service is not None)
    tracer: TraceRecorder | None = TraceRecorder() if trace else None
    used: Tracer = tracer or NullTracer()
    plan = _scheduling_plan(loaded, store, live=service is not None)
    announce = _announce(quiet, service)
    make = partial(assemble, profile, store, sink, tracer=used, announce=announce, scheduling=plan, api_texts=api_texts)
    if service is None:
        assembly = make()
    else:
        check = partial(_require_validated, store, profile.model_names, service, allow=allow_unvalidated)
        _require_trusted(store, profile, service)

        def validated() -> Assembly:
            check()
            return make()

        assembly = until_there(validated, partial(_absent, service))
    runtime = Runtime(assembly.parts, live=service is not None, barge_in=profile.audio.barge_in, observer=observer)
    socket = None if plan is None else plan.socket
    try:
        if service is not None:
            _show_state(assembly, runtime, service)
        runtime.start()
        with stop_signals.last_resort(lambda: None if socket is None else socket.unlink(missing_ok=True)):
            yield Talk(runtime, assembly, profile, loaded.registry)
        if service is not None:
            service.stopping("the work is done")
        runtime.stop()
    except BaseException as error:
        with stop_signals.shielded():
            if service is not None:
                service.stopping(str(error) if isinstance(error, CockpitError | stop_signals.Stopped) else "a fault")
            runtime.abort()
        raise
    finally:
        with stop_signals.shielded():
            assembly.close()
            if tracer is not None and trace is not None:
                tracer.write(trace)


def say(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE.wav...", help="Recorded speech, any rate and width; - is standard input."),
    ],
    profile: ProfileName = "cpu",
    out: OutFolder = None,
    trace: TraceFile = None,
    fast: Annotated[bool, typer.Option("--fast", help="Feed the files as fast as they are taken.")] = False,
    json: JsonFlag = False,
    log_level: LogOption = LogLevel.warning,
) -> None:
    """Play WAV files through the whole chain, one after another, at the speed they were spoken."""
    configure(log_level)
    with taken_in(files) as paths:
        _say([WavSource(path) for path in paths], profile, out, trace, fast, json)


def _say(sources: list[WavSource], profile: str, out: Path | None, trace: Path | None, fast: bool, json: bool) -> None:
    sink: Sink = WavSink(out, pace="fast") if out else NullSink()
    with talking(profile, sink, trace, quiet=json) as talk:
        pace: Pace = "fast" if fast else talk.profile.audio.pace
        shown: set[int] = set()
        for source in sources:
            talk.runtime.listen(WavSource(source.path, pace=pace, frame_samples=talk.profile.audio.frame_samples))
            _wait(talk.runtime, f"{source.path.name}: ")
            _show_new(talk.runtime, shown, source.path.name, quiet=json)
        if json:
            print_json({"turns": [record.as_json() for record in talk.runtime.turn_log.closed()]})


def ask(
    text: Annotated[
        str | None, typer.Argument(help="What the driver says; without it, lines are read from standard input.")
    ] = None,
    profile: ProfileName = "cpu",
    language: Annotated[
        str, typer.Option("--language", help="en, zh or auto.", autocompletion=language_values)
    ] = "auto",
    out: OutFolder = None,
    trace: TraceFile = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object; with standard input one a line, one per turn.")
    ] = False,
    log_level: LogOption = LogLevel.warning,
) -> None:
    """Answer text as if it had been heard: one line, or every line of standard input in one process until its end.

    The dialogue goes on from line to line: state, and what "it" means.
    """
    configure(log_level)
    words = None if text is None else check_text(text)
    _language(words or "", language)
    sink: Sink = WavSink(out, pace="fast") if out else NullSink()
    with talking(profile, sink, trace, quiet=json) as talk:
        shown: set[int] = set()
        for line in _lines() if words is None else [words]:
            talk.runtime.ask(line, _language(line, language), talk.assembly.turn_ids.next())
            _wait(talk.runtime, "")
            if not json:
                _show_new(talk.runtime, shown, "asked", quiet=False)
            elif words is None:
                print_json_line(talk.runtime.turn_log.closed()[-1].as_json())
        if json and words is not None:
            print_json({"turns": [record.as_json() for record in talk.runtime.turn_log.closed()]})


def listen(
    profile: ProfileName = "cpu",
    trace: TraceFile = None,
    json: LineFlag = False,
    allow_unvalidated: UnvalidatedFlag = False,
    log_level: LogOption = LogLevel.info,
) -> None:
    """Listen to the microphone and answer through the speaker until a signal ends it.

    Each turn is printed as it ends; on a terminal, what is understood so far too. Ctrl-C ends it with exit code 130,
    SIGTERM with 143, SIGHUP with 129.
    """
    configure(log_level)
    microphone(profile, trace, as_json=json, allow_unvalidated=allow_unvalidated)


def microphone(
    profile_name: str,
    trace: Path | None,
    *,
    as_json: bool,
    api_texts: int = 0,
    beside: Servers = _nothing_beside,
    allow_unvalidated: bool = False,
    observer: Observer | None = None,
) -> None:
    """The chain on the microphone until a signal ends it. beside: what else runs. The others: see `talking`."""
    service = ServiceState(notify.process())
    loaded = load_profile(profile_name).profile

    def shown(name: str) -> None:
        if not as_json:
            typer.echo(f"listening on {name}; Ctrl-C ends it")

    notices = DeviceNotices(service, loaded.asr.languages[0], shown)
    sink = LastingSpeaker(device_name(loaded.audio.output_device), notices.speaker)
    device, frame_samples = device_name(loaded.audio.input_device), loaded.audio.frame_samples
    source = LastingMicrophone(device, notices.microphone, frame_samples=frame_samples, speaker=sink)
    front = FrontEnd(loaded.audio.front.config, lambda: sink.sounded)
    sink.start()
    printer = None if service.notifier.present else TurnPrinter("microphone", as_json=as_json)  # not into the journal
    running = talking(
        profile_name,
        sink,
        trace,
        quiet=as_json,
        observer=Observers(*(each for each in (printer, observer) if each is not None)),
        api_texts=api_texts,
        service=service,
        allow_unvalidated=allow_unvalidated,
    )
    try:
        with running as talk, beside(replace(talk, devices=AudioDevices(source, sink)), service) as servers:
            name = source.look()
            if name:
                shown(name)
            notices.speak_through(talk.runtime.guide)
            _show_front_end(talk.assembly, front)
            stages = (*chain(talk.runtime, talk.assembly.service, service), *servers, *_devices(source, sink))
            reloader = Reloader(service, profile_name, talk.profile, partial(_use_devices, source, sink))
            what = f"listening on {name}" if name else "waiting for a microphone"
            with on_duty(service, what, stages, reloader), printer or nullcontext():
                talk.runtime.listen(front.frames(source))
                talk.runtime.wait_idle(5.0)
    finally:
        sink.close()
        counts = (source.xruns, source.samples_lost, source.losses, sink.losses)
        log.info("microphone: xruns %d, samples lost %d, gone %d times; speaker gone %d times", *counts)
        log.info("microphone: %s", front.status())


def _devices(source: LastingMicrophone, sink: LastingSpeaker) -> tuple[Watched, ...]:
    return Watched("microphone", lambda: source.steps), Watched("speaker", lambda: sink.steps, thread="speaker")


def _use_devices(source: LastingMicrophone, sink: LastingSpeaker, profile: Profile) -> None:
    """What a reload changes at once."""
    source.use(device_name(profile.audio.input_device))
    sink.use(device_name(profile.audio.output_device))


def _wait(runtime: Runtime, what: str) -> None:
    if not runtime.wait_idle(TURN_TIMEOUT_S):
        raise StartupError(f"{what}no answer within {TURN_TIMEOUT_S:.0f} s; try --log-level debug, and cockpit doctor")


def _lines() -> Iterator[str]:
    """The lines of standard input without blank ones; with a prompt, and line editing, on a terminal."""
    if sys.stdin.isatty():
        import readline  # noqa: F401  (gives `input` its line editing)

        while True:
            try:
                line = input("> ")
            except EOFError:
                print()
                return
            if line.strip():
                yield line.strip()
    for number, raw in enumerate(sys.stdin.buffer, 1):
        try:
            line = raw.decode().strip()
        except UnicodeDecodeError as error:
            raise InputError(f"line {number} of standard input is not UTF-8 ({error.reason}); convert it") from error
        if line:
            yield line


def _scheduling_plan(loaded: LoadedProfile, store: Store, *, live: bool) -> SchedulingPlan | None:
    """How the process shares its device. Only one that stays has a socket by itself and learns for the next time."""
    if loaded.arbiter is None:
        return None
    control = loaded.profile.control
    socket = control.path(default_socket() if live else None)
    return SchedulingPlan(loaded.arbiter, socket, control.group, store.root / "state" if live else None)


def device_name(name: str) -> str | None:
    """As PortAudio takes it."""
    return None if name == "default" else name


def _language(text: str, asked: str) -> Language:
    if asked in ("en", "zh"):
        return "en" if asked == "en" else "zh"
    if asked != "auto":
        raise InputError(f"--language {asked}: choose en, zh or auto")
    return "zh" if any("\u4e00" <= sign <= "\u9fff" for sign in text) else "en"


def _require_validated(store: Store, names: Sequence[str], service: ServiceState, *, allow: bool) -> None:
    """A GPU that is not there yet is waited for first: what is validated on it cannot be compared without."""
    if store.device == "cuda" and machine_fields("cuda")["gpu"] == NONE:
        return
    old = [name for name in names if store.stands_in(name)]
    if old:
        service.begin("standing_in", f"built by another version, validated with this one: {', '.join(old)}")
    if not allow:
        store.require_validated(names)
        return
    reasons = store.unvalidated_all(names)
    if reasons:
        service.begin("unvalidated", "; ".join(f"{name}: {reason}" for name, reason in reasons.items()))


def _require_trusted(store: Store, profile: Profile, service: ServiceState) -> None:
    """Models that came by a pack without a trusted signature are served only where the profile allows it."""
    reasons = untrusted_models(store, profile)
    if not reasons:
        return
    text = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    if profile.models.unsigned != "allow":
        raise PackRefused(
            f"{text}; install a signed pack, name its key in models.trusted_keys, or run: "
            f"cockpit models rollback {next(iter(reasons))}"
        )
    service.begin("unsigned", text)


def _absent(service: ServiceState, error: DeviceAbsent) -> None:
    """A device that the engines need is not there: it is said why, and it is tried again."""
    lacking: Mode = "no_gpu" if isinstance(error, GpuAbsent) else "no_vehicle"
    for mode in _ABSENT:
        if mode != lacking:
            service.end(mode)
    if not service.begin(lacking, str(error)):
        service.starting(f"waiting: {lacking}")  # asks for time


_ABSENT: tuple[Mode, ...] = ("no_gpu", "no_vehicle")


def _show_state(assembly: Assembly, runtime: Runtime, service: ServiceState) -> None:
    """Everything that the engines need is there; `o3ctl status` shows what is lacking, and `o3ctl ask` is answered."""
    for mode in _ABSENT:
        service.end(mode)

    def ask(text: str, language: Language) -> dict[str, object]:
        try:
            waited = runtime.ask_for_text(check_text(text), language, assembly.turn_ids.next())
        except Closed as error:
            raise InputError("the process is ending: nothing was done") from error
        try:
            answer = waited.result(ASKED_S)
        except TimeoutError as error:
            undone = "nothing was done" if waited.cancel() else "it is still worked on, and may yet be done"
            raise InputError(f"no answer within {ASKED_S:g} s: {undone}") from error
        return {"reply": answer.reply, "acted": answer.acted}

    orders = None if assembly.service is None else assembly.service.orders
    if orders is not None:
        orders.beside["service"] = lambda: service.status().as_json()
        orders.ask = ask


def _show_front_end(assembly: Assembly, front: FrontEnd) -> None:
    """`o3ctl status` shows what is done to the echo."""
    log.info("microphone: %s", front.status())
    orders = None if assembly.service is None else assembly.service.orders
    if orders is not None:
        orders.beside["audio"] = lambda: front.status().as_json()


def _announce(quiet: bool, service: ServiceState | None) -> Announce:
    def tell(what: str, milliseconds: float | None) -> None:
        if milliseconds is None:
            if service is not None:
                service.starting(f"loading {what}")
        elif not quiet:
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
