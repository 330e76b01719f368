"""Benchmarks, one folder per subject."""
