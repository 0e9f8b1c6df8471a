"""Find the fastest algorithm and grid for a product on a described machine, by dry runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf, log, prod, sqrt
from typing import Any, ClassVar

import numpy as np

from pdla.comm.dry import DryComm
from pdla.errors import ShapeError
from pdla.grid import ProcessGrid
from pdla.indices import MOST as LONGEST
from pdla.layout import Layout, ranks_along
from pdla.matmul import boxes, roles
from pdla.matmul.algorithms import NAMED
from pdla.matmul.algorithms.table import Table
from pdla.matmul.builder import PlanBuilder
from pdla.matmul.choose.price import Way
from pdla.matmul.choose.problem import Operand
from pdla.matmul.dry import make_communicator
from pdla.matmul.options import Options
from pdla.matmul.plan import Plan, costs
from pdla.matmul.schedules import ON_GRID, SCHEDULES
from pdla.matmul.search import checks, estimate
from pdla.matmul.search.estimate import Move, Sizes, count_indices, count_neighbours, count_words, gather, list_divisors, scatter
from pdla.matmul.search.fastest import Candidate, Found, search
from pdla.matrix.redistribute import local_shape, order_sums
from pdla.model import received_lower_bound
from pdla.model.cost import Cost
from pdla.model.machine import Machine, operations

LAYOUT = Layout(rows="row", cols="col")  # of A, B and C in 2-D blocks
BOXES = 32  # of lowest price that are tried
MOST = 12  # ways that are tried on each number of ranks
HIDES = 0.8  # the hidden share of the shorter of work and messages: most of 56 products' fastest ways come first with this value


@dataclass(frozen=True)
class Product:
    """C = A B, whose cost is predicted.

    Parameters
    ----------
    m, n, k : int
        A is m x k, B is k x n.
    dtype : str, optional
        The dtype of A, B and C.

    Raises
    ------
    ShapeError
        For sizes that no matrix has.

    Examples
    --------
    >>> found = pdla.simulate.Product(512, 512, 512).fastest(16, "a100x4", count=1)
    >>> [str(cost.choice) for cost in found.best]
    ['gather row=2']
    """

    kind: ClassVar[str] = "product"
    grows: ClassVar[tuple[str, ...]] = ("m, n and k",)  # what may grow with the ranks

    m: int
    n: int
    k: int
    dtype: str = "float64"

    def __post_init__(self) -> None:
        checks.check_sizes("a product", 0, m=self.m, n=self.n, k=self.k)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    @property
    def flops(self) -> int:
        """Additions and multiplications, in real arithmetic."""
        return operations(self.m, self.n, self.k, self.dtype)

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """The shapes of A, B and C."""
        return (self.m, self.k), (self.k, self.n), (self.m, self.n)

    def lower_bound(self, ranks: int) -> float:
        """Bound the bytes that some rank must receive.

        Parameters
        ----------
        ranks : int
            How many share the work.

        Returns
        -------
        float
            Bytes.
        """
        return self.itemsize * received_lower_bound(self.m, self.n, self.k, ranks)

    def grown(self, ratio: float, what: str) -> Product:
        """Make the product that is more work, as nearly as whole numbers allow.

        Parameters
        ----------
        ratio : float
            The new work over this product's.
        what : str
            "m, n and k": as its cube root.

        Returns
        -------
        Product
            Of the same dtype.

        Raises
        ------
        ShapeError
            If they would be longer than any matrix may be.
        """
        m, n, k = (max(1, round(size * ratio ** (1 / 3))) for size in (self.m, self.n, self.k))
        if max(m, n, k) > LONGEST:
            raise ShapeError(f"m n k = {m} {n} {k}, on {ratio:g} times the ranks, are too long: each is up to {LONGEST}")
        return replace(self, m=m, n=n, k=k)

    def fastest(self, ranks: int, machine: Machine | str, count: int = 10, memory: float = inf) -> Found[Costed]:
        """Find the fastest algorithms and grids, by dry runs. Not collective.

        Fewer ranks are taken where they are faster (see `Machine.ladder`).

        Parameters
        ----------
        ranks : int
            How many there are, at most.
        machine : Machine or str
            The machine, or its name or file.
        count : int, optional
            How many to find.
        memory : float, optional
            The most bytes of memory of a rank.

        Returns
        -------
        Found
            Of ways with their plans (`Costed`), the fastest first.

        Raises
        ------
        PlanError
            For impossible numbers of ranks or of ways.
        """
        checks.check_search(ranks, count)
        return find_fastest(self, ranks, Machine.of(machine), count, memory)

    def __str__(self) -> str:
        return f"C = A B, m n k = {self.m} {self.n} {self.k}, {self.dtype}"


@dataclass(frozen=True)
class Choice:
    """An algorithm's table, and the order of its axes; consecutive ranks lie along the last of them."""

    table: Table
    order: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.table.algorithm

    @property
    def ranks(self) -> int:
        return prod(self.table.shape)

    @property
    def sizes(self) -> dict[str, int]:
        return {axis: self.table.sizes[axis] for axis in self.order}

    def grid(self, comm: Any) -> ProcessGrid:
        axes = self.table.axes
        ranks = np.arange(self.ranks).reshape([*self.sizes.values()]).transpose([self.order.index(axis) for axis in axes])
        return ProcessGrid.trust(self.table.shape, comm, ranks, axes)

    def __str__(self) -> str:
        grid = " ".join(f"{axis}={n}" for axis, n in self.sizes.items() if n > 1) or "1 rank"
        schedule = "" if self.table.schedule == self.name else f" by {self.table.schedule}"
        copies = ", B in every layer" if self.name == "tesseract" and "depth" not in self.table.B.axes else ""
        return f"{self.name}{schedule} {grid}{copies}"


@dataclass(frozen=True)
class Costed:
    """A way to multiply, and its plan, of matrices that lie in the algorithm's own layouts.

    Parameters
    ----------
    choice : Choice
        The algorithm and its grid.
    plan : Plan
        The plan, on a communicator without data.
    matrices : int
        Bytes of the first rank's parts of A, B and C.

    Examples
    --------
    >>> [way] = pdla.simulate.Product(512, 512, 512).fastest(16, "a100x4", count=1).best
    >>> way.seconds == way.plan.predicted.seconds
    True
    """

    choice: Choice
    plan: Plan
    matrices: int

    @property
    def least(self) -> float:
        """Seconds of the first rank."""
        return costs.clock(self.plan, costs.find_first_rank(self.plan)).seconds

    @property
    def seconds(self) -> float:
        """Seconds of the plan, on its machine."""
        return self.plan.machine_cost.seconds

    @property
    def cost(self) -> Cost:
        """Of the plan."""
        return self.plan.predicted

    @property
    def size(self) -> int:
        """Bytes that a rank needs."""
        return self.plan.machine_cost.peak_workspace + self.matrices


# ---------------------------------------------------------------------------------------------- what there is


def list_tables(product: Product, ranks: int, machine: Machine, name: str = "auto") -> Iterator[Table]:
    """List every algorithm on the grids with few words and those the planner favours, by each schedule that sends messages.

    A table with two names is listed once. Copies of a matrix have taken messages that are not
    counted: so tables with copies are only for callers who name the algorithm.
    """
    seen = set()
    for table in _list_tables(product, ranks, machine):
        key = _identify(table)
        if key not in seen and name in (table.algorithm, *(() if _has_copies(table) else ("auto",))):
            seen.add(key)
            yield table


def _has_copies(table: Table) -> bool:
    """Whether A or B is held by several layers of ranks."""
    return any(ranks_along(layout.axes, table.sizes) < prod(table.shape) for layout in (table.A, table.B))


def _list_tables(product: Product, ranks: int, machine: Machine) -> Iterator[Table]:
    for sides in _list_flat_grids(ranks, product.m, product.n):
        blocks = [Table(name, sides, (("row", "m"), ("col", "n")), LAYOUT, LAYOUT, LAYOUT, name) for name in ON_GRID]
        if _stays(product, blocks[0]):
            yield from blocks
    for name, algorithm in NAMED.items():
        for shape in _list_shapes(name, product, ranks, machine):
            sent = (table for table in algorithm.list_tables(shape) if not SCHEDULES[table.schedule].takes_any_layout)
            yield from (table.even_faces(product.m, product.n, product.k, two_sums=not 1 < machine.node < ranks) for table in sent)


def _list_shapes(name: str, product: Product, ranks: int, machine: Machine) -> Iterable[tuple[int, int, int]]:
    m, n, k = product.m, product.n, product.k
    if name == "a-stationary":
        return [(pm, 1, pk) for pm, pk in _list_flat_grids(ranks, m, k)]
    if name == "b-stationary":
        return [(1, pn, pk) for pn, pk in _list_flat_grids(ranks, n, k)]
    if name == "c-stationary":
        return [(pm, pn, 1) for pm, pn in _list_flat_grids(ranks, m, n)]
    return boxes.find_cheapest(m, n, k, ranks, machine, BOXES) if name == "3d" else NAMED[name].list_shapes(m, n, k, ranks, machine)


def _list_flat_grids(ranks: int, first: int, second: int) -> list[tuple[int, int]]:
    """List grids for a matrix first x second: those with nearly square blocks, some with idle ranks, some without."""
    first, second = max(first, 1), max(second, 1)
    ideal = sqrt(ranks * first / second)
    whole = sorted(list_divisors(ranks, ranks), key=lambda side: abs(log(side / ideal)))[:3]
    sides = {min(max(side, 1), ranks, first) for side in (int(ideal), int(ideal) + 1, *whole)}
    return [(side, min(ranks // side, second)) for side in sorted(sides)]


def _stays(product: Product, table: Table) -> bool:
    """Whether the rule does not move C on a grid of 2-D blocks; if it moves C, a box does the same with fewer words."""
    chosen, _ = roles.choose(table.A, table.B, table.C, product.m, product.n, product.k, tuple(table.sizes.items()))
    return chosen.carries == table.roles.carries


def _identify(table: Table) -> tuple[Any, ...]:
    """Make a key, equal for two tables that do the same: axes are named by what they carry, those of one rank left out."""
    carries = dict(table.carries)
    names = {axis: (carries[axis], n, axis == "depth") for axis, n in table.sizes.items() if n > 1}

    def cuts(layout: Layout) -> tuple[Any, ...]:
        return tuple(tuple(names[cut.axis] for cut in nest if cut.axis in names) for nest in (layout.rows, layout.cols))

    return table.schedule, table.walked, table.box, cuts(table.A), cuts(table.B), cuts(table.C)


# ---------------------------------------------------------------------------------------------- closed forms


def list_moves(product: Product, table: Table) -> Iterator[Move]:
    """List what the first rank receives. By Cannon it may be more, if the sides of a grid do not divide each other."""
    (a, b, c), chosen, sizes = product.shapes, table.roles, table.sizes
    walked = table.walked if SCHEDULES[table.schedule].walks else ""
    yield from gather(a, table.A, chosen.A, sizes, product.itemsize, panels=walked in ("m", "k"))
    yield from gather(b, table.B, chosen.B, sizes, product.itemsize, panels=walked in ("k", "n"))
    layout = chosen.C.summed
    for axis, by_rows in order_sums(c, chosen.C, table.C, tuple(sizes.items())):
        rows, cols = ((axis,), ()) if by_rows else ((), (axis,))
        before, layout = layout, Layout((*layout.rows, *rows), (*layout.cols, *cols))
        yield scatter(c, before, layout, (axis,), sizes, product.itemsize, panels=walked in ("m", "n"))


def guess(product: Product, table: Table, machine: Machine) -> Candidate[Choice]:
    """Estimate a table in closed form, with its axes in the order in which messages take the least time."""
    moved, sizes, chosen = tuple(list_moves(product, table)), table.sizes, table.roles
    dimensions = (product.m, chosen.A.rows), (product.n, chosen.B.cols), (product.k, chosen.A.cols)
    m, n, k = (count_indices(whole, cuts, sizes) for whole, cuts in dimensions)
    work = machine.gemm(m, n, k, product.dtype)
    best, placed = estimate.find_fastest(moved, work, sizes, machine, product.itemsize)
    overhead = _estimate_overhead(table, moved, placed, machine)
    held = sum(count_words(shape, layout, sizes) for shape, layout in zip(product.shapes, table.layouts, strict=True))
    estimated = replace(best, overhead=overhead, hides=HIDES * machine.overlap)
    return Candidate(Choice(table, tuple(placed)), estimated, held * product.itemsize)


def _estimate_overhead(table: Table, moved: Iterable[Move], placed: Sizes, machine: Machine) -> float:
    """Estimate the seconds that messages and products of panels take at any size.

    With each panel of A, one of B is multiplied.
    """
    seconds, panels = 0.0, 0
    for move in moved:
        far = count_neighbours(move.axes, placed, machine.node) < prod(placed[axis] for axis in move.axes)
        seconds += move.messages * machine.gap + move.rounds * machine.delay(far) + move.copies * machine.call
        if SCHEDULES[table.schedule].walks and not move.adds:
            panels = max(panels, move.messages)
    return seconds + panels * machine.call


# ---------------------------------------------------------------------------------------------- dry runs


def find_fastest(
    product: Product, ranks: int, machine: Machine, count: int = 1, memory: float = inf, name: str = "auto"
) -> Found[Costed]:
    """Local: find the fastest ways on so many ranks and, if one on fewer ranks of the machine's ladder is faster, that one, too.

    name  "auto", or the name of the only algorithm to try
    """
    found = find_fastest_on(product, ranks, machine, count, memory, inf, name)
    for fewer in reversed(machine.ladder(ranks)[:-1]):
        if not found.best or product.flops / (fewer * machine.most(product.dtype)) >= found.best[0].seconds:
            break
        found = found.with_faster(find_fastest_on(product, fewer, machine, 1, memory, found.best[0].seconds, name), count)
    return found


def find_fastest_on(
    product: Product, ranks: int, machine: Machine, count: int = 1, memory: float = inf, limit: float = inf, name: str = "auto"
) -> Found[Costed]:
    """Local: find the fastest ways on so many ranks, some of which may be idle."""
    comm = make_communicator(ranks, machine)
    guesses = (guess(product, table, machine) for table in list_tables(product, ranks, machine, name))
    return search(guesses, lambda choice: make_plan(product, choice, machine, comm), count, MOST, memory, limit)


def make_plan(product: Product, choice: Choice, machine: Machine, comm: DryComm) -> Costed:
    """Local: make the plan of a choice, with the matrices in the algorithm's own layouts."""
    table, grid = choice.table, choice.grid(comm)
    A, B, C = (Operand(shape, layout, grid) for shape, layout in zip(product.shapes, table.layouts, strict=True))
    boxed = None if choice.name in ON_GRID else table
    words = table.words(product.m, product.n, product.k)
    way = Way(table.algorithm, table.schedule, table.roles, boxed, grid.ranks.ravel(), words, 0.0, 0.0)
    plan = PlanBuilder(A, B, C, np.dtype(product.dtype), Options(), machine).plan(way)
    held = sum(prod(local_shape(X.shape, X.layout, grid)) for X in (A, B, C))
    return Costed(choice, plan, held * product.itemsize)
