"""From a profile and a store of built models to a warm set of stages. Nothing is fetched or built here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cockpit.agent_tools import setup_of
from cockpit.arbiter.config import PolicyBounds
from cockpit.arbiter.lanes import plan_lanes
from cockpit.places import open_places
from cockpit.profile.language_models import LanguageModel
from cockpit.profile.memory_plan import KV_SESSIONS, device_memory_bytes, own_texts, plan_of
from cockpit.profile.runnable import require_runnable
from cockpit.profile.sections import Profile
from cockpit.remote_chat import open_remote
from cockpit.runtime import Parts, Sink
from cockpit.scheduling.engine_turns import ChainRecognizer, ChainVoice, EngineTurns, GuidanceVoice
from cockpit.scheduling.guidance_lease import guidance_lease
from cockpit.scheduling.measured_memory import Growth, PeaksFile, lane_peaks
from cockpit.scheduling.placements import EnginePlacements, engine_placements
from cockpit.scheduling.service import SchedulingPlan, SchedulingService, open_service
from cockpit.scheduling.speech_warmers import SpeechWarmers
from cockpit.scheduling.voice_task import open_voice_task
from cockpit.scheduling.warmup import WarmUps
from cockpit.wake_word import open_wake
from models.engines import factory
from models.engines.base import SpeechRecognizer, Voice
from models.engines.vad.webrtc_gate import WebRtcGate
from models.store.beginnings import Beginnings, key_of
from models.store.store import Store
from pipeline.asr import AsrStage
from pipeline.dialogue.llm_steps import UNSCHEDULED, LlmScheduler
from pipeline.dialogue.manager import DialogueManager
from pipeline.endpointing.endpointer import Endpointer
from pipeline.engine_runs import UNSCHEDULED_RUNS, EngineRuns
from pipeline.frames import Language
from pipeline.guidance import GuidanceStage
from pipeline.manual.kept import open_manual
from pipeline.manual.manual import Manual
from pipeline.nlu.lexicon import hotwords
from pipeline.trace import NullTracer, Tracer
from pipeline.tts.stage import TtsStage
from pipeline.turns import Generations, TurnIds
from pipeline.vehicle.overlay import signals_with
from pipeline.vehicle.signals import EmbeddedTree, SignalBackend

if TYPE_CHECKING:
    from models.engines.llm.causal_lm import CausalLM
    from models.engines.parser import ParserEngine
    from models.engines.sentence_encoder import SentenceEncoder
    from models.engines.tts.espeak import EspeakWorker

T = TypeVar("T")
OptionsT = TypeVar("OptionsT")
Announce = Callable[[str, float | None], None]
"""Called with (what, None) as a part begins to load, and with (what, milliseconds) as it is ready."""

VAD = "silero-vad"
PHONEMES = "espeak-ng"


def _quiet(_what: str, _milliseconds: float | None) -> None:
    return None


def _nothing(_sample: int) -> object:
    return None


@dataclass(frozen=True, slots=True)
class BuiltModels:
    """The models of a profile, verified. folders: where each was built. opened: what to close if the start fails."""

    store: Store
    folders: dict[str, Path]
    opened: ExitStack

    def load(self, table: Mapping[str, Callable[[Path, OptionsT], T]], name: str, options: OptionsT) -> T:
        """`name` by its engine. See `models.engines.factory.load_engine`."""
        return factory.load_engine(table, self.store, name, self.folders[name], options)


@dataclass(frozen=True, slots=True)
class Engines:
    """The loaded models themselves, for what runs beside the chain. A speech engine has one user at a time: its turns
    say whose it is. model: the dialogue's; background: the same, unless requests of that role have one of their own.
    """

    recogniser: SpeechRecognizer
    voices: Mapping[Language, Voice]
    model: CausalLM
    background: CausalLM
    espeak: EspeakWorker
    asr_turns: EngineTurns
    tts_turns: EngineTurns

    def warmers(self, profile: Profile) -> SpeechWarmers:
        """Warm-up requests of recognition and of the first language's voice."""
        languages = profile.asr.languages
        return SpeechWarmers(self.recogniser, self.voices[languages[0]], languages, self.asr_turns, self.tts_turns)


@dataclass(frozen=True, slots=True)
class Assembly:
    """The stages of one process and what they share. `service` is None where nothing else uses the device."""

    parts: Parts
    turn_ids: TurnIds
    engines: Engines
    placements: EnginePlacements
    service: SchedulingService | None = None
    warm_ups: WarmUps | None = None

    def close(self) -> None:
        """Free the engines and the device, take the control socket away, end the child process.

        The runtime must be stopped before. Safe to call twice.
        """
        with ExitStack() as closing:  # last first, and each of them whatever another one raises
            closing.callback(self.engines.espeak.close)
            closing.callback(self.parts.dialogue.close)
            if self.service is not None:
                closing.callback(self.service.close)
            closing.callback(self.placements.close)


def assemble(
    profile: Profile,
    store: Store,
    sink: Sink,
    *,
    tracer: Tracer | None = None,
    announce: Announce = _quiet,
    scheduling: SchedulingPlan | None = None,
    api_texts: int = 0,
) -> Assembly:
    """Load and warm up everything `profile` names; with `scheduling` the language model runs under the arbiter.

    api_texts: texts that API requests may open beside the chain's own; memory is planned for them.
    Raises what `require_runnable` finds (ModelUnusable naming the command, ConfigError for what does not fit the
    device), DeviceUnavailable for a device that is not there.
    """
    config = None if scheduling is None else scheduling.config
    total_bytes = device_memory_bytes(profile.device)
    file = _peaks_file(profile, scheduling, total_bytes)
    peaks = None if file is None else file.peaks()
    kv_sessions = KV_SESSIONS + api_texts
    require_runnable(profile, config, store, peaks, kv_sessions)
    folders = store.built_all(profile.model_names)
    memory = plan_of(profile, config, store, total_bytes, peaks, kv_sessions)
    with ExitStack() as opened:
        service = None
        if scheduling is not None:
            plan = replace(scheduling, memory=memory)
            service = _timed("lanes", announce, lambda: open_service(plan, profile.device, tracer))
            opened.callback(service.close)
        placements = engine_placements(profile, service, store.root)
        opened.callback(placements.close)
        growth = Growth(placements.used_bytes)
        models = BuiltModels(store, folders, opened)
        keeps = scheduling is not None and scheduling.state_dir is not None
        loading = _Loading(profile, models, announce, service, placements, growth, kv_sessions, keeps)
        assembly = loading.assembly(sink, tracer or NullTracer())
        measured = lane_peaks(growth.of_stage, memory, placements.stages(profile))
        if measured:
            plan_of(profile, config, store, total_bytes, measured, kv_sessions).check()
            if file is not None:
                file.save(dict(measured))
        opened.pop_all()
        return assembly


def _peaks_file(profile: Profile, scheduling: SchedulingPlan | None, total_bytes: int | None) -> PeaksFile | None:
    """Where measured peaks are kept; None for a process that keeps nothing, and on a CPU, where they mean nothing."""
    if profile.device == "cpu" or scheduling is None or scheduling.state_dir is None:
        return None
    return PeaksFile.of(
        scheduling.state_dir, profile, [lane.name for lane in plan_lanes(scheduling.config)], total_bytes
    )


@dataclass(frozen=True, slots=True)
class _Loading:
    """What loading one part after the other needs. kv_sessions: texts of the language model. keeps: whether the next
    start may find something on disk.
    """

    profile: Profile
    models: BuiltModels
    announce: Announce
    service: SchedulingService | None
    placements: EnginePlacements
    growth: Growth
    kv_sessions: int
    keeps: bool

    def assembly(self, sink: Sink, tracer: Tracer) -> Assembly:
        """Every part, warm."""
        profile, models = self.profile, self.models
        generations, turn_ids = Generations(), TurnIds()
        encoder = self.encoder()  # loads meanwhile
        engines, tts = self.engines()
        dialogue = DialogueManager.create(
            vehicle_of(profile),
            engines.model,
            open_places(profile.navigation.places, models.store.root / "places"),
            default_language=profile.asr.languages[0],
            reply_tokens=profile.llm.dialogue.max_reply_tokens,
            agent=setup_of(profile.agent),
            agent_lm=self.agent_model(engines),
            parser=self.parser(),
            manual=self.manual(encoder),
            confirm=profile.vehicle.confirm,
            remote=open_remote(profile.llm.dialogue.remote, profile.llm.dialogue.max_reply_tokens),
        )
        models.opened.callback(dialogue.close)
        vad = models.load(factory.VADS, VAD, None)
        endpointer = Endpointer(profile.endpoint.config, WebRtcGate.load(), vad, generations, turn_ids)
        guidance = self.guidance(engines, tracer)
        scheduler: LlmScheduler = UNSCHEDULED
        runs: EngineRuns = UNSCHEDULED_RUNS
        warm_ups, on_wake = None, _nothing
        if self.service is not None:
            service, lanes = self.service, self.placements.llm is not None
            task = _timed(
                "warm-up",
                self.announce,
                lambda: open_voice_task(
                    service, engines.model, engines.background, lanes=lanes, speech=engines.warmers(profile)
                ),
            )
            scheduler, runs, warm_ups, on_wake = task.scheduler, task.runs, task.warm_ups, task.warm_ups.at_wake
        words = hotwords if profile.asr.hotwords else None
        recogniser = ChainRecognizer(engines.recogniser, engines.asr_turns, runs)
        asr = AsrStage(recogniser, languages=profile.asr.languages, hotwords=words, generations=generations)
        tts.under(runs)
        with scheduler.block(bool):  # under leases, so that its sessions are booked from the start
            _timed("prefix", self.announce, lambda: self.warm_up(dialogue, scheduler))
        self.placements.seal()
        wake = open_wake(profile.wake, models.folders, on_wake)
        parts = Parts(endpointer, asr, dialogue, tts, sink, generations, tracer, scheduler, wake, guidance)
        return Assembly(parts, turn_ids, engines, self.placements, self.service, warm_ups)

    def warm_up(self, dialogue: DialogueManager, scheduler: LlmScheduler) -> None:
        """The static beginnings of the dialogue's texts, from disk where an earlier start has kept them there. Only a
        process that stays writes any; on a GPU computing them is as quick.
        """
        if self.profile.device != "cpu":
            dialogue.warm_up(scheduler)
            return
        names = {model.name for model in self.profile.llm.models} | {self.profile.agent.model or ""}
        folders = [folder for name, folder in sorted(self.models.folders.items()) if name in names]
        beginnings = Beginnings(self.models.store.root / "state" / "beginnings", key_of(folders))
        sessions = dialogue.static_sessions
        for session in sessions:
            beginnings.bring(session)
        dialogue.warm_up(scheduler)
        if self.keeps:
            beginnings.sweep()
            for session in sessions:
                beginnings.keep(session)

    def guidance(self, engines: Engines, tracer: Tracer) -> GuidanceStage:
        """Navigation's own prompts, on the chain's voices and under leases of navigation where there is an arbiter."""
        section = self.profile.guidance
        voices: dict[Language, Voice] = {
            name: GuidanceVoice(voice, engines.tts_turns) for name, voice in engines.voices.items()
        }
        lease = guidance_lease(self.service)
        cache_bytes = section.cache_mb << 20
        return GuidanceStage(voices, over_reply=section.over_reply, lease=lease, cache_bytes=cache_bytes, tracer=tracer)

    def engines(self) -> tuple[Engines, TtsStage]:
        """The models, warm, and the stage that speaks: its apologies are made while the voices warm up."""
        profile, models, placements = self.profile, self.models, self.placements
        with self.growth.around("asr"):
            recogniser = _timed("asr", self.announce, lambda: _recogniser(profile, models, placements))
        talk, *others = profile.llm.models
        api_texts = self.kv_sessions - KV_SESSIONS
        with self.growth.around("llm"):
            model = _timed("llm", self.announce, lambda: self.language_model(talk, KV_SESSIONS, api_texts))
            background = model
            for own in others if api_texts else ():  # only requests of the API use it
                load = partial(self.language_model, own, own_texts(profile, own), profile.api.requests)
                background = _timed("background llm", self.announce, load)
        espeak = models.load(factory.PHONEMIZERS, PHONEMES, None)
        models.opened.callback(espeak.close)
        with self.growth.around("tts"):
            voices = _voices(profile, models, espeak, placements)
            turns = EngineTurns()
            tts = TtsStage({name: ChainVoice(voice, turns) for name, voice in voices.items()})
            _timed("tts", self.announce, tts.warm_up)
        return Engines(recogniser, voices, model, background, espeak, EngineTurns(), turns), tts

    def parser(self) -> ParserEngine | None:
        """The parser's model, where the profile wants it: one thread, for a few milliseconds a sentence."""
        nlu = self.profile.nlu
        if nlu.parser == "rules":
            return None
        return _timed("parser", self.announce, lambda: self.models.load(factory.PARSERS, nlu.model, None))

    def encoder(self) -> Future[SentenceEncoder] | None:
        """The sentence encoder, loading in a thread of its own: its tokenizer takes longer than a start may wait."""
        name = self.profile.manual.encoder
        if name is None:
            return None
        loading: Future[SentenceEncoder] = Future()

        def load() -> None:
            try:
                loading.set_result(self.models.load(factory.ENCODERS, name, None))
            except BaseException as error:  # raised again where the encoder is asked for
                loading.set_exception(error)

        # No executor: a signal that comes while one starts its thread leaves a thread that waits for work for ever.
        threading.Thread(target=load, name="encoder").start()
        return loading

    def manual(self, encoder: Future[SentenceEncoder] | None) -> Manual:
        """The owner's manual, with the vectors of its sections."""
        store = self.models.store
        section, cache = self.profile.manual, store.root / "manual"
        open_it = partial(open_manual, section.file, cache, store.registry, section.encoder, encoder)
        return _timed("manual", self.announce, open_it)

    def agent_model(self, engines: Engines) -> CausalLM:
        """The model of the agent loop: that of a role, or a further one that the profile names (on a CPU)."""
        name, llm = self.profile.agent.model, self.profile.llm
        talk = llm.dialogue
        if name is None or name == talk.model:
            return engines.model
        if name == llm.named("background") and engines.background is not engines.model:
            return engines.background
        options = factory.LlmOptions(threads=talk.threads, context_tokens=talk.context_tokens, slots=1)
        return _timed("agent", self.announce, lambda: self.models.load(factory.LANGUAGE_MODELS, name, options))

    def language_model(self, of: LanguageModel, own: int, requests: int) -> CausalLM:
        """A language model with room for its texts and those of requests; on a device all its graphs are captured."""
        placements = self.placements
        bounds = PolicyBounds() if self.service is None else self.service.config.policy
        options = factory.LlmOptions(
            threads=of.threads,
            context_tokens=of.context_tokens,
            slots=own,
            batch=requests,
            width=factory.width_of(self.profile.api.requests),
            drafts=[count for count in bounds.draft_tokens if count],
            kv_keep_ratio=of.kv_keep_ratio,
            placements=placements.llm,
        )
        model = self.models.load(factory.LANGUAGE_MODELS, of.name, options)
        if placements.llm is not None:  # captures every graph, before anything urgent may run
            model.warm_up(longest_chunk=max(bounds.prefill_chunk_tokens))
        return model


def _timed(what: str, announce: Announce, make: Callable[[], T]) -> T:
    announce(what, None)
    start_s = time.perf_counter()
    made = make()
    announce(what, (time.perf_counter() - start_s) * 1000)
    return made


def _recogniser(profile: Profile, models: BuiltModels, placements: EnginePlacements) -> SpeechRecognizer:
    engine = models.load(factory.RECOGNIZERS, profile.asr.model, placements.asr)
    engine.warm_up()
    return engine


def _voices(
    profile: Profile, models: BuiltModels, espeak: EspeakWorker, placements: EnginePlacements
) -> dict[Language, Voice]:
    voices: dict[Language, Voice] = {}
    chosen: tuple[tuple[Language, str], ...] = (("en", profile.tts.en_voice), ("zh", profile.tts.zh_voice))
    for language, name in chosen:
        options = factory.VoiceOptions(language, placements.tts, espeak, profile.tts.speed)
        voices[language] = models.load(factory.VOICES, name, options)
    return voices


def vehicle_of(profile: Profile) -> SignalBackend:
    """The car's signals, as the profile says. Raises BrokerAbsent, StartupError, ConfigError for an overlay."""
    vehicle = profile.vehicle
    signals = signals_with(vehicle.signals)
    if vehicle.backend == "kuksa":
        from pipeline.vehicle.kuksa import KuksaTree

        where = vehicle.socket or vehicle.address
        assert where is not None
        return KuksaTree.connect(where, signals, ca_file=vehicle.ca_file, token_file=vehicle.token_file)
    return EmbeddedTree(signals)
