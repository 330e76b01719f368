"""Which keys and values a text keeps."""
