"""Tests of `pipeline/tts`."""
