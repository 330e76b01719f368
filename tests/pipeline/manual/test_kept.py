"""The manual of a profile: its vectors are made once, kept, and never used for another text or another encoder."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.errors import InputError
from models.store.registry import load_registry
from pipeline.manual.index import ManualIndex
from pipeline.manual.kept import encoder_key, index_of, open_manual
from pipeline.manual.manual import SHIPPED_INDEX

NAME = "sentence-encoder"
TEXT = "# Mirrors\n\nChoose a mirror with the switch.\n\n# Roof\n\nIt carries 75 kilograms.\n"


class CountingEncoder:
    """Counts the texts it is asked for."""

    def __init__(self) -> None:
        self.texts = 0

    def embed(self, texts: Sequence[str], side: str = "query") -> NDArray[np.float32]:
        self.texts += len(texts)
        rows = np.random.default_rng(len(texts)).normal(size=(len(texts), 384)).astype(np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)  # type: ignore[no-any-return]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "car.md"
    path.write_text(TEXT)
    return path


def ready(encoder: CountingEncoder) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(encoder)
    return future


def test_vectors_are_made_once_and_again_for_another_text(file: Path, tmp_path: Path) -> None:
    encoder, key = CountingEncoder(), encoder_key(load_registry(), NAME)
    first = index_of(file, tmp_path / "cache", key, ready(encoder))
    made = encoder.texts
    assert made == 4  # two headings, two passages
    again = index_of(file, tmp_path / "cache", key, ready(encoder))
    assert (encoder.texts, again.sections) == (made, first.sections)
    file.write_text(TEXT + "\n# Belt\n\nWear it.\n")
    assert len(index_of(file, tmp_path / "cache", key, ready(encoder)).sections) == 3
    assert encoder.texts > made


def test_what_was_built_beside_the_file_is_used_while_it_fits(file: Path, tmp_path: Path) -> None:
    encoder, key = CountingEncoder(), encoder_key(load_registry(), NAME)
    index_of(file, tmp_path / "cache", key, ready(encoder)).save(file.with_suffix(".npz"))
    made = encoder.texts
    index_of(file, tmp_path / "other", key, ready(encoder))
    assert encoder.texts == made
    file.with_suffix(".npz").write_bytes(b"damaged")
    index_of(file, tmp_path / "other", key, ready(encoder))
    assert encoder.texts > made


def test_a_built_manual_of_another_encoder_is_refused(file: Path, tmp_path: Path) -> None:
    key = encoder_key(load_registry(), NAME)
    index_of(file, tmp_path / "cache", key, ready(CountingEncoder())).save(tmp_path / "built.npz")
    assert len(index_of(tmp_path / "built.npz", tmp_path, key, ready(CountingEncoder())).sections) == 2
    with pytest.raises(InputError, match="another sentence encoder"):
        index_of(tmp_path / "built.npz", tmp_path, "another", ready(CountingEncoder()))


def test_a_malformed_manual_does_not_start(file: Path, tmp_path: Path) -> None:
    file.write_text("# A\n\n| a | b |\n|---|---|\n| 1 | 2 |\n")
    for encoder in (None, ready(CountingEncoder())):
        with pytest.raises(InputError, match=r"car\.md:3: a table cannot be read aloud"):
            open_manual(file, tmp_path, load_registry(), NAME, encoder)


def test_without_an_encoder_subjects_are_found_by_name_and_nothing_is_missing(file: Path, tmp_path: Path) -> None:
    manual = open_manual(file, tmp_path, load_registry(), None, None)
    assert manual.find("what is the roof", "en") is not None
    assert not manual.knows_meaning


def test_the_shipped_vectors_are_of_the_registrys_encoder() -> None:
    assert ManualIndex.load(SHIPPED_INDEX).encoder == encoder_key(load_registry(), NAME)
