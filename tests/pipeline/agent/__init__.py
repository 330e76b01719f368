"""Tests of pipeline/agent."""
