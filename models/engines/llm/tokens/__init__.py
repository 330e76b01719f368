"""What is checked of a tokenizer at run time."""
