"""Training of the semantic parser: examples, network, runs, the adapter. On the bench; torch is needed here only."""
