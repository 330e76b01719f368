"""Models that mix attention with state-space layers."""
