"""What a profile says of the agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.agent.tools import AgentTool


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """What the profile says. tools: the integrator's, beside the car's own. ttl_s: by tool name. See AgentSection."""

    max_rounds: int = 4
    max_parallel: int = 4
    tool_timeout_s: float = 2.0
    ttl_s: Mapping[str, float] = field(default_factory=dict)
    tools: tuple[AgentTool, ...] = ()
