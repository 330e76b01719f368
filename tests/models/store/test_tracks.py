"""Two tracks: a new build takes the old one's place at once and only when it is accepted; the old one comes back."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.chain.power_cut import (
    MODEL,
    OPERATIONS,
    WAYS,
    accepted,
    builds,
    made,
    made_in_turn,
    small_store,
    version_of,
)
from models.errors import FingerprintMismatch, InputError, ModelDamaged, NotValidated
from models.store import tracks
from models.store.manifest import Manifest
from models.store.store import Store
from models.store.tracks import former_folder, leftovers, removed
from tests.support.paths import ROOT
from tests.support.store_fakes import carry


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A model in version 2, version 1 behind it."""
    return made_in_turn(small_store(tmp_path), 1, 2)


def test_the_former_build_comes_back_and_goes_again(store: Store) -> None:
    assert version_of(store) == 2
    for version in (1, 2, 1):
        assert store.rollback(MODEL) == store.folder(MODEL)
        assert version_of(store) == version
        assert store.unvalidated(MODEL) == "", "its validation lies in its folder"


def test_a_new_build_that_is_not_accepted_changes_nothing(store: Store) -> None:
    builds(3)

    def refuse(folder: Path) -> None:
        assert (folder / "model.onnx").read_bytes()[:1] == b"\x03"
        assert version_of(store) == 2, "the old one serves meanwhile"
        raise NotValidated("it speaks backwards")

    with pytest.raises(NotValidated, match="backwards"):
        store.build(MODEL, force=True, accept=refuse)
    assert version_of(store) == 2
    store.rollback(MODEL)
    assert version_of(store) == 1
    assert list((store.root / "building").iterdir()) == []


def test_only_what_was_seen_to_work_is_kept(store: Store) -> None:
    builds(3)
    store.build(MODEL, force=True)
    assert store.unvalidated(MODEL) == "it was not validated"
    builds(4)
    made(store)
    store.rollback(MODEL)
    assert version_of(store) == 2, "version 3 was never validated"


def test_a_former_build_that_cannot_be_used_stays_where_it_is(store: Store) -> None:
    former = former_folder(store.root, MODEL)
    (former / "model.onnx").write_bytes(b"")
    with pytest.raises(ModelDamaged, match=r"the former build cannot be used: .*the present one stays"):
        store.rollback(MODEL)
    carry(former, onnxruntime="0.0.1")
    with pytest.raises(FingerprintMismatch, match=r"onnxruntime: built for 0\.0\.1"):
        store.rollback(MODEL)
    assert version_of(store) == 2
    shutil.rmtree(former)
    with pytest.raises(InputError, match="no former build"):
        store.rollback(MODEL)


def test_a_lost_present_build_is_no_obstacle(store: Store) -> None:
    shutil.rmtree(store.folder(MODEL))
    store.rollback(MODEL)
    assert version_of(store) == 1


def test_a_file_system_that_cannot_exchange_is_used_and_said(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracks, "_renamed_at_once", lambda *_: False)
    store.rollback(MODEL)
    assert version_of(store) == 1
    builds(3)
    made(store)
    assert version_of(store) == 3
    assert "cannot exchange folders at once" in caplog.text
    assert sorted(path.name for path in store.root.glob("built/.*")) == []


def test_what_may_go_is_found_and_a_model_at_work_is_left(store: Store) -> None:
    for folder in ("building/small", "built/unknown", "former/.small.going", "sources/old"):
        (store.root / folder).mkdir(parents=True)
    found = {path.relative_to(store.root).as_posix(): why for _, path, why in leftovers(store.root, {MODEL})}
    assert found == {
        "former/small": "former build",
        "former/.small.going": "half removed",
        "building/small": "unfinished build",
        "built/unknown": "not in the registry",
        "sources/old": "not in the registry",
    }
    with store._locked(MODEL):
        assert not removed(store.root, MODEL, store.root / "building/small")
    for model, path, _ in leftovers(store.root, {MODEL}):
        assert removed(store.root, model, path)
    assert list(leftovers(store.root, {MODEL})) == []
    assert version_of(store) == 2
    accepted(store, store.folder(MODEL))
    assert Manifest.read(store.folder(MODEL)) is not None


def test_a_power_cut_leaves_the_old_or_the_new_one_whole() -> None:
    """In a process without threads, whose children are killed or fail at six steps of each operation; all of them, a
    thousand times: `python -m benchmarks power_cut`.
    """
    command = [sys.executable, "-m", "benchmarks", "power_cut", "--times", "6", "--json"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rows = json.loads(ran.stdout)["rows"]
    assert {(row["operation"], row["way"]) for row in rows} == {(name, way) for name in OPERATIONS for way in WAYS}
    assert all(row["steps"] > 4 and row["old"] for row in rows)
    assert sum(row["new"] for row in rows)
