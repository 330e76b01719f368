"""What is observed while running: traces, GPU memory, clocks and links."""
