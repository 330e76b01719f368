"""Wyoming's own client, over the socket and the port: what is there, recognition, voices, commands."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncClient
from wyoming.error import Error
from wyoming.event import Event
from wyoming.handle import Handled, NotHandled
from wyoming.info import Describe, Info
from wyoming.intent import Intent, IntentsStart, IntentsStop, NotRecognized, Recognize
from wyoming.ping import Ping, Pong
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeVoice

from cockpit.api.grants import Grants
from cockpit.wyoming.server import WyomingServer
from models.errors import StartupError
from pipeline.audio.wav import read_wav
from tests.support.waiting import LONG_S

DEFROST = "turn on the rear defroster"
DEFROSTER = "Vehicle.Body.Windshield.Rear.Heating"


def talk(address: str, conversation: Callable[[AsyncClient], Awaitable[Any]]) -> Any:
    """What a conversation over `address` returns."""

    async def run() -> Any:
        async with AsyncClient.from_uri(address, LONG_S, LONG_S) as client:
            return await conversation(client)

    return asyncio.run(run())


async def answer(client: AsyncClient) -> Event:
    event = await client.read_event()
    assert event is not None, "the server hung up"
    return event


def ask(served: Any, *messages: Any, until: tuple[str, ...], address: int = 0) -> list[Event]:
    """Send these, read to the first event of one of the types in `until`."""

    async def conversation(client: AsyncClient) -> list[Event]:
        for message in messages:
            await client.write_event(message.event())
        events = [await answer(client)]
        while events[-1].type not in until:
            events.append(await answer(client))
        return events

    found: list[Event] = talk(served.server.addresses[address], conversation)
    return found


@pytest.mark.parametrize("address", [0, 1], ids=["unix", "tcp"])
def test_info_names_what_is_loaded(served: Any, address: int) -> None:
    info = Info.from_event(ask(served, Describe(), until=("info",), address=address)[-1])
    model = info.asr[0].models[0]
    assert (model.name, model.languages) == ("whisper-base", ["en", "zh"])
    assert [(voice.name, voice.languages) for voice in info.tts[0].voices] == [
        ("piper-en-joe", ["en"]),
        ("espeak-ng", ["zh"]),
    ]
    assert info.tts[0].supports_synthesize_streaming
    assert info.intent[0].models[0].languages == ["en", "zh"]
    assert info.handle[0].models[0].name == "qwen2.5-coder-0.5b-instruct"


def test_ping(served: Any) -> None:
    assert Pong.from_event(ask(served, Ping("here?"), until=("pong",))[-1]).text == "here?"


def recording(path: Path, rate_hz: int = 16_000, channels: int = 1) -> list[Any]:
    """The file as a satellite sends it, at this rate and with as many channels."""
    samples = read_wav(path)
    if rate_hz != 16_000:
        samples = np.repeat(samples, rate_hz // 16_000)
    pcm = np.repeat((samples * 32767).astype("<i2")[:, None], channels, axis=1)
    chunks = [
        AudioChunk(rate_hz, 2, channels, pcm[first : first + 1024].tobytes()) for first in range(0, len(pcm), 1024)
    ]
    return [AudioStart(rate_hz, 2, channels), *chunks, AudioStop()]


@pytest.mark.parametrize(("rate_hz", "channels"), [(16_000, 1), (48_000, 2)])
def test_transcribe(served: Any, model_dir: Callable[[str], Path], rate_hz: int, channels: int) -> None:
    file = model_dir("test-audio") / "beckett.wav"
    messages = [Transcribe(language="en"), *recording(file, rate_hz, channels)]
    heard = Transcript.from_event(ask(served, *messages, until=("transcript", "error"))[-1])
    assert "try again. fail again. fail better" in heard.text.lower()
    assert heard.language == "en"


def test_what_is_spoken_is_recognised_again(served: Any) -> None:
    """Streamed sound: start, chunks, stop; and the same connection takes it back."""

    async def conversation(client: AsyncClient) -> str:
        await client.write_event(Synthesize("Open the window on the left.", SynthesizeVoice("piper-en-joe")).event())
        events = [await answer(client)]
        while events[-1].type != "audio-stop":
            events.append(await answer(client))
        assert [event.type for event in events[:2]] == ["audio-start", "audio-chunk"]
        assert len(events) > 4
        await client.write_event(Transcribe(name="whisper-base", language="en-GB").event())
        for event in events:
            await client.write_event(event)
        return Transcript.from_event(await answer(client)).text

    assert "open the window" in talk(served.server.addresses[0], conversation).lower()


def test_text_that_comes_in_pieces_is_spoken_as_it_comes(served: Any) -> None:
    """The first clause sounds before the text is complete; the repetition for old servers is not spoken."""

    async def conversation(client: AsyncClient) -> list[str]:
        await client.write_event(SynthesizeStart(SynthesizeVoice(language="en")).event())
        for piece in ("The first sentence is ", "over here. And the", " second "):
            await client.write_event(SynthesizeChunk(piece).event())
        events = [await answer(client), await answer(client)]
        for message in (
            SynthesizeChunk("comes now."),
            Synthesize("The first sentence is over here."),
            SynthesizeStop(),
        ):
            await client.write_event(message.event())
        while events[-1].type not in ("synthesize-stopped", "error"):
            events.append(await answer(client))
        return [event.type for event in events]

    types = talk(served.server.addresses[0], conversation)
    assert types[:2] == ["audio-start", "audio-chunk"]
    assert types[-2:] == ["audio-stop", "synthesize-stopped"]
    assert types.count("audio-start") == 1


def test_mandarin_by_its_letters(served: Any) -> None:
    started = ask(served, Synthesize("打开车窗。"), until=("audio-stop", "error"))[0]
    assert AudioStart.from_event(started).rate == served.services.speech.voices["zh"].sample_rate_hz


def state(served: Any) -> Any:
    return served.runtime.parts.dialogue.toolbox.access.tree


def test_recognize_says_what_is_meant_and_does_nothing(served: Any) -> None:
    before = len(served.runtime.turn_log.closed())
    intent = Intent.from_event(ask(served, Recognize("open the sunroof"), until=("intent", "not-recognized"))[-1])
    assert intent.name == "set_sunroof"
    assert intent.context == {"acted": False}
    assert {entity.name for entity in intent.entities} == {"position"}
    events = ask(served, Recognize("open the sunroof and lock the doors"), until=("intents-stop", "not-recognized"))
    assert [event.type for event in events] == ["intents-start", "intent", "intent", "intents-stop"]
    assert IntentsStart.is_type(events[0].type)
    assert IntentsStop.is_type(events[-1].type)
    nothing = ask(served, Recognize("fly me to the moon"), until=("intent", "not-recognized"))[-1]
    assert NotRecognized.from_event(nothing).context == {"acted": False, "outcome": "answered"}
    assert len(served.runtime.turn_log.closed()) == before


def test_handle_acts_and_says_so(served: Any) -> None:
    done = Handled.from_event(ask(served, Transcript(DEFROST, language="en"), until=("handled", "not-handled"))[-1])
    assert done.context is not None
    assert done.context["acted"] is True
    assert [call["status"] for call in done.context["calls"]] == ["done"]
    assert done.text
    turn = served.runtime.turn_log.closed()[-1]
    assert turn.transcript == DEFROST
    assert not served.sink.said(turn.turn_id), "the satellite speaks the reply, not the car"


def test_what_is_not_done_is_not_handled(served: Any) -> None:
    """The guards of the voice chain: a value out of range changes nothing."""
    event = ask(served, Transcript("set the temperature to ninety degrees"), until=("handled", "not-handled"))[-1]
    refused = NotHandled.from_event(event)
    assert event.type == "not-handled"
    assert refused.context is not None
    assert refused.context["acted"] is False
    assert [call["status"] for call in refused.context["calls"]] == ["refused"]
    assert refused.text


def test_a_question_is_answered_and_no_deed(served: Any) -> None:
    event = ask(served, Transcript("is the sunroof open?"), until=("handled", "not-handled"))[-1]
    assert event.type == "handled"
    assert event.data["context"]["acted"] is False


def test_follow_up_belongs_to_the_cars_dialogue(served: Any) -> None:
    ask(served, Transcript("set the driver temperature to 21 degrees"), until=("handled",))
    event = ask(served, Transcript("a bit warmer"), until=("handled", "not-handled"))[-1]
    assert event.data["context"]["acted"] is True
    assert event.data["context"]["calls"][0]["name"].endswith("temperature")


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (Transcribe(name="whisper-huge"), "model_not_found"),
        (Transcribe(language="fr"), "invalid_value"),
        (Synthesize("Hi.", SynthesizeVoice("nobody")), "model_not_found"),
        (Synthesize("Hi.", SynthesizeVoice("piper-en-joe", speaker="2")), "invalid_value"),
        (Synthesize("<speak>Hi</speak>", text_format="ssml"), "invalid_value"),
        (Synthesize("?!"), "invalid_value"),
        (SynthesizeChunk("Hi."), "invalid_request"),
        (SynthesizeStop(), "invalid_request"),
        (AudioStop(), "invalid_request"),
        (Recognize("..."), "invalid_value"),
        (Recognize("x" * 5000), "invalid_value"),
        (AudioStart(1, 2, 1), "invalid_request"),
    ],
)
def test_what_cannot_be_served_is_told_and_the_connection_goes_on(served: Any, message: Any, code: str) -> None:
    events = ask(served, message, Ping("still here"), until=("pong",))
    assert [event.type for event in events] == ["error", "pong"]
    assert Error.from_event(events[0]).code == code


def test_commands_do_nothing_where_the_profile_does_not_say_so(served: Any, tmp_path: Path) -> None:
    """Nor for a client that is granted nothing."""
    before = len(served.runtime.turn_log.closed())
    for change, code in (({"handle": False}, "not_granted"), ({"grants": Grants({}, {})}, "not_granted")):
        server = WyomingServer.open(replace(served.services, **change), tmp_path / "w.sock")
        server.start()
        try:
            events = ask(_Only(server), Transcript(DEFROST), until=("error", "handled"))
            assert Error.from_event(events[-1]).code == code
        finally:
            server.stop()
    assert len(served.runtime.turn_log.closed()) == before


class _Only:
    def __init__(self, server: WyomingServer) -> None:
        self.server = server


def test_socket_is_for_user_and_group_and_goes_away(served: Any, tmp_path: Path) -> None:
    assert stat.S_IMODE(served.server.path.stat().st_mode) == 0o660
    path = tmp_path / "w.sock"
    server = WyomingServer.open(served.services, path)
    with pytest.raises(StartupError, match="another Cockpit"):
        WyomingServer.open(served.services, path)
    with pytest.raises(StartupError, match="groupadd"):
        WyomingServer.open(served.services, tmp_path / "g.sock", group="no-such-group")
    assert not (tmp_path / "g.sock").exists()
    server.start()
    server.stop()
    server.stop()
    assert not path.exists()
