"""A pack: built models in a folder or tar, signed, for a head unit without a network. See docs/pack.md."""
