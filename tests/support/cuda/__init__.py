"""What stands in for a GPU: a driver, host memory, and the kernels compiled for the host."""
