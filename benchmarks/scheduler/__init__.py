"""The arbiter: cost of a decision, isolation between tasks, policy, capacity."""
