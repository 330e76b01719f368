"""What the benchmarks read of a streamed answer: ours says its times, llama.cpp's server others."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from benchmarks.harness.served import _pieces

OURS = {"queue_ms": 0.5, "ttft_ms": 4.0, "tpot_ms": 0.7}
THEIRS = {"prompt_n": 12, "predicted_ms": 80.0}


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ({"usage": {"completion_tokens": 8}, "timings": OURS}, {**OURS, "completion_tokens": 8}),
        ({"timings": THEIRS}, {}),
        ({}, {}),
    ],
)
def test_the_text_is_read_whoever_answers(last: dict[str, Any], expected: dict[str, float]) -> None:
    events = [{"choices": [{"delta": {"content": "Left"}}]}, {"choices": [{"delta": {}}], **last}]
    lines = io.BytesIO(b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events))
    timings: dict[str, float | None] = {}
    assert list(_pieces(lines, timings)) == ["Left"]  # type: ignore[arg-type]
    assert timings == expected
