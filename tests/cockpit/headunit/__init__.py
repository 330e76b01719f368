"""Events and what is done by hand, on a chain with scripted engines."""
