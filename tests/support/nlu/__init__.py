"""What tests of the parser share."""
