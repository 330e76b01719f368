"""A page on loopback that shows and handles a running `cockpit serve`: the driver's view and the engineer's."""
