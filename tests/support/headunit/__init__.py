"""A followed chain with scripted engines, the page before it, and a browser to look at it."""
