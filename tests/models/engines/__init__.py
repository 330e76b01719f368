"""Tests of `models/engines`."""
