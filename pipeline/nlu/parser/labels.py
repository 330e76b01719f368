"""The closed world of programs: which tools, which values of their arguments, where a number or a text may come from.

Everything is read off the tools' schemas, so a new tool is known here by its schema. A number is either one that the
sentence says, turned by one of a few rules (TURNS), or one of the constants that the training data use where nobody
says a number ("open the window" is 100 percent). A text is a substring of the sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipeline.vehicle.schemas import BY_ACTION, SIMPLE, TOOL_NAMES

MOST_CALLS: Final = 4
NONE: Final = "none"
"""The tool of a query that has no call."""
ACT: Final = "act"
REASONS: Final = (
    ACT,
    "none_talk",
    "statement",
    "hypothetical",
    "delayed",
    "condition",
    "taken_back",
    "forbidden",
    "unsupported",
    "not_understood",
    "how_to",
)
"""What a sentence is: a command now, or why it is none."""
TEXTS: Final = ("place", "query")
"""Arguments that are substrings of the sentence."""
VALUE: Final = "value"
TURNS: Final = {
    "same": lambda number: number,
    "minus": lambda number: -number,
    "tenths": lambda number: 10 * number,
    "minus_tenths": lambda number: -10 * number,
    "fifth": lambda number: 20 * number,
    "minus_fifth": lambda number: -20 * number,
    "third": lambda number: float(round(100 * number / 3)),
    "minus_third": lambda number: -float(round(100 * number / 3)),
    "quarter": lambda number: 25 * number,
    "positive": abs,
}
"""How a number that was said becomes a value: levels of five, four and three are shares of 100."""


LAST: Final = "last"
"""The class of a value that is the last call's: "the passenger's too"."""


def _shapes(tool: str) -> list[dict[str, Any]]:
    schemas = list(BY_ACTION[tool].values()) if tool in BY_ACTION else [SIMPLE[tool]]
    return [schema["properties"] for schema in schemas]


def arguments_of(tool: str) -> list[str]:
    """The names of a tool's arguments, in the order of its schema."""
    return list(_shapes(tool)[0])


@dataclass(frozen=True, slots=True)
class Choice:
    """A closed argument: `values` over all tools; `allowed[tool]`: indices into them."""

    name: str
    values: tuple[Any, ...]
    allowed: dict[str, tuple[int, ...]]


def _choices(tools: Sequence[str]) -> tuple[Choice, ...]:
    values: dict[str, list[Any]] = {}
    by_tool: dict[str, dict[str, list[Any]]] = {}
    for tool in tools:
        for shape in _shapes(tool):
            for name, schema in shape.items():
                own = [True, False] if schema["type"] == "boolean" else schema.get("enum")
                if own is None:
                    continue
                known = values.setdefault(name, [])
                known += [value for value in own if value not in known]
                mine = by_tool.setdefault(name, {}).setdefault(tool, [])
                mine += [value for value in own if value not in mine]
    return tuple(
        Choice(name, tuple(known), {tool: tuple(map(known.index, own)) for tool, own in by_tool[name].items()})
        for name, known in values.items()
    )


@dataclass(frozen=True, slots=True)
class Space:
    """Every label of a model. constants: values that stand for no number of the sentence."""

    tools: tuple[str, ...]
    choices: tuple[Choice, ...]
    options: tuple[str, ...]
    constants: tuple[float, ...]

    @classmethod
    def of(cls, constants: Iterable[float], tools: Sequence[str] = TOOL_NAMES) -> Space:
        """The labels of `tools`; refusing is no tool of the model: it gives a reason."""
        known = tuple(tool for tool in tools if tool != "refuse")
        options = SIMPLE["navigate_to"]["properties"]["avoid"]["items"]["enum"]
        return cls((NONE, *known), _choices(known), tuple(options), tuple(sorted(set(constants))))

    @property
    def values(self) -> tuple[str, ...]:
        """The classes of a value: turns of a number that was said, the last call's, then constants."""
        return (*TURNS, LAST, *(f"={constant:g}" for constant in self.constants))

    @property
    def heads(self) -> dict[str, int]:
        """Widths of what is chosen for each call: tool, closed arguments, how the value comes about, route options."""
        heads = {"tool": len(self.tools)}
        heads |= {choice.name: len(choice.values) for choice in self.choices}
        return heads | {VALUE: len(self.values), "avoid": len(self.options)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Space:
        """The labels that a model was trained with; a tool or a value that the schemas lack by now is never chosen.

        Raises ValueError for reasons that this version does not know.
        """
        if tuple(config["reasons"]) != REASONS:
            raise ValueError(f"the parser was trained for the reasons {', '.join(config['reasons'])}")
        tools = tuple(config["tools"])
        now = {choice.name: choice for choice in _choices([tool for tool in tools if tool in TOOL_NAMES])}
        choices = []
        for name, values in config["choices"].items():
            current = now.get(name, Choice(name, (), {}))
            allowed = {
                tool: tuple(values.index(current.values[i]) for i in indices if current.values[i] in values)
                for tool, indices in current.allowed.items()
            }
            choices.append(Choice(name, tuple(values), allowed))
        return cls(tools, tuple(choices), tuple(config["options"]), tuple(config["constants"]))

    def as_config(self) -> dict[str, Any]:
        """What an adapter keeps, so that a model is never read with other labels than its own."""
        return {
            "tools": list(self.tools),
            "choices": {choice.name: list(choice.values) for choice in self.choices},
            "options": list(self.options),
            "constants": list(self.constants),
            "reasons": list(REASONS),
        }
