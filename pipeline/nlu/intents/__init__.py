"""The commands and questions that are understood, by subject."""
