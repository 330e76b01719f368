"""Tests of `docs`."""
