"""How the time of a problem falls, or that of a growing one rises, on ever more ranks of a described machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from pdla.matmul.search import checks
from pdla.matmul.search.products import Costed, Product
from pdla.model.machine import Machine
from pdla.simulate.networks import SCHEMES, Step, Transformer

Problem = Transformer | Product
Result = Step | Costed
MOST = 12  # dry runs for each scheme on each number of ranks


@dataclass(frozen=True)
class Point:
    """A number of ranks, the problem that they solve, and the fastest ways.

    Parameters
    ----------
    ranks : int
        How many there are; some may be idle.
    problem : Transformer or Product
        What they solve.
    best : Step or Costed, optional
        Of the fastest way; None where none fits the memory.
    schemes : dict of str to Step
        Of a transformer, the fastest way of each scheme; None where none fits the memory.

    Examples
    --------
    >>> [point] = pdla.simulate.scaling(pdla.simulate.Product(64, 64, 64), [4], "laptop")
    >>> point.rate(point.best) == 2 * 64**3 / (4 * point.best.seconds)
    True
    """

    ranks: int
    problem: Problem
    best: Result | None
    schemes: dict[str, Step | None]

    def rate(self, way: Result) -> float:
        """Divide the flops by the time of all ranks, idle ones included.

        Parameters
        ----------
        way : Step or Costed
            One of this point's.

        Returns
        -------
        float
            Flops a second of each rank.
        """
        return self.problem.flops / (self.ranks * way.seconds)


def scaling(
    problem: Problem, ranks: Sequence[int], machine: Machine | str, grow: str = "", memory: float = inf
) -> Iterator[Point]:
    """Find the fastest ways on each of several numbers of ranks, by dry runs. Not collective.

    Parameters
    ----------
    problem : Transformer or Product
        What the first number of ranks solves.
    ranks : sequence of int
        The numbers.
    machine : Machine or str
        The machine, or its name or file.
    grow : str, optional
        Of the problem's `grows`, what grows with the ranks, so that each has equal work.
    memory : float, optional
        The most bytes that a rank may need.

    Returns
    -------
    iterator of Point
        One for each number, as soon as it is found.

    Raises
    ------
    ShapeError
        Where a problem grows beyond what a matrix may be.
    PlanError
        For numbers of ranks that cannot be, and for what does not grow.

    Examples
    --------
    >>> gpt = pdla.simulate.Transformer(hidden=64, heads=8, sequence=8, batch=16, layers=2)
    >>> points = pdla.simulate.scaling(gpt, [1, 4], "laptop", grow="batch")
    >>> [point.problem.batch for point in points]
    [16, 64]
    """
    for count in ranks:
        checks.search(count)
    checks.names("grow", [grow] if grow else [], problem.grows)
    on, each = Machine.of(machine), [problem.grown(count / ranks[0], grow) if grow else problem for count in ranks]
    return (_point(of, count, on, memory) for of, count in zip(each, ranks, strict=True))


def _point(of: Problem, ranks: int, machine: Machine, memory: float) -> Point:
    """The fastest ways on up to so many ranks."""
    if isinstance(of, Product):
        return Point(ranks, of, next(iter(of.fastest(ranks, machine, 1, memory).best), None), {})
    found = {name: of.fastest(ranks, machine, 1, memory, MOST, (name,)).best for name in SCHEMES}
    ways = {name: steps[0] if steps else None for name, steps in found.items()}
    return Point(ranks, of, min((way for way in ways.values() if way), key=lambda way: way.seconds, default=None), ways)
