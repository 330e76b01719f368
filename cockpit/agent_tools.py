"""The agent's setup from the profile; the integrator's tools are imported here, as `agent.tools` names them."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from cockpit.profile.sections import AgentSection
from models.errors import ConfigError, InputError
from pipeline.agent.car_tools import CAR_TOOLS
from pipeline.agent.setup import AgentSetup
from pipeline.agent.tools import AgentTool, Toolset


def setup_of(section: AgentSection) -> AgentSetup:
    """What the dialogue needs of the section. Raises ConfigError for tools that cannot be loaded or do not fit."""
    tools = tuple(tool for entry in section.tools for tool in _loaded(entry))
    try:
        own = Toolset(tools)
    except InputError as error:
        raise ConfigError(f"agent.tools: {error}") from error
    taken = [tool.name for tool in tools if tool.name in CAR_TOOLS]
    if taken:
        raise ConfigError(f"agent.tools: {', '.join(taken)} is the name of a tool of the car: rename it")
    for name, ttl in section.cache.items():
        if name not in own and name not in CAR_TOOLS:
            known = ", ".join([*CAR_TOOLS, *(tool.name for tool in tools)])
            raise ConfigError(f"agent.cache: no tool is called {name!r}; there are {known}")
        if name in own and own[name].acts and ttl.ns:
            raise ConfigError(f"agent.cache: {name} acts, so its result is never used again: take it out")
    return AgentSetup(
        max_rounds=section.max_rounds,
        max_parallel=section.max_parallel,
        tool_timeout_s=section.tool_timeout.seconds,
        ttl_s={name: ttl.seconds for name, ttl in section.cache.items()},
        tools=tools,
    )


def _loaded(entry: str) -> list[AgentTool]:
    """The tools of one `package.module:NAME`."""
    module, _, name = entry.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), name)
        if callable(found) and not isinstance(found, AgentTool):
            found = found()
    except Exception as error:  # the edge of an integrator's module: whatever it was, the start is refused by name
        raise ConfigError(
            f"agent.tools: {entry} cannot be loaded ({type(error).__name__}: {error}); install it, or take it out"
        ) from error
    tools = [found] if isinstance(found, AgentTool) else list(found) if isinstance(found, Iterable) else [found]
    if not all(isinstance(tool, AgentTool) for tool in tools):
        raise ConfigError(f"agent.tools: {entry} is no AgentTool, nor a list of them, nor a function that returns them")
    return tools
