"""Tests of `pipeline/dialogue`."""
