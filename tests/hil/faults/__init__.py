"""Faults that the rig injects, each seen from its far side."""
