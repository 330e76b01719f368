"""Voice activity detectors: WebRTC gate, Silero."""
