"""What computes: registry, store, builders and inference engines."""
