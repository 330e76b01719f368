"""The control socket and `o3ctl` over it: orders, credentials, stale sockets, and what is kept on disk."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cockpit.cli.o3ctl import app
from cockpit.scheduling import control_socket, maintenance
from cockpit.scheduling.control_socket import (
    MAX_CONNECTIONS,
    ControlClient,
    ControlServer,
    Orders,
    default_socket,
    may_ask,
)
from cockpit.scheduling.dispatcher import Dispatcher
from cockpit.scheduling.maintenance import Maintenance
from cockpit.scheduling.state_file import PolicyFile
from cockpit.telemetry.watch import Finding, GpuSample, NoWatch
from models.errors import StartupError
from tests.support.dispatchers import dispatcher_of
from tests.support.waiting import LONG_S, ended, until


class HotWatch(NoWatch):
    """A GPU that is too hot."""

    present = True

    def sample(self) -> GpuSample:
        return GpuSample(memory_used_bytes=1 << 30, pcie_width=8, pcie_width_max=16, pcie_generation=5)

    def look(self) -> tuple[Finding, ...]:
        return (Finding("hw_thermal", "it is too hot"),)


class Service:
    def __init__(self, folder: Path, watch: Any = None) -> None:
        self.dispatcher: Dispatcher = dispatcher_of()
        self.file = PolicyFile(folder, "cpu-test")
        watch = watch or NoWatch("no GPU here")
        self.maintenance = Maintenance(self.dispatcher, watch, self.file)
        self.path = folder / "o3.sock"
        self.server = ControlServer(self.path, Orders(self.dispatcher, watch, self.maintenance))
        self.maintenance.start()
        self.server.start()

    def stop(self) -> None:
        self.server.stop()
        self.maintenance.stop()

    def run(self, *arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, [*arguments, "--socket", str(self.path)], env={"COLUMNS": "200"})
        return result.exit_code, result.output

    def json(self, *arguments: str) -> dict[str, Any]:
        code, text = self.run(*arguments, "--json")
        assert code == 0, text
        reply: dict[str, Any] = json.loads(text)
        return reply


@pytest.fixture
def service(folder: Path) -> Iterator[Service]:
    made = Service(folder)
    yield made
    made.stop()


def use_session(service: Service, name: str) -> None:
    with service.dispatcher.lease("dialogue_task", session=name, kv_bytes=1 << 20) as lease:
        lease.boundary(1)


def test_status_as_text_and_json(service: Service) -> None:
    use_session(service, "s[1]")
    code, text = service.run("status", "--verbose")
    assert code == 0
    for word in ("navigation_task:1", "s[1]", "fewer than K", "not watched: no GPU here", "learning", "last decisions"):
        assert word in text
    status = service.json("status", "--verbose")["status"]
    (candidate,) = status["eviction_candidates"]
    assert (candidate["session"], candidate["rank"], candidate["uses"]) == ("s[1]", 0, 1)
    assert candidate["age_s"] >= 0
    assert service.json("status")["status"]["eviction_candidates"] == []


def test_pause_resume_evict(service: Service) -> None:
    use_session(service, "s1")
    assert "o3ctl resume" in service.run("pause", "dialogue_task")[1]
    assert service.json("status")["status"]["tasks"][1]["state"] == "paused (operator)"
    assert service.run("resume", "dialogue_task")[0] == 0
    assert service.json("status")["status"]["tasks"][1]["state"] == "idle"
    assert "evicted" in service.run("evict", "s1")[1]
    code, text = service.run("evict", "s1")
    assert code == 2
    assert "status --verbose" in text
    code, text = service.run("pause", "cooking_task")
    assert code == 2
    assert "navigation_task, dialogue_task" in text


def test_policy_show_freeze_reset(service: Service) -> None:
    assert service.json("policy", "freeze")["policy"]["frozen"] is True
    assert "frozen" in service.run("policy", "show")[1]
    assert service.json("policy", "freeze", "--off")["policy"]["frozen"] is False
    assert service.json("policy", "show")["learnt"]["version"] == 1
    service.file.save({"version": 1})
    assert service.run("policy", "reset")[0] == 0
    assert not service.file.path.exists()


def test_top_ends_after_its_looks(service: Service) -> None:
    code, text = service.run("top", "--every", "0.1", "--looks", "2")
    assert code == 0
    assert "navigation_task" in text


def test_top_once_shows_one_line_per_task(service: Service) -> None:
    code, text = service.run("top", "--once")
    assert code == 0
    for task in ("navigation_task", "dialogue_task"):
        assert sum(line.startswith(task) for line in text.splitlines()) == 1
    assert "TPOT ms" in text
    assert "tokens/s" in text


def test_no_socket_is_a_clear_error(folder: Path) -> None:
    result = CliRunner().invoke(app, ["status", "--socket", str(folder / "none.sock")])
    assert result.exit_code == 3
    assert "is Cockpit running?" in result.output


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (b"{", "JSON"),
        (b"[1]", "object"),
        (b'{"op":"fly"}', "known: status"),
        (b'{"op":"policy","action":"eat"}', "reset"),
    ],
)
def test_bad_requests_are_answered(service: Service, line: bytes, word: str) -> None:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(5)
        caller.connect(str(service.path))
        caller.sendall(line + b"\n" + b'{"op":"status"}\n')
        with caller.makefile("rb") as replies:
            first = json.loads(replies.readline())
            assert first["ok"] is False
            assert word in first["error"]
            assert json.loads(replies.readline())["ok"] is True, "the connection goes on"


def test_a_line_without_an_end_is_refused(service: Service) -> None:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(5)
        caller.connect(str(service.path))
        caller.sendall(b"x" * (64 * 1024))
        with caller.makefile("rb") as replies:
            assert "a line ends within" in json.loads(replies.readline())["error"]


def test_callers_are_bounded(service: Service) -> None:
    with ExitStack() as opened:
        clients = [opened.enter_context(closing(ControlClient(service.path))) for _ in range(9)]
        for client in clients[:MAX_CONNECTIONS]:
            client.ask("status")
        with pytest.raises(StartupError, match="busy"):
            clients[8].ask("status")


def occupied(service: Service, opened: ExitStack) -> None:
    """Take every connection that the service serves at once."""
    for _ in range(MAX_CONNECTIONS):
        opened.enter_context(closing(ControlClient(service.path))).ask("status")


def test_a_refusal_is_read_by_a_caller_that_writes_late_and_by_one_that_writes_after_the_close(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as opened:
        occupied(service, opened)
        slow = opened.enter_context(closing(ControlClient(service.path)))
        slow._connect()
        assert slow._socket is not None
        assert select.select([slow._socket], [], [], LONG_S)[0], "the refusal is there before anything was written"
        with pytest.raises(StartupError, match="busy"):
            slow.ask("status")
        monkeypatch.setattr(control_socket, "REFUSAL_S", 0.0)
        later = opened.enter_context(closing(ControlClient(service.path)))
        later._connect()
        assert later._socket is not None
        poll = select.poll()
        poll.register(later._socket, select.POLLHUP)
        assert poll.poll(LONG_S * 1000), "closed by the service"
        with pytest.raises(StartupError, match="busy"):
            later.ask("status")


def test_many_callers_at_once_are_answered_or_told_that_it_is_busy(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_socket, "ANSWER_S", LONG_S)
    count = 48
    at_once = threading.Barrier(count)
    said: list[str] = []

    def call() -> None:
        with closing(ControlClient(service.path)) as client:
            at_once.wait(LONG_S)
            try:
                client.ask("status")
                said.append("answered")
            except StartupError as error:
                said.append(str(error).partition(":")[0])

    threads = [threading.Thread(target=call) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        ended(thread)
    assert len(said) == count
    assert set(said) <= {"answered", "busy"}
    assert said.count("answered") >= MAX_CONNECTIONS


def test_a_caller_tries_again_while_the_kernel_keeps_no_more(folder: Path) -> None:
    path = folder / "full.sock"
    with ExitStack() as opened:
        server = opened.enter_context(socket.socket(socket.AF_UNIX))
        server.bind(str(path))
        server.listen(0)
        for _ in range(8):  # until the kernel's queue is full
            waiting = opened.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            try:
                waiting.connect(str(path))
            except BlockingIOError:
                break
        else:
            pytest.fail("the queue has no end")
        client = opened.enter_context(closing(ControlClient(path)))
        connected = threading.Event()

        def connect() -> None:
            client._connect()
            connected.set()

        thread = threading.Thread(target=connect)
        thread.start()
        server.settimeout(0.05)
        while not connected.is_set():
            with suppress(TimeoutError):
                opened.enter_context(server.accept()[0])
        ended(thread)


def test_a_server_stops_in_any_phase_and_takes_only_its_own_socket(folder: Path) -> None:
    dispatcher, watch = dispatcher_of(), NoWatch("")
    orders = Orders(dispatcher, watch, Maintenance(dispatcher, watch))
    path = folder / "o3.sock"
    ControlServer(path, orders).stop()
    assert not path.exists(), "never started"
    first = ControlServer(path, orders)
    first.start()
    first.stop()
    second = ControlServer(path, orders)
    first.stop()
    assert path.exists(), "it is another's by now"
    second.stop()
    assert not path.exists()


def test_o3ctl_says_what_is_wrong_on_stdout_too_when_asked_for_json(service: Service, folder: Path) -> None:
    for words, exit_code in (
        (("pause", "cooking_task", "--json", "--socket", str(service.path)), 2),
        (("evict", "none", "--json", "--socket", str(service.path)), 2),
        (("status", "--json", "--socket", str(folder / "none.sock")), 3),
        (("policy", "show", "--json", "--socket", str(folder / "none.sock")), 3),
    ):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == exit_code
        assert json.loads(result.stdout)["error"]["exit_code"] == exit_code
        assert result.stderr.startswith("o3ctl: ")
    assert service.json("pause", "dialogue_task")["message"].startswith("dialogue_task is paused")


@pytest.mark.parametrize("words", [("-h",), ("policy", "-h"), ("status", "-h")])
def test_o3ctl_helps(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0
    assert "Usage:" in result.stdout


def test_o3ctl_runs_as_a_module_and_cuts_no_name(service: Service) -> None:
    use_session(service, "a-session-with-a-rather-long-name")
    command = [sys.executable, "-m", "cockpit.cli.o3ctl", "status", "--verbose", "--socket", str(service.path)]
    for columns in ("40", "100"):
        done = subprocess.run(
            command, env={**os.environ, "COLUMNS": columns}, capture_output=True, text=True, check=True
        )
        for name in ("navigation_task:1", "dialogue_task:2", "a-session-with-a-rather-long-name", "SLA ms"):
            assert name in done.stdout
        assert "\x1b" not in done.stdout, "no colour when piped"
    wrong = subprocess.run([*command[:3], "pause"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2


def test_who_may_ask() -> None:
    assert may_ask(1000, 1000, 1000, None)
    assert may_ask(0, 0, 1000, None)
    assert not may_ask(1001, 1001, 1000, None)
    assert may_ask(1001, 44, 1000, 44)
    assert not may_ask(4_000_000, 1001, 1000, 44), "a user without an entry has no further groups"


def test_a_stranger_is_refused(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cockpit.scheduling.control_socket.may_ask", lambda *_: False)
    client = ControlClient(service.path)
    with pytest.raises(StartupError, match="may not ask"):
        client.ask("status")
    client.close()


def test_the_socket_is_not_for_all(service: Service) -> None:
    assert service.path.stat().st_mode & 0o777 == 0o660


def test_stale_sockets_are_replaced_and_live_ones_are_not(folder: Path) -> None:
    path = folder / "o3.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    first = Service(folder)
    with pytest.raises(StartupError, match="another Cockpit"):
        Service(folder)
    first.stop()
    assert not path.exists()
    path.write_text("not a socket")
    with pytest.raises(StartupError, match="is no socket"):
        Service(folder)


def test_an_unknown_group_is_a_start_up_error(folder: Path) -> None:
    service = dispatcher_of()
    watch = NoWatch("")
    keeper = Maintenance(service, watch)
    with pytest.raises(StartupError, match="groupadd"):
        ControlServer(folder / "g.sock", Orders(service, watch, keeper), group="no-such-group-here")


def test_findings_reach_the_status_and_hold_background_tasks_back(folder: Path) -> None:
    hot = Service(folder, HotWatch(""))
    try:
        hot.dispatcher.arbiter.hold_back(False)
        ends = time.monotonic() + 5
        while not (reply := hot.json("status"))["findings"]:
            assert time.monotonic() < ends
            time.sleep(0.05)
        assert reply["findings"][0]["code"] == "hw_thermal"
        text = hot.run("status")[1]
        assert "too hot" in text
        assert "PCIe 5 x8 of x16" in text
        assert hot.dispatcher.arbiter.hardware_paused == 0, "the profile has no background task"
    finally:
        hot.stop()


def test_default_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("O3CTL_SOCKET", "/tmp/x.sock")
    assert default_socket() == Path("/tmp/x.sock")
    monkeypatch.delenv("O3CTL_SOCKET")
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/elsewhere:/run/b")
    assert default_socket() == Path("/run/elsewhere/o3.sock")


# --- what the policy learnt, on disk -------------------------------------------------------------------------------
def restored(dispatcher: Dispatcher, file: PolicyFile) -> None:
    keeper = Maintenance(dispatcher, NoWatch(""), file)
    keeper.start()
    keeper.stop()


def test_policy_state_survives_a_restart_per_fingerprint(folder: Path) -> None:
    first = dispatcher_of()
    keeper = Maintenance(first, NoWatch(""), PolicyFile(folder, "gpu-a"))
    keeper.start()
    first.arbiter.policy.choose(False)
    keeper.stop()
    assert [path.name for path in folder.iterdir()] == ["policy-gpu-a.json"]
    again = dispatcher_of()
    restored(again, PolicyFile(folder, "gpu-a"))
    assert again.policy_state() == first.policy_state()
    other = dispatcher_of()
    restored(other, PolicyFile(folder, "gpu-b"))
    assert other.policy_state()[0] == 0


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version":1,"arms":[]}'])
def test_a_spoilt_policy_file_means_learning_anew(folder: Path, content: bytes) -> None:
    file = PolicyFile(folder, "x")
    file.path.write_bytes(content)
    dispatcher = dispatcher_of()
    restored(dispatcher, file)
    assert dispatcher.policy_state()[0] == 0


def test_a_failed_save_keeps_the_old_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = PolicyFile(folder, "x")
    file.save({"version": 1})

    def fail(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        file.save({"version": 2})
    assert file.load() == {"version": 1}


# --- the maintenance thread ----------------------------------------------------------------------------------------
class BrokenWatch(NoWatch):
    def look(self) -> tuple[Finding, ...]:
        raise RuntimeError("NVML went away")


def test_what_fails_in_maintenance_is_counted_and_logged_once_and_the_rest_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher, file = dispatcher_of(), PolicyFile(folder, "x")
    keeper = Maintenance(dispatcher, BrokenWatch(""), file)
    dispatcher.arbiter.policy.choose(False)
    keeper.run_once()
    assert keeper.errors == 1
    assert file.load() is not None, "the policy was saved all the same"

    def full(_state: object) -> None:
        raise OSError(28, "No space left on device")

    dispatcher.arbiter.policy.choose(False)
    monkeypatch.setattr(file, "save", full)
    keeper.run_once()
    keeper.run_once()
    assert keeper.errors == 5
    assert [record.getMessage().count("No space left") for record in caplog.records] == [0, 1]


def test_maintenance_has_a_thread_of_its_own_that_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "PERIOD_S", 0.001)
    keeper = Maintenance(dispatcher_of(), BrokenWatch(""))
    keeper.stop()
    keeper = Maintenance(dispatcher_of(), BrokenWatch(""))
    keeper.start()
    until(lambda: keeper.errors > 2)
    thread = keeper._thread
    assert thread is not None
    assert thread is not threading.current_thread()
    keeper.stop()
    keeper.stop()
    assert not thread.is_alive()
