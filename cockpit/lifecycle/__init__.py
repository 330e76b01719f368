"""How a model lives: built, validated in a fresh process, served, rolled back. See docs/models.md."""
