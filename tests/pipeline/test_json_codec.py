"""The wire: bytes equal to a plain encoder's, incremental contexts, validation, streams; and the trace file."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chain.serialise import REQUIRED_RATIO, context_messages, edges, measure_encoding
from cockpit.telemetry.trace import TraceRecorder
from models.errors import InputError
from pipeline.json_codec import (
    ContextEncoder,
    SchemaMismatch,
    StateEncoder,
    dumps,
    dumps_text,
    json_lines,
    load_stream,
    loads,
    validator,
)
from pipeline.trace import NullTracer, Tracer

SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "enum": ["a", "b"]},
        "value": {"type": "number", "minimum": 16, "maximum": 28},
    },
    "required": ["path", "value"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("value", [None, True, 0, -1.5, "", "把主驾温度调到 22.5°", [], {}, {"a": [1, {"b": None}]}])
def test_round_trip(value: Any) -> None:
    assert loads(dumps(value)) == value
    assert json.loads(dumps_text(value, pretty=True)) == value


def test_what_is_no_json_is_an_input_error() -> None:
    with pytest.raises(InputError, match="not JSON"):
        loads(b'{"a": ')
    with pytest.raises(InputError, match="not JSON"):
        load_stream(io.BytesIO(b"[1, 2"))
    with pytest.raises(TypeError):
        dumps(object())


def test_a_stream_is_read_without_its_text() -> None:
    assert load_stream(io.BytesIO(dumps(context_messages()[:5]))) == context_messages()[:5]


def test_the_validator_names_place_and_keyword() -> None:
    check = validator(SCHEMA)
    check({"path": "a", "value": 22.5})
    for value, keyword, path in (
        ({"path": "a", "value": 90}, "maximum", "/value"),
        ({"path": "c", "value": 20}, "enum", "/path"),
        ({"path": "a"}, "required", ""),
        ({"path": "a", "value": 20, "x": 1}, "additionalProperties", "/x"),
    ):
        with pytest.raises(SchemaMismatch) as caught:
            check(value)
        assert (caught.value.keyword, caught.value.path) == (keyword, path)


def test_a_broken_schema_is_refused() -> None:
    with pytest.raises(TypeError):
        validator({"type": object()})  # no JSON at all


def test_a_context_is_encoded_as_a_whole_but_only_once() -> None:
    messages = context_messages()[:50]
    encoder = ContextEncoder()
    assert encoder.encode([]) == b"[]"
    for end in (1, 2, 50, 20, 50):  # grows, is cut back (barge-in), grows again
        assert encoder.encode(messages[:end]) == dumps(messages[:end])
    assert encoder.encoded_messages == 50 + 30
    changed = [*messages[:10], {"role": "user"}, *messages[11:]]
    assert encoder.encode(changed) == dumps(changed)
    assert encoder.encoded_messages == 80 + 40


@pytest.mark.parametrize("envelope", [{}, {"model": "m", "stream": True}])
def test_an_envelope_goes_around_the_context(envelope: dict[str, Any]) -> None:
    messages = context_messages()[:3]
    encoder = ContextEncoder()
    assert encoder.encode_in(envelope, "messages", messages) == dumps({**envelope, "messages": messages})
    with pytest.raises(ValueError, match="already"):
        encoder.encode_in({"messages": 1}, "messages", messages)


def test_a_state_table_follows_its_changes() -> None:
    table = StateEncoder()
    assert table.encode() == b"{}"
    table.set("温度", 22)
    table.set("b", [1])
    table.set("温度", {"value": 23})
    assert table.encode() == dumps({"温度": {"value": 23}, "b": [1]})


def test_json_lines() -> None:
    assert json_lines([{"a": 1}, 2]) == b'{"a":1}\n2\n'


def test_a_16k_context_is_encoded_20_times_faster_than_by_json_dumps() -> None:
    name, ours, theirs = edges()[0]
    assert "16K" in name
    assert json.loads(ours()) == json.loads(theirs())  # type: ignore[arg-type]
    assert measure_encoding(ours, theirs, 7)["ratio"] >= REQUIRED_RATIO


@pytest.mark.parametrize("tracer", [NullTracer(), TraceRecorder()])
def test_tracers_are_alike_to_a_stage(tracer: Tracer) -> None:
    with tracer.span("asr", 1):
        pass
    with pytest.raises(RuntimeError), tracer.span("llm", 1, "decode"):
        raise RuntimeError
    tracer.record("tts", 1, 5, 9)
    tracer.instant("play", 1, "first audio", 12)


def test_a_trace_file_holds_every_stage_on_its_track(tmp_path: Path) -> None:
    recorder = TraceRecorder()
    recorder.record("asr", 1, 1_000_000, 3_500_000, "final")
    recorder.record("llm", 1, 3_500_000, 4_000_000)
    recorder.instant("play", 1, "first audio", 5_000_000)
    path = tmp_path / "trace.json"
    recorder.write(path)
    assert [item.name for item in tmp_path.iterdir()] == ["trace.json"]
    events = json.loads(path.read_text())["traceEvents"]
    tracks = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    assert list(tracks) == ["asr", "llm", "play"]
    spans = {event["name"]: event for event in events if event["ph"] in "Xi"}
    assert (spans["final"]["ts"], spans["final"]["dur"], spans["final"]["tid"]) == (0.0, 2500.0, tracks["asr"])
    assert spans["first audio"]["ts"] == 4000.0
    assert all(span["args"]["turn_id"] == 1 for span in spans.values())


def test_a_trace_is_bounded_and_says_what_it_forgot() -> None:
    recorder = TraceRecorder(capacity=3)
    for turn_id in range(5):
        recorder.record("asr", turn_id, 0, 1)
    assert [span.turn_id for span in recorder.spans()] == [2, 3, 4]
    assert recorder.dropped == 2


def test_a_trace_that_cannot_be_written_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--trace"):
        TraceRecorder().write(tmp_path / "missing" / "trace.json")
