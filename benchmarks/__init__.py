"""Benchmarks, one folder per subject."""

import models  # noqa: F401  it switches off what libraries report, before any of them is loaded
