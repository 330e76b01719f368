"""Inference engines, one folder per model family."""
