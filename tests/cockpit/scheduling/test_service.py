"""All of it together on this machine's CPU, under the profile that ships for it, asked over its socket."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cockpit.arbiter.config import ArbiterConfig
from cockpit.cli.o3ctl import app
from cockpit.device.base import PlacementProbe
from cockpit.device.cpu import LONGEST_CHUNK, CpuDevice
from cockpit.profile.load import load_profile
from cockpit.scheduling.service import SchedulingPlan, open_service
from models.errors import DeviceUnavailable, StartupError

needs_two = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="profiles/cpu.yaml asks for two cores")


@pytest.fixture
def config() -> ArbiterConfig:
    arbiter = load_profile("cpu").arbiter
    assert arbiter is not None
    return arbiter


@needs_two
def test_the_shipped_cpu_profile_runs_and_answers(config: ArbiterConfig, folder: Path) -> None:
    made = open_service(SchedulingPlan(config, folder / "o3.sock", state_dir=folder), "cpu")
    try:
        with (
            made.dispatcher.lease("dialogue_task", session="s1", kv_bytes=1 << 20) as lease,
            made.device.enter(lease.lane),
        ):
            assert lease.boundary(0)
            assert os.sched_getaffinity(0) == set(made.device.lanes[lease.lane].cores)
        result = CliRunner().invoke(app, ["status", "--verbose", "--json", "--socket", str(folder / "o3.sock")])
        assert result.exit_code == 0, result.output
        status = json.loads(result.output)["status"]
        tasks = {task["name"]: task for task in status["tasks"]}
        assert list(tasks) == ["navigation_task", "speech_task", "dialogue_task", "background_task"]
        assert status["eviction_candidates"][0]["session"] == "s1"
        assert tasks["dialogue_task"]["finished"] == 1
    finally:
        made.close()
    assert not (folder / "o3.sock").exists()


@needs_two
def test_chunks_longer_than_a_run_on_a_cpu_are_no_arms_there(config: ArbiterConfig) -> None:
    policy = replace(config.policy, prefill_chunk_tokens=(512, 256, 16))
    made = open_service(SchedulingPlan(replace(config, policy=policy)), "cpu")
    try:
        arms = made.dispatcher.arbiter.policy.arms
        assert [arm.prefill_chunk_tokens for arm in arms] == [LONGEST_CHUNK, 16]
    finally:
        made.close()


@needs_two
def test_a_lane_that_runs_elsewhere_is_a_start_up_error(config: ArbiterConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = PlacementProbe("x", (0,), (1,), False, "ran on core 1")
    monkeypatch.setattr(CpuDevice, "verify_placement", lambda _self, _lane: wrong)
    with pytest.raises(StartupError, match="cockpit doctor") as caught:
        open_service(SchedulingPlan(config), "cpu")
    assert caught.value.exit_code == 3


def test_one_core_is_refused_with_a_remedy_that_works(config: ArbiterConfig) -> None:
    said: list[str] = []
    ran: list[str] = []

    def on_one_core() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        with pytest.raises(DeviceUnavailable) as caught:
            open_service(SchedulingPlan(config), "cpu")
        said.append(str(caught.value))
        made = open_service(SchedulingPlan(replace(config, clusters={**config.clusters, "cores_b": 0})), "cpu")
        ran.extend(made.device.lanes)
        made.close()

    thread = threading.Thread(target=on_one_core)
    thread.start()
    thread.join()
    assert "clusters ask for 2 cores, this process may use 1" in said[0]
    assert "lower the units in `clusters` (0: no core of its own)" in said[0]
    assert ran == ["navigation_task:1", "speech_task:1", "dialogue_task:1", "dialogue_task:2", "background_task:1"]


@needs_two
def test_cuda_where_there_is_none_is_a_start_up_error(config: ArbiterConfig) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU: what happens without one cannot be seen here")
    with pytest.raises(StartupError) as caught:
        open_service(SchedulingPlan(replace(config, clusters={"cores_a": 8, "cores_b": 8, "s": 8})), "cuda")
    assert isinstance(caught.value, DeviceUnavailable)
    assert caught.value.exit_code == 3
