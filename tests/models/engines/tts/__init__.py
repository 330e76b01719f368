"""Tests of `models/engines/tts`."""
