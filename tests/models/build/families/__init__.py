"""Checkpoints of every family, built and compared."""
