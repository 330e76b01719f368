"""What a person may type for an argument: offered by the shell's completion."""

from __future__ import annotations

from cockpit.profile.load import profile_names
from models.store.registry import load_registry


def profile_values(incomplete: str) -> list[str]:
    """The profiles that ship and begin with `incomplete`; a path to a file is as good."""
    return [name for name in profile_names() if name.startswith(incomplete)]


def model_values(incomplete: str) -> list[str]:
    """The models of the registry that begin with `incomplete`."""
    return [model.name for model in load_registry().models if model.name.startswith(incomplete)]


def language_values(incomplete: str) -> list[str]:
    """The languages of a line of text."""
    return [name for name in ("auto", "en", "zh") if name.startswith(incomplete)]
