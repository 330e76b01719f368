"""Stands in for the sounddevice package: a microphone and a speaker."""
