"""Language models whose layers keep a state beside keys and values (Mamba-2)."""
