"""Stands in for nvidia-ml-py: one GPU as NVML shows it."""
