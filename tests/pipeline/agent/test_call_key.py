"""Equal calls are one, however the model orders their arguments."""

from __future__ import annotations

from pipeline.agent.tools import AgentCall


def test_the_order_of_arguments_makes_no_other_call() -> None:
    one = AgentCall("find_places", {"kind": "museum", "near": "here"})
    assert one.key == AgentCall("find_places", {"near": "here", "kind": "museum"}).key
    assert one.key != AgentCall("find_places", {"kind": "museum", "near": "there"}).key
    assert one.key != AgentCall("distance", {"kind": "museum", "near": "here"}).key
