"""Whole turns: latency from the end of speech, idle load, warm-up, serialising."""
