"""What the benchmarks share: reports, devices, recorded commands."""
