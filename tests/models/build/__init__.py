"""Tests of `models/build`."""
