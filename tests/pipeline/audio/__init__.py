"""Tests of `pipeline/audio`."""
