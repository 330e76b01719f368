"""Notes that a file had the right hash, so that it is not read again while it is unchanged."""

from __future__ import annotations

from pathlib import Path


def stamp_of(file: Path) -> Path:
    """Where it is noted that `file` had the right hash, and its modification time then."""
    return file.with_name(f".{file.name}.stamp")


def read_stamp(file: Path) -> tuple[int, str] | None:
    """(modification time in ns, sha256) noted for `file`; None when nothing is."""
    try:
        mtime_ns, _, sha256 = stamp_of(file).read_text(encoding="utf-8").partition(" ")
        return int(mtime_ns), sha256
    except (OSError, ValueError):
        return None


def write_stamp(file: Path, sha256: str) -> None:
    """Note that `file` has this hash now."""
    stamp_of(file).write_text(f"{file.stat().st_mtime_ns} {sha256}", encoding="utf-8")
