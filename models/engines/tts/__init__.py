"""Voices: Piper, Mandarin FastSpeech2, espeak-ng in a child process."""
