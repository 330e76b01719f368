"""Faults that a scenario switches on and off while it runs, each with a proof that it was really on."""
