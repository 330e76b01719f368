"""Each fault is seen from the far side, off again afterwards, and an error where nothing shows that it was on."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hil.faults.audio import counters, microphone
from hil.faults.base import Evidence, FaultNotOn, FaultUnavailable
from hil.faults.gpu import gpu, write_state
from hil.faults.preloaded import Preloads, clock, compile_into, disk
from hil.faults.process import service, state_of
from hil.faults.timeline import Planned, Timeline
from hil.faults.vehicle import FaultyTree, vehicle
from hil.virtual import AUDIO, GPU
from pipeline.vehicle.signals import SignalError
from tests.support.paths import ROOT

ROOF = "Vehicle.Cabin.Sunroof.Position"


class Sleeper:
    """A process that the rig may kill."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(["sleep", "60"])

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_dead(self, timeout_s: float) -> int | None:
        return self.process.wait(timeout_s)


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    made = Sleeper()
    yield made
    made.process.kill()
    made.process.wait()


def test_a_process_is_killed_and_started_again(sleeper: Sleeper) -> None:
    before = sleeper.pid
    with service(sleeper, "killed") as evidence:
        assert sleeper.pid != before
    assert evidence.require() == f"process {before} ended by signal 9"


def test_a_process_is_stopped_and_goes_on(sleeper: Sleeper) -> None:
    with service(sleeper, "stopped") as evidence:
        assert state_of(sleeper.pid) == "T"
    assert "state T" in evidence.require()
    assert state_of(sleeper.pid) != "T"


def test_a_car_lets_down_in_four_ways() -> None:
    tree = FaultyTree()
    with vehicle(tree, "gone", None, 0.0) as evidence, pytest.raises(SignalError, match="unavailable"):
        tree.read(ROOF)
    assert "1 accesses" in evidence.require()
    with vehicle(tree, "sticks", ROOF, 0.0):
        tree.write(ROOF, 100)
    assert tree.read(ROOF) == 0
    with vehicle(tree, "fails", ROOF, 0.0), pytest.raises(SignalError):
        tree.write(ROOF, 100)
    with vehicle(tree, "slow", ROOF, 0.05) as evidence:
        began_s = time.monotonic()
        tree.write(ROOF, 100)
        assert time.monotonic() - began_s >= 0.05
    assert "50 ms late" in evidence.require()
    assert tree.read(ROOF) == 100
    with vehicle(tree, "fails", ROOF, 0.0) as unmet:
        tree.write("Vehicle.Cabin.Sunroof.Shade.Position", 10)
    with pytest.raises(FaultNotOn, match="nothing shows"):
        unmet.require()


LISTENER = """
import sys, time
import sounddevice as sd
got = {"frames": 0, "overflows": 0}
def heard(block, frames, _time, status):
    got["frames"] += frames
    got["overflows"] += bool(status.input_overflow)
try:
    with sd.InputStream(device=None, callback=heard):
        for line in sys.stdin:
            print(got["frames"], got["overflows"], flush=True)
except sd.PortAudioError as error:
    print("refused", error)
"""


class Listener:
    """A process that opens the virtual microphone and says what it got when asked."""

    def __init__(self, folder: Path) -> None:
        environment = {"PYTHONPATH": f"{AUDIO}:{ROOT}", "FAKE_AUDIO": str(folder)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", LISTENER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def got(self) -> tuple[int, int]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        frames, overflows = self.process.stdout.readline().split()
        return int(frames), int(overflows)


def until(condition: object, *, within_s: float = 20.0) -> None:
    end_s = time.monotonic() + within_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_a_microphone_loses_sound_in_four_ways(tmp_path: Path) -> None:
    listener = Listener(tmp_path)
    try:
        until(lambda: listener.got()[0] > 1600)
        with microphone(tmp_path, "frames_stop") as stopped:
            withheld = counters(tmp_path).get("withheld", 0)
            until(lambda: counters(tmp_path).get("withheld", 0) > withheld)
            before = listener.got()[0]
            until(lambda: counters(tmp_path)["withheld"] > withheld + 20)
            assert listener.got()[0] == before
        assert "withheld" in stopped.require()
        with microphone(tmp_path, "xruns") as storm:
            until(lambda: listener.got()[1] > 2)
        assert "lost" in storm.require()
        with microphone(tmp_path, "drift") as drift:
            until(lambda: counters(tmp_path)["ahead_ns"] > 0)
        assert "ahead_ns" in drift.require()
        with microphone(tmp_path, "lost") as lost:
            gone = Listener(tmp_path)
            assert gone.process.communicate("")[0].startswith("refused")
        assert "withheld" in lost.require()
        resumed = listener.got()[0]
        until(lambda: listener.got()[0] > resumed)
    finally:
        listener.process.communicate("")
    with pytest.raises(FaultUnavailable, match="the rig's own microphone"), microphone(None, "lost"):
        pass


def test_a_gpu_is_watched_while_it_lets_down(tmp_path: Path) -> None:
    """By the product's own watch, on the virtual NVML."""
    file = tmp_path / "gpu.json"
    write_state(file, {})
    watch = (
        "import sys; from cockpit.telemetry.watch import open_watch\nwatch = open_watch()\n"
        "for line in sys.stdin: print(','.join(one.code for one in watch.look()), watch.present, flush=True)"
    )
    environment = {"PYTHONPATH": f"{GPU}:{ROOT}", "FAKE_GPU": str(file)}
    child = subprocess.Popen(
        [sys.executable, "-c", watch], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert child.stdin is not None
    assert child.stdout is not None
    found = []
    for kind in ("pcie_x8", "thermal", "nvml_gone", "lost"):
        with gpu(file, kind) as evidence:  # type: ignore[arg-type]
            child.stdin.write("\n")
            child.stdin.flush()
            found.append(child.stdout.readline().split()[0])
        evidence.require()
    child.communicate("")
    assert found == ["pcie_width", "hw_thermal", "True", "gpu_lost"], "NVML gone: nothing to find, and no fault"


@pytest.fixture(scope="module")
def preloads(tmp_path_factory: pytest.TempPathFactory) -> Preloads:
    folder = tmp_path_factory.mktemp("preload")
    under = tmp_path_factory.mktemp("under")
    try:
        return compile_into(folder, under)
    except FaultUnavailable as error:
        pytest.skip(str(error))


def test_a_disk_is_full_below_one_folder_only(preloads: Preloads, tmp_path: Path) -> None:
    """And state that is written atomically is the old or the new one, never half."""
    state = preloads.under / "state.json"
    state.write_text("old")
    write = (
        "import sys; from pathlib import Path; from cockpit.scheduling.state_file import StateFile\n"
        "try: StateFile(Path(sys.argv[1])).save({'state': 'new'})\nexcept OSError as error: print(error.errno)"
    )

    def child(path: Path) -> str:
        environment = {"PYTHONPATH": str(ROOT), **preloads.environment()}
        return subprocess.check_output([sys.executable, "-c", write, path], text=True, env=environment).strip()

    with disk(preloads, "full") as full:
        assert child(state) == "28"
        assert child(tmp_path / "elsewhere") == ""
    assert "writes failed" in full.require()
    assert state.read_text() == "old"
    with disk(preloads, "io_error"):
        assert child(state) == "5"
    assert child(state) == ""
    assert state.read_text() == '{"state":"new"}'


def test_the_clock_of_the_day_jumps_and_the_monotonic_one_does_not(preloads: Preloads) -> None:
    read = "import time, datetime; print(time.time(), datetime.datetime.now().timestamp(), time.monotonic())"

    def seen_s() -> float:
        told = subprocess.check_output([sys.executable, "-c", read], text=True, env=preloads.environment())
        day, date, monotonic = map(float, told.split())
        assert abs(day - date) < 5
        assert abs(monotonic - time.monotonic()) < 60
        return day - time.time()

    with clock(preloads, 86_400.0, seen_s) as evidence:
        pass
    assert "+86" in evidence.require()
    with clock(preloads, 3600.0, lambda: 0.0) as unmet:
        pass
    with pytest.raises(FaultNotOn):
        unmet.require()


@contextmanager
def noted(times: list[str], proof: bool) -> Iterator[Evidence]:
    evidence = Evidence("noted")
    times.append("on")
    yield evidence
    times.append("off")
    if proof:
        evidence.add("it was")


def test_a_timeline_switches_on_and_off_and_asks_for_proof() -> None:
    times: list[str] = []
    timeline = Timeline(
        [Planned(0.0, None, lambda: noted(times, True)), Planned(0.01, 0.01, lambda: noted(times, True))]
    )
    timeline.start()
    assert timeline.end() == ["noted: it was"] * 2
    assert sorted(times) == ["off", "off", "on", "on"]
    assert timeline.off_s <= time.monotonic()
    unproved = Timeline([Planned(0.0, None, lambda: noted(times, False))])
    unproved.start()
    with pytest.raises(FaultNotOn):
        unproved.end()
    assert not [thread for thread in threading.enumerate() if thread.name == "fault"]


def test_counters_of_a_device_that_was_never_opened(tmp_path: Path) -> None:
    assert counters(tmp_path) == {}
    (tmp_path / "counters").write_text(json.dumps({"lost": 1})[:4])
    assert counters(tmp_path) == {}
