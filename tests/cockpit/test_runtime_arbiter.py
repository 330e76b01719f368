"""The voice chain under the arbiter: it gives way, goes on where it was, and says over its socket what it does."""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from cockpit.arbiter.config import BACKGROUND, DIALOGUE, NAVIGATION, SPEECH
from cockpit.assemble import Assembly, assemble
from cockpit.cli import talk
from cockpit.cli.o3ctl import app
from cockpit.profile.load import load_profile
from cockpit.profile.memory_plan import KV_SESSIONS
from cockpit.profile.sections import Profile
from cockpit.runtime import NullSink, Runtime
from cockpit.scheduling.control_socket import default_socket
from cockpit.scheduling.llm_lease import LaneLlmScheduler, TaskLane
from cockpit.scheduling.service import SchedulingPlan, SchedulingService, open_service
from cockpit.scheduling.voice_task import must_bind
from cockpit.service.notify import Notifier
from cockpit.service.state import ServiceState
from models.engines.llm.session import LmSession
from models.errors import ConfigError
from models.store.store import Store
from pipeline.audio.source import WavSource
from pipeline.dialogue.llm_steps import LlmScheduler
from pipeline.frames import Language, ToolCall
from tests.support.paths import AUDIO
from tests.support.waiting import until

QUESTION = "Why is the sky blue?"


@pytest.fixture
def folder(control_socket: Path) -> Path:
    """Where the shared chain has its socket."""
    return control_socket.parent


@pytest.fixture
def shared(assembly: Assembly) -> SchedulingService:
    assert assembly.service is not None
    return assembly.service


def ctl(folder: Path, *words: str) -> str:
    result = CliRunner().invoke(app, [*words, "--socket", str(folder / "o3.sock")])
    assert result.exit_code == 0, result.output
    return result.output


def dialogue(folder: Path) -> dict[str, Any]:
    tasks = json.loads(ctl(folder, "status", "--json"))["status"]["tasks"]
    return next(task for task in tasks if task["name"] == DIALOGUE)


def answered(runtime: Runtime, assembly: Assembly, text: str) -> str:
    turn_id = assembly.turn_ids.next()
    runtime.ask(text, "en", turn_id)
    assert runtime.wait_idle(60.0)
    record = runtime.turn_log.get(turn_id)
    assert record is not None
    return record.reply


def test_a_chat_waits_for_navigation_and_goes_on_with_the_same_words(
    assembly: Assembly, runtime: Runtime, shared: SchedulingService
) -> None:
    alone = answered(runtime, assembly, QUESTION)
    assert len(alone.split()) > 5
    arbiter = shared.dispatcher.arbiter
    gate = shared.dispatcher.gates[arbiter.task_index[DIALOGUE]]
    turn_id = assembly.turn_ids.next()
    runtime.ask(QUESTION, "en", turn_id)
    record = None

    def streaming() -> bool:
        nonlocal record
        record = runtime.turn_log.get(turn_id)
        return record is not None and record.reply != ""

    until(streaming)
    assert record is not None
    with shared.dispatcher.lease("navigation_task"):
        until(lambda: gate.parked == 1)
        parked_with = record.reply
        time.sleep(0.4)
        assert record.reply == parked_with
        assert parked_with != alone
    assert runtime.wait_idle(60.0)
    assert record.reply == alone


def test_status_shows_lanes_the_task_and_the_arm(assembly: Assembly, runtime: Runtime, folder: Path) -> None:
    before = dialogue(folder)["finished"]
    answered(runtime, assembly, QUESTION)
    status = json.loads(ctl(folder, "status", "--verbose", "--json"))["status"]
    assert {lane["name"] for lane in status["lanes"]} == {
        "navigation_task:1",
        "speech_task:1",
        "dialogue_task:1",
        "dialogue_task:2",
        "background_task:1",
    }
    assert status["policy"]["description"]
    until(lambda: dialogue(folder)["state"] == "idle")  # it computes what the next answer begins with
    task = dialogue(folder)
    assert task["finished"] > before
    assert task["lane"] == "dialogue_task:2"
    assert task["p50_ms"] > 0


def test_the_whole_chain_books_its_sessions_and_shows_its_memory_plan(assembly: Assembly, folder: Path) -> None:
    reply = json.loads(ctl(folder, "status", "--verbose", "--json"))
    sessions = {item["session"]: item["bytes"] for item in reply["status"]["eviction_candidates"]}
    assert set(sessions) == {"agent", "chat-en", "chat-zh", "choose"}
    planned = {line["name"]: line["count_bytes"] for line in reply["memory_plan"]["lines"]}
    assert planned["kv arena"] == KV_SESSIONS * assembly.parts.dialogue.chat_sessions["en"].kv_bytes
    assert dialogue(folder)["held_mb"] == pytest.approx(sum(sessions.values()) / 2**20)


@pytest.fixture
def asked(shared: SchedulingService, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The tasks that each thread asks the arbiter for, in order."""
    seen: dict[str, list[str]] = {}
    submit = shared.dispatcher.submit

    def noted(task: int, *rest: Any) -> Any:
        names = seen.setdefault(threading.current_thread().name, [])
        names.append(shared.dispatcher.arbiter.task_names[task])
        return submit(task, *rest)

    monkeypatch.setattr(shared.dispatcher, "submit", noted)
    return seen


def test_every_stage_of_a_spoken_turn_asks_as_the_task_of_its_turn(
    assembly: Assembly, runtime: Runtime, asked: dict[str, list[str]]
) -> None:
    runtime.listen(WavSource(AUDIO / "en01.wav", pace="fast"))
    assert runtime.wait_idle(120.0)
    (turn,) = runtime.turn_log.closed()
    assert turn.reply
    assert (turn.task, turn.as_json()["task"]) == ("vehicle", "vehicle")
    assert set(asked["recognise"]) == {SPEECH}
    assert set(asked["speak"]) == {SPEECH}


@pytest.mark.parametrize(
    ("text", "language", "task", "runs_as"),
    [
        ("it's stuffy in here", "en", "vehicle", NAVIGATION),  # whose lane stands in
        (QUESTION, "en", "dialogue", DIALOGUE),
        ("天空为什么是蓝色的？", "zh", "dialogue", DIALOGUE),
    ],
)
def test_the_model_runs_as_the_task_of_the_parse(
    assembly: Assembly,
    runtime: Runtime,
    asked: dict[str, list[str]],
    text: str,
    language: Language,
    task: str,
    runs_as: str,
) -> None:
    turn_id = assembly.turn_ids.next()
    runtime.ask(text, language, turn_id)
    assert runtime.wait_idle(120.0)
    record = runtime.turn_log.get(turn_id)
    assert record is not None
    assert (record.task, record.decided_by) == (task, "model")
    assert asked["understand"][0] == runs_as
    assert set(asked["understand"][1:]) <= {runs_as, BACKGROUND}, "and what comes next is prepared in the background"
    assert set(asked["speak"]) == {SPEECH}


def test_what_a_model_chooses_between_for_navigation_runs_as_navigation(
    assembly: Assembly, asked: dict[str, list[str]]
) -> None:
    chooser = assembly.parts.dialogue.chooser
    assert chooser is not None
    calls = [ToolCall("navigate_to", {"place": place}) for place in ("airport", "station")]
    scheduler = assembly.parts.scheduler
    with scheduler.block(bool):
        choice = chooser.choose("to the place where the trains are", calls, scheduler=scheduler, task="navigation")
    assert choice is not None
    assert list(asked.values()) == [[NAVIGATION]]


def test_every_task_is_warmed_up_by_requests_of_its_own_kinds(
    assembly: Assembly, shared: SchedulingService, asked: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    warm_ups = assembly.warm_ups
    assert warm_ups is not None
    tasks = shared.config.tasks
    runs: list[str] = []
    recogniser, voice = assembly.engines.recogniser, assembly.engines.voices["en"]
    transcribe, synthesise, generate = type(recogniser).transcribe, type(voice).synthesise, LmSession.generate

    def noted(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            runs.append(name)
            return run(*arguments, **named)

        return call

    monkeypatch.setattr(type(recogniser), "transcribe", noted("hear", transcribe))
    monkeypatch.setattr(type(voice), "synthesise", noted("say", synthesise))
    monkeypatch.setattr(LmSession, "generate", noted("write", generate))
    before = warm_ups.requests
    warm_ups.at_start()
    (asked_for,) = asked.values()
    assert sorted(asked_for) == sorted(name for name, task in tasks.items() for _ in range(task.warmup_requests))
    assert set(asked_for) == set(tasks)
    assert asked_for[-1] == NAVIGATION, "the warmest"
    assert warm_ups.requests == before + len(asked_for)
    assert (runs.count("hear"), runs.count("say")) == (1, 2), "speech hears and says, navigation says"
    assert runs.count("write") == len(asked_for) - 1


def test_words_that_leave_one_meaning_take_no_lane(assembly: Assembly, runtime: Runtime, folder: Path) -> None:
    before = dialogue(folder)["finished"]
    ctl(folder, "pause", DIALOGUE)
    try:
        assert "22" in answered(runtime, assembly, "Set the driver temperature to 22 degrees")
    finally:
        ctl(folder, "resume", DIALOGUE)
    assert dialogue(folder)["finished"] == before


def test_a_paused_dialogue_waits_until_it_is_resumed(assembly: Assembly, runtime: Runtime, folder: Path) -> None:
    ctl(folder, "pause", DIALOGUE)
    runtime.ask("Why is the grass green?", "en", assembly.turn_ids.next())
    try:
        until(lambda: dialogue(folder)["queued"] == 1)
        assert dialogue(folder)["state"] == "paused (operator)"
        assert not runtime.wait_idle(0.5)
    finally:
        ctl(folder, "resume", DIALOGUE)
    assert runtime.wait_idle(60.0)
    assert runtime.turn_log.closed()[-1].reply


def test_a_barge_in_ends_the_wait_for_a_lane(assembly: Assembly, runtime: Runtime, folder: Path) -> None:
    ctl(folder, "pause", DIALOGUE)
    try:
        runtime.ask(QUESTION, "en", assembly.turn_ids.next())
        until(lambda: dialogue(folder)["queued"] == 1)
        assembly.parts.generations.bump()
        until(lambda: dialogue(folder)["queued"] == 0)
    finally:
        ctl(folder, "resume", DIALOGUE)


def test_a_question_that_gets_no_lane_is_told_so(
    assembly: Assembly, runtime: Runtime, shared: SchedulingService, monkeypatch: pytest.MonkeyPatch
) -> None:
    arbiter = shared.dispatcher.arbiter
    index = arbiter.task_index[DIALOGUE]
    hasty = tuple(
        replace(task, timeout_ns=300_000_000) if place == index else task for place, task in enumerate(arbiter.tasks)
    )
    monkeypatch.setattr(arbiter, "tasks", hasty)
    with shared.dispatcher.lease("navigation_task"):
        assert "busy" in answered(runtime, assembly, QUESTION)


def test_what_was_said_is_computed_in_idle_time(assembly: Assembly, runtime: Runtime) -> None:
    """Once the reply was heard the next question need only compute its own words."""
    dialogue = assembly.parts.dialogue
    answered(runtime, assembly, QUESTION)
    session = dialogue.chat_sessions["en"]
    expected = tuple(dialogue._history_tokens("en"))
    until(lambda: session.tokens == tuple(dialogue._history_tokens("en")))
    until(lambda: session.cached == len(session.tokens))
    assert len(session.tokens) >= len(expected)


def test_degraded_mode_pauses_the_work_of_idle_time_and_it_is_resumed(
    assembly: Assembly, runtime: Runtime, shared: SchedulingService, folder: Path
) -> None:
    """The shipped profile: below its promise background is what waits, here the summary of older talk."""
    arbiter, dialogue_manager = shared.dispatcher.arbiter, assembly.parts.dialogue
    background, talking = arbiter.task_index[BACKGROUND], arbiter.task_index[DIALOGUE]
    older = dialogue_manager.older
    older.text = ""
    older._pending.clear()
    second_ns = 1_000_000_000
    now_ns = time.monotonic_ns()
    for second in range(6):  # one token a second, where eight are promised
        arbiter.floor.generated(talking, 1, second_ns, now_ns + second * second_ns)
    status = json.loads(ctl(folder, "status", "--json"))["status"]
    assert status["degraded"]["active"]
    assert status["degraded"]["paused"] == [BACKGROUND]
    before = arbiter.queues.high_water[background]
    older.leaves("My name is Ann and I love the sea.", "The sea is wonderful, Ann.", "en")
    older.leaves("Which fish live in the sea?", "Tuna, cod and many others.", "en")
    answered(runtime, assembly, "Set the driver temperature to 21 degrees")
    until(lambda: arbiter.queues.high_water[background] > 0 or before)
    assert older.text == ""
    assert older.due, "it waits, and nothing of it is lost"
    state = {task["name"]: task["state"] for task in json.loads(ctl(folder, "status", "--json"))["status"]["tasks"]}
    assert state[BACKGROUND] == "paused (degraded)"
    for second in range(6, 30):  # the promise is kept again
        arbiter.floor.generated(talking, 20, second_ns, now_ns + second * second_ns)
    assert not json.loads(ctl(folder, "status", "--json"))["status"]["degraded"]["active"]
    until(lambda: not older.due)
    assert older.messages() == [] or older.text in older.messages()[0]["content"]


def test_the_arbiter_costs_a_turn_less_than_50_us(assembly: Assembly) -> None:
    """Time of this thread on a core, of the quickest tenth: caches that others empty meanwhile are not its cost."""
    scheduler = assembly.parts.scheduler
    steps = scheduler.on(assembly.parts.dialogue.chat_sessions["en"])
    leases_us, tokens_us = [], []
    for _ in range(200):
        start_ns = time.thread_time_ns()
        with scheduler.block(bool):
            steps.at_prefill()
        leases_us.append((time.thread_time_ns() - start_ns) / 1e3)
    for _ in range(20):
        with scheduler.block(bool):
            start_ns = time.thread_time_ns()
            for _ in range(100):
                steps.at_token()
            tokens_us.append((time.thread_time_ns() - start_ns) / 1e3 / 100)
    lease_us, per_token_us = (statistics.quantiles(times, n=10)[0] for times in (leases_us, tokens_us))
    assert lease_us < 50, f"boundary {per_token_us:.2f} us"
    assert per_token_us < 5, f"lease {lease_us:.1f} us"


def masks(scheduler: LlmScheduler, session: Any) -> list[set[int]]:
    """The cores that a thread of its own may use: in a block that runs the model, and after it."""
    seen: list[set[int]] = []

    def inside() -> None:
        with scheduler.block(bool):
            scheduler.on(session).at_prefill()
            seen.append(os.sched_getaffinity(0))
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    return seen


def test_a_dialogue_that_may_have_every_core_is_never_pinned(assembly: Assembly) -> None:
    whole = os.sched_getaffinity(0)
    if len(whole) > 2:
        pytest.skip("profiles/cpu.yaml asks for two cores, which are not all of this machine's")
    assert masks(assembly.parts.scheduler, assembly.parts.dialogue.chat_sessions["en"]) == [whole, whole]


def test_a_dialogue_with_a_core_of_its_own_keeps_to_it_while_the_model_runs() -> None:
    config = load_profile("cpu").arbiter
    assert config is not None
    narrow = replace(config.tasks[DIALOGUE], clusters=("cores_b",))
    made = open_service(SchedulingPlan(replace(config, tasks={**config.tasks, DIALOGUE: narrow})), "cpu")
    try:
        assert must_bind(made, DIALOGUE)
        session = SimpleNamespace(name="s", kv_bytes=1 << 20, draft_tokens=0, drafted=0, accepted=0, redone=0)
        lane = TaskLane(made.device, bound={DIALOGUE})
        scheduler = LaneLlmScheduler(made.dispatcher, {"dialogue": DIALOGUE}, lane, made.evicted, lambda _: None)
        core = set(made.device.clusters["cores_b"].unit_ids)
        assert masks(scheduler, session) == [core, os.sched_getaffinity(0)]
    finally:
        made.close()


def test_tasks_without_a_dialogue_are_refused(model_dir: Callable[[str], Path]) -> None:
    loaded = load_profile("cpu")
    assert loaded.arbiter is not None
    other = replace(loaded.arbiter, tasks={"navigation_task": loaded.arbiter.tasks["navigation_task"]})
    with pytest.raises(ConfigError, match="dialogue_task"):
        assemble(loaded.profile, Store.open(), NullSink(), scheduling=SchedulingPlan(other))


def test_a_process_that_listens_is_found_by_itself_and_takes_its_socket_away(
    assembly: Assembly, folder: Path, monkeypatch: pytest.MonkeyPatch, served_models: None
) -> None:
    """The commands' own way to a socket; models are loaded once, in the fixture."""
    socket = folder / "auto.sock"
    monkeypatch.setenv("O3CTL_SOCKET", str(socket))

    class Quiet:
        def close(self) -> None:
            return None

    def light(profile: Profile, *_: object, scheduling: SchedulingPlan, **__: object) -> Assembly:
        engines = replace(assembly.engines, espeak=Quiet())  # type: ignore[arg-type]
        return replace(assembly, service=open_service(scheduling, profile.device), engines=engines)

    monkeypatch.setattr(talk, "assemble", light)
    with talk.talking("cpu", NullSink(), None, quiet=True, service=ServiceState(Notifier())):
        result = CliRunner().invoke(app, ["status", "--json"])
        assert result.exit_code == 0, result.output
        assert DIALOGUE in result.output
    assert not socket.exists()
    with talk.talking("cpu", NullSink(), None, quiet=True):
        assert not socket.exists(), "say and ask have no socket by themselves"


def test_without_a_running_process_the_error_says_what_to_do(folder: Path) -> None:
    result = CliRunner().invoke(app, ["status", "--socket", str(folder / "nobody.sock")])
    assert result.exit_code == 3
    assert "is Cockpit running?" in result.output


def test_the_default_socket_is_private_to_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("O3CTL_SOCKET", "RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 4321)
    monkeypatch.setattr("os.access", lambda *_: False)
    assert default_socket() == Path("/tmp/cockpit-4321/o3.sock")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_socket() == tmp_path / "cockpit" / "o3.sock"
