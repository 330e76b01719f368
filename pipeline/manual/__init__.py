"""The owner's manual: read from Markdown, found by its sections' names and by meaning, quoted with its section."""
