"""Decides who runs where, in what order, with how much memory; computes nothing."""
