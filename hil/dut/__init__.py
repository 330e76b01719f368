"""Devices under test: what a scenario is said to."""
