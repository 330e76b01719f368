"""`python -m cockpit` and the `cockpit` command."""

from __future__ import annotations

from cockpit.cli import main

if __name__ == "__main__":
    main()
