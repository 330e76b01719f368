"""Pages for people; a page's pictures and tables are made from the code."""
