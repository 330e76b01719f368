"""Cockpit: one process that listens, understands, acts on the car and answers, offline."""

from cockpit.own_packages import refuse_if_hidden

__version__ = "0.1.0"

refuse_if_hidden()

import models  # noqa: E402, F401  it switches off what libraries report, before any of them is loaded
