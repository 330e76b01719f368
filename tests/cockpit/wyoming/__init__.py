"""The OpenAI-compatible API, over its real socket."""
