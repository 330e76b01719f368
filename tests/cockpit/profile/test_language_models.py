"""Language models by role: both forms of `llm`, one engine for one model, memory, what the commands show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cockpit.profile.explain import explain
from cockpit.profile.json_schema import file_schema
from cockpit.profile.language_models import LanguageModel
from cockpit.profile.load import load_profile
from cockpit.profile.memory_plan import plan_memory
from cockpit.profile.sections import Profile
from models.errors import ConfigError
from models.store.store import Store

QWEN, SMOL = "qwen2.5-coder-0.5b-instruct", "smollm2-135m-instruct"
TWO = f"extends: cpu\nllm:\n  background: {{model: {SMOL}, context_tokens: 1024, threads: 1}}\n"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def built(model_dir: Callable[[str], Path]) -> None:
    """The shapes of models that are not built are not known."""
    for name in (QWEN, SMOL):
        model_dir(name)


def write(folder: Path, text: str, name: str = "p.yaml") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def fault(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_profile(write(folder, text))
    return str(caught.value).replace(f"{folder}/", "")


def test_the_older_form_is_the_dialogues(written: Path) -> None:
    old = load_profile(write(written, f"extends: cpu\nllm: {{model: {SMOL}, threads: 1}}\n"))
    new = load_profile(write(written, f"extends: cpu\nllm: {{dialogue: {{model: {SMOL}, threads: 1}}}}\n"))
    assert old.profile.llm == new.profile.llm
    assert old.profile.llm.models == (LanguageModel(SMOL, ("dialogue", "background"), 1, 2048),)
    assert Profile.model_validate({"llm": {"threads": 1}}).llm.dialogue.threads == 1


def test_one_chain_may_write_both_forms(written: Path) -> None:
    write(written, "extends: cpu\nllm: {threads: 1, context_tokens: 1024}\n", "parent.yaml")
    loaded = load_profile(write(written, f"extends: parent.yaml\nllm: {{background: {{model: {SMOL}}}}}\n"))
    talk, own = loaded.profile.llm.models
    assert (talk.name, talk.roles, talk.threads, talk.context_tokens) == (QWEN, ("dialogue",), 1, 1024)
    assert (own.name, own.roles, own.threads, own.context_tokens) == (SMOL, ("background",), 1, 1024)
    assert str(loaded.place(("llm", "dialogue", "threads"))).endswith("parent.yaml:2:7")
    dropped = load_profile(write(written, "extends: p.yaml\nllm: {background: null}\n", "q.yaml"))
    assert [model.name for model in dropped.profile.llm.models] == [QWEN]


@pytest.mark.parametrize(
    ("llm", "expected"),
    [
        ("{threads: 0}", "p.yaml:2:7: llm.threads: "),
        ("{modle: x}", "p.yaml:2:7: llm.modle: unknown key 'modle'; did you mean model?"),
        ("{dialogue: {threads: 0}}", "p.yaml:2:18: llm.dialogue.threads: "),
        ("{dialogue: {}, threads: 1}", "p.yaml:2:21: llm.threads: unknown key 'threads'; known keys: dialogue, backg"),
        ("{background: {}}", "llm.background.model: model is required"),
        ("{background: {model: smollm2}}", "llm.background.model: no such model 'smollm2'; did you mean smollm2-135m"),
        ("{background: {model: whisper-base}}", "llm.background.model: whisper-base"),
        (f"{{background: {{model: {SMOL}-f16}}}}", f"llm.background.model: {SMOL}-f16 is made for cuda"),
        (f"{{background: {{model: {QWEN}, threads: 1}}}}", f"llm: both roles name {QWEN} and share its engine"),
        ("{retrieval: {model: x}, dialogue: {}}", "llm.retrieval: unknown key"),
    ],
)
def test_faults_name_the_key_as_it_is_written(written: Path, llm: str, expected: str) -> None:
    assert expected in fault(written, f"extends: cpu\nllm: {llm}\n")


def test_both_roles_may_name_one_model_which_is_loaded_once(written: Path) -> None:
    loaded = load_profile(write(written, f"extends: cpu\nllm: {{background: {{model: {QWEN}}}}}\n"))
    assert loaded.profile.llm.models == load_profile("cpu").profile.llm.models
    assert loaded.profile.model_names.count(QWEN) == 1
    assert plan_memory(loaded, Store.open()) == plan_memory(load_profile("cpu"), Store.open())


def test_the_plan_holds_each_models_weights_and_caches_once(written: Path, built: None) -> None:
    alone = plan_memory(load_profile("cpu"), Store.open())
    loaded = load_profile(write(written, TWO))
    both = plan_memory(loaded, Store.open())
    lines = {line.name: line for line in both.lines}
    assert set(lines) - {line.name for line in alone.lines} == {SMOL, f"kv arena of {SMOL}"}
    assert lines[SMOL].kind == "weights"
    shared = sum(line.count_bytes for line in alone.lines if line.name != "llm activations")
    added = lines[SMOL].count_bytes + lines[f"kv arena of {SMOL}"].count_bytes + lines["llm activations"].count_bytes
    assert both.sum_bytes == shared + added
    needs = {need.task: need.kv_bytes for need in both.needs}
    assert needs["background_task"] == lines[f"kv arena of {SMOL}"].count_bytes
    assert needs["dialogue_task"] == lines["kv arena"].count_bytes


def test_an_agents_model_is_planned_once_whatever_else_names_it(written: Path, built: None) -> None:
    few = TWO + "api: {requests: 1}\n"
    both = plan_memory(load_profile(write(written, few)), Store.open())
    shared = plan_memory(load_profile(write(written, few + f"agent: {{model: {SMOL}}}\n")), Store.open())
    assert [line.name for line in shared.lines] == [line.name for line in both.lines]
    arena = f"kv arena of {SMOL}"
    sizes = [{line.name: line.count_bytes for line in plan.lines}[arena] for plan in (both, shared)]
    assert sizes[1] > sizes[0], "a further text"
    alone = plan_memory(load_profile(write(written, f"extends: cpu\nagent: {{model: {SMOL}}}\n")), Store.open())
    lines = {line.name: line for line in alone.lines}
    assert lines[arena].count_bytes > 0
    assert {need.task: need.kv_bytes for need in alone.needs} == {
        "dialogue_task": lines[arena].count_bytes + lines["kv arena"].count_bytes
    }


def test_tasks_may_name_the_model_that_runs_them(written: Path) -> None:
    assert load_profile(write(written, TWO + f"tasks: {{background_task: {{model: {SMOL}}}}}\n"))
    assert "background_task runs" in fault(written, TWO + f"tasks: {{background_task: {{model: {QWEN}}}}}\n")


def test_explain_and_schema_know_both_forms(written: Path) -> None:
    loaded = load_profile(write(written, TWO))
    found = explain(loaded, "llm.background.model")
    assert found.value == SMOL
    assert found.origin.endswith("p.yaml:3:16")
    assert explain(loaded, "llm.threads") == explain(loaded, "llm.dialogue.threads")
    section = file_schema()["$defs"]["LlmSection"]["properties"]
    assert {"dialogue", "background", "model", "threads", "context_tokens"} <= set(section)
