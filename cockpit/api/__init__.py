"""The OpenAI-compatible API on a unix socket; its requests are tasks of the arbiter like the voice chain's."""
