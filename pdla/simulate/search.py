"""The fastest of many candidates: the most promising are run dry first, and those that cannot be among the fastest never."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Generic, Protocol, TypeVar

from pdla.errors import plural
from pdla.simulate.estimate import Seconds

C = TypeVar("C")


@dataclass(frozen=True)
class Candidate(Generic[C]):
    """A choice that may be run, and what is known of it without a run: its times, and bytes that a rank needs at least."""

    choice: C
    seconds: Seconds
    size: float


class Result(Protocol):
    """What a run gives. seconds: of the dry run;  size: bytes that the rank needs."""

    @property
    def seconds(self) -> float: ...

    @property
    def size(self) -> float: ...


R = TypeVar("R", bound=Result)


@dataclass(frozen=True)
class Found(Generic[R]):
    """What a search has found, and how many candidates there were.

    Parameters
    ----------
    best : list
        The fastest first, with their `choice`, `seconds`, and `size`: bytes that a rank needs.
    possible, run : int
        How many candidates there were, and how many were run dry.
    too_large, too_slow : int
        How many were not run, as they need too much memory or cannot be faster.
    smallest : float
        The least bytes that were too many.

    Examples
    --------
    >>> found = pdla.simulate.Product(512, 512, 512).fastest(16, "a100x4", count=1)
    >>> len(found.best), found.possible == found.run + found.too_slow + found.not_looked_at
    (1, True)
    """

    best: list[R]
    possible: int
    run: int
    too_large: int
    too_slow: int
    smallest: float

    @property
    def not_looked_at(self) -> int:
        """How many promised less than those that were run."""
        return self.possible - self.run - self.too_large - self.too_slow

    def words(self, of: tuple[str, ...]) -> str:
        """Say what was looked at.

        Parameters
        ----------
        of : tuple of str
            The parts of a candidate, such as a scheme and a grid, in the singular.

        Returns
        -------
        str
            A sentence.
        """
        left = [f"{self.too_large:,} {plural(self.too_large, 'needs', 'need')} more memory"] if self.too_large else []
        whose = plural(self.too_slow, "its", "their")
        left += [f"{self.too_slow:,} cannot be faster: {whose} work or {whose} bytes alone take longer"] if self.too_slow else []
        were = plural(self.not_looked_at, "that promises less was", "that promise less were")
        left += [f"{self.not_looked_at:,} {were} not looked at"] if self.not_looked_at else []
        kinds = " and ".join(plural(self.possible, kind) for kind in of)
        return "; ".join([f"{self.possible:,} {kinds}: {self.run:,} run dry", *left])


def search(candidates: Iterable[Candidate[C]], run: Callable[[C], R], count: int, most: int, memory: float = inf) -> Found[R]:
    """The `count` fastest choices, by at most `most` runs; those that need more than `memory` bytes are left out.

    A candidate whose work or bytes alone take longer than the slowest of the `count` found is not
    run: it cannot be one of them.
    """
    ranked = sorted(candidates, key=lambda candidate: candidate.seconds.promise)
    best: list[R] = []
    runs = too_large = too_slow = 0
    smallest = inf
    for candidate in ranked:
        if candidate.size > memory:
            too_large += 1
            smallest = min(smallest, candidate.size)
        elif len(best) == count and candidate.seconds.least >= best[-1].seconds:
            too_slow += 1
        elif runs < most:
            runs += 1
            result = run(candidate.choice)
            if result.size <= memory:
                insort(best, result, key=lambda result: result.seconds)
                del best[count:]
            else:
                smallest = min(smallest, result.size)
    return Found(best, len(ranked), runs, too_large, too_slow, smallest)
