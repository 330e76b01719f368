"""Weights: registry, download, checksums, fingerprints of builds."""
