"""Where the benchmarks read from."""

from __future__ import annotations

from pathlib import Path

from hil import AUDIO

ROOT = Path(__file__).resolve().parents[2]
"""The repository."""
COMMANDS_TEXT = ROOT / "tests" / "data" / "commands_text.yaml"
"""The typed commands of the tests."""
INJECTIONS = ROOT / "tests" / "data" / "injections.jsonl"
"""Texts from outside that try to give orders. See benchmarks/harness/injections.py."""

__all__ = ["AUDIO", "COMMANDS_TEXT", "INJECTIONS", "ROOT"]
