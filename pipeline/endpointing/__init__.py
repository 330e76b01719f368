"""Wake word, voice activity, and the decision that a turn is over."""
