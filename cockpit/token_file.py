"""Files that hold a token."""

from __future__ import annotations

from pathlib import Path

from models.errors import StartupError


def read_token(file: Path, key: str) -> str:
    """The token: the file's only line. Raises StartupError for a file that others may read, and for an empty one.

    key: of the profile, for the message.
    """
    try:
        mode = file.stat().st_mode
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"{key} {file} cannot be read: {error}") from error
    if mode & 0o077:
        raise StartupError(f"{key} {file} may be read by others: chmod 600 {file}")
    if len(token) < 16 or any(c.isspace() for c in token):
        raise StartupError(f"{key} {file} is to hold one line of at least 16 characters")
    return token
