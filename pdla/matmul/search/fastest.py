"""The fastest of many candidates: the most promising are run dry, on more ranks the nearer they are to the fastest."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

from pdla.errors import plural
from pdla.matmul.search.estimate import Seconds

C = TypeVar("C")
_WATCH: ContextVar[Callable[[int, int], object]] = ContextVar("watch", default=lambda done, most: None)


@contextmanager
def watch(tell: Callable[[int, int], object]) -> Iterator[None]:
    """Let searches in the block call tell(done, most) before each candidate that they run, of at most `most`."""
    token = _WATCH.set(tell)
    try:
        yield
    finally:
        _WATCH.reset(token)


@dataclass(frozen=True)
class Candidate(Generic[C]):
    """A choice that may be run, with closed forms: its times, and a lower bound on a rank's bytes."""

    choice: C
    seconds: Seconds
    size: float


class Result(Protocol):
    """The result of a run.

    least  a lower bound on its seconds, which takes less time to find
    size   the bytes that a rank needs
    """

    @property
    def least(self) -> float: ...

    @property
    def seconds(self) -> float: ...

    @property
    def size(self) -> float: ...


R = TypeVar("R", bound=Result)


@dataclass(frozen=True)
class Found(Generic[R]):
    """The result of a search, and the number of candidates.

    Parameters
    ----------
    best : list
        The fastest first, with their `choice`, `seconds`, and `size`: bytes that a rank needs.
    possible, run : int
        How many candidates there were, and how many were run dry.
    too_large, too_slow : int
        How many were not run: they need too much memory, or cannot be faster.
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
        """How many candidates promised less than those that were run."""
        return self.possible - self.run - self.too_large - self.too_slow

    def with_faster(self, other: Found[R], count: int) -> Found[R]:
        """Add the best of another search, if it is the fastest of both.

        Parameters
        ----------
        other : Found
            The other search's result.
        count : int
            How many to keep at most.

        Returns
        -------
        Found
            With the candidates of both.
        """
        faster = [result for result in other.best[:1] if not self.best or result.seconds < self.best[0].seconds]
        best = [*faster, *self.best][:count]
        return Found(
            best, self.possible + other.possible, self.run + other.run, self.too_large + other.too_large,
            self.too_slow + other.too_slow, min(self.smallest, other.smallest),
        )

    def words(self, of: tuple[str, ...]) -> str:
        """Describe the search.

        Parameters
        ----------
        of : tuple of str
            The parts of a candidate, such as a scheme and a grid, in the singular.

        Returns
        -------
        str
            A sentence.
        """
        remarks = [f"{self.too_large:,} {plural(self.too_large, 'needs', 'need')} more memory"] if self.too_large else []
        possessive = plural(self.too_slow, "its", "their")
        slow = f"{self.too_slow:,} cannot be faster: {possessive} work or {possessive} bytes alone take longer"
        remarks += [slow] if self.too_slow else []
        not_run = plural(self.not_looked_at, "that promises less was", "that promise less were")
        remarks += [f"{self.not_looked_at:,} {not_run} not looked at"] if self.not_looked_at else []
        candidates = " and ".join(plural(self.possible, part) for part in of)
        return "; ".join([f"{self.possible:,} {candidates}: {self.run:,} run dry", *remarks])


def search(
    candidates: Iterable[Candidate[C]], run: Callable[[C], R], count: int, most: int, memory: float = inf, limit: float = inf
) -> Found[R]:
    """Find the `count` fastest of the `most` candidates that promise most, without those that need more than `memory` bytes.

    Candidates that cannot be among these are not run, or not to the end. The same holds for those of
    `limit` seconds or more.
    """
    ranked = sorted(candidates, key=lambda candidate: candidate.seconds.promise)
    fitting = [candidate for candidate in ranked if candidate.size <= memory]
    smallest = min((candidate.size for candidate in ranked if candidate.size > memory), default=inf)
    best: list[R] = []
    done = too_slow = 0
    for number, candidate in enumerate(fitting[:most]):
        slowest = best[-1].seconds if len(best) == count else limit
        if candidate.seconds.least >= slowest:
            too_slow += 1
            continue
        _WATCH.get()(number, min(most, len(fitting)))
        result = run(candidate.choice)
        done += 1
        if result.least >= slowest:
            continue
        if result.size > memory:
            smallest = min(smallest, result.size)
            continue
        insort(best, result, key=attrgetter("seconds"))
        del best[count:]
    return Found(best, len(ranked), done, len(ranked) - len(fitting), too_slow, smallest)
