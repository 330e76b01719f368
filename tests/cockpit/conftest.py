"""What tests of the assembled process share: one chain of real models for all of them, and runtimes on it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cockpit.assemble import Assembly, assemble
from cockpit.lifecycle.validate import validate
from cockpit.profile.load import load_profile
from cockpit.profile.memory_plan import KV_SESSIONS
from cockpit.runtime import NullSink, Runtime
from cockpit.scheduling.service import SchedulingPlan
from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.session import LmSession
from models.store.store import Store
from tests.support.arbiter_config import patient
from tests.support.paths import short_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder whose path is short enough for a socket."""
    with short_folder() as made:
        yield made


@pytest.fixture(scope="session")
def served_models(model_store: Store) -> None:
    """The models of profiles/cpu.yaml, built and validated: what `serve` and `listen` take."""
    names = load_profile("cpu").profile.model_names
    for name in names:
        model_store.ensure(name)
    waiting = [name for name in names if model_store.unvalidated(name)]
    assert not [outcome for outcome in validate(model_store, waiting) if outcome.fault or outcome.cannot]


@pytest.fixture(scope="session")
def control_socket() -> Iterator[Path]:
    """The control socket of `cpu_assembly`."""
    with short_folder() as made:
        yield made / "o3.sock"


@pytest.fixture(scope="session")
def cpu_assembly(model_dir: Callable[[str], Path], control_socket: Path) -> Iterator[Assembly]:
    """The chain of profiles/cpu.yaml under the arbiter, assembled once for the whole run.

    Tests start runtimes on it through `runtime` or `talked_to`, which begin with an empty dialogue.
    """
    loaded = load_profile("cpu")
    for name in loaded.profile.model_names:
        model_dir(name)
    assert loaded.arbiter is not None
    plan = SchedulingPlan(patient(loaded.arbiter), control_socket, state_dir=control_socket.parent)
    opened: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        original = CausalLM.open_session

        def counted(model: CausalLM) -> LmSession:
            opened.append(session := original(model))
            return session

        patch.setattr(CausalLM, "open_session", counted)
        made = assemble(loaded.profile, Store.open(), NullSink(), scheduling=plan)
    assert len(opened) == KV_SESSIONS, "memory_plan.py counts the caches of these"
    yield made
    made.close()
    assert not control_socket.exists()
    gc.collect()


@pytest.fixture
def assembly(cpu_assembly: Assembly) -> Assembly:
    """The shared chain, as if nobody had spoken yet. A module with a chain of its own has its own `assembly`."""
    cpu_assembly.parts.dialogue.begin_anew()
    return cpu_assembly


@pytest.fixture
def runtime(assembly: Assembly) -> Iterator[Runtime]:
    """A started chain without a speaker, on the stages of `assembly`."""
    made = Runtime(replace(assembly.parts, sink=NullSink()))
    made.start()
    yield made
    made.stop()
