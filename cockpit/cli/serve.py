"""`cockpit serve`: voice and API in one process. `cockpit send`: a request to it from the shell."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from cockpit import stop_signals
from cockpit.api.service import HeadUnit, open_api
from cockpit.cli.output import print_json
from cockpit.cli.talk import LogOption, ProfileName, Talk, TraceFile, UnvalidatedFlag, microphone, talking
from cockpit.client import Cockpit, CockpitError
from cockpit.headunit.cabin import Cabin
from cockpit.headunit.observer import Observers
from cockpit.headunit.stream import EventStream
from cockpit.profile.load import load_profile
from cockpit.runtime import NullSink
from cockpit.scheduling.control_socket import default_socket
from cockpit.service import notify
from cockpit.service.activation import inherited
from cockpit.service.duty import on_duty
from cockpit.service.reload import Reloader
from cockpit.service.stages import chain, servers
from cockpit.service.state import ServiceState
from cockpit.service.watchdog import Watched
from cockpit.telemetry.logs import LogLevel, configure
from cockpit.telemetry.metrics import Metrics
from cockpit.wyoming.service import open_wyoming
from models.errors import InputError, StartupError

SocketOption = Annotated[
    Path | None, typer.Option("--socket", help="The API's socket, where it is not where `serve` puts it by itself.")
]


LOOK_S = 0.5
"""How often a process without a microphone looks whether a stage has failed for good."""


def default_api_socket() -> Path:
    """Beside the control socket."""
    return default_socket().with_name("api.sock")


def default_wyoming_socket() -> Path:
    """Beside the control socket."""
    return default_socket().with_name("wyoming.sock")


class _Watching:
    """Who watches the chain of this process: the events and the metrics. Made before the chain is."""

    def __init__(self, profile_name: str) -> None:
        self.events = EventStream()
        self._metrics = Metrics()
        self._profile_name = profile_name
        self.observer = Observers(self.events, self._metrics)

    def headunit(self, talk: Talk, service: ServiceState) -> HeadUnit:
        """The chain is there: the events begin."""
        devices = talk.devices
        speaker = None if devices is None else devices.speaker
        turns, languages = talk.assembly.turn_ids, talk.profile.asr.languages
        cabin = Cabin(talk.runtime, service, languages, turns.next, devices is not None, speaker)
        cabin.shown_by(self.events)
        return HeadUnit(cabin, self.events, self._metrics, self._profile_name, devices)


def serve(
    profile: ProfileName = "cpu",
    socket: SocketOption = None,
    voice: Annotated[
        bool, typer.Option("--voice/--no-voice", help="Listen to the microphone too, or only answer requests.")
    ] = True,
    trace: TraceFile = None,
    allow_unvalidated: UnvalidatedFlag = False,
    log_level: LogOption = LogLevel.info,
) -> None:
    """Run the voice chain and the OpenAI-compatible API, and Wyoming where the profile says so, until a signal ends it.

    The addresses are printed once requests are taken. Ctrl-C ends it with exit code 130, SIGTERM with 143, SIGHUP with
    129. Under a service manager SIGHUP reads the profile again instead, and turns are not printed: see docs/service.md.
    """
    configure(log_level)
    section = load_profile(profile).profile.api
    path = socket or (default_api_socket() if section.socket == "auto" else Path(section.socket))
    given = inherited("api")
    if given is not None:
        path = Path(given.getsockname())
        if socket not in (None, path):
            raise InputError(f"the service manager hands over {path}: leave --socket out, or stop cockpit-api.socket")
    watching = _Watching(profile)
    if voice:
        beside = partial(_serving, path=path, audible=True, watching=watching)
        microphone(
            profile,
            trace,
            as_json=False,
            api_texts=section.texts,
            beside=beside,
            allow_unvalidated=allow_unvalidated,
            observer=watching.observer,
        )
    else:
        _answer(profile, trace, section.texts, path, allow_unvalidated, watching)


def _answer(
    profile: str, trace: Path | None, texts: int, path: Path, allow_unvalidated: bool, watching: _Watching
) -> None:
    """Requests only, until a signal ends it or a stage fails for good. Raises StageFailed."""
    service = ServiceState(notify.process())
    with (
        talking(
            profile,
            NullSink(),
            trace,
            quiet=False,
            observer=watching.observer,
            api_texts=texts,
            service=service,
            allow_unvalidated=allow_unvalidated,
        ) as talk,
        _serving(talk, service, path, audible=False, watching=watching) as servers,
    ):
        stages = (*chain(talk.runtime, talk.assembly.service, service), *servers)
        reloader = Reloader(service, profile, talk.profile, bool)
        with on_duty(service, f"serving {path}, without voice", stages, reloader):
            while talk.runtime.failed is None:
                time.sleep(LOOK_S)


@contextmanager
def _serving(
    talk: Talk, service: ServiceState, path: Path, *, audible: bool, watching: _Watching
) -> Iterator[Sequence[Watched]]:
    """The API, and Wyoming where the profile wants it, around the body. They end before the engines do, also when a
    signal comes meanwhile. audible: whether somebody hears what guidance says.
    """
    service.starting("opening the sockets")
    opened = ExitStack()
    try:
        given = inherited("api")
        guide, decided = talk.runtime.guide if audible else None, talk.runtime.turn_log.decided
        headunit = watching.headunit(talk, service)
        opened.callback(watching.events.close)
        api = open_api(talk.profile, talk.assembly, path, guide, given, decided, headunit)
        opened.callback(api.close)
        wyoming = open_wyoming(
            talk.profile, talk.registry, talk.assembly, talk.runtime, api.services, default_wyoming_socket()
        )
        if wyoming is not None:
            opened.callback(wyoming.stop)
            typer.echo(f"serving Wyoming on {' and '.join(wyoming.addresses)}")
        port = "" if api.server.port is None else f" and http://127.0.0.1:{api.server.port}/v1"
        typer.echo(f"serving {path}{port}; Ctrl-C ends it")
        yield tuple(servers(api, wyoming))
    finally:
        with stop_signals.shielded():
            opened.close()


def send(
    text: Annotated[str | None, typer.Argument(help="What to ask; without it, standard input is read.")] = None,
    socket: SocketOption = None,
    task: Annotated[
        str | None, typer.Option("--task", help="dialogue, background, ...: what the profile grants.")
    ] = None,
    session: Annotated[str | None, typer.Option("--session", help="A dialogue by name.")] = None,
    deadline_ms: Annotated[int | None, typer.Option("--deadline-ms", help="Give up after so long.", min=1)] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="The answer is cut here.", min=1)] = 256,
    speak: Annotated[Path | None, typer.Option("--speak", help="Speak the text into this WAV file.")] = None,
    guidance: Annotated[
        bool, typer.Option("--guidance", help="The text is a prompt of navigation: speak it in the car now.")
    ] = False,
    manoeuvre: Annotated[
        str | None, typer.Option("--manoeuvre", help="With --guidance: a newer prompt for it replaces one that waits.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the whole answer as one JSON object.")] = False,
) -> None:
    """Ask a running `cockpit serve`: the answer is printed as it is made. Or hand it a prompt of navigation."""
    said = text if text is not None else sys.stdin.read()
    if not said.strip():
        raise InputError("nothing to send: give a text, or pipe one in")
    if manoeuvre is not None and not guidance:
        raise InputError("--manoeuvre goes with --guidance")
    if guidance and (task is not None or session is not None or speak is not None):
        raise InputError(
            "--guidance is always navigation's and spoken in the car: leave --task, --session, --speak out"
        )
    wanted = {"task": task, "session": session, "deadline_ms": deadline_ms}
    fields = {name: value for name, value in wanted.items() if value is not None}
    path = socket or Path(os.environ.get("COCKPIT_API_SOCKET", default_api_socket()))
    client = Cockpit(str(path))
    try:
        if guidance:
            prompt_id = client.guide(said.strip(), manoeuvre=manoeuvre, deadline_ms=deadline_ms)
            if json:
                print_json({"id": prompt_id})
            else:
                typer.echo(f"prompt {prompt_id} is taken")
        elif speak is not None:
            speak.write_bytes(client.speech(said, **{name: fields[name] for name in fields if name != "session"}))
        elif json:
            body = {"messages": [{"role": "user", "content": said}], "max_tokens": max_tokens, **fields}
            print_json(client.ask("POST", "/v1/chat/completions", body))
        else:
            for piece in client.chat_stream(said, max_tokens=max_tokens, **fields):
                sys.stdout.write(piece)
                sys.stdout.flush()
            sys.stdout.write("\n")
    except CockpitError as error:
        raise (StartupError if error.status in (0, 429) or error.status >= 500 else InputError)(str(error)) from error
    except OSError as error:
        raise InputError(f"{speak} cannot be written ({error.strerror}): name another file") from error
