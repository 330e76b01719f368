"""What a built model was made from and for. A mismatch refuses to load and names the command that rebuilds."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGE = "models"
_NO_RESULT = frozenset({"models.errors"})
"""What builders import but no built file can depend on: exception classes and their texts."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Identity of a build.

    sources: file name -> sha256. builder_sha256: see `BuilderCode`. onnxruntime: the version it was made beside.
    device: the only one that can run it, or "any". builder_files: module -> sha256 of its file, of the modules that
    builder_sha256 is over: where these are unchanged, so is the code.
    """

    model: str
    sources: dict[str, str]
    builder: str
    builder_sha256: str
    options: dict[str, Any]
    onnxruntime: str
    device: str
    builder_files: dict[str, str] = field(default_factory=dict)

    def differences(self, expected: Fingerprint) -> list[str]:
        """What forbids to load a build that carries this where `expected` is wanted; one phrase for each field.

        Of ONNX Runtime major and minor version count: its patch releases change no operator.
        """
        mine, theirs = asdict(self), asdict(expected)
        phrases = []
        for key in mine:
            if (
                key == "builder_files"
                or mine[key] == theirs[key]
                or (key == "onnxruntime" and _release(mine[key]) == _release(theirs[key]))
            ):
                continue
            built, here = _short(mine[key]), _short(theirs[key])
            phrases.append(f"{key}: built for {built}, here {here}")
        return phrases

    @property
    def software(self) -> str:
        """What made the build: the builder's code and the runtime beside it, major and minor version."""
        return f"{self.builder_sha256} {'.'.join(_release(self.onnxruntime))}"

    def differs_in_software_alone(self, expected: Fingerprint) -> bool:
        """True where the same sources were built with the same options, by another version of Cockpit or beside another
        ONNX Runtime."""
        made = replace(
            self,
            builder_sha256=expected.builder_sha256,
            onnxruntime=expected.onnxruntime,
            builder_files=expected.builder_files,
        )
        return self.software != expected.software and made == expected

    def notes(self, expected: Fingerprint) -> list[str]:
        """Differences from `expected` that do not matter, but may be worth knowing."""
        if self.onnxruntime != expected.onnxruntime and _release(self.onnxruntime) == _release(expected.onnxruntime):
            return [f"built beside onnxruntime {self.onnxruntime}, here {expected.onnxruntime}"]
        return []


def _short(value: object) -> str:
    """A field for people: hashes by their first 12 digits."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_short(item)}" for name, item in value.items()) or "none"
    text = str(value)
    return text[:12] if len(text) == 64 and set(text) <= set("0123456789abcdef") else text


def _release(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def onnxruntime_version() -> str:
    """Version of the installed ONNX Runtime, without importing it; "none" when there is none."""
    for package in ("onnxruntime-gpu", "onnxruntime"):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "none"


# --- the builder's code --------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class BuilderCode:
    """The code of a builder and of every first-party module that it imports, itself or through another.

    sha256: over the syntax trees without docstrings, so that comments, layout and texts for people change nothing; the
    same under every Python that Cockpit supports. files: module -> sha256 of its source file.
    """

    sha256: str
    files: dict[str, str]

    @classmethod
    def of(cls, module: str) -> BuilderCode:
        """Read and parse the modules, once in a process: 10 to 60 ms."""
        return _parsed(module)

    @classmethod
    def here(cls, module: str, built: Fingerprint | None) -> BuilderCode:
        """The code of `module` as it is here. Nothing is parsed where no file has changed since `built` was made."""
        if built is not None and built.builder.partition(":")[0] == module and _unchanged(built.builder_files):
            return cls(built.builder_sha256, built.builder_files)
        return cls.of(module)


@cache
def _parsed(module: str) -> BuilderCode:
    digests: dict[str, bytes] = {}
    files: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _module_file(name)
        if name in digests or name in _NO_RESULT or path is None:
            continue
        source = path.read_bytes()
        files[name] = hashlib.sha256(source).hexdigest()
        tree = ast.parse(source)
        digests[name] = hashlib.sha256("".join(_code(tree)).encode()).digest()
        waiting += _imported(tree, name, is_package=path.name == "__init__.py")
    whole = hashlib.sha256()
    for name in sorted(digests):
        whole.update(name.encode() + b"\0" + digests[name])
    return BuilderCode(whole.hexdigest(), files)


def _unchanged(files: dict[str, str]) -> bool:
    return bool(files) and all(_file_sha256(name) == sha256 for name, sha256 in files.items())


def _file_sha256(module: str) -> str | None:
    path = _module_file(module)
    return None if path is None else hashlib.sha256(path.read_bytes()).hexdigest()


def _module_file(name: str) -> Path | None:
    """The source of a first-party module or package; None for anything else (such as a name inside a module)."""
    if name.partition(".")[0] != _PACKAGE:
        return None
    path = _ROOT.joinpath(*name.split("."))
    files = (path.with_name(path.name + ".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def _imported(tree: ast.Module, module: str, *, is_package: bool) -> Iterator[str]:
    """Names that `tree` imports; some of them are names inside a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")[: len(module.split(".")) - node.level + is_package]
                base = ".".join([*parents, base] if base else parents)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _code(value: object) -> Iterator[str]:
    """A syntax tree as pieces of text. `ast.dump` would not do: it differs between versions of Python."""
    if isinstance(value, ast.AST):
        yield f"{type(value).__name__}("
        for name, field in ast.iter_fields(value):
            constant = isinstance(value, ast.Constant) and name == "value"
            if constant or (name not in {"kind", "type_comment"} and field is not None and field != []):
                yield f"{name}="
                yield from _code(field)
        yield ")"
    elif isinstance(value, list):
        yield "["
        for item in value:
            if not _is_text_for_people(item):
                yield from _code(item)
                yield ","
        yield "]"
    else:
        yield repr(value)


def _is_text_for_people(node: object) -> bool:
    """True for a docstring, of whatever it stands below."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
