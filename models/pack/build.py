"""Make a pack of built models; sign a built model where it lies."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from models.errors import InputError, PackRefused
from models.pack.reading import ENVELOPE, refuse_pickle, safe_path
from models.pack.signing import Contents, Digest, Statement, Subject, envelope, opened
from models.store.fetch import sha256_of
from models.store.manifest import FILE_NAME as MANIFEST
from models.store.manifest import SIGNATURE, Manifest
from models.store.store import Store

Form = Literal["folder", "tar"]


def build_pack(
    store: Store, names: Iterable[str], out: Path, *, name: str, counter: int, key: Ed25519PrivateKey | None
) -> Statement:
    """Pack the built models `names` into `out`: a tar where it ends in .tar, else a folder. key: None leaves the pack
    unsigned.

    Raises InputError where `out` is there already or cannot be written, ModelUnusable for a model that is not as it
    should be, and PackRefused for a file that no head unit would take.
    """
    if out.exists() or out.is_symlink():
        raise InputError(f"{out} is there already: name another place")
    files: dict[str, Path] = {}
    wanted = list(dict.fromkeys(names))
    for model in wanted:
        files |= {f"{_part(store, model)}/{model}/{file}": path for file, path in loaded_files(store, model).items()}
    made = statement_of(files, name=name, counter=counter, models=wanted)
    part = out.with_name(f".{out.name}.part")
    _remove(part)
    try:
        (_write_tar if out.suffix == ".tar" else _write_folder)(part, envelope(made, key), files)
        part.rename(out)
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror}") from error
    finally:
        _remove(part)
    return made


def loaded_files(store: Store, model: str) -> dict[str, Path]:
    """Path in its folder -> file, of all that a head unit needs; every byte is read. Raises ModelUnusable."""
    if fault := store.fault(model, whole=True):
        raise type(fault)(f"{fault}; run: {store.remedy(model)}") from fault
    folder, entry = store.folder(model), store.registry.get(model)
    if entry.build is None:
        return {file: folder / file for file in entry.needed_files}
    manifest = Manifest.read(folder)
    assert manifest is not None  # `fault` has read it
    return {file: folder / file for file in (*sorted(manifest.files), MANIFEST)}


def statement_of(files: Mapping[str, Path], *, name: str, counter: int, models: list[str]) -> Statement:
    """Of files by their path in the pack. Raises PackRefused for one that no head unit would take."""
    for inside, path in files.items():
        safe_path(inside)
        with path.open("rb") as file:
            refuse_pickle(inside, file, file.read(16))
    subjects = [Subject(name=inside, digest=Digest(sha256=sha256_of(path))) for inside, path in files.items()]
    sizes = {inside: path.stat().st_size for inside, path in files.items()}
    contents = Contents(format=1, name=name, counter=counter, models=models, size_bytes=sizes)
    return Statement(subject=subjects, predicate=contents)


def sign_model(store: Store, model: str, key: Ed25519PrivateKey) -> Path:
    """Leave a signature beside a built model; returns its file. Raises as `loaded_files`."""
    path = store.folder(model) / SIGNATURE
    made = statement_of(loaded_files(store, model), name=model, counter=0, models=[model])
    part = path.with_name(f".{SIGNATURE}.part")
    part.write_bytes(envelope(made, key))
    part.replace(path)
    return path


def signature_fault(store: Store, model: str, trusted: dict[str, Ed25519PublicKey]) -> str:
    """What is wrong with the signature beside a model; "" where nothing is, or where there is none."""
    path = store.folder(model) / SIGNATURE
    if not path.is_file():
        return ""
    try:
        signed = opened(path.read_bytes(), trusted, unsigned=False).statement
    except PackRefused as error:
        return str(error)
    if signed.predicate.models != [model]:
        return f"it is the signature of {', '.join(signed.predicate.models)}"
    try:
        here = {file: (found.stat().st_size, sha256_of(found)) for file, found in loaded_files(store, model).items()}
    except PackRefused as error:
        return str(error)
    return "" if here == signed.files else "the model is not the one that was signed"


def _part(store: Store, model: str) -> str:
    return "sources" if store.registry.get(model).build is None else "models"


def _write_folder(out: Path, signature: bytes, files: Mapping[str, Path]) -> None:
    out.mkdir(parents=True)
    (out / ENVELOPE).write_bytes(signature)
    for inside, path in files.items():
        (out / inside).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, out / inside)


def _write_tar(out: Path, signature: bytes, files: Mapping[str, Path]) -> None:
    """The same files make the same tar."""
    with tarfile.open(out, "w:", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(_member(ENVELOPE, len(signature)), io.BytesIO(signature))
        for inside, path in files.items():
            with path.open("rb") as file:
                tar.addfile(_member(inside, os.fstat(file.fileno()).st_size), file)


def _member(name: str, size_bytes: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size_bytes, 0o644
    return info


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
