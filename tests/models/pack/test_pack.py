"""Packs: only what was signed is taken, whole or not at all; nothing older, nothing mixed, nothing that leads out."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import signal
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.errors import InputError, NotValidated, PackRefused
from models.pack import install as installing
from models.pack.build import build_pack, sign_model, signature_fault
from models.pack.install import finish, install, verify
from models.pack.reading import source_of
from models.pack.record import Record, folder_of, record_of, unfinished, untrusted
from models.pack.signing import new_key, read_private, read_trusted
from models.store import store as storing
from models.store import tracks
from models.store.manifest import SIGNATURE, Manifest
from models.store.registry import Registry
from models.store.store import Store
from tests.support.store_fakes import file_entry

EAR, VOICE, RAW = "ear", "voice", "raw"
WEIGHTS = b"weights"


def _build(_rule: object, sources: dict[str, Path], out: Path, _progress: object) -> None:
    (out / "data").mkdir()
    (out / "data" / "model.onnx").write_bytes(VERSION[0].encode() * 5000)
    (out / "config.json").write_text(json.dumps({"version": VERSION[0]}))


VERSION = ["1"]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Store]:
    """`bench("1")`: a store whose models were built in version 1."""
    monkeypatch.setattr(storing, "_call_builder", _build)
    (tmp_path / "w.bin").write_bytes(WEIGHTS)
    new_key(tmp_path / "key", tmp_path / "key.pub")

    def made(version: str) -> Store:
        VERSION[0] = version
        store = Store(tmp_path / f"bench-{version}", _registry(tmp_path))
        for name in store.registry.names:
            store.ensure(name)
        return store

    return made


def _registry(folder: Path) -> Registry:
    rule = {"builder": "models.build.silero:build_silero", "arguments": {"weights": "w.bin"}}
    common = {"kind": "vad", "summary": "", "licence": "MIT"}
    files = {"w.bin": file_entry(WEIGHTS, {"type": "path", "path": str(folder / "w.bin")})}
    built = [{"name": name, **common, "files": files, "build": rule} for name in (EAR, VOICE)]
    return Registry.model_validate({"format": 1, "models": [*built, {"name": RAW, **common, "files": files}]})


@pytest.fixture
def car(tmp_path: Path) -> Store:
    """A head unit: no sources, no network."""
    return Store(tmp_path / "car", _registry(tmp_path))


def pack(bench: Store, out: Path, counter: int = 1, *, signed: bool = True, models: tuple[str, ...] = ()) -> Path:
    key = read_private(out.parent / "key") if signed else None
    build_pack(bench, models or bench.registry.names, out, name="cabin", counter=counter, key=key)
    return out


def put(car: Store, path: Path, *, unsigned: bool = False, accept: Callable[..., object] = lambda *_: None) -> bool:
    trusted = read_trusted([car.root.parent / "key.pub"])
    return install(car, source_of(path), trusted, unsigned=unsigned, accept=accept)[1]


def version(car: Store, name: str = EAR) -> str:
    return str(json.loads((car.built(name) / "config.json").read_text())["version"])


@pytest.mark.parametrize("form", ["cabin.tar", "cabin"])
def test_a_pack_makes_a_head_unit_without_a_network_ready(
    bench: Callable[[str], Store], car: Store, tmp_path: Path, form: str
) -> None:
    path = pack(bench("1"), tmp_path / form)
    seen: list[str] = []
    assert put(car, path, accept=lambda name, _folder: seen.append(name))
    assert seen == [EAR, VOICE, RAW]
    assert [car.verify(name) for name in car.registry.names] == [[], [], []]
    assert not put(car, path), "the same pack again does nothing"
    with pytest.raises(InputError, match="is there already"):
        pack(bench("1"), path)


def test_the_next_pack_leaves_the_builds_before_it_and_an_older_one_is_refused(
    bench: Callable[[str], Store], car: Store, tmp_path: Path
) -> None:
    first, second = pack(bench("1"), tmp_path / "1.tar"), pack(bench("2"), tmp_path / "2.tar", counter=2)
    put(car, first)
    put(car, second)
    assert version(car) == "2"
    with pytest.raises(PackRefused, match="cabin 1 is older than the installed 2"):
        put(car, first)
    with pytest.raises(PackRefused, match="other contents: a changed pack has a higher counter"):
        put(car, pack(bench("3"), tmp_path / "3.tar", counter=2))
    assert version(car) == "2"


def test_a_model_that_does_not_work_leaves_all_old_ones(
    bench: Callable[[str], Store], car: Store, tmp_path: Path
) -> None:
    put(car, pack(bench("1"), tmp_path / "1.tar"))

    def broken(name: str, _folder: Path) -> None:
        if name == VOICE:
            raise NotValidated("it is silent")

    with pytest.raises(NotValidated, match="silent"):
        put(car, pack(bench("2"), tmp_path / "2.tar", counter=2), accept=broken)
    assert (version(car, EAR), version(car, VOICE)) == ("1", "1")
    assert put(car, tmp_path / "2.tar"), "the counter was not used up"


# --- what is refused -----------------------------------------------------------------------------------------------
MODEL = "models/ear/data/model.onnx"


def _link(path: Path, _folder: Path) -> None:
    path.rename(path.parent / "aside")
    shutil.move(path.parent / "aside", _folder.parent / "outside")
    path.symlink_to(_folder.parent / "outside")


def _hard_link(path: Path, folder: Path) -> None:
    os.link(path, folder.parent / "outside")


def _folder_link(path: Path, folder: Path) -> None:
    shutil.move(path.parent, folder.parent / "outside")
    path.parent.symlink_to(folder.parent / "outside")


def _fifo(path: Path, _folder: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _other_model(path: Path, folder: Path) -> None:
    other = folder / "models/voice/data/model.onnx"
    path.write_bytes(other.read_bytes()[:-1] + b"9")


TAMPERED: dict[str, tuple[Callable[[Path, Path], Any], str]] = {
    "one byte flipped": (lambda path, _: path.write_bytes(b"9" + path.read_bytes()[1:]), "is not what was signed"),
    "cut off": (lambda path, _: path.write_bytes(path.read_bytes()[:-1]), "4999 bytes long, 5000 were signed"),
    "longer": (lambda path, _: path.write_bytes(path.read_bytes() + b"1"), "5001 bytes long"),
    "missing": (lambda path, _: path.unlink(), f"{MODEL} is missing"),
    "extra": (lambda _, folder: (folder / "models/ear/more.onnx").write_bytes(b"x"), "was not signed"),
    "symlink": (_link, "is a link"),
    "hard link": (_hard_link, "hard link"),
    "folder link": (_folder_link, "is a link"),
    "fifo": (_fifo, "no plain file"),
    "another model's file": (_other_model, "is not what was signed"),
    "signature cut off": (lambda _, folder: _cut(folder / "pack.json"), "signature file is damaged"),
    "signature gone": (lambda _, folder: (folder / "pack.json").unlink(), "no pack"),
}


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize("fault", TAMPERED)
def test_a_folder_that_is_not_as_signed_is_refused_and_changes_nothing(
    bench: Callable[[str], Store], car: Store, tmp_path: Path, fault: str
) -> None:
    put(car, pack(bench("1"), tmp_path / "1.tar"))
    path = pack(bench("2"), tmp_path / "cabin", counter=2)
    tamper, message = TAMPERED[fault]
    tamper(path / MODEL, path)
    with pytest.raises(PackRefused, match=message):
        put(car, path)
    assert (version(car, EAR), version(car, VOICE)) == ("1", "1")
    assert not (folder_of(car.root, "cabin") / "staged").exists()


def _member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (_member("../../etc/passwd", tarfile.REGTYPE), "no path inside a pack"),
        (_member("/etc/passwd", tarfile.REGTYPE), "no path inside a pack"),
        (_member("models/ear/./x", tarfile.REGTYPE), "no path inside a pack"),
        (_member("models/ear/x\\y", tarfile.REGTYPE), "no path inside a pack"),
        (_member("models/../../x", tarfile.DIRTYPE), "no path inside a pack"),
        (_member("models/ear/x", tarfile.SYMTYPE, "/etc/passwd"), "no plain file"),
        (_member("models/ear/x", tarfile.LNKTYPE, MODEL), "no plain file"),
        (_member("models/ear/x", tarfile.FIFOTYPE), "no plain file"),
        (_member("models/ear/x", tarfile.CHRTYPE), "no plain file"),
        (_member(MODEL, tarfile.REGTYPE), "is there twice"),
        (_member("models/ear/x", tarfile.REGTYPE), "was not signed"),
    ],
)
def test_a_tar_with_a_member_that_leads_out_is_refused(
    bench: Callable[[str], Store], car: Store, tmp_path: Path, member: tarfile.TarInfo, message: str
) -> None:
    path = pack(bench("1"), tmp_path / "1.tar")
    with tarfile.open(path, "a:") as tar:
        tar.addfile(member, io.BytesIO())
    with pytest.raises(PackRefused, match=message):
        put(car, path)
    assert sorted(entry.name for entry in tmp_path.rglob("passwd")) == []
    assert not car.folder(EAR).exists()


def test_a_tar_that_is_cut_off_or_none_at_all_is_refused(
    bench: Callable[[str], Store], car: Store, tmp_path: Path
) -> None:
    path = pack(bench("1"), tmp_path / "1.tar")
    whole = path.read_bytes()
    for length in (0, 100, 600, 5000, len(whole) // 2, 12_000):
        path.write_bytes(whole[:length])
        with pytest.raises(PackRefused):
            put(car, path)
    assert not car.folder(EAR).exists()


@pytest.mark.parametrize("name", ["x.pkl", "x.pt", "x.bin", "x.npz"])
def test_a_pickle_is_never_packed(bench: Callable[[str], Store], tmp_path: Path, name: str) -> None:
    made = bench("1")
    path = made.folder(EAR) / name
    if name == "x.npz":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", b"x")
    else:
        path.write_bytes(pickle.dumps({"run": "me"}))
    found = Manifest.read(made.folder(EAR))
    assert found is not None
    Manifest.write(made.folder(EAR), found.fingerprint)
    with pytest.raises(PackRefused, match="pickle"):
        pack(made, tmp_path / "1.tar")
    assert not (tmp_path / "1.tar").exists()


# --- keys ----------------------------------------------------------------------------------------------------------
def test_only_a_trusted_key_counts(bench: Callable[[str], Store], car: Store, tmp_path: Path) -> None:
    path, bare = pack(bench("1"), tmp_path / "1"), pack(bench("1"), tmp_path / "bare", signed=False)
    new_key(tmp_path / "other", tmp_path / "other.pub")
    other = read_trusted([tmp_path / "other.pub"])
    for unsigned in (False, True):
        with pytest.raises(PackRefused, match="not trusted"):
            verify(source_of(path), other, unsigned=unsigned)
    with pytest.raises(PackRefused, match="it is not signed"):
        put(car, bare)
    said = json.loads((path / "pack.json").read_text())
    said["payload"] = json.loads((bare / "pack.json").read_text())["payload"][:-8] + "AAAAAAA="
    (path / "pack.json").write_text(json.dumps(said))
    with pytest.raises(PackRefused, match=r"signature by key .* is wrong"):
        put(car, path, unsigned=True)
    assert put(car, bare, unsigned=True)
    reasons = untrusted(car, (EAR,), set(other))
    assert reasons == {EAR: "it came by the pack cabin 1, which is not signed"}
    put(car, pack(bench("2"), tmp_path / "2", counter=2))
    trusted = set(read_trusted([tmp_path / "key.pub"]))
    assert untrusted(car, (EAR, VOICE), trusted) == {}
    assert "is not trusted" in untrusted(car, (EAR,), set())[EAR]


def test_keys_are_not_written_over_and_a_private_one_is_private(tmp_path: Path) -> None:
    new_key(tmp_path / "k", tmp_path / "k.pub")
    with pytest.raises(InputError, match="never written over"):
        new_key(tmp_path / "k", tmp_path / "k2.pub")
    assert (tmp_path / "k").stat().st_mode & 0o777 == 0o600
    (tmp_path / "k").chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        read_private(tmp_path / "k")
    with pytest.raises(InputError, match="no public key"):
        read_trusted([tmp_path / "k"])


def test_a_signature_beside_a_model_is_compared(bench: Callable[[str], Store], tmp_path: Path) -> None:
    made, trusted = bench("1"), read_trusted([tmp_path / "key.pub"])
    sign_model(made, EAR, read_private(tmp_path / "key"))
    assert (signature_fault(made, EAR, trusted), made.verify(EAR)) == ("", [])
    assert "not trusted" in signature_fault(made, EAR, {})
    shutil.copy(made.folder(EAR) / SIGNATURE, made.folder(VOICE))
    assert signature_fault(made, VOICE, trusted) == "it is the signature of ear"
    shutil.copy(made.folder(EAR) / SIGNATURE, tmp_path / "kept")
    VERSION[0] = "2"
    made.build(EAR, force=True)
    shutil.copy(tmp_path / "kept", made.folder(EAR) / SIGNATURE)
    assert signature_fault(made, EAR, trusted) == "the model is not the one that was signed"


# --- interruptions -------------------------------------------------------------------------------------------------
STEPS = 60


def _die_at(step: int) -> None:
    """From here on the process is killed at its step-th operation on files."""
    left = [step]

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **more)

        return called

    for owner, name in ((tracks, "exchange"), (os, "rename"), (os, "replace"), (os, "unlink"), (os, "rmdir")):
        setattr(owner, name, counted(getattr(owner, name)))
    installing.take = counted(installing.take)  # type: ignore[attr-defined]
    storing.put_in_place = counted(storing.put_in_place)  # type: ignore[attr-defined]


def test_a_kill_at_any_step_leaves_the_old_models_or_the_next_boot_makes_the_new_ones(
    bench: Callable[[str], Store], car: Store, tmp_path: Path
) -> None:
    put(car, pack(bench("1"), tmp_path / "1"))
    second = pack(bench("2"), tmp_path / "2", counter=2)
    before = tmp_path / "before"
    shutil.copytree(car.root, before)
    outcomes = set()
    for step in range(STEPS):
        shutil.rmtree(car.root)
        shutil.copytree(before, car.root)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads: the child only works on files
            child = os.fork()
        if child == 0:
            _die_at(step)
            put(car, second)
            os._exit(0)
        _, ended = os.waitpid(child, 0)
        assert not any(car.verify(name) for name in car.registry.names), f"step {step}: something is half"
        half = unfinished(car.root)
        finish(car)
        found = {version(car, EAR), version(car, VOICE)}
        assert found in ({"1"}, {"2"}), f"step {step}: mixed"
        assert not half or found == {"2"}, f"step {step}: begun, and not finished"
        record = record_of(car.root, "cabin")
        assert record is not None
        assert (record.state, {str(record.taken.counter)}) == ("installed", found)
        outcomes.add((bool(half), ended == 0))
        if ended == 0:
            break
    assert found == {"2"}
    assert outcomes == {(False, False), (True, False), (False, True)}, "every kind of interruption was seen"


def test_a_full_disk_leaves_the_old_models(
    bench: Callable[[str], Store], car: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(car, pack(bench("1"), tmp_path / "1"))
    second = pack(bench("2"), tmp_path / "2", counter=2)
    with monkeypatch.context() as patch:

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            put(car, second)
    assert (version(car, EAR), version(car, VOICE), unfinished(car.root)) == ("1", "1", [])


def test_a_record_that_is_damaged_is_no_way_back_to_an_older_pack(
    bench: Callable[[str], Store], car: Store, tmp_path: Path
) -> None:
    path = pack(bench("1"), tmp_path / "1")
    put(car, path)
    (folder_of(car.root, "cabin") / "record.json").write_text("{}")
    with pytest.raises(PackRefused, match="says which pack was installed last"):
        put(car, path)
    assert isinstance(Record.model_json_schema(), dict)
