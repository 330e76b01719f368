"""Tests of `cockpit/cli`."""
