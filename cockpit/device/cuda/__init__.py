"""NVIDIA GPU: green contexts as lanes, sessions on their streams, compiled kernels."""
