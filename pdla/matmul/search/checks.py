"""Checks of the arguments of predictions: with impossible numbers a search would find nothing, or never end."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import Any

from pdla.comm.agreement import to_text
from pdla.errors import PlanError, ShapeError, list_choices, misfit, shorten
from pdla.indices import MOST as LONGEST

MOST_RANKS = 10**7  # a grid lists its ranks, and a search lists many grids: more ranks would fill the memory
QUOTED = 60  # characters of a number in an error, at most


def check_sizes(what: str, least: int, **numbers: Any) -> None:
    """Raise ShapeError unless these are whole numbers that a matrix may have as its sizes."""
    for name, number in numbers.items():
        if not (isinstance(number, Integral) and least <= int(number) <= LONGEST):
            error_class = misfit(ShapeError, number)
            raise error_class(f"{what} of {name}={shorten(to_text(number), QUOTED)}: a whole number from {least} to {LONGEST}")


def check_search(ranks: Any, count: Any = 1) -> None:
    """Raise PlanError unless a search may have so many ranks, and find so many ways."""
    if not (isinstance(ranks, Integral) and 1 <= int(ranks) <= MOST_RANKS):
        raise misfit(PlanError, ranks)(f"ranks={shorten(to_text(ranks), QUOTED)}: a whole number from 1 to {MOST_RANKS}")
    if not (isinstance(count, Integral) and int(count) >= 1):
        raise misfit(PlanError, count)(f"count={to_text(count)}: a whole number of at least 1")


def check_names(what: str, given: Iterable[Any], known: Iterable[str]) -> None:
    """Raise PlanError unless all that was given is among the known."""
    if unknown := [name for name in given if name not in known]:
        raise PlanError(f"{what} {unknown[0]!r}: {list_choices(unknown[0], known)}")
