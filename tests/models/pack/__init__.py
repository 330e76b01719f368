"""Tests of `models/pack`."""
