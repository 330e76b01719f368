"""Wake-word detectors: microWakeWord, openWakeWord."""
