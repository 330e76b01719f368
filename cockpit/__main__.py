"""`python -m cockpit`."""

from __future__ import annotations


def main() -> None:
    raise SystemExit("the command line is not wired yet")


if __name__ == "__main__":
    main()
