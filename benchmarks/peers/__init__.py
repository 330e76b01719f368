"""Other runtimes measured in the same run."""
