"""Tests of `pipeline/vehicle`."""
