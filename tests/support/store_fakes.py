"""A package index on this machine that can be told to misbehave, and small registries over it."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from models.store.manifest import Manifest
from models.store.registry import Registry

PACKAGE, VERSION = "fake-weights", "1.0.0"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def wheel(members: dict[str, bytes]) -> bytes:
    """A stored (uncompressed) archive, so that its size follows its content."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


class Index:
    """State of the fake index. `files`: wheel name -> bytes; `log`: (path, Range header) of every request."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.log: list[tuple[str, str | None]] = []
        self.authorisations: list[str] = []
        self.break_after_bytes: int | None = None
        self.breaks_left = 0
        self.ranges = True
        self.html = False
        self.url = ""

    def downloads(self) -> list[str | None]:
        """Range headers of the requests for files."""
        return [ranges for path, ranges in self.log if path.startswith("/files/")]


class _Handler(BaseHTTPRequestHandler):
    index: Index

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        index = self.index
        index.log.append((self.path, self.headers.get("Range")))
        if "Authorization" in self.headers:
            index.authorisations.append(self.headers["Authorization"])
        if self.path == f"/simple/{PACKAGE}/":
            self._page()
        elif self.path.startswith("/files/") and self.path.removeprefix("/files/") in index.files:
            self._file(index.files[self.path.removeprefix("/files/")])
        else:
            self.send_error(404)

    def _page(self) -> None:
        if self.index.html:
            links = "".join(f'<a href="../../files/{name}#sha256=00">{name}</a>' for name in self.index.files)
            body, kind = f"<html><body>{links}</body></html>".encode(), "text/html"
        else:
            files = [{"filename": name, "url": f"/files/{name}", "hashes": {}} for name in self.index.files]
            body, kind = json.dumps({"files": files}).encode(), "application/vnd.pypi.simple.v1+json"
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _file(self, data: bytes) -> None:
        start = 0
        if self.index.ranges and (wanted := self.headers.get("Range")):
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(data):
                self.send_error(416)
                return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        body = data[start:]
        if self.index.breaks_left and self.index.break_after_bytes is not None:
            self.index.breaks_left -= 1
            body = body[: self.index.break_after_bytes]
        self.wfile.write(body)


@contextmanager
def serve(index: Index) -> Iterator[Index]:
    """Serve `index` on a free port; sets `index.url`."""
    handler = type("Handler", (_Handler,), {"index": index})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    index.url = f"http://127.0.0.1:{server.server_port}/simple"
    try:
        yield index
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def part(wheel_name: str, data: bytes, member: str | None) -> dict[str, Any]:
    """One registry part that pins the wheel `data`."""
    made = {"package": PACKAGE, "version": VERSION, "wheel": wheel_name, "wheel_sha256": sha256(data)}
    return made | ({"member": member} if member else {})


def file_entry(content: bytes, *sources: dict[str, Any]) -> dict[str, Any]:
    """One registry file that pins `content`."""
    return {"sha256": sha256(content), "size_bytes": len(content), "sources": list(sources)}


def registry(files: dict[str, Any], **more: Any) -> Registry:
    """A registry of one model called `fake`."""
    model = {"name": "fake", "kind": "vad", "summary": "", "licence": "MIT", "files": files, "default": True, **more}
    return Registry.model_validate({"format": 1, "models": [model]})


def carry(folder: Path, **fields: object) -> None:
    """Make the build in `folder` carry another fingerprint."""
    made = Manifest.read(folder)
    assert made is not None
    Manifest.write(folder, replace(made.fingerprint, **fields))  # type: ignore[arg-type]
