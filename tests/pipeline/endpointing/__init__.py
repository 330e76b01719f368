"""Tests of `pipeline/endpointing`."""
