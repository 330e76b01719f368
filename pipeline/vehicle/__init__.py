"""The car: its signals, the closed set of tools that may touch them, and the words people use for both."""
