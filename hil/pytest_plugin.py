"""Scenarios as tests: `pytest -p hil.pytest_plugin car/*.yaml --hil-profile bench.yaml`, with -k, -m, -x, --junit-xml.

Every scenario file is one test, by its id; requirement and faults are markers for -m. Devices under test are opened at
the first scenario that needs them, and closed at the end of the session.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hil.rig.scenario import Loaded, load
from hil.rig.verdict import BAD
from models.errors import CockpitError

if TYPE_CHECKING:
    from hil.dut.base import DeviceUnderTest
    from hil.rig.bench import Bench, Result

_OPENED = pytest.StashKey[ExitStack]()
_BENCHES = pytest.StashKey[dict[bool, "Bench"]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The profile, and where recordings as heard are written."""
    group = parser.getgroup("hil", "scenarios of the rig")
    group.addoption("--hil-profile", default="cpu", help="Profile of the devices under test.")
    group.addoption("--hil-out", default="out/hil/pytest", type=Path, help="Folder of what was heard, and of logs.")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault: a scenario in which something goes wrong")
    config.addinivalue_line("markers", "own_process: a scenario that starts cockpit serve for itself")
    config.stash[_OPENED] = ExitStack()
    config.stash[_BENCHES] = {}


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_OPENED].close()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> ScenarioFile | None:
    """Every .yaml that is named, or found in a folder that is."""
    if file_path.suffix != ".yaml":
        return None
    made: ScenarioFile = ScenarioFile.from_parent(parent, path=file_path)
    return made


class ScenarioFile(pytest.File):
    """One scenario. A faulty file is an error of collection, told with its keys."""

    def collect(self) -> Iterator[ScenarioItem]:
        try:
            loaded = load(self.path)
        except CockpitError as error:
            raise self.CollectError(str(error)) from error
        yield ScenarioItem.from_parent(self, name=loaded.scenario.id, loaded=loaded)


class NotAsExpected(Exception):
    """What a scenario came to, in the rig's own words."""


class ScenarioItem(pytest.Item):
    """Runs once: repetitions are the scenario's own."""

    def __init__(self, *, loaded: Loaded, **more: object) -> None:
        super().__init__(**more)  # type: ignore[arg-type]
        self.loaded = loaded
        scenario = loaded.scenario
        if scenario.faults:
            self.add_marker("fault")
        if scenario.own_process:
            self.add_marker("own_process")
        self.user_properties.append(("requirement", scenario.requirement or ""))

    def runtest(self) -> None:
        result = self._bench().run(self.loaded)
        self.user_properties.append(("outcome", result.outcome))
        if result.outcome == "SKIPPED":
            pytest.skip(result.why)
        if result.outcome in BAD:
            raise NotAsExpected(_told(result))

    def _bench(self) -> Bench:
        from hil.dut import in_process, own_process
        from hil.rig.bench import Bench

        benches, apart = self.config.stash[_BENCHES], self.loaded.scenario.own_process
        if apart not in benches:
            profile, out = self.config.getoption("--hil-profile"), self.config.getoption("--hil-out")
            out.mkdir(parents=True, exist_ok=True)
            stack = self.config.stash[_OPENED]
            device: DeviceUnderTest
            if apart:
                device = stack.enter_context(own_process.started(profile, out / "service.log"))
            else:
                device = stack.enter_context(in_process.opened(profile, quiet=True))
            benches[apart] = Bench(device, out / "heard")
        return benches[apart]

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        if isinstance(excinfo.value, NotAsExpected):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name


def _told(result: Result) -> str:
    again = f"again: cockpit hil run {result.loaded.file}"
    return "\n".join([result.outcome, *(f"  {reason}" for reason in result.reasons), again])
