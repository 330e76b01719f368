"""Tests of `pipeline/nlu`."""
