"""The whole chain assembled for a GPU, on one that is made of host memory and runs its graphs on the CPU.

Everything of the CUDA path is real but the driver and ONNX Runtime's provider: lanes, placements, weights once, turns
of copies, measured peaks, the order in which things end. The graphs are those of a GPU in float32.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import onnxruntime as ort
import pytest

import cockpit.device.base as device_base
from cockpit.arbiter.status import TaskStatus
from cockpit.assemble import Assembly, assemble
from cockpit.device.cuda import placement as cuda_engines
from cockpit.device.cuda import sessions as cuda_sessions
from cockpit.device.cuda.device import open_cuda
from cockpit.profile import runnable
from cockpit.profile.load import LoadedProfile, load_profile
from cockpit.runtime import NullSink, Runtime
from cockpit.scheduling.llm_lease import LaneLlmScheduler
from cockpit.scheduling.service import SchedulingPlan
from cockpit.scheduling.tasks import names_of
from cockpit.scheduling.voice_task import task_lane
from models.engines.llm.session import LmSession
from models.store.registry import Registry
from models.store.store import Store
from pipeline.audio.source import WavSource
from pipeline.dialogue.llm_steps import fill
from pipeline.frames import Task
from tests.support.arbiter_config import patient
from tests.support.cuda.fake_cuda import FakeDriver
from tests.support.cuda.host_memory import HostMemory
from tests.support.paths import AUDIO
from tests.support.waiting import ended, until

PROFILE = """
extends: h200
asr: {model: whisper-base-f32-device}
llm: {model: smollm2-135m-instruct-f32-device, context_tokens: 512, max_reply_tokens: 16}
tts: {en_voice: piper-en-joe-gpu}
"""
PEAK = 5 << 20


class CountedGpu(FakeDriver, HostMemory):
    """SMs that are only counted, and device memory that is host memory: what was queued is done at once."""

    def __init__(self) -> None:
        FakeDriver.__init__(self)
        HostMemory.__init__(self)
        self.ended: list[str] = []

    def upload(self, address: int, host: int, size_bytes: int, stream: int) -> None:
        HostMemory.upload(self, address, host, size_bytes, stream)
        HostMemory.synchronise(self, stream)

    def synchronise(self, stream: int) -> None:
        HostMemory.synchronise(self, stream)

    def memory(self) -> tuple[int, int]:
        """(free, total): every block counts, and PEAK for each that was allocated."""
        used = sum(len(block) + PEAK for block in self.blocks.values())
        return (140 << 30) - used, 140 << 30

    def free(self, address: int) -> None:
        self.ended.append("memory")
        HostMemory.free(self, address)

    def destroy(self, partitions: object, streams: object) -> None:
        self.ended.append("lanes")


@pytest.fixture(scope="module")
def driver() -> CountedGpu:
    return CountedGpu()


@pytest.fixture(scope="module", autouse=True)
def any_device() -> Iterator[None]:
    """Float32 twins, which the registry keeps from profiles for a GPU, serve the GPU that is a CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Registry, "loadable", lambda registry, name, *_: registry.get(name))
        yield


@pytest.fixture(scope="module")
def loaded(model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> LoadedProfile:
    file = tmp_path_factory.mktemp("profile") / "host.yaml"
    file.write_text(PROFILE, encoding="utf-8")
    loaded = load_profile(str(file))
    for name in loaded.profile.model_names:
        model_dir(name)
    return loaded


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def assembly(loaded: LoadedProfile, driver: CountedGpu, state: Path) -> Iterator[Assembly]:
    gc.collect()  # another module's models
    assert loaded.arbiter is not None
    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    with pytest.MonkeyPatch.context() as patch:
        backends = {**device_base._BACKENDS, "cuda": (__name__, "open_host")}
        patch.setattr(device_base, "_BACKENDS", backends)
        patch.setattr(
            f"{__name__}.open_host", lambda clusters, lanes: open_cuda(clusters, lanes, driver), raising=False
        )
        patch.setattr(ort, "get_available_providers", lambda: providers)
        patch.setattr(runnable, "gpu", lambda *, required: iter(()))  # NVML sees none
        for module in (cuda_engines, cuda_sessions):
            patch.setattr(module, "PROVIDER", "CPUExecutionProvider")
        patch.setattr(cuda_engines.CudaPlacement, "device", "cpu")
        plan = SchedulingPlan(patient(loaded.arbiter), state_dir=state)
        made = assemble(loaded.profile, Store.open(), NullSink(), scheduling=plan)
        yield made
        made.close()


def test_a_command_runs_through_the_lanes(runtime: Runtime) -> None:
    runtime.listen(WavSource(AUDIO / "en01.wav", pace="fast"))
    assert runtime.wait_idle(60)
    (turn,) = runtime.turn_log.closed()
    assert "22" in turn.transcript
    assert turn.as_json()["tool_calls"][0]["name"] == "set_temperature"
    assert turn.reply


def test_the_model_answers_in_a_lane_of_its_task(runtime: Runtime, assembly: Assembly) -> None:
    assert assembly.service is not None
    dispatcher = assembly.service.dispatcher

    def dialogue() -> TaskStatus:
        return next(task for task in dispatcher.status().tasks if task.name == "dialogue_task")

    before = dialogue().finished
    runtime.ask("Tell me something about dolphins.", "en", assembly.turn_ids.next())
    assert runtime.wait_idle(300)
    until(lambda: dialogue().finished > before, runtime.turn_log.closed()[-1].reply)
    assert dialogue().held_mb > 0
    assert runtime.turn_log.closed()[-1].reply


NAVIGATION_WORDS, TALK_WORDS = "Which way is the station from here", "Tell me something about the sea"


def test_two_tasks_that_alternate_on_one_model_say_what_each_says_alone(assembly: Assembly) -> None:
    """One scratch, one lane in use: navigation comes in between any two tokens of the dialogue, again and again."""
    model, service = assembly.engines.model, assembly.service
    assert service is not None
    talk = assembly.parts.dialogue.chat_sessions["en"]
    assert assembly.parts.dialogue.chooser is not None
    way = assembly.parts.dialogue.chooser.session

    def said(session: LmSession, text: str, task: Task, tokens: int) -> list[int]:
        lane = task_lane(service, model, lanes=True)
        scheduler = LaneLlmScheduler(
            service.dispatcher, names_of(service.config.tasks), lane, service.evicted, lambda _: None
        )
        session.forget()
        with scheduler.block(bool):
            steps = scheduler.on(session, task=task)
            fill(session, model.tokenizer.encode(text), steps)
            made = list(session.generate(max_new_tokens=tokens, at_boundary=steps.at_token))
        assert not scheduler.stopped
        return made

    alone = said(talk, TALK_WORDS, "dialogue", 60), said(way, NAVIGATION_WORDS, "navigation", 4)
    together: list[list[int]] = []
    talking = threading.Thread(target=lambda: together.append(said(talk, TALK_WORDS, "dialogue", 60)))
    arbiter = service.dispatcher.arbiter
    before = arbiter.latency[arbiter.task_index["navigation_task"]].count
    talk.forget()
    talk.set_tokens(model.tokenizer.encode("anew"))
    talking.start()
    ways: list[list[int]] = []
    until(lambda: len(talk.tokens) > 2)
    while talking.is_alive() and len(ways) < 8:
        ways.append(said(way, NAVIGATION_WORDS, "navigation", 4))
        length = len(talk.tokens)
        until(partial(lambda seen: len(talk.tokens) > seen or not talking.is_alive(), length))  # it had its turn
    ended(talking)
    assert len(ways) > 2
    assert together == [alone[0]]
    assert all(way == alone[1] for way in ways)
    assert arbiter.latency[arbiter.task_index["navigation_task"]].count == before + len(ways)
    assert not service.model_turn.locked()


def test_weights_are_in_device_memory_once(assembly: Assembly, driver: CountedGpu, loaded: LoadedProfile) -> None:
    """Two lanes of the dialogue; only the language model's weights are handed in."""
    weights = (Store.open().built(loaded.profile.llm.named("dialogue")) / "model.bin").stat().st_size
    sizes = [len(block) for block in driver.blocks.values()]
    assert assembly.placements.llm is not None
    assert len(assembly.placements.llm) == 2
    assert sum(abs(size - weights) < weights // 100 for size in sizes) == 1


def test_nothing_was_left_to_be_captured_later(assembly: Assembly) -> None:
    engines = assembly.placements.close.__self__  # type: ignore[attr-defined]
    assert engines.start.over
    assert engines.copies.chunks > 100, "weights took their turns"
    assert [session.uncaptured for session in engines._sessions] == [0] * len(engines._sessions)


def test_the_next_start_plans_with_measured_peaks(assembly: Assembly, state: Path) -> None:
    (file,) = state.glob("memory-*.json")
    said = file.read_text(encoding="utf-8")
    assert all(lane in said for lane in ("dialogue_task:1", "dialogue_task:2", "speech_task:1"))
    assert "navigation_task" not in said, "no engine of the chain runs there"


def test_engines_end_before_memory_and_lanes(assembly: Assembly, driver: CountedGpu) -> None:
    """The last test of this module: it ends the assembly."""
    assembly.close()
    assert driver.ended[-1] == "lanes"
    assert set(driver.ended[:-1]) == {"memory"}
    assert not driver.blocks
