"""Tests of `models/engines/whisper`."""
