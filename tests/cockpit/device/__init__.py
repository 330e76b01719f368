"""Tests of `cockpit/device`."""
