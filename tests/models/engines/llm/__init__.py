"""Tests of `models/engines/llm`."""
