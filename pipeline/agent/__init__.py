"""The agent loop: questions that need information, answered by tools that read."""
