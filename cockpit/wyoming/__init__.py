"""The Wyoming protocol: recognition, voices and commands for satellites and other voice programs."""
