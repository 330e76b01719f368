"""Tests of `cockpit/profile`."""
