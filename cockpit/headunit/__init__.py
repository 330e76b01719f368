"""What a head unit shows of the running process and does to it: events, state, and what the driver does by hand."""
