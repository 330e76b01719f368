"""Language models: prefill, decode, KV memory, grammar-constrained choice."""
