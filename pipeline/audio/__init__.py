"""Audio in and out: WAV files, microphone, speaker."""
