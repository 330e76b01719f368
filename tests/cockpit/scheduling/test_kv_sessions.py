"""KV memory of the dialogue on a real small model: booked per session, shown, evicted, forgotten and computed anew."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cockpit.arbiter.config import DIALOGUE
from cockpit.cli.o3ctl import app
from cockpit.profile.load import load_profile
from cockpit.profile.memory_budget import MemoryPlan, kv_arena
from cockpit.scheduling.llm_lease import LaneLlmScheduler, LlmLease
from cockpit.scheduling.service import SchedulingPlan, SchedulingService, open_service
from cockpit.scheduling.voice_task import VoiceTask, open_voice_task
from models.engines.llm.causal_lm import CausalLM
from pipeline.dialogue.llm_steps import LlmSteps, UnscheduledLlm, fill
from pipeline.dialogue.manager import DialogueManager
from pipeline.frames import ToolCall
from tests.support.arbiter_config import patient
from tests.support.paths import short_folder
from tests.support.waiting import LONG_S, ended

QUESTION = "Why is the sky blue?"
CHUNK = 16
DRAFT = 2


@dataclass(frozen=True)
class Car:
    """The understanding stage of a process with a control socket, owned by the thread that runs the test."""

    service: SchedulingService
    task: VoiceTask
    dialogue: DialogueManager
    socket: Path

    @property
    def scheduler(self) -> LaneLlmScheduler:
        return self.task.scheduler

    def ctl(self, *words: str) -> str:
        result = CliRunner().invoke(app, [*words, "--socket", str(self.socket)], env={"COLUMNS": "200"})
        assert result.exit_code == 0, result.output
        return result.output

    def status(self) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(self.ctl("status", "--verbose", "--json"))["status"]
        return shown

    def chat(self, text: str = QUESTION, turn_id: int = 1) -> str:
        with self.scheduler.block(bool):
            return "".join(self.stream(text, turn_id))

    def stream(self, text: str, turn_id: int) -> Iterator[str]:
        scheduler = self.scheduler
        return self.dialogue.chat(
            text, "en", turn_id=turn_id, cancelled=lambda: bool(scheduler.stopped), scheduler=scheduler
        )


@pytest.fixture(scope="module")
def car(model_dir: Callable[[str], Path]) -> Iterator[Car]:
    config = load_profile("cpu").arbiter
    assert config is not None
    config = replace(
        patient(config), policy=replace(config.policy, prefill_chunk_tokens=(CHUNK,), draft_tokens=(DRAFT,))
    )
    # In float32 a text computed anew, in other chunks, goes on with the same words.
    model = CausalLM.load(model_dir("smollm2-135m-instruct-f32"), context_tokens=640)
    dialogue = DialogueManager.create(lm=model, reply_tokens=20)
    with short_folder() as folder:
        planned = MemoryPlan((kv_arena(4, dialogue.chat_sessions["en"].kv_bytes),), 85.0, 1 << 34)
        service = open_service(SchedulingPlan(config, folder / "o3.sock", memory=planned), "cpu")
        made = open_voice_task(service, model, lanes=False)
        with made.scheduler.block(bool):
            dialogue.warm_up(made.scheduler)
        yield Car(service, made, dialogue, folder / "o3.sock")
        service.close()


def test_chats_and_choices_are_booked_by_name_and_size(car: Car) -> None:
    status = car.status()
    by_name = {item["session"]: item for item in status["eviction_candidates"]}
    assert set(by_name) == {"agent", "chat-en", "chat-zh", "choose"}, "from their warm-up on"
    assert not car.scheduler.stopped
    car.chat()
    chooser = car.dialogue.chooser
    assert chooser is not None
    calls = [ToolCall("set_defrost", {"area": area, "on": True}) for area in ("front", "rear")]
    with car.scheduler.block(bool):
        choice = chooser.choose("the windows are foggy", calls, scheduler=car.scheduler)
    assert choice is not None
    assert choice.call in calls
    status = car.status()
    by_name = {item["session"]: item for item in status["eviction_candidates"]}
    assert by_name["chat-en"]["uses"] == by_name["choose"]["uses"] == 2
    session = car.dialogue.chat_sessions["en"]
    assert session.kv_bytes > 1 << 20
    assert by_name["chat-en"]["bytes"] >= session.kv_bytes
    assert by_name["chat-zh"]["rank"] == 0
    assert "fewer than K" in by_name["chat-en"]["reason"]
    assert by_name["chat-en"]["age_s"] > 0
    assert not by_name["chat-en"]["running"]
    dialogue = next(task for task in status["tasks"] if task["name"] == DIALOGUE)
    assert dialogue["held_mb"] == pytest.approx(4 * by_name["chat-en"]["bytes"] / 2**20)
    shown = car.ctl("status", "--verbose")
    assert "chat-en" in shown
    assert "4 sessions" in shown


def test_the_memory_plan_is_shown(car: Car) -> None:
    shown = json.loads(car.ctl("status", "--verbose", "--json"))["memory_plan"]
    assert shown["lines"][0]["name"] == "kv arena"
    assert shown["sum_bytes"] == 4 * car.dialogue.chat_sessions["en"].kv_bytes
    assert "memory_plan" not in json.loads(car.ctl("status", "--json"))
    text = car.ctl("status", "--verbose")
    assert "memory plan" in text
    assert "limit 13926 MB" in text


def test_an_evicted_session_is_forgotten_by_its_owner_and_says_the_same_again(car: Car) -> None:
    before = car.chat()
    session = car.dialogue.chat_sessions["en"]
    assert session.cached > 0
    assert "evicted" in car.ctl("evict", "chat-en")
    assert session.cached > 0, "nobody but its owner may touch it"
    assert "chat-en" not in {item["session"] for item in car.status()["eviction_candidates"]}
    with car.scheduler.block(bool):
        pass
    assert session.cached == 0
    assert car.chat() == before
    assert "chat-en" in {item["session"] for item in car.status()["eviction_candidates"]}


def test_a_session_evicted_between_two_steps_of_its_answer_goes_on_with_the_same_words(car: Car) -> None:
    """As when an answer is begun in the trailing silence and goes on after the turn has ended."""
    before = car.chat()
    with car.scheduler.block(bool):
        stream = car.dialogue.chat(QUESTION, "en", turn_id=1, scheduler=car.scheduler)
        pieces = [next(stream)]
    car.ctl("evict", "chat-en")
    with car.scheduler.block(bool):
        assert car.dialogue.chat_sessions["en"].cached == 0
        pieces += stream
    assert "".join(pieces) == before


def test_a_session_evicted_while_it_runs_stops_at_a_boundary(car: Car) -> None:
    session = car.dialogue.chat_sessions["en"]
    evictions = car.status()["memory"]["evictions"]
    with car.scheduler.block(bool):
        steps = car.scheduler.on(session)
        steps.at_prefill()
        assert "next boundary" in car.ctl("evict", "chat-en")
        assert session.cached > 0
        steps.at_token()
        assert "evicted" in car.scheduler.stopped
    assert session.cached == 0
    assert car.status()["memory"]["evictions"] == evictions + 1
    assert car.chat()


def test_the_order_is_carried_out_while_another_thread_answers(car: Car) -> None:
    """The whole way: the stage's thread streams, an operator evicts, the answer ends, the next one is whole again."""
    whole = car.chat()
    said: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def stage() -> None:
        with car.scheduler.block(bool):
            steps = car.scheduler.on(car.dialogue.chat_sessions["en"])
            steps.at_prefill()
            begun.set()
            go_on.wait(LONG_S)
            said.extend(car.stream("Tell me a story.", turn_id=2))

    thread = threading.Thread(target=stage)
    thread.start()
    assert begun.wait(LONG_S)
    running = next(item for item in car.status()["eviction_candidates"] if item["session"] == "chat-en")
    assert running["running"]
    car.ctl("evict", "chat-en")
    go_on.set()
    ended(thread)
    assert car.dialogue.chat_sessions["en"].cached == 0
    assert car.chat() == whole


def test_prefill_goes_in_the_arms_chunks_and_the_arms_draft_reaches_the_session(
    car: Car, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    original = LlmLease.at_prefill

    def noted(lease: LlmLease) -> None:
        seen.append(lease.session.cached)
        original(lease)

    monkeypatch.setattr(LlmLease, "at_prefill", noted)
    session = car.dialogue.chat_sessions["en"]
    session.forget()
    car.chat()
    assert {later - earlier for earlier, later in pairwise(seen)} <= {0, CHUNK}
    assert seen[-1] >= 2 * CHUNK
    assert session.draft_tokens == DRAFT


class Shrinking(UnscheduledLlm):
    """Allows shorter chunks after the second, as an arbiter does for a request that gave its lane back."""

    def __init__(self) -> None:
        self.chunk_tokens = 40
        self.asked = 0

    def at_prefill(self) -> None:
        self.asked += 1
        if self.asked > 2:
            self.chunk_tokens = 10


def test_a_chunk_that_changes_midway_acts_at_once(car: Car, monkeypatch: pytest.MonkeyPatch) -> None:
    session = car.dialogue.chat_sessions["zh"]
    tokens = list(range(100, 220))
    seen: list[int] = []

    class Seen(Shrinking):
        def at_prefill(self) -> None:
            seen.append(session.cached)
            super().at_prefill()

    steps: LlmSteps = Seen()
    session.forget()
    fill(session, tokens, steps)
    assert session.cached == len(tokens)
    assert sorted(set(seen)) == [0, 40, 80, 90, 100, 110]
    fill(session, tokens, steps)
    assert session.tokens == tuple(tokens)


def test_tokens_that_were_drafted_and_accepted_count(car: Car) -> None:
    """Or the token floor would take a faster dialogue for a slower one."""
    assert car.dialogue.lm is not None
    session = car.dialogue.chat_sessions["zh"]
    tokens = car.dialogue.lm.tokenizer.encode("red, green, blue, " * 6)
    counted = car.service.dispatcher.arbiter
    with car.scheduler.block(bool):
        steps = car.scheduler.on(session)
        fill(session, tokens, steps)
        accepted = session.accepted
        made = sum(1 for _ in session.generate(max_new_tokens=24, at_boundary=steps.at_token))
        steps.at_token()
        request = counted.running[counted.task_index[DIALOGUE]]
        assert car.scheduler._held is not None
        assert request is not None
        reported = request.tokens + car.scheduler._held.take_pending()
    assert session.accepted > accepted
    assert made - 1 <= reported <= made + 1
    tasks = {task["name"]: task for task in car.status()["tasks"]}
    drafts = tasks[DIALOGUE]["drafts"]
    assert 0 < drafts["accepted"] <= drafts["offered"]
    assert drafts["acceptance"] == drafts["accepted"] / drafts["offered"]
    assert all(task["drafts"] is None for name, task in tasks.items() if name != DIALOGUE), "nothing drafted is not 0 %"
    assert f"{drafts['acceptance']:.0%} of {drafts['offered']}" in car.ctl("top", "--once")


@pytest.mark.parametrize("when", [1, 2, 5, 9])
def test_what_is_forgotten_at_a_boundary_changes_no_word_of_a_drafted_text(car: Car, when: int) -> None:
    assert car.dialogue.lm is not None
    session = car.dialogue.chat_sessions["zh"]
    tokens = car.dialogue.lm.tokenizer.encode("red, green, blue, " * 6)

    def said(draft: int, at_boundary: Callable[[], None]) -> list[int]:
        session.forget()
        session.draft_tokens = draft
        session.set_tokens(tokens)
        return list(session.generate(max_new_tokens=20, at_boundary=at_boundary))

    plain = said(0, lambda: None)
    boundaries = 0

    def forget() -> None:
        nonlocal boundaries
        boundaries += 1
        if boundaries == when:
            session.forget()

    drafted = session.drafted
    assert said(3, forget) == plain
    assert session.drafted > drafted, "there was something to guess"


def test_two_sessions_of_one_name_are_refused(car: Car) -> None:
    assert car.dialogue.lm is not None
    twin = car.dialogue.lm.open_session()
    twin.name = "chat-en"
    with pytest.raises(ValueError, match="two sessions"):
        car.scheduler.on(twin)


def test_a_block_that_changes_session_changes_lease(car: Car) -> None:
    english, mandarin = (car.dialogue.chat_sessions[language] for language in ("en", "zh"))
    before = next(task for task in car.status()["tasks"] if task["name"] == DIALOGUE)["finished"]
    with car.scheduler.block(bool):
        car.scheduler.on(english).at_prefill()
        car.scheduler.on(mandarin).at_prefill()
        running = {item["session"] for item in car.status()["eviction_candidates"] if item["running"]}
        assert running == {"chat-zh"}
    after = next(task for task in car.status()["tasks"] if task["name"] == DIALOGUE)["finished"]
    assert after == before + 2


def test_what_is_computed_ahead_of_need_is_in_no_latency(car: Car) -> None:
    def task() -> dict[str, Any]:
        shown: dict[str, Any] = next(item for item in car.status()["tasks"] if item["name"] == DIALOGUE)
        return shown

    car.chat()
    before = task()
    car.dialogue.heard(1, "Because the air scatters blue light.")
    with car.scheduler.block(bool):
        assert car.dialogue.prepare(scheduler=car.scheduler)
    session = car.dialogue.chat_sessions["en"]
    assert session.cached == len(session.tokens)
    car.task.warm_ups.at_start()
    assert task() == before
    car.chat("And at night?", turn_id=2)
    assert task()["finished"] == before["finished"] + 1


def test_a_long_stream_whose_first_token_came_in_time_is_not_late(car: Car, monkeypatch: pytest.MonkeyPatch) -> None:
    session = car.dialogue.chat_sessions["en"]
    sla_ms = next(task for task in car.status()["tasks"] if task["name"] == DIALOGUE)["sla_ms"]
    late = next(task for task in car.status()["tasks"] if task["name"] == DIALOGUE)["missed_sla"]
    now_ns = time.monotonic_ns()
    monkeypatch.setattr(car.service.dispatcher, "_clock_ns", lambda: now_ns)
    with car.scheduler.block(bool):
        steps = car.scheduler.on(session)
        steps.at_prefill()
        steps.at_token()
        now_ns += int(sla_ms * 1.3e6)
        steps.at_token()
    assert next(task for task in car.status()["tasks"] if task["name"] == DIALOGUE)["missed_sla"] == late


def test_a_run_that_is_done_again_counts_one_token(car: Car) -> None:
    session = car.dialogue.chat_sessions["en"]

    def tokens() -> int:
        return int(next(task for task in car.status()["tasks"] if task["name"] == DIALOGUE)["tokens"])

    before = tokens()
    with car.scheduler.block(bool):
        steps = car.scheduler.on(session)
        steps.at_prefill()
        for _ in range(3):
            steps.at_token()
            session.redone += 1  # as the session notes it, before it asks again
            steps.at_token()
    assert tokens() == before + 3
