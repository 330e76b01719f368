"""What must happen about once a second beside the turns: time-outs, the GPU watch, saving what the policy learnt.

It has a thread of its own, so that neither NVML nor a slow disk is ever in a turn's way or in a caller's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from cockpit.scheduling.dispatcher import Dispatcher
from cockpit.scheduling.state_file import PolicyFile
from cockpit.telemetry.memory_use import MemoryUse, nothing_known
from cockpit.telemetry.watch import Finding, Watch
from models.errors import CockpitError

log = logging.getLogger("cockpit.scheduling.maintenance")

PERIOD_S: Final = 1.0
_STOP_S: Final = 5.0
SLOWED: Final = frozenset({"hw_slowdown", "hw_thermal", "hw_power_brake", "gpu_lost"})
"""Findings of the watch under which background tasks are held back."""


class Maintenance:
    """`start` the thread, `stop` it. What fails is logged and counted in `errors`; it never ends the process.

    findings: of the last look at the GPU. periods: how often it ran. memory: what is in use now, None: not known.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        watch: Watch,
        policy_file: PolicyFile | None = None,
        memory: Callable[[], MemoryUse | None] = nothing_known,
    ) -> None:
        self.findings: tuple[Finding, ...] = ()
        self.errors = 0
        self.periods = 0
        self._dispatcher = dispatcher
        self._watch = watch
        self._file = policy_file
        self._memory = memory
        self._refusing = False
        self._saved_epoch = 0
        self._saving = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._failing: dict[str, str] = {}

    def start(self) -> None:
        """Take back what an earlier run learnt on this hardware, then look after things in a thread of its own."""
        self._restore()
        self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and save what was learnt last. Safe to call twice, and before `start`."""
        self._ended.set()
        thread, self._thread = self._thread, None
        if thread is None:
            return
        thread.join(_STOP_S)
        if thread.is_alive():
            log.warning("maintenance hangs in NVML or in a write and is left behind: what was learnt last is not saved")
            return
        self._guarded("saving the policy", self._save)

    def run_once(self) -> None:
        """One period's work. One thread at a time."""
        self.periods += 1
        self._guarded("time-outs", self._dispatcher.tick)
        self._guarded("the GPU watch", self._look)
        self._guarded("the memory red line", self._judge_memory)
        self._guarded("saving the policy", self._save)

    def reset_policy(self) -> None:
        """Forget what was learnt, on disk too. Any thread."""
        with self._saving:
            self._dispatcher.reset_policy()
            self._saved_epoch = 0
            if self._file is not None:
                self._file.delete()

    def _run(self) -> None:
        self.run_once()
        while not self._ended.wait(PERIOD_S):
            self.run_once()

    def _guarded(self, what: str, do: Callable[[], None]) -> None:
        """The edge of this thread: a failure is counted, and logged when it is a new one."""
        try:
            do()
        except Exception as error:
            self.errors += 1
            if self._failing.get(what) != str(error):
                self._failing[what] = str(error)
                trace = not isinstance(error, CockpitError)  # whose message says all
                log.warning("maintenance: %s failed, and is tried again each second: %s", what, error, exc_info=trace)
        else:
            self._failing.pop(what, None)

    def _restore(self) -> None:
        state = None if self._file is None else self._file.load()
        if self._file is None or state is None:
            return
        refused = self._dispatcher.restore_policy(state)
        if refused is not None:
            log.info("policy state %s does not fit (%s): learning starts anew", self._file.path, refused)
        self._saved_epoch = self._dispatcher.policy_state()[0]

    def _look(self) -> None:
        self.findings = self._watch.look()
        self._dispatcher.hold_back(any(finding.code in SLOWED for finding in self.findings))

    def _judge_memory(self) -> None:
        use = self._memory()
        if use is None:
            return
        refusing = self._dispatcher.memory_in_use(use.used_bytes, use.total_bytes)
        if refusing != self._refusing:
            self._refusing = refusing
            share = f"{use.used_bytes >> 20} of {use.total_bytes >> 20} MiB in use"
            if refusing:
                log.warning("memory: %s, past max_gpu_memory_percent: new sessions are refused", share)
            else:
                log.info("memory: %s: new sessions are taken again", share)

    def _save(self) -> None:
        """Raises CockpitError when the file cannot be written; it is then tried again."""
        if self._file is None:
            return
        with self._saving:
            epoch, state = self._dispatcher.policy_state()
            if epoch == self._saved_epoch:
                return
            try:
                self._file.save(state)
            except OSError as error:
                raise CockpitError(
                    f"{self._file.path}: {error.strerror}: check the folder's owner and space"
                ) from error
            self._saved_epoch = epoch
