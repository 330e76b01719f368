"""Noise, levels and the cabin."""
