"""Tests of `cockpit`."""
