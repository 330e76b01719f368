"""Tests of `cockpit/telemetry`."""
