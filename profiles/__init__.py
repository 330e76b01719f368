"""The profiles that ship, and the JSON Schema for editors."""
