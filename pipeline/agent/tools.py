"""What an agent's tool is. An integrator registers one by handing an `AgentTool` to `Toolset`; see docs/agents.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from models.errors import InputError
from pipeline.frames import Language
from pipeline.json_codec import SchemaMismatch, dumps_text, validator
from pipeline.vehicle.schemas import TOOL_NAMES

Arguments = Mapping[str, Any]
Result = Mapping[str, Any]
OutcomeStatus = Literal["done", "failed", "timed_out", "busy"]
_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")
UNCONFIRMED = "not_confirmed"


@dataclass(frozen=True, slots=True)
class AgentTool:
    """One tool.

    parameters: JSON Schema of the arguments, an object. A text without `enum` may only be words that the person said.
    run: called in a thread of the loop's with checked arguments; returns an object that JSON can hold, or raises. It
    may be abandoned after its time limit, and goes on then without anybody waiting.
    names: what the tool is called when it is spoken of ("the weather service").
    acts: whether it changes anything. Such a tool is called once the turn is over, never twice, never from a cache,
    only when one of its `words` was said, and its result must hold `confirmed: true`, or it counts as failed.
    words: by language; where given, the tool is only offered when one of them was said.
    ttl_s: how long a result may be used again. timeout_s: None for the profile's `agent.tool_timeout`.
    say: arguments and result to a sentence. Without it the language model puts the result into words.
    """

    name: str
    names: Mapping[Language, str]
    description: str
    parameters: Mapping[str, Any]
    run: Callable[[Arguments], Result]
    acts: bool = False
    words: Mapping[Language, tuple[str, ...]] = field(default_factory=dict)
    ttl_s: float = 0.0
    timeout_s: float | None = None
    say: Callable[[Arguments, Result, Language], str] | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name in TOOL_NAMES:
            raise InputError(f"{self.name!r} is no name for a tool: lower-case letters, and none of the car's own")
        if {"en", "zh"} - set(self.names):
            raise InputError(f"tool {self.name}: names needs a spoken name for en and zh")
        if self.parameters.get("type") != "object":
            raise InputError(f"tool {self.name}: parameters must be a JSON Schema of type object")
        if self.acts and self.ttl_s:
            raise InputError(f"tool {self.name} acts, so its result is never used again: leave ttl_s out")
        if self.acts and not self.words:
            raise InputError(f"tool {self.name} acts: say in `words` which words of the person ask for it")
        if self.timeout_s is not None and self.timeout_s <= 0:
            raise InputError(f"tool {self.name}: timeout_s {self.timeout_s} leaves it no time")

    def fault(self, arguments: Arguments) -> str | None:
        """What is wrong with the arguments, None when they are as `parameters` says."""
        try:
            validator(self.parameters)(dict(arguments))
        except (SchemaMismatch, TypeError) as error:
            return str(error)
        return None

    def asked_for(self, text: str) -> bool:
        """Whether the tool may be offered for what was said."""
        said = text.lower()
        return not self.words or any(
            re.search(rf"\b{re.escape(word.lower())}", said) if word.isascii() else word in said
            for words in self.words.values()
            for word in words
        )


class Toolset:
    """Tools by name. Filled before the first turn."""

    def __init__(self, tools: Iterable[AgentTool] = ()) -> None:
        self._tools: dict[str, AgentTool] = {}
        for tool in tools:
            self.register(tool)

    def register(self, tool: AgentTool) -> None:
        """Add one. Raises InputError when the name is taken."""
        if tool.name in self._tools:
            raise InputError(f"two tools are called {tool.name}: rename one")
        self._tools[tool.name] = tool

    def __getitem__(self, name: str) -> AgentTool:
        return self._tools[name]

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[AgentTool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)


@dataclass(frozen=True, slots=True)
class AgentCall:
    """One call that the model wrote, whole and checked."""

    name: str
    arguments: Arguments

    @property
    def key(self) -> str:
        """The same for equal calls, in whatever order their arguments are written."""
        return f"{self.name} {dumps_text(sorted(self.arguments.items()))}"


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What became of a call. `result` is empty unless done; `reason` says why not, for logs. cached: not called anew.

    timed_out: it took longer than it may. busy: an earlier call of the same tool that took too long still runs.
    """

    call: AgentCall
    status: OutcomeStatus
    result: Result = field(default_factory=dict)
    reason: str = ""
    ms: float = 0.0
    cached: bool = False
