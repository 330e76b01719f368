"""The page in a real browser, and its server."""
