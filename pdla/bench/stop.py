"""End the benchmark early, with a line and an exit status, the same on every rank."""

from __future__ import annotations

import sys

from pdla.bench.screen import clear

REFUSED, FAILED = 2, 1  # exit statuses: unusable arguments; a wrong result, or a slower one than before


class Stop(Exception):
    """Raised on every rank; the first rank alone prints it."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status

    def print(self) -> None:
        clear()
        print(self, file=sys.stderr if self.status else sys.stdout)


def refuse(error: object) -> Stop:
    """Return a Stop, to be raised, that quotes an error in one line."""
    return Stop(REFUSED, f"pdla.bench: {' '.join(str(error).split())}")
