"""The stream of events, on a chain with scripted engines."""
