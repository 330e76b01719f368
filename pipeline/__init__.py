"""The voice pipeline: messages, channels and one folder per stage."""
