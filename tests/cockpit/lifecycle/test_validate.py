"""What was not seen to work in a fresh process is not served: validation, its results, and who asks for them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cockpit.cli import main, talk
from cockpit.lifecycle import questions
from cockpit.lifecycle import validate as validating
from cockpit.lifecycle.child import Outcome, outcomes
from cockpit.lifecycle.questions import alike, audio_fingerprint, same
from cockpit.lifecycle.validate import in_a_process, validate
from cockpit.service.notify import Notifier
from cockpit.service.state import ServiceState
from models.engines.placement import CpuPlacement
from models.errors import ModelMissing, NotValidated
from models.store import store as storing
from models.store.machine import machine_fields
from models.store.manifest import FILE_NAME as MANIFEST
from models.store.registry import KnownAnswer, load_registry
from models.store.store import Store
from models.store.validation import FILE_NAME, Answer, Validation
from pipeline.audio.lasting import LastingSpeaker

VAD, LM = "silero-vad", "qwen2.5-coder-0.5b-instruct"
PASSED = (Answer("q", "a", "a", True),)


@pytest.fixture
def store(tmp_path: Path, model_dir: Callable[[str], Path]) -> Store:
    """A cache of one small model, a copy."""
    shutil.copytree(model_dir(VAD), tmp_path / "built" / VAD)
    (tmp_path / "built" / VAD / FILE_NAME).unlink(missing_ok=True)
    return Store.open(tmp_path)


def test_a_model_is_validated_in_a_process_of_its_own_and_the_result_lies_beside_it(store: Store) -> None:
    assert store.unvalidated(VAD) == "it was not validated"
    with pytest.raises(NotValidated, match=f"run: cockpit models validate {VAD}"):
        store.require_validated([VAD])
    (outcome,) = validate(store, [VAD], cold=True)
    assert (outcome.fault, outcome.cannot) == ("", "")
    assert [(answer.ask, answer.got) for answer in outcome.answers] == [("en05.wav", "speech"), ("silence", "silence")]
    assert outcome.load_ms > 0
    assert outcome.first_result_ms > 0
    assert outcome.peak_memory_mb > 0
    store.require_validated([VAD])
    kept = Validation.read(store.folder(VAD))
    assert kept is not None
    assert (kept.cold, kept.seed, kept.machine["machine"]) == (True, validating.SEED, os.uname().machine)
    assert store.verify(VAD) == [], "the result is no part of the build"


def test_another_answer_fails_names_both_and_is_not_served(store: Store) -> None:
    entry = store.registry.get(VAD).model_copy(update={"known_answers": (KnownAnswer(ask="silence", answer="speech"),)})
    others = tuple(entry if model.name == VAD else model for model in store.registry.models)
    wrong = Store(store.root, store.registry.model_copy(update={"models": others}))
    (outcome,) = validate(wrong, [VAD])
    assert outcome.fault == "'silence': expected 'speech', got 'silence'"
    with pytest.raises(NotValidated, match="expected 'speech', got 'silence'"):
        wrong.require_validated([VAD])
    assert "has changed" in store.unvalidated(VAD), "with other known answers it has to be asked again"


def test_a_model_that_takes_the_process_with_it_fails_and_the_next_one_is_tried(store: Store) -> None:
    """A graph that is no graph is an error of the engine; a signal shows only in what is missing."""
    work = {
        "models": [
            {"entry": store.registry.get(name).model_dump(mode="json"), "folder": folder, "device": "cpu"}
            for name, folder in ((VAD, str(store.root / "nothing")), (VAD, str(store.folder(VAD))))
        ],
        "phonemes": "", "cold": False, "seed": 1,
    }  # fmt: skip
    broken, sound = in_a_process(work)
    assert "run: cockpit models fetch --build" in broken.fault
    assert sound.fault == ""
    (dead,) = in_a_process({**work, "seed": "no number"})
    assert dead.model == VAD
    assert dead.fault.startswith("its process ended: exit code 1: ")

    def dies(work: Mapping[str, Any]) -> list[Outcome]:
        name = work["models"][0]["entry"]["name"]
        return [Outcome(name, fault="its process ended: SIGSEGV")]

    found = list(validate(store, [VAD], run=dies))
    assert [outcome.fault for outcome in found] == ["its process ended: SIGSEGV"]
    assert "SIGSEGV" in store.unvalidated(VAD)


def test_what_cannot_be_tried_here_keeps_what_it_had(store: Store) -> None:
    list(validate(store, [VAD], run=lambda _: [Outcome(VAD, PASSED)]))
    list(validate(store, [VAD], run=lambda _: [Outcome(VAD, cannot="no GPU")]))
    assert store.unvalidated(VAD) == ""


def test_a_model_of_another_device_than_the_profiles_is_validated_on_its_own(store: Store) -> None:
    """`models fetch --build --profile h200 piper-en-joe` makes both ready."""
    gpu = Store.open(store.root, device="cuda")
    with pytest.raises(ModelMissing, match="piper-en-joe"):  # looked for, not refused for its device
        list(validate(gpu, ["piper-en-joe"]))


def test_a_voice_without_its_phonemes_is_not_a_bad_voice(tmp_path: Path) -> None:
    entry = load_registry().get("piper-en-joe")
    work = {"models": [{"entry": entry.model_dump(mode="json"), "folder": str(tmp_path), "device": "cpu"}]}
    (outcome,) = outcomes({**work, "phonemes": str(tmp_path / "espeak-ng"), "cold": False})
    assert outcome.fault == ""
    assert "without phonemes" in outcome.cannot
    assert "fetch --build espeak-ng" in outcome.cannot


@pytest.mark.parametrize("field", ["cpu", "instruction_sets", "firmware", "onnxruntime", "cockpit", "memory_channels"])
def test_a_changed_machine_asks_for_a_new_validation(store: Store, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    list(validate(store, [VAD], run=lambda _: [Outcome(VAD, PASSED)]))
    here = machine_fields("cpu")
    monkeypatch.setattr(storing, "machine_fields", lambda _: here | {field: "of an update"})
    with pytest.raises(NotValidated, match=f"{field}: expected .*, got of an update") as caught:
        store.require_validated([VAD])
    assert caught.value.exit_code == 3
    assert str(caught.value).endswith(f"run: cockpit models validate {VAD}")
    monkeypatch.setattr(validating, "machine_fields", lambda _: here | {field: "of an update"})
    list(validate(store, [VAD], run=lambda _: [Outcome(VAD, PASSED)]))
    store.require_validated([VAD])


def test_a_new_build_asks_for_a_new_validation(store: Store) -> None:
    list(validate(store, [VAD], run=lambda _: [Outcome(VAD, PASSED)]))
    manifest = store.folder(VAD) / MANIFEST
    manifest.write_text(manifest.read_text() + " ")
    assert "has changed" in store.unvalidated(VAD)


# --- who asks ------------------------------------------------------------------------------------------------------
@pytest.fixture
def default_models(model_dir: Callable[[str], Path], model_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in model_store.registry.default_names:
        model_dir(name)
    monkeypatch.setattr(Store, "unvalidated", lambda _self, name: "it was not validated" if name == LM else "")


@pytest.mark.parametrize("words", [["serve", "--no-voice"], ["serve"], ["listen"], ["listen", "--json"]])
def test_a_process_that_stays_refuses_before_it_loads_anything(
    words: list[str], default_models: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(talk, "assemble", lambda *_, **__: pytest.fail("nothing may be loaded"))
    monkeypatch.setattr(LastingSpeaker, "start", lambda _self: None)
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 3
    said = capsys.readouterr().err
    assert f"{LM} may not be served: it was not validated" in said
    assert said.rstrip().endswith(f"run: cockpit models validate {LM}")


def test_allowed_it_is_said_in_every_status(default_models: None) -> None:
    service = ServiceState(Notifier())
    talk._require_validated(Store.open(), [LM, VAD], service, allow=True)
    assert str(service.status()) == f"starting [unvalidated: {LM}: it was not validated]"
    service.ready("listening on fake")
    assert service.status().as_json()["modes"] == {"unvalidated": f"{LM}: it was not validated"}


# --- answers -------------------------------------------------------------------------------------------------------
@pytest.fixture
def tone() -> np.ndarray[Any, np.dtype[np.float32]]:
    seconds = np.arange(16_000, dtype=np.float32) / 16_000
    return (np.sin(2 * np.pi * 200 * seconds) + 0.2 * np.sin(2 * np.pi * 3000 * seconds)).astype(np.float32)


def test_audio_is_compared_by_its_length_and_its_spectrum(tone: np.ndarray[Any, np.dtype[np.float32]]) -> None:
    mine = audio_fingerprint(tone, 16_000)
    assert mine.split()[0] == "1.00"
    assert alike(mine, audio_fingerprint(0.5 * tone, 16_000)), "its loudness does not matter"
    assert not alike(mine, audio_fingerprint(tone[:14_000], 16_000))
    assert not alike(mine, audio_fingerprint(np.sign(tone) * tone**2, 16_000))
    assert not alike(mine, audio_fingerprint(np.zeros(16_000, np.float32), 16_000))
    assert not alike(mine, "")
    assert not alike("", "")


def test_tokens_are_compared_as_far_as_they_are_known() -> None:
    assert same("llm", "12 3", "12 3 4")
    assert not same("llm", "12 3", "12 34")
    assert not same("llm", "12 3", "12")
    assert same("asr", "open", "open")
    assert not same("asr", "open", "open it")


def test_a_language_model_on_a_device_is_asked_in_a_lane(
    model_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its graphs in float32 on the CPU, loaded as those of a GPU are."""
    entry = load_registry().get("smollm2-135m-instruct-f32-device")
    folder, place = model_dir(entry.name), CpuPlacement(2)
    monkeypatch.setattr(questions, "_place", lambda _: nullcontext(place))
    monkeypatch.setattr(questions, "CpuPlacement", type("AnotherPlacement", (), {}))
    (known,) = entry.known_answers
    with questions.opened(entry, folder, Path(), "cuda") as ask:
        assert same("llm", known.answer, ask(known.ask))


# --- the commands --------------------------------------------------------------------------------------------------
def test_the_life_of_a_model_by_its_commands(
    store: Store, model_store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COCKPIT_CACHE", str(store.root))
    shutil.copytree(model_store.source_folder(VAD), store.source_folder(VAD))

    def run(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["models", *words])
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out + captured.err

    code, said = run("validate", VAD)
    assert (code, "validated: 2 known answers" in said) == (0, True), said
    code, said = run("rollback", VAD)
    assert (code, "no former build" in said) == (2, True)
    assert run("build", "--force", VAD)[0] == 0
    assert store.unvalidated(VAD) == "", "validated before it took the old one's place"
    code, said = run("diff", VAD)
    assert (code, "validation" in said) == (0, True), said
    code, said = run("rollback", VAD)
    assert (code, "the former build is back" in said) == (0, True), said
    code, said = run("gc", "--dry-run")
    assert (code, "former build  would go" in said) == (0, True), said
    assert (store.root / "former" / VAD).is_dir()
    code, said = run("gc", "--json")
    assert (code, json.loads(said)["freed_bytes"] > 1_000_000) == (0, True), said
    assert not (store.root / "former" / VAD).exists()
    code, said = run("card", "--json", VAD)
    (card,) = json.loads(said)["models"]
    assert (card["licence"], card["may_be_served"], card["known_answers"]["silence"]) == ("MIT", True, "silence")
    code, said = run("hash", "--json", VAD)
    (identity,) = json.loads(said)["models"]
    assert (identity["sha3_256"], identity["differences"]) == (card["fingerprint"], [])
    code, said = run("hash", VAD, "--field", "colour")
    assert (code, "it has model, source" in said) == (2, True)
    assert run("hash", VAD, "--field", "made_for") == (0, "any\n")
