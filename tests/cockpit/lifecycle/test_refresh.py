"""After an update the car has a voice: what works still serves, what was there before comes back, and what another
version built stands in until it is built anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chain.power_cut import MODEL, builds, made, made_in_turn, small_store, version_of
from cockpit.cli import talk
from cockpit.lifecycle import refresh as refreshing
from cockpit.lifecycle import validate as validating
from cockpit.lifecycle.child import Outcome
from cockpit.lifecycle.refresh import refresh
from cockpit.service.notify import Notifier
from cockpit.service.state import ServiceState
from models.errors import FingerprintMismatch, NotValidated
from models.store import store as storing
from models.store.machine import gpu_fields, machine_fields
from models.store.store import Store
from models.store.tracks import former_folder
from models.store.validation import Answer
from tests.support.store_fakes import carry

ANSWERS = (Answer("q", "a", "a", True),)
FIELDS = sorted(machine_fields("cpu").keys() | gpu_fields(None).keys() | {"driver", "vbios", "cuda", "sm_count"})


class Trial:
    """Stands in for the child process: a build of one of the versions in `broken` fails."""

    def __init__(self) -> None:
        self.tried: list[int] = []
        self.broken: set[int] = set()

    def __call__(self, work: Mapping[str, Any]) -> list[Outcome]:
        (item,) = work["models"]
        version = (Path(item["folder"]) / "config.json").read_bytes()[0]
        self.tried.append(version)
        fault = "it speaks backwards" if version in self.broken else ""
        return [Outcome(MODEL, ANSWERS, fault=fault)]


@pytest.fixture
def trial() -> Trial:
    return Trial()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A model in version 2, validated, version 1 behind it."""
    return made_in_turn(small_store(tmp_path), 1, 2)


@pytest.fixture
def update(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Another value of a machine's field from now on."""

    def to(**fields: str) -> None:
        here = machine_fields("cpu") | fields
        for module in (storing, validating):
            monkeypatch.setattr(module, "machine_fields", lambda _: here)

    return to


def serving(store: Store) -> Store:
    return Store(store.root, store.registry, stand_ins=True)


def test_without_an_update_nothing_is_tried(store: Store, trial: Trial) -> None:
    assert refresh(store, [MODEL], run=trial) == refreshing.Refreshed((), (), ())
    assert trial.tried == []


@pytest.mark.parametrize("field", FIELDS)
def test_after_a_change_of_any_field_it_is_seen_to_work_again_and_served(
    store: Store, trial: Trial, update: Callable[..., None], field: str
) -> None:
    update(**{field: "of an update"})
    with pytest.raises(NotValidated, match=f"{field}: expected .*, got of an update"):
        store.require_validated([MODEL])
    found = refresh(store, [MODEL], run=trial)
    assert found.events == (f"{MODEL}: validated on this machine as it is now",)
    assert (found.undone, trial.tried, version_of(store)) == ((), [2], 2)
    store.require_validated([MODEL])
    assert refresh(store, [MODEL], run=trial).events == ()


def test_a_build_that_an_update_breaks_gives_way_to_the_former_one(
    store: Store, trial: Trial, update: Callable[..., None]
) -> None:
    update(driver="590")
    trial.broken = {2}
    found = refresh(store, [MODEL], run=trial)
    assert found.events[-1] == f"{MODEL}: its former build works and is taken again"
    assert (version_of(store), found.undone) == (1, ())
    store.require_validated([MODEL])


def test_where_neither_works_the_present_one_stays_refused(
    store: Store, trial: Trial, update: Callable[..., None]
) -> None:
    update(driver="590")
    trial.broken = {1, 2}
    found = refresh(store, [MODEL], run=trial)
    assert "does not work either" in found.events[-1]
    assert (version_of(store), found.undone) == (2, (MODEL,))
    with pytest.raises(NotValidated, match="speaks backwards"):
        store.require_validated([MODEL])


def test_a_build_by_another_version_stands_in_until_it_is_built_anew(store: Store, trial: Trial) -> None:
    """An update of Cockpit with another builder: refused as it is, served once it was seen to work with the new one."""
    for folder in (store.folder(MODEL), former_folder(store.root, MODEL)):
        carry(folder, builder_sha256="0" * 64, onnxruntime="1.20.0", builder_files={})
    with pytest.raises(FingerprintMismatch, match=r"builder_sha256: built for 000000000000, here .*1\.20\.0"):
        serving(store).built(MODEL)
    found = refresh(store, [MODEL], run=trial)
    assert (found.standing_in, found.undone, trial.tried) == ((MODEL,), (), [2])
    assert serving(store).built(MODEL) == store.folder(MODEL)
    assert isinstance(store.fault(MODEL), FingerprintMismatch), "for everything else it is stale, and is built anew"
    assert refresh(store, [MODEL], run=trial).events == (), "the next boot does not try again"
    service = ServiceState(Notifier())
    talk._require_validated(serving(store), [MODEL], service, allow=False)
    assert (
        str(service.status()) == f"starting [standing_in: built by another version, validated with this one: {MODEL}]"
    )
    builds(3)
    made(store)
    assert (version_of(serving(store)), refresh(store, [MODEL], run=trial).standing_in) == (3, ())


def test_an_updated_machine_ends_the_standing_in_until_it_is_tried_again(
    store: Store, trial: Trial, update: Callable[..., None]
) -> None:
    carry(store.folder(MODEL), onnxruntime="1.20.0")
    carry(former_folder(store.root, MODEL), onnxruntime="1.20.0")
    refresh(store, [MODEL], run=trial)
    update(driver="590")
    with pytest.raises(FingerprintMismatch):
        serving(store).built(MODEL)
    assert refresh(store, [MODEL], run=trial).standing_in == (MODEL,)


def test_the_former_build_comes_back_where_it_is_the_one_that_fits(store: Store, trial: Trial) -> None:
    """An update of the software that was taken back."""
    carry(store.folder(MODEL), builder_sha256="0" * 64, builder_files={})
    found = refresh(store, [MODEL], run=trial)
    assert found.events == (f"{MODEL}: built by another version; its former build fits this one and is taken again",)
    assert (version_of(store), trial.tried) == (1, [])


@pytest.mark.parametrize("fields", [{"sources": {"w.bin": "0" * 64}}, {"options": {"quant": "f32"}}])
def test_other_sources_and_options_never_stand_in(store: Store, trial: Trial, fields: dict[str, object]) -> None:
    for folder in (store.folder(MODEL), former_folder(store.root, MODEL)):
        carry(folder, **fields)
    found = refresh(store, [MODEL], run=trial)
    assert (found.standing_in, found.undone, trial.tried) == ((), (MODEL,), [])
    assert "other sources or with other options" in found.events[0]
    with pytest.raises(FingerprintMismatch):
        serving(store).built(MODEL)


def test_word_is_left_for_the_unit_that_builds(store: Store) -> None:
    for wanted in (True, True, False, False):
        refreshing.mark(store, wanted)
        assert (store.root / refreshing.REBUILD_WANTED).exists() == wanted
