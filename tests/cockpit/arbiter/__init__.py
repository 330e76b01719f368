"""Tests of `cockpit/arbiter`."""
