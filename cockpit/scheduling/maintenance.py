"""What must happen about once a second beside the turns: time-outs, the watch, saving what the policy learnt."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from cockpit.scheduling.dispatcher import Dispatcher
from cockpit.scheduling.state_file import PolicyFile
from cockpit.telemetry.watch import Finding, Watch

log = logging.getLogger("cockpit.scheduling.maintenance")

BEAT_NS: Final = 1_000_000_000
SLOWED: Final = frozenset({"hw_slowdown", "hw_thermal", "hw_power_brake", "gpu_lost"})
"""Findings of the watch under which background tasks are held back."""


class Housekeeper:
    """`beat` may be called as often as one likes, by one thread; it works about once a second."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        watch: Watch,
        policy_file: PolicyFile | None = None,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.findings: tuple[Finding, ...] = ()
        self._dispatcher = dispatcher
        self._watch = watch
        self._file = policy_file
        self._clock_ns = clock_ns
        self._next_ns = 0
        self._saved_epoch = 0

    def start(self) -> None:
        """Take back what an earlier run learnt on this hardware."""
        if self._file is None:
            return
        state = self._file.load()
        if state is None:
            return
        refused = self._dispatcher.restore_policy(state)
        if refused is not None:
            log.info("policy state %s does not fit (%s): learning starts anew", self._file.path, refused)
        self._saved_epoch = self._dispatcher.policy_state()[0]

    def beat(self) -> None:
        now_ns = self._clock_ns()
        if now_ns < self._next_ns:
            return
        self._next_ns = now_ns + BEAT_NS
        self._dispatcher.tick()
        self.findings = self._watch.look()
        self._dispatcher.hold_back(any(finding.code in SLOWED for finding in self.findings))
        self._save()

    def _save(self) -> None:
        if self._file is None:
            return
        epoch, state = self._dispatcher.policy_state()
        if epoch == self._saved_epoch:
            return
        try:
            self._file.save(state)
        except OSError as error:
            log.warning("policy state %s is not saved (%s): check the folder's owner and space", self._file.path, error)
        self._saved_epoch = epoch

    def reset_policy(self) -> None:
        """Forget what was learnt, on disk too."""
        self._dispatcher.reset_policy()
        self._saved_epoch = 0
        if self._file is not None:
            self._file.delete()
