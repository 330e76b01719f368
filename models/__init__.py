"""What computes: registry, store, builders and inference engines."""

from models.privacy import switch_off_reports

switch_off_reports()
