"""The panel before a chain with scripted engines, both served as in the product."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvicorn

from cockpit.api.app import Services
from cockpit.api.grants import Grants
from cockpit.api.server import ApiServer
from cockpit.panel.app import Panel
from cockpit.profile.load import load_profile
from cockpit.telemetry.process_status import process_status
from cockpit.telemetry.watch import GpuSample
from cockpit.unix_socket import listening_on_loopback
from tests.support.dispatchers import dispatcher_of
from tests.support.headunit.followed_chain import Chain
from tests.support.waiting import until

TOKEN = "a-token-of-the-tests"
GPU = GpuSample(3 << 30, 8 << 30, 90, 1410, 1980, 2619, 0x40, ("hw_thermal",), 8, 16, 4, 5, 3, 91, 400.5)


class ServedPanel:
    """`address` of the page with its token; `origin` without."""

    def __init__(self, chain: Chain, folder: Path) -> None:
        self.chain = chain
        dispatcher = dispatcher_of()
        with dispatcher.lease("dialogue_task") as lease:
            lease.boundary(3)
        watch = SimpleNamespace(present=True, sample=lambda: GPU)
        scheduling: Any = SimpleNamespace(dispatcher=dispatcher, watch=watch, maintenance=SimpleNamespace(findings=()))
        status = process_status(chain.runtime, scheduling, "cpu", load_profile("cpu").profile, dict)
        services = Services({}, None, Grants({}, {}), dict, cabin=chain.cabin, events=chain.events, status=status)
        assert asdict(dispatcher.status())
        self.api = ApiServer.open(services, folder / "api.sock")
        self.api.start()
        listener = listening_on_loopback(0, "port")
        port = int(listener.getsockname()[1])
        self.origin = f"http://127.0.0.1:{port}"
        self.address = f"{self.origin}/#token={TOKEN}"
        hosts = frozenset({f"127.0.0.1:{port}"})
        panel = Panel(self.api.path, TOKEN, hosts).application()
        self._server = uvicorn.Server(
            uvicorn.Config(panel, http="h11", ws="none", lifespan="off", log_config=None, timeout_graceful_shutdown=1)
        )
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()
        until(lambda: self._server.started)

    def close(self) -> None:
        self._server.should_exit = True
        self.chain.events.close()
        self.api.stop()
        self._thread.join(60)


if __name__ == "__main__":  # by hand: python -m tests.support.headunit.panel FOLDER
    import sys

    from tests.support.fake_chain import RecordingSink

    served = ServedPanel(Chain(RecordingSink()), Path(sys.argv[1]))
    print(served.address, flush=True)
    time.sleep(3600)
