"""The metrics as Prometheus reads them: names that its linter passes, values that are those of the process, and alerts
and a dashboard that name nothing else.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from cockpit.arbiter.requests import LatencyHistogram
from cockpit.runtime import Runtime
from cockpit.telemetry.live_metrics import LiveMetrics
from cockpit.telemetry.metrics import SECONDS, Metrics
from cockpit.telemetry.watch import Finding, GpuSample
from pipeline.frames import ToolCall, ToolResult
from pipeline.turn_log import TurnRecord
from tests.support.dispatchers import dispatcher_of
from tests.support.fake_chain import RecordingSink, fake_parts, utterance
from tests.support.headunit.followed_chain import Chain
from tests.support.paths import ROOT

SHARE = ROOT / "cockpit" / "share"
GPU = GpuSample(3 << 30, 8 << 30, 90, 1410, 1980, 2619, 0x40, ("hw_thermal",), 8, 16, 4, 5, 3, 91, 400.5)
OURS = re.compile(r"\b(?:cockpit|process)_[a-z0-9_]+\b")
PROMTOOL = shutil.which("promtool")


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def runtime(metrics: Metrics) -> Iterator[Runtime]:
    made = Runtime(fake_parts(RecordingSink()), observer=metrics)
    made.start()
    yield made
    made.abort()


@pytest.fixture
def whole(metrics: Metrics, runtime: Runtime) -> Metrics:
    """Everything that a process with a GPU, audio and requests exports, after one spoken command."""
    chain = SimpleNamespace(status=lambda: SimpleNamespace(modes={"no_speaker": "unplugged"}))
    watch = SimpleNamespace(present=True, sample=lambda: GPU)
    findings = SimpleNamespace(findings=(Finding("pcie_width", "x8 of x16"),))
    dispatcher = dispatcher_of()
    with dispatcher.lease("dialogue_task") as lease:
        lease.boundary(3)
    dispatcher.memory_in_use(3 << 30, 8 << 30)
    scheduling: Any = SimpleNamespace(dispatcher=dispatcher, watch=watch, maintenance=findings)
    device: Any = SimpleNamespace(xruns=2, samples_lost=320, losses=1, underruns=4)
    counted = {"requests": 3, "stopped": 1, "refused": 0, "prefill_tokens": 10, "reused_tokens": 20}
    texts = {"qwen": SimpleNamespace(stats=SimpleNamespace(shown=lambda: {"dialogue_task": counted}))}
    events: Any = SimpleNamespace(subscribers=1, dropped=7)
    service: Any = chain
    metrics.show(LiveMetrics(runtime, service, "car", "ab" * 32, "cuda", scheduling, device, device, events, texts))
    runtime.listen(utterance())
    assert runtime.wait_idle()
    refused = ToolResult(ToolCall("set_temperature", {"value": 99}), "refused", None, None, "out_of_range")
    asked = TurnRecord(9, 0, task="dialogue", decided_by="model", tool_results=(refused,))
    asked.ms["llm_ttft"] = 250.0
    metrics.ended(asked)
    return metrics


def exported(metrics: Metrics) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """name -> labels -> value, of every series."""
    text, kind = metrics.text("")
    assert kind.startswith("text/plain")
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_values_are_those_of_the_process(whole: Metrics) -> None:
    seen = exported(whole)
    outcome = (("decided_by", "rule"), ("outcome", "answered"), ("task", "vehicle"))
    assert seen["cockpit_turns_total"][outcome] == 1
    assert seen["cockpit_tool_calls_total"][(("outcome", "done"), ("tool", "set_defrost"))] == 1
    assert seen["cockpit_tool_denied_total"] == {(("reason", "out_of_range"),): 1}
    assert seen["cockpit_turn_first_token_seconds_bucket"][(("le", "0.3"), ("task", "dialogue"))] == 1
    assert seen["cockpit_stage_failures_total"][(("stage", "speak"),)] == 0, "there before it fails"
    assert seen["cockpit_first_audio_seconds_count"][(("task", "vehicle"),)] == 1
    assert seen["cockpit_stage_seconds_count"][(("stage", "recognise"), ("task", "vehicle"))] == 1
    assert seen["cockpit_degraded"][(("mode", "no_speaker"),)] == 1
    assert seen["cockpit_degraded"][(("mode", "no_microphone"),)] == 0
    assert seen["cockpit_audio_xruns_total"][(("device", "speaker"),)] == 4
    assert seen["cockpit_gpu_sm_clock_hertz"][()] == 1.41e9
    assert seen["cockpit_gpu_utilisation_ratio"][()] == 0.9
    assert seen["cockpit_gpu_pcie_lanes"][()] == 8
    assert seen["cockpit_gpu_finding"][(("code", "pcie_width"),)] == 1
    assert seen["cockpit_gpu_slowdown"][(("reason", "hw_thermal"),)] == 1
    assert seen["cockpit_task_tokens_total"][(("task", "dialogue"),)] == 3
    assert seen["cockpit_time_to_first_token_seconds_count"][(("task", "dialogue"),)] == 1
    assert (
        seen["cockpit_api_prompt_tokens_total"][(("model", "qwen"), ("source", "cached"), ("task", "dialogue"))] == 20
    )
    assert seen["cockpit_profile_info"][(("name", "car"), ("sha256", "ab" * 32))] == 1
    assert seen["cockpit_events_dropped_total"][()] == 7
    assert seen["process_resident_memory_bytes"][()] > 0


def test_names_and_types_are_as_prometheus_wants_them(whole: Metrics) -> None:
    """What `promtool check metrics` looks for, for machines that have none."""
    families = list(text_string_to_metric_families(whole.text("")[0].decode()))
    assert len(families) > 40
    for family in families:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", family.name), family.name
        assert family.documentation.endswith((".", "process")), family.name
        assert not re.search(r"_(ms|us|ns|milliseconds|percent|mb|kb)(_|$)", family.name), "base units"
        counted = {sample.name for sample in family.samples}
        if family.type == "counter":
            assert counted <= {f"{family.name}_total"}, counted
        if family.type == "gauge":
            assert not family.name.endswith(("_total", "_count", "_sum", "_bucket")), family.name
        assert not any(name.endswith("_created") for name in counted)


@pytest.mark.skipif(PROMTOOL is None, reason="promtool (Debian: prometheus) is not installed")
def test_promtool_finds_nothing_to_say(whole: Metrics) -> None:
    text, _ = whole.text("")
    checked = subprocess.run([str(PROMTOOL), "check", "metrics"], input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool (Debian: prometheus) is not installed")
def test_alerts_fire_when_they_should() -> None:
    rules = ROOT / "tests" / "data" / "prometheus" / "cockpit.rules.test.yml"
    tested = subprocess.run([str(PROMTOOL), "test", "rules", rules], capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_alerts_and_dashboard_name_only_what_is_exported(whole: Metrics) -> None:
    there = set(exported(whole))
    rules = YAML(typ="safe").load(SHARE / "prometheus" / "cockpit.rules.yml")["groups"][0]["rules"]
    dashboard = json.loads((SHARE / "grafana" / "cockpit.json").read_text(encoding="utf-8"))
    queries = [rule["expr"] for rule in rules]
    queries += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [entry["query"] for entry in dashboard["templating"]["list"] if entry["type"] == "query"]
    assert len(queries) > 40
    for query in queries:
        names = set(OURS.findall(query))
        assert names, query
        assert names <= there, f"{query} asks for {names - there}"
    tested = {rule["alert"] for rule in rules}
    text = (ROOT / "tests" / "data" / "prometheus" / "cockpit.rules.test.yml").read_text(encoding="utf-8")
    assert all(f"alertname: {alert}" in text for alert in tested), "every alert has its test"


def test_a_turn_is_counted_by_what_became_of_it(metrics: Metrics) -> None:
    failed, cut = TurnRecord(1, 0, failed="speak"), TurnRecord(2, 0, interrupted=True, decided_by="model")
    metrics.ended(failed)
    metrics.ended(cut)
    metrics.failed("speak", 1, RuntimeError("a secret"))
    seen = exported(metrics)
    assert seen["cockpit_turns_total"] == {
        (("decided_by", "none"), ("outcome", "failed"), ("task", "none")): 1,
        (("decided_by", "model"), ("outcome", "interrupted"), ("task", "none")): 1,
    }
    assert seen["cockpit_stage_failures_total"][(("stage", "speak"),)] == 1
    assert b"secret" not in metrics.text("")[0]


def test_open_metrics_for_who_asks_for_it(metrics: Metrics) -> None:
    text, kind = metrics.text("application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")


def test_a_histograms_buckets_hold_what_was_counted() -> None:
    histogram = LatencyHistogram()
    for milliseconds in (4, 9, 40, 140, 700, 20_000):
        histogram.add(milliseconds * 1_000_000)
    below = dict(zip(SECONDS, histogram.below([round(bound * 1e9) for bound in SECONDS]), strict=True))
    assert [below[bound] for bound in (0.005, 0.01, 0.05, 0.15, 0.75, 10.0)] == [1, 2, 3, 4, 5, 5]
    assert histogram.copy().sum_ns == histogram.sum_ns == 20_893_000_000


def test_nothing_of_what_is_said_is_in_the_metrics(tmp_path: Path) -> None:
    metrics = Metrics()
    chain = Chain(RecordingSink(), observer=metrics)
    try:
        chain.cabin.ask("Navigate to the airport.", "en")
        assert chain.runtime.wait_idle()
        text = metrics.text("")[0].decode().lower()
        assert "cockpit_turns_total" in text
        assert "airport" not in text
    finally:
        chain.close()
