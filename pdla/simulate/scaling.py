"""Predict strong and weak scaling: a problem's fastest ways on several numbers of ranks of a described machine."""

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
MOST = 12  # the most dry runs for each scheme on each number of ranks


@dataclass(frozen=True)
class Point:
    """A number of ranks, their problem, and its fastest ways.

    Parameters
    ----------
    ranks : int
        The number of ranks; some may be idle.
    problem : Transformer or Product
        The problem that they solve.
    best : Step or Costed, optional
        The fastest way's cost; None where none fits the memory.
    schemes : dict of str to Step
        A transformer's fastest way by scheme; None where none fits the memory.

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
            One of this point's ways.

        Returns
        -------
        float
            Flops a second of each rank.
        """
        return self.problem.flops / (self.ranks * way.seconds)


def scaling(
    problem: Problem, ranks: Sequence[int], machine: Machine | str, grow: str = "", memory: float = inf
) -> Iterator[Point]:
    """Find a problem's fastest ways on each of several numbers of ranks, by dry runs. Not collective.

    Parameters
    ----------
    problem : Transformer or Product
        The problem on the first number of ranks.
    ranks : sequence of int
        The numbers of ranks.
    machine : Machine or str
        The machine, or its name or file.
    grow : str, optional
        One of the problem's `grows`: the size that grows with the ranks, at equal work a rank.
    memory : float, optional
        The most bytes that a rank may need.

    Returns
    -------
    iterator of Point
        A point for each number of ranks, as soon as it is found.

    Raises
    ------
    ShapeError
        For a problem that grows beyond the largest matrix.
    PlanError
        For numbers of ranks below 1, and for a size that cannot grow.

    Examples
    --------
    >>> gpt = pdla.simulate.Transformer(hidden=64, heads=8, sequence=8, batch=16, layers=2)
    >>> points = pdla.simulate.scaling(gpt, [1, 4], "laptop", grow="batch")
    >>> [point.problem.batch for point in points]
    [16, 64]
    """
    for count in ranks:
        checks.check_search(count)
    checks.check_names("grow", [grow] if grow else [], problem.grows)
    described, problems = Machine.of(machine), [problem.grown(count / ranks[0], grow) if grow else problem for count in ranks]
    return (_find_point(grown, count, described, memory) for grown, count in zip(problems, ranks, strict=True))


def _find_point(problem: Problem, ranks: int, machine: Machine, memory: float) -> Point:
    """The fastest ways on up to `ranks` ranks."""
    if isinstance(problem, Product):
        return Point(ranks, problem, next(iter(problem.fastest(ranks, machine, 1, memory).best), None), {})
    steps_by_scheme = {name: problem.fastest(ranks, machine, 1, memory, MOST, (name,)).best for name in SCHEMES}
    ways = {name: steps[0] if steps else None for name, steps in steps_by_scheme.items()}
    return Point(ranks, problem, min((way for way in ways.values() if way), key=lambda way: way.seconds, default=None), ways)
