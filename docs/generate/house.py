"""What the code says about itself: its folders with their one-line purpose, its stages, its channels.

Read from the sources (docstrings, imports, the stage table of `cockpit/runtime.py`) and from `Edges.make`, so that no
picture can say what the code does not.
"""

from __future__ import annotations

import ast
import dataclasses
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cockpit import runtime

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("cockpit", "pipeline", "models")
"""Top to bottom: imports run downwards only (`tests/test_house.py`)."""
BESIDE = ("profiles", "hil", "benchmarks", "tests", "docs")
SHARED = ("tracer", "generations", "work")
"""Parts that every stage may use; no stage is made of them."""


@dataclass(frozen=True, slots=True)
class Room:
    """One folder. `files`: its own modules with the first sentence of each; `rooms`: the packages inside."""

    path: str
    purpose: str
    files: tuple[tuple[str, str], ...]
    rooms: tuple[Room, ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """One channel. `policy`: what happens when it is full, for a file; `live_policy`: for a microphone."""

    name: str
    message: str
    capacity: int
    policy: str
    live_policy: str


@dataclass(frozen=True, slots=True)
class Stage:
    """One thread. `files`: where its work is done; `packages`: what these import of the pipeline; `engines`: who
    implements the contracts that they call; `scheduled`: the folders that decide when its model may run."""

    name: str
    inbox: str
    outbox: str | None
    files: tuple[str, ...]
    packages: tuple[str, ...]
    engines: tuple[str, ...]
    scheduled: tuple[str, ...]


def first_sentence(text: str | None) -> str:
    """Up to the first full stop that ends a sentence, in one line; "" for no docstring."""
    line = " ".join((text or "").split("\n\n")[0].split())
    end = line.find(". ")
    return line.rstrip(".") if end < 0 else line[:end]


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def room(path: str) -> Room:
    """The package in folder `path` (relative to the root) and those in it."""
    folder = ROOT / path
    modules = sorted(file for file in folder.glob("*.py") if file.name != "__init__.py")
    inside = sorted(entry.parent for entry in folder.glob("*/__init__.py"))
    return Room(
        path,
        first_sentence(ast.get_docstring(tree_of(folder / "__init__.py"))),
        tuple((file.name, first_sentence(ast.get_docstring(tree_of(file)))) for file in modules),
        tuple(room(entry.relative_to(ROOT).as_posix()) for entry in inside),
    )


# --- the channels ----------------------------------------------------------------------------------------------------
def edges() -> list[Edge]:
    """The channels in the order of the data."""
    for_file, for_microphone = runtime.Edges.make(live=False), runtime.Edges.make(live=True)
    hints = typing.get_type_hints(runtime.Edges)
    found = []
    for field in dataclasses.fields(runtime.Edges):
        channel, live = getattr(for_file, field.name), getattr(for_microphone, field.name)
        (message,) = typing.get_args(hints[field.name])
        message = (typing.get_args(message) or (message,))[0]  # beside it only the news that a turn has failed
        found.append(Edge(field.name, message.__name__, channel.capacity, channel.policy, live.policy))
    return found


# --- the stages ------------------------------------------------------------------------------------------------------
def stages() -> list[Stage]:
    """The rows of the stage table in `cockpit/runtime.py`, in the order of the data."""
    tree = tree_of(ROOT / "cockpit" / "runtime.py")
    methods = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    found = []
    for name, inbox, method, outbox in _stage_rows(tree):
        classes = list(_classes_of(method, methods, plays=outbox is None))
        files = tuple(dict.fromkeys(file for cls in classes for file in _files_of(cls)))
        folders = {folder_of(file) for file in files}
        used = sorted(_packages_used(folders))
        engines = tuple(_engines_for(folders | set(used)))
        found.append(Stage(name, inbox, outbox, files, tuple(used), engines, _schedulers(files)))
    return found


def _stage_rows(tree: ast.Module) -> Iterator[tuple[str, str, str, str | None]]:
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Tuple) and len(node.elts) == 4):
            continue
        name, inbox, method, outbox = node.elts
        if isinstance(name, ast.Constant) and isinstance(name.value, str) and _is_edge(inbox):
            yield name.value, _attribute(inbox), _attribute(method), _attribute(outbox) or None


def _attribute(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else ""


def _is_edge(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "edges"


def _classes_of(method: str, methods: dict[str, ast.FunctionDef], *, plays: bool) -> Iterator[type]:
    """The classes of the parts whose work is a stage's method, in order of use."""
    hints = typing.get_type_hints(runtime.Parts)
    made = _made_stages(methods["__init__"])
    for node in _body(method, methods):
        if not isinstance(node, ast.Attribute):
            continue
        owner = node.value
        if isinstance(owner, ast.Attribute) and owner.attr == "parts" and node.attr not in SHARED:
            if plays or node.attr != "sink":  # others only ask the sink whether a reply still sounds
                yield hints[node.attr]
        elif isinstance(owner, ast.Name) and owner.id == "self" and node.attr in made:
            cls, parts = made[node.attr]
            yield cls
            yield from (hints[part] for part in parts if part not in SHARED)


def _body(method: str, methods: dict[str, ast.FunctionDef]) -> Iterator[ast.AST]:
    """The nodes of a method, and of the method of the runtime that it hands every message on to."""
    yield from ast.walk(methods[method])
    for node in ast.walk(methods[method]):
        if isinstance(node, ast.For):  # `for passed in self.parts.wake.push(frame): self._endpoint(passed)`
            for call in (part for line in node.body for part in ast.walk(line) if isinstance(part, ast.Call)):
                if isinstance(call.func, ast.Attribute) and call.func.attr in methods and _hands_on(node, call):
                    yield from ast.walk(methods[call.func.attr])


def _hands_on(loop: ast.For, call: ast.Call) -> bool:
    return [_name(argument) for argument in call.args] == [_name(loop.target)] != [""]


def _made_stages(constructor: ast.FunctionDef) -> dict[str, tuple[type, list[str]]]:
    """`self._x = SomeStage(parts.a, parts.b, ...)` in the constructor: _x -> (SomeStage, [a, b])."""
    made: dict[str, tuple[type, list[str]]] = {}
    for node in ast.walk(constructor):
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
            continue
        target, cls = node.targets[0], getattr(runtime, _name(node.value.func), None)
        if isinstance(target, ast.Attribute) and isinstance(cls, type) and cls.__name__.endswith("Stage"):
            parts = [
                arg.attr for arg in node.value.args if isinstance(arg, ast.Attribute) and _name(arg.value) == "parts"
            ]
            made[target.attr] = (cls, parts)
    return made


def _files_of(cls: type) -> list[str]:
    """The file of a class; of a Protocol those of its implementations, where the pipeline has some."""
    own = cls.__module__.replace(".", "/") + ".py"
    if getattr(cls, "_is_protocol", False):
        return [file for file in implementations(cls.__name__) if file.startswith("pipeline/")] or [own]
    return [own]


def folder_of(file: str) -> str:
    """The folder of a file; the file itself where it lies directly in a layer's folder."""
    folder = file.rpartition("/")[0]
    return file if folder in LAYERS else folder


# --- who implements what ---------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Class:
    name: str
    file: str
    methods: frozenset[str]
    protocol: bool


@cache
def _classes() -> tuple[_Class, ...]:
    found = []
    for layer in LAYERS:
        for path in sorted((ROOT / layer).rglob("*.py")):
            for node in tree_of(path).body:
                if isinstance(node, ast.ClassDef):
                    methods = frozenset(
                        part.name
                        for part in node.body
                        if isinstance(part, ast.FunctionDef)
                        and part.name[0] != "_"
                        and not {"classmethod", "staticmethod"} & set(map(_name, part.decorator_list))
                    )
                    protocol = any(_name(base) == "Protocol" for base in node.bases)
                    found.append(_Class(node.name, path.relative_to(ROOT).as_posix(), methods, protocol))
    return tuple(found)


def _name(base: ast.expr) -> str:
    base = base.value if isinstance(base, ast.Subscript) else base
    return base.id if isinstance(base, ast.Name) else getattr(base, "attr", "")


@cache
def implementations(protocol: str) -> tuple[str, ...]:
    """Files with a class that has every public method of the Protocol of that name."""
    wanted = {cls.methods for cls in _classes() if cls.protocol and cls.name == protocol}
    return tuple(
        dict.fromkeys(
            cls.file for cls in _classes() if not cls.protocol and any(methods <= cls.methods for methods in wanted)
        )
    )


@cache
def _imports(file: str) -> tuple[tuple[str, str], ...]:
    """(module, name) of every `from module import name` of a file, also of those inside functions."""
    return tuple(
        (node.module, alias.name)
        for node in ast.walk(tree_of(ROOT / file))
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    )


def _sources(folder: str) -> list[str]:
    path = ROOT / folder
    return [folder] if path.is_file() else sorted(file.relative_to(ROOT).as_posix() for file in path.glob("*.py"))


def _packages_used(folders: set[str]) -> set[str]:
    """Packages of the pipeline that the sources in `folders` import, others than themselves."""
    used = set()
    for file in (file for folder in folders for file in _sources(folder)):
        for module, _ in _imports(file):
            package = "/".join(module.split(".")[:2])
            if module.startswith("pipeline.") and (ROOT / package).is_dir():
                used.add(package)
    return used - folders


def _engines_for(folders: set[str]) -> list[str]:
    """Folders of `models/engines` that `folders` import, or whose classes implement a contract that they name."""
    contracts = {cls.name for cls in _classes() if cls.protocol}
    used = {name for folder in folders for file in _sources(folder) for _, name in _imports(file) if name in contracts}
    used |= {cls.name for cls in _classes() if cls.protocol and folder_of(cls.file) in folders}
    found = {folder_of(file) for name in used for file in implementations(name)}
    for file in (file for folder in folders for file in _sources(folder)):
        found |= {"/".join(module.split(".")[:3]) for module, _ in _imports(file)}
    return sorted(folder for folder in found if folder.startswith("models/engines/") and (ROOT / folder).is_dir())


def _schedulers(files: tuple[str, ...]) -> tuple[str, ...]:
    """Folders of `cockpit/` that implement a contract which `files` name, and the arbiter where these ask it."""
    contracts = {cls.name for cls in _classes() if cls.protocol}
    used = {name for file in files for _, name in _imports(file) if name in contracts}
    found = {
        folder_of(file) for name in used for file in implementations(name) if file.startswith("cockpit/scheduling/")
    }
    asked = {module for folder in found for file in _sources(folder) for module, _ in _imports(file)}
    arbiter = any(module.startswith("cockpit.arbiter") for module in asked)
    return (*sorted(found), *(["cockpit/arbiter"] if arbiter else []))
