"""What a turn does: decide, call tools, ask back, answer freely, remember."""
