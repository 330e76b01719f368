"""Tokenizers at build time."""
