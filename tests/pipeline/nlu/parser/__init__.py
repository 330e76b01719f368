"""Tests of `pipeline/nlu/parser`."""
