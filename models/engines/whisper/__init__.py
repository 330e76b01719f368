"""Whisper speech recognition."""
