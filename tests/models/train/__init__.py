"""Tests of `models/store`."""
