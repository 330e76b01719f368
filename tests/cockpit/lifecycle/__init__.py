"""Tests of `cockpit/lifecycle`."""
