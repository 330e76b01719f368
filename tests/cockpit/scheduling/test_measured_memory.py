"""Measured peaks of GPU lanes: whose growth is whose, where it is kept, and what the next plan makes of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import cockpit.assemble as assembling
from cockpit.assemble import assemble
from cockpit.profile.load import load_profile
from cockpit.profile.memory_budget import MIB, MemoryLine, MemoryPlan
from cockpit.profile.memory_plan import plan_of
from cockpit.runtime import NullSink
from cockpit.scheduling.measured_memory import Growth, PeaksFile, Stage, lane_peaks
from cockpit.scheduling.placements import EnginePlacements
from cockpit.scheduling.service import SchedulingPlan
from models.engines import factory
from models.engines.placement import CpuPlacement
from models.errors import ModelMissing
from models.store.registry import load_registry
from models.store.store import Store

PLAN = MemoryPlan(
    (
        MemoryLine("ears", "weights", 100, ""),
        MemoryLine("brain", "weights", 1000, ""),
        MemoryLine("mouth", "weights", 50, ""),
        MemoryLine("kv arena", "kv", 200, ""),
    ),
    85.0,
    None,
)
STAGES = {
    "asr": Stage(("speech:1",), ("ears",)),
    "llm": Stage(("talk:1", "talk:2"), ("brain", "kv arena")),
    "tts": Stage(("speech:1",), ("mouth", "espeak-ng")),
}


def test_growth_is_what_the_memory_in_use_grew_by() -> None:
    used = iter([10, 110, 110, 90, 90, 190])
    growth = Growth(lambda: next(used))
    for stage in ("asr", "llm", "asr"):
        with growth.around(stage):
            pass
    assert growth.of_stage == {"asr": 200, "llm": 0}


def test_weights_and_caches_are_not_counted_twice() -> None:
    peaks = lane_peaks({"asr": 130, "llm": 1260, "tts": 75}, PLAN, STAGES)
    assert peaks == {"speech:1": 30 + 25, "talk:1": 30, "talk:2": 30}


def test_a_stage_that_grew_by_less_than_its_weights_took_nothing_more() -> None:
    assert lane_peaks({"asr": 90}, PLAN, STAGES) == {"speech:1": 0, "talk:1": 0, "talk:2": 0}


def test_peaks_replace_caps_in_the_next_plan(tmp_path: Path) -> None:
    loaded = load_profile("h200")
    store = Store(tmp_path, load_registry())
    capped = plan_of(loaded.profile, loaded.arbiter, store, None)
    planned = plan_of(loaded.profile, loaded.arbiter, store, None, {"speech_task:1": 7 * MIB})
    assert capped.sum_bytes - planned.sum_bytes == (3000 - 7) * MIB
    assert next(line.note for line in planned.lines if line.name == "speech_task:1") == "measured peak"


def test_peaks_are_kept_for_the_same_models_lanes_and_device_only(tmp_path: Path) -> None:
    profile = load_profile("h200").profile
    PeaksFile.of(tmp_path, profile, ["a", "b"], 1 << 30).save({"a": 5, "b": 6})
    assert PeaksFile.of(tmp_path, profile, ["a", "b"], 1 << 30).peaks() == {"a": 5, "b": 6}
    for lanes, total in ((["a"], 1 << 30), (["a", "b"], 1 << 31)):
        assert PeaksFile.of(tmp_path, profile, lanes, total).peaks() == {}
    talk = profile.llm.dialogue.model_copy(update={"context_tokens": 1024})
    other = profile.model_copy(update={"llm": profile.llm.model_copy(update={"dialogue": talk})})
    assert PeaksFile.of(tmp_path, other, ["a", "b"], 1 << 30).peaks() == {}


def test_a_file_that_is_no_state_starts_anew(tmp_path: Path) -> None:
    file = PeaksFile.of(tmp_path, load_profile("h200").profile, ["a"], None)
    file.path.write_text('{"a": "much", "b": -1, "c": 3}', encoding="utf-8")
    assert file.peaks() == {"c": 3}
    file.path.write_text("{", encoding="utf-8")
    assert file.peaks() == {}


def test_a_start_that_fails_ends_the_engines_before_the_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session uses its lane's stream once more when it goes."""
    order: list[str] = []

    class Opened:
        def close(self) -> None:
            order.append("lanes")

    def fail(*_: object) -> None:
        raise ModelMissing("gone")

    loaded = load_profile("cpu")
    assert loaded.arbiter is not None
    place = CpuPlacement(1)
    monkeypatch.setattr(assembling, "open_service", lambda *_: Opened())
    opened = EnginePlacements(place, place, close=lambda: order.append("engines"))
    monkeypatch.setattr(assembling, "engine_placements", lambda *_: opened)
    monkeypatch.setattr(assembling, "require_runnable", lambda *_: None)
    monkeypatch.setattr(assembling, "_recogniser", fail)
    monkeypatch.setattr(Store, "built", lambda self, name: Path(name))
    monkeypatch.setattr(assembling, "plan_of", lambda *_: PLAN)
    with pytest.raises(ModelMissing, match="gone"):
        assemble(loaded.profile, Store.open(), NullSink(), scheduling=SchedulingPlan(loaded.arbiter))
    assert order == ["engines", "lanes"]


def test_a_start_that_fails_late_ends_the_speech_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    monkeypatch.setattr(assembling, "require_runnable", lambda *_: None)
    monkeypatch.setattr(assembling, "plan_of", lambda *_: PLAN)
    monkeypatch.setattr(Store, "built_all", lambda self, names: {name: Path(name) for name in names})
    monkeypatch.setattr(assembling, "_recogniser", lambda *_: None)
    monkeypatch.setattr(assembling._Loading, "language_model", lambda *_: None)
    worker = SimpleNamespace(close=lambda: ended.append("espeak"))
    monkeypatch.setattr(factory, "load_engine", lambda *_: worker)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(assembling, "_voices", interrupted)
    with pytest.raises(KeyboardInterrupt):
        assemble(load_profile("cpu").profile, Store.open(), NullSink())
    assert ended == ["espeak"]
