"""`python -m cockpit` and the `cockpit` command."""

from __future__ import annotations

import sys

from cockpit import stop_signals
from cockpit.service import notify


def main() -> None:
    """Run the command line and exit; a signal ends it in every phase, the imports below included."""
    try:
        stop_signals.install()
        notify.process().starting("loading the program")
        try:
            from cockpit.cli import main as run

            run()
        finally:
            stop_signals.end()
    except BaseException as error:
        stopped = stop_signals.behind(error)
        if stopped is None:
            raise
        sys.stderr.write(f"cockpit: {stopped}\n")
        raise SystemExit(stopped.exit_code) from None


if __name__ == "__main__":
    main()
