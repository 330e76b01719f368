"""A run as files: JSON lines, JUnit XML, an HTML page with pictures, a baseline beside it, the trend."""
