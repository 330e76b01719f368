"""Tests of `cockpit/scheduling`."""
