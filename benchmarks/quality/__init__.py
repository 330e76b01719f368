"""Recognition, understanding and voice quality."""
