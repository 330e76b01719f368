"""Makes pictures, tables, man pages and completion from the code."""
