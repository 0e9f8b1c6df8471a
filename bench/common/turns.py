"""Check the sides of a comparison, and time them in turns, as a shared machine's speed changes within minutes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Any

from bench.common.meeting import Meeting
from bench.common.product import Product, Side, fill_at_random, fill_with_integers, is_right


def take_turns(turns: int, sides: Mapping[Any, Callable[[], float]], first: int = 0) -> dict[Any, list[float]]:
    """Each side's figure in every turn, after `first` turns that do not count."""
    figures: dict[Any, list[float]] = {name: [] for name in sides}
    for turn in range(first + turns):
        for name, figure in sides.items():
            figures[name] += [figure()] * (turn >= first)
    return figures


def time_turns(meeting: Meeting, turns: int, works: Mapping[Any, Callable[[], Any]], count: int = 1) -> dict[Any, list[float]]:
    """Collective: seconds a call of each work in every turn of `count` calls.

    The first turn, which makes plans, does not count.
    """
    return take_turns(turns, {name: partial(meeting.seconds, work, count) for name, work in works.items()}, first=1)


def time_medians(meeting: Meeting, turns: int, works: Mapping[Any, Callable[[], Any]], count: int = 1) -> list[float]:
    """Collective: the median of each work's turns."""
    return [1e3 * median(taken) for taken in time_turns(meeting, turns, works, count).values()]


def check_sides(meeting: Meeting, product: Product, sides: Mapping[str, Side]) -> None:
    """Collective: check each side on integers, then fill A and B at random. A wrong product ends the script."""
    for name, side in sides.items():
        if not is_exact(meeting, product, side):
            raise SystemExit(f"{name}: the product of integers is wrong")
        fill_at_random(side, meeting.comm.rank)


def is_exact(meeting: Meeting, product: Product, side: Side, times: int = 1) -> bool:
    """Collective: whether the product of integers is exact on every rank, `times` times in succession."""
    fill_with_integers(side)
    wrong = [not is_right(side, product) for _ in range(times)]
    return not any(meeting.largest([float(w) for w in wrong]))
