"""The rig: scenario files, verdicts, reports."""
