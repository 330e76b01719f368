"""Profiles: YAML read with the place of every key, checked, explained, planned."""
