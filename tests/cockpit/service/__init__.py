"""Tests of `cockpit/service`."""
