"""Decode kernels of one model family, without an inference runtime."""
