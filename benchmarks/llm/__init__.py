"""Language model speed and exactness, alone."""
