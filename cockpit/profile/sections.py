"""What an engineer tunes: one frozen object per section, each field with its unit, range and effect.

Loading is `cockpit.profile.load`; `orchestration` and `tasks` stand in `cockpit.profile.orchestration`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from cockpit.profile.base import Flag, Section, Threads
from cockpit.profile.language_models import LlmSection
from cockpit.profile.orchestration import OrchestrationSection, TaskSection
from cockpit.profile.units import Duration, between
from cockpit.unix_socket import LONGEST_PATH_BYTES
from pipeline.audio.front_end import Echo, FrontConfig, Gain, Noise
from pipeline.endpointing.endpointer import EndpointConfig
from pipeline.endpointing.wake_word import WakeConfig
from pipeline.frames import SAMPLE_RATE_HZ, Language, OverReply

Probability = Annotated[float, Field(strict=True, gt=0.0, lt=1.0)]


def _short_enough(path: str) -> str:
    if len(os.fsencode(path)) > LONGEST_PATH_BYTES:
        raise ValueError(f"a socket's path has at most {LONGEST_PATH_BYTES} bytes: name a shorter one than {path}")
    return path


def _duration(text: str) -> Duration:
    return Duration.parse(text)


class FrontSection(Section):
    """What is done to the microphone's sound before anything listens to it, in `listen` and `serve`: docs/audio.md."""

    echo: Echo = "cancel"
    """`cancel`: what the speaker plays is taken out, and the driver is heard over it. `half_duplex`: nothing is heard
    while the speaker sounds. `off`: the microphone does not hear the speaker, as with a headset."""
    noise: Noise = "off"
    """How strongly noise is suppressed. Fewer commands end right with it, see docs/audio.md."""
    gain: Gain = "off"
    """`adaptive`: quiet voices are made louder."""

    @property
    def config(self) -> FrontConfig:
        """The same, as the front end takes it."""
        return FrontConfig(self.echo, self.noise, self.gain)


class AudioSection(Section):
    """Microphone and speaker."""

    input_device: str = "default"
    """Microphone: PortAudio's name or a part of it; `default` is the system's own."""
    output_device: str = "default"
    """Speaker, likewise."""
    frame: Annotated[Duration, between(Duration, "10ms", "100ms")] = _duration("32ms")
    """Length of one frame. Shorter reacts sooner and wakes up more often; the VAD model hears windows of 32 ms."""
    pace: Literal["realtime", "fast"] = "realtime"
    """How a WAV file is fed: at the speed it was spoken, or as fast as it is taken."""
    barge_in: Flag = True
    """`true`: speech during a reply stops the reply. `false`: every reply is spoken to its end; what the driver says
    meanwhile still becomes a turn and is answered afterwards."""
    front: FrontSection = Field(default_factory=FrontSection)

    @property
    def frame_samples(self) -> int:
        """Samples of one frame at the rate of the chain."""
        return self.frame.samples(SAMPLE_RATE_HZ)


class EndpointSection(Section):
    """When somebody speaks, and when a turn has ended."""

    onset: Probability = 0.5
    """Silero's probability from which speech begins. Higher: deaf to soft voices; lower: hears noise."""
    offset: Probability = 0.35
    """Probability below which speech in progress ends; the gap to `onset` keeps the decision from flickering."""
    onset_over_playback: Probability = 0.9
    """The same while the speaker sounds and `audio.front.echo` is not `off`: what the canceller leaves of a reply is no
    speech. Lower: a reply may interrupt itself; higher: the driver has to speak up."""
    min_speech: Annotated[Duration, between(Duration, "32ms", "1s")] = _duration("96ms")
    """Speech shorter than this starts no turn."""
    pre_roll: Annotated[Duration, between(Duration, "0ms", "1s")] = _duration("300ms")
    """Audio kept from before speech was noticed, so that no first syllable is lost."""
    partial: Annotated[Duration, between(Duration, "100ms", "5s")] = _duration("400ms")
    """How much new audio makes an unfinished utterance worth a partial transcript."""
    candidate_silence: Annotated[Duration, between(Duration, "32ms", "1s")] = _duration("100ms")
    """Trailing silence after which work on the utterance begins; nothing acts yet."""
    early_end_silence: Annotated[Duration, between(Duration, "32ms", "2s")] = _duration("200ms")
    """Trailing silence that ends the turn when what was heard is a complete command already."""
    end_silence: Annotated[Duration, between(Duration, "100ms", "3s")] = _duration("500ms")
    """Trailing silence that ends the turn. Longer: slower answers; shorter: pauses for thought cut people off."""
    reopen: Annotated[Duration, between(Duration, "0ms", "3s")] = _duration("700ms")
    """For so long after an early end, further speech re-opens the turn instead of starting a new one."""
    max_utterance: Annotated[Duration, between(Duration, "2s", "29s")] = _duration("15s")
    """Hard cap: a turn ends here whatever is heard. Whisper hears at most 30 s."""
    idle_timeout: Annotated[Duration, between(Duration, "100ms", "60s")] = _duration("1s")
    """Without frames for so long, an open turn is ended."""
    barge_in: Annotated[Duration, between(Duration, "32ms", "2s")] = _duration("160ms")
    """Speech for so long during a reply stops the reply. Shorter: a cough does it."""
    gate_hold: Annotated[Duration, between(Duration, "0ms", "5s")] = _duration("400ms")
    """For so long after the cheap gate last heard something, the VAD model goes on listening."""

    @model_validator(mode="after")
    def _ordered(self) -> EndpointSection:
        if not self.candidate_silence <= self.early_end_silence <= self.end_silence:
            raise ValueError(
                "silences must not fall: candidate_silence <= early_end_silence <= end_silence, got "
                f"{self.candidate_silence}, {self.early_end_silence}, {self.end_silence}"
            )
        if self.offset > self.onset:
            raise ValueError(f"offset {self.offset} is above onset {self.onset}")
        return self

    @property
    def config(self) -> EndpointConfig:
        """The same, as the endpointer takes it."""
        return EndpointConfig(
            onset=self.onset,
            offset=self.offset,
            onset_over_playback=self.onset_over_playback,
            **{f"{name}_ms": round(value.ms) for name, value in self if isinstance(value, Duration)},
        )


class AsrSection(Section):
    """Speech recognition."""

    model: str = "whisper-base"
    """A model of kind asr in the registry."""
    languages: tuple[Language, ...] = Field(default=("en", "zh"), min_length=1, max_length=2)
    """The languages that may be heard; nothing else is ever recognised."""
    threads: Threads = 2
    """Compute threads. More than the cores of its lane makes it slower."""
    hotwords: Flag = True
    """Whether recognition favours the words of the car's tools (seats, windows, navigation, media)."""

    @model_validator(mode="after")
    def _once(self) -> AsrSection:
        if len(set(self.languages)) != len(self.languages):
            raise ValueError("languages lists one language twice")
        return self


class NluSection(Section):
    """What a transcript means."""

    parser: Literal["both", "rules"] = "rules"
    """`both`: a model reads the whole sentence and the rules guard it; where they differ and the model is not sure, the
    person is asked. `rules`: the rules alone."""
    model: str = "command-parser"
    """The model of `both`: one of kind parser in the registry."""


class ManualSection(Section):
    """The owner's manual: what questions about the car are answered from. See docs/manual.md."""

    file: Path | None = None
    """The car's own manual: Markdown (.md), or what `cockpit manual build` made of it (.npz). null: the shipped one."""
    encoder: str | None = None
    """The model that finds sections by meaning: one of kind encoder in the registry. null: only subjects that a
    question names are found, and nothing is said to be missing."""


class TtsSection(Section):
    """The voice."""

    en_voice: str = "piper-en-joe"
    """Voice for English: a model of kind tts in the registry, or espeak-ng."""
    zh_voice: str = "espeak-ng"
    """Voice for Mandarin, likewise."""
    threads: Threads = 2
    """Compute threads. More than the cores of its lane makes it slower."""
    speed: Annotated[float, Field(strict=True, ge=0.5, le=2.0)] = 1.0
    """Speaking rate of both voices: 1 is the voice's own, 2 twice as fast. Pauses and very short sounds follow less."""


class VehicleSection(Section):
    """The car behind the tools."""

    backend: Literal["embedded", "kuksa"] = "embedded"
    """`embedded`: a signal tree in this process. `kuksa`: a KUKSA databroker."""
    socket: Path | None = None
    """Unix socket of the databroker; `kuksa` needs it or `address`."""
    address: Annotated[str, Field(pattern=r"^[A-Za-z0-9.\-]+:[0-9]{1,5}$|^\[[0-9A-Fa-f:]+\]:[0-9]{1,5}$")] | None = None
    """host:port of a databroker that is reached by TCP, with TLS only; needs `ca_file`."""
    ca_file: Path | None = None
    """Certificates (PEM) that the databroker's own is checked against."""
    token_file: Path | None = None
    """File whose content is sent to the databroker as bearer token: a JWT with the narrowest scope that serves."""
    signals: Path | None = None
    """The OEM's own signal overlay (JSON): leaves beside those that ship, and tighter limits. See docs/car.md."""
    confirm: tuple[Literal["set_door_locks", "set_trunk"], ...] = ()
    """What is asked about before it opens the car at standstill ("Do you want me to unlock the doors?")."""

    @model_validator(mode="after")
    def _reachable(self) -> VehicleSection:
        if self.backend == "kuksa" and (self.socket is None) == (self.address is None):
            raise ValueError("backend kuksa needs socket, e.g. /run/kuksa/databroker.sock, or address, e.g. car:55555")
        if (self.address is None) != (self.ca_file is None):
            raise ValueError("address and ca_file go together: a databroker behind TCP is asked by TLS only")
        unused = [key for key in ("socket", "address", "ca_file", "token_file") if getattr(self, key) is not None]
        if self.backend == "embedded" and unused:
            raise ValueError(f"{' and '.join(unused)}: the embedded signals use none; leave out, or set backend kuksa")
        return self


class ControlSection(Section):
    """The socket that `o3ctl` asks: what the arbiter does, and orders to it."""

    socket: Annotated[str, Field(pattern=r"^(auto|off|/.+)$"), AfterValidator(_short_enough)] = "auto"
    """`auto`: `cockpit listen` opens it where `o3ctl` looks, `say` and `ask` do not. A path: always. `off`: never."""
    group: str | None = None
    """Members of this group may ask too, not only this process's user and root."""

    def path(self, default: Path | None) -> Path | None:
        """Where the socket goes; `default` is the place for `auto`, None where the command has none by itself."""
        if self.socket == "off":
            return None
        return default if self.socket == "auto" else Path(self.socket)


class ApiSection(Section):
    """The OpenAI-compatible API that `cockpit serve` opens for other programs of the head unit."""

    socket: Annotated[str, Field(pattern=r"^(auto|/.+)$"), AfterValidator(_short_enough)] = "auto"
    """`auto`: beside the control socket, as `api.sock`. Or a path of at most 107 bytes. Its mode is 0660."""
    group: str | None = None
    """Members of this group may ask too, not only this process's user and root."""
    port: Annotated[int, Field(strict=True, ge=0, le=65_535)] | None = None
    """A port on 127.0.0.1 besides the socket, for programs that cannot use one; 0: any free one. Needs `token_file`."""
    token_file: Path | None = None
    """File with the token that clients of the port must send; nobody but this process's user may read it."""
    requests: Annotated[int, Field(strict=True, ge=1, le=8)] = 4
    """Texts whose next tokens are computed in one run of the model. Two cores gain nothing beyond 4."""
    sessions: Annotated[int, Field(strict=True, ge=1, le=128)] = 32
    """Texts whose caches are kept, idle ones too, within the task's memory; what the arbiter evicts goes. On a GPU
    their memory is taken at start."""
    waiting: Annotated[int, Field(strict=True, ge=0, le=1_024)] = 16
    """Further requests that may wait; more are refused with status 429."""
    parked_mb: Annotated[int, Field(strict=True, ge=0, le=65_536)] = 256
    """Host memory for dialogues that lost their cache to others, and for beginnings that several texts share; 0: both
    are computed anew."""
    grants: dict[str, Annotated[tuple[str, ...], Field(min_length=1)]] = Field(default={"*": ("dialogue_task",)})
    """Unix user -> the tasks that its requests may run as, the first by default. `*`: every other client, and the
    holder of the token."""
    words: tuple[str, ...] = ()
    """Unix users to whose `/v1/events` it is shown what is heard, said and done; others see states and times. `token`:
    the holder of the token; `*`: everybody. This process's own user and root always see it."""
    control: tuple[str, ...] = ()
    """Unix users who may use `/v1/control` (push-to-talk, cancel, mute, commands as text), likewise."""

    @property
    def texts(self) -> int:
        """Caches of the API."""
        return max(self.requests, self.sessions)

    @model_validator(mode="after")
    def _token(self) -> ApiSection:
        if (self.port is None) != (self.token_file is None):
            raise ValueError("port and token_file go together: over loopback every program of this machine could ask")
        return self


class WyomingSection(Section):
    """The Wyoming server that `cockpit serve` opens for satellites and other voice programs. Off unless named here."""

    socket: Annotated[str, Field(pattern=r"^(off|auto|/.+)$"), AfterValidator(_short_enough)] = "off"
    """`auto`: beside the control socket, as `wyoming.sock`. Or a path of at most 107 bytes. Its mode is 0660."""
    group: str | None = None
    """Members of this group may ask too, not only this process's user and root."""
    port: Annotated[int, Field(strict=True, ge=0, le=65_535)] | None = None
    """A port on 127.0.0.1 (10300 is usual; 0: any free one). The protocol has no token: every program of this machine
    may use it, as the `*` of `api.grants`."""
    handle: Flag = False
    """`true`: commands that clients send act on the car. `false`: they are only told what the words mean."""
    connections: Annotated[int, Field(strict=True, ge=1, le=64)] = 16
    """Clients that may be connected at once; more are refused."""

    @model_validator(mode="after")
    def _reachable(self) -> WyomingSection:
        if self.group is not None and self.socket == "off":
            raise ValueError("group is of the socket, which is off: leave it out, or set socket auto")
        if self.handle and not self.opens:
            raise ValueError("handle acts for clients of a socket or a port: set one, or leave it out")
        return self

    @property
    def opens(self) -> bool:
        """Whether a server is wanted at all."""
        return self.socket != "off" or self.port is not None


class WakeSection(Section):
    """The wake word. Without an engine everything that is said is for the car."""

    engine: Literal["none", "microwakeword", "openwakeword"] = "none"
    """`microwakeword`: 50 KB, free to use. `openwakeword`: its trained models forbid commercial use."""
    model: str = "hey_jarvis"
    """The word: a model's name in the engine's folder, such as hey_jarvis, okay_nabu or alexa."""
    threshold: Probability | None = None
    """Probability from which the word counts; null for what its makers chose. Higher: misses more, wakes less."""
    pre_roll: Annotated[Duration, between(Duration, "0ms", "3s")] = _duration("600ms")
    """Audio before the decision that is passed on, so that word and command in one breath lose nothing."""
    refractory: Annotated[Duration, between(Duration, "0ms", "10s")] = _duration("2s")
    """After a wake-up no further one for so long."""
    awake: Annotated[Duration, between(Duration, "1s", "120s")] = _duration("8s")
    """Without speech or reply for so long, the word is needed again."""

    @property
    def config(self) -> WakeConfig:
        """The same, as the wake stage takes it."""
        return WakeConfig(
            threshold=self.threshold,
            pre_roll_ms=round(self.pre_roll.ms),
            refractory_ms=round(self.refractory.ms),
            awake_ms=round(self.awake.ms),
        )


ToolName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,40}$")]


class AgentSection(Section):
    """The agent loop: questions that need information are answered by tools that read. See docs/agents.md."""

    model: str | None = None
    """The language model that chooses the calls: one that this profile loads. null: the dialogue's own."""
    max_rounds: Annotated[int, Field(strict=True, ge=1, le=8)] = 4
    """How often the results of tools go back to the model for one question."""
    max_parallel: Annotated[int, Field(strict=True, ge=1, le=16)] = 4
    """Calls of one answer that run beside each other; most calls of one answer."""
    tool_timeout: Annotated[Duration, between(Duration, "50ms", "30s")] = _duration("2s")
    """A tool that takes longer is given up, and that is said. Tools may have their own limit."""
    cache: dict[ToolName, Annotated[Duration, between(Duration, "0ms", "1440min")]] = Field(default_factory=dict)
    """Tool -> how long its result is used again, instead of what the tool says itself. Never for one that acts."""
    tools: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")], ...] = ()
    """Further tools, each as `package.module:NAME`: an `AgentTool`, a list of them, or a function that returns them."""


class NavigationSection(Section):
    """Where one can go."""

    places: Path | None = None
    """The head unit's own place list (.gpkg, .csv or .jsonl), beside the one that ships: see docs/places.md."""


class GuidanceSection(Section):
    """The prompts that the head unit's navigation hands in."""

    over_reply: OverReply = "interrupt"
    """What a prompt does to a reply. `interrupt`: it stops, and goes on after the prompt with the clause that was cut.
    `duck`: it goes on quietly. `queue`: the prompt waits for the end of the clause."""
    cache_mb: Annotated[int, Field(strict=True, ge=0, le=256)] = 16
    """Memory for prompts' clauses that were spoken before (a second takes 86 KB). 0: each is made anew."""


class PrivacySection(Section):
    """What is kept on disk of what was heard and said: nothing. Storing is not built yet, so a profile that asks for it
    does not start. (`--out` and `--trace` of a command write what their user asks for.)"""

    store_audio: Flag = False
    """Whether utterances are written to disk. Only false can start so far."""
    store_transcripts: Flag = False
    """Whether transcripts and replies are written to disk. Only false can start so far."""
    folder: Path | None = None
    """Where to; required when anything is stored."""

    @model_validator(mode="after")
    def _folder(self) -> PrivacySection:
        if (self.store_audio or self.store_transcripts) and self.folder is None:
            raise ValueError("storing anything needs folder")
        return self


class ModelsSection(Section):
    """Where models come from: see docs/models.md."""

    registry: Path | None = None
    """An OEM's own model registry (JSON), beside the one that ships: its models are added, one of the same name takes
    the shipped one's place. A relative path begins at the profile that names it."""
    trusted_keys: tuple[Path, ...] = ()
    """Public keys (PEM) by which packs and models may be signed, as `cockpit pack keygen` makes them; relative paths
    likewise."""
    unsigned: Literal["refuse", "allow"] = "refuse"
    """What becomes of a pack without a signature. `allow`: it is installed and served, and every status says so. One
    with a wrong signature, or by another key, is always refused."""


class Profile(Section):
    """One target's settings. Read with `cockpit.profile.load.load_profile`."""

    extends: str | None = None
    """Another profile to start from: its name, or a path relative to this file. `null` for a key drops what it had."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where models run. There is no silent fallback: `cuda` without a usable GPU is a start-up error."""
    audio: AudioSection = AudioSection()
    endpoint: EndpointSection = EndpointSection()
    asr: AsrSection = AsrSection()
    nlu: NluSection = NluSection()
    manual: ManualSection = ManualSection()
    llm: LlmSection = LlmSection()
    tts: TtsSection = TtsSection()
    vehicle: VehicleSection = VehicleSection()
    navigation: NavigationSection = NavigationSection()
    agent: AgentSection = AgentSection()
    guidance: GuidanceSection = GuidanceSection()
    privacy: PrivacySection = PrivacySection()
    models: ModelsSection = ModelsSection()
    wake: WakeSection = WakeSection()
    control: ControlSection = ControlSection()
    api: ApiSection = ApiSection()
    wyoming: WyomingSection = WyomingSection()
    orchestration: OrchestrationSection | None = None
    """Red lines, clusters, eviction and policy. Without it, and without `tasks`, nothing shares the device."""
    tasks: dict[str, TaskSection] = Field(default_factory=dict)
    """Quality of service per task; required with `orchestration`."""

    @property
    def model_names(self) -> tuple[str, ...]:
        """The registry names this profile loads, each once."""
        texts = [model.name for model in self.llm.models]
        texts += [] if self.agent.model is None else [self.agent.model]
        names = (self.asr.model, *texts, self.tts.en_voice, self.tts.zh_voice, "silero-vad", "espeak-ng")
        parser = (self.nlu.model,) if self.nlu.parser == "both" else ()
        wake = () if self.wake.engine == "none" else (self.wake.engine,)
        encoder = () if self.manual.encoder is None else (self.manual.encoder,)
        return tuple(dict.fromkeys((*names, *parser, *encoder, *wake)))
