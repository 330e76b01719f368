"""The rig: scenarios in, verdicts and a report out. `cockpit hil` is its command."""
