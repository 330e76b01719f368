"""The arbiter's decisions carried out: leases, copies, warm-up, control socket."""
