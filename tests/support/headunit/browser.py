"""A real Chromium without a window, spoken to in its DevTools protocol over a pipe."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.waiting import LONG_S

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-extensions", "--disable-background-networking", "--remote-debugging-pipe",
    "--force-prefers-reduced-motion", "--lang=en",
)  # fmt: skip


class Browser:
    """One page. Use as a context. `faults`: what its console had to complain about."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self.faults: list[str] = []
        self.asked: list[str] = []
        """Addresses that the page asked for."""
        self._home = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        to_it, self._write = os.pipe()
        self._read, from_it = os.pipe()
        command = (CHROMIUM, *_FLAGS, f"--user-data-dir={self._home.name}", "about:blank")
        shell = f'exec "$0" "$@" 3<&{to_it} 4>&{from_it}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, *command], pass_fds=(to_it, from_it),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_it)
        os.close(from_it)
        os.set_blocking(self._read, False)
        self._pending = b""
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._session: str | None = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(LONG_S)
        os.close(self._read)
        os.close(self._write)
        self._home.cleanup()

    def send(self, method: str, **parameters: Any) -> Any:
        """One order; its result. Raises AssertionError where it fails."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        ends_s = time.monotonic() + LONG_S
        while self._number not in self._answers:
            assert time.monotonic() < ends_s, f"{method}: no answer"
            self._take()
        answer = self._answers.pop(self._number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        done = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def text(self, selector: str) -> str:
        """What stands in the first element that `selector` finds."""
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.textContent ?? String()"))

    def open(self, address: str, width: int, height: int, *, phone: bool = False) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.send("Page.navigate", url=address)

    def key(self, key: str, *, up: bool = True, down: bool = True) -> None:
        """A key is pressed (and let go). key: as in KeyboardEvent.key."""
        codes = {" ": 32, "Tab": 9, "Enter": 13, "ArrowRight": 39, "ArrowLeft": 37}
        text = {" ": " ", "Enter": "\r"}.get(key, "")
        for kind in ("keyDown",) * down + ("keyUp",) * up:
            extra = {"text": text} if text and kind == "keyDown" else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes[key], **extra)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def named(self) -> list[tuple[str, str]]:
        """Role and name of what a screen reader finds."""
        nodes = self.send("Accessibility.getFullAXTree")["nodes"]
        seen = [node for node in nodes if not node.get("ignored")]
        return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in seen]

    def _take(self) -> None:
        try:
            self._pending += os.read(self._read, 1 << 20)
        except BlockingIOError:
            assert self._process.poll() is None, "Chromium has ended"
            time.sleep(0.005)
        *whole, self._pending = self._pending.split(b"\0")
        for line in whole:
            self._told(json.loads(line))

    def _told(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
            return
        method, told = message["method"], message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.faults.append(str(told["exceptionDetails"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.faults.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.asked.append(told["request"]["url"])
