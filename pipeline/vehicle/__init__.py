"""The car: signals, the closed set of tools that may touch them, places."""
