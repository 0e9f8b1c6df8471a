"""How the benchmark ends early: with a few words and an exit status, the same on every rank."""

from __future__ import annotations

import sys

from pdla.bench.screen import clear

REFUSED, FAILED = 2, 1  # exit statuses: arguments that cannot be run; a product that is not right, or worse than before


class Stop(Exception):
    """Raised on every rank; where it is caught, the first rank alone prints it."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status

    def print(self) -> None:
        clear()
        print(self, file=sys.stderr if self.status else sys.stdout)


def refuse(error: object) -> Stop:
    """A Stop, to be raised, that quotes an error in one line."""
    return Stop(REFUSED, f"pdla.bench: {' '.join(str(error).split())}")
