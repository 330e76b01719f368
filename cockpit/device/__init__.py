"""Compute units behind one contract: CPU cores, and SMs of an NVIDIA GPU."""
