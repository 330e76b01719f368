"""Cockpit: one process that listens, understands, acts on the car and answers, offline."""

__version__ = "0.1.0"
