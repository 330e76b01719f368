"""Tests of `models/train/parser`."""
