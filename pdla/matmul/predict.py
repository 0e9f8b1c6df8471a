"""Predict a product's cost from its sizes alone: closed formulas, and the best choice for any number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pdla import checks
from pdla.errors import PlanError, list_choices, misfit
from pdla.grid import ProcessGrid
from pdla.matmul import planner
from pdla.matmul.algorithms import NAMED
from pdla.matmul.algorithms.table import Table
from pdla.matmul.builder import PlanBuilder
from pdla.matmul.choose.candidates import ALGORITHMS, list_native_tables
from pdla.matmul.choose.price import Order
from pdla.matmul.choose.problem import Operand, Sizes
from pdla.matmul.dry import make_communicator
from pdla.matmul.options import Options
from pdla.matmul.plan import Plan
from pdla.matmul.schedules import SCHEDULES
from pdla.matmul.search.products import Product, find_fastest
from pdla.model.bounds import exact, received_lower_bound
from pdla.model.machine import Machine


@dataclass(frozen=True)
class Prediction:
    """The cost of a product whose A, B and C have the algorithm's own layouts.

    Each figure is the most that any rank has.

    Parameters
    ----------
    algorithm : str
        The cheapest, or the caller's.
    schedule : str
        How its panels move.
    grid : tuple of int
        Shape of its grid.
    ranks_used : int
        Ranks of that grid.
    bytes_received : int
        Bytes received from other ranks.
    messages : int
        Messages received from other ranks.
    peak_workspace : int
        Bytes of buffers at any moment.
    lower_bound : float
        Bytes that some of P ranks must receive where all do the same work and no matrix is held
        twice.
    seconds : float or None
        None without a machine.
    """

    algorithm: str
    schedule: str
    grid: tuple[int, ...]
    ranks_used: int
    bytes_received: int
    messages: int
    peak_workspace: int
    lower_bound: float
    seconds: float | None


def predict_matmul(
    m: int, n: int, k: int, P: int, *,
    dtype: Any = "float64", algorithm: str = "auto", memory_limit: int | None = None,
    machine: Machine | str | None = None,
) -> Prediction:
    """Find the best way to multiply m x k by k x n, each matrix in the layout that suits.

    Not collective, and without a communicator. Dry runs of the plan itself give the figures.

    Parameters
    ----------
    m, n, k : int
        Sizes: C is m x n.
    P : int
        Ranks, at most.
    dtype : dtype, optional
        Of the matrices.
    algorithm : str, optional
        "auto", or one of the algorithms that have a grid of their own.
    memory_limit : int, optional
        Bytes of workspace a rank, at most.
    machine : Machine or str, optional
        A machine, its name or its TOML file. The best few ways are run dry on it, on P ranks and on
        fewer, and the fastest is chosen. Without a machine the way of least price is chosen, and
        `seconds` is None.

    Returns
    -------
    Prediction
        The way, and what it costs.

    Raises
    ------
    PlanError
        For sizes that no matrix has, an unknown algorithm, and a memory_limit that no plan keeps.
    MemoryError
        If a rank's block of a matrix has more bytes than there are addresses.

    Examples
    --------
    >>> cost = pdla.predict_matmul(4096, 4096, 4096, 64)
    >>> cost.algorithm, cost.grid, cost.bytes_received, round(cost.lower_bound)
    ('3d', (4, 4, 4), 18874368, 18874368)
    """
    m, n, k, P = exact(m, n, k, P)
    if not checks.sizes(m, n, k) or not isinstance(P, int) or P < 1:
        error = misfit(PlanError, m, n, k, P)
        raise error(f"m={m}, n={n}, k={k}, P={P}: sizes are whole numbers from 0 to 2^63 - 1, ranks 1 or more")
    if not checks.one_of(algorithm, (*NAMED, "auto")):
        raise PlanError(f"algorithm={algorithm!r}: {list_choices(algorithm, (*NAMED, 'auto'))}")
    checks.limit(memory_limit)
    kind = np.dtype(dtype)
    if machine is None or memory_limit is not None:
        used = Machine.choose() if machine is None else Machine.of(machine)
        plan = _find_cheapest(m, n, k, P, kind, algorithm, memory_limit, used)
    else:
        plan = find_fastest(Product(m, n, k, kind.name), P, Machine.of(machine), name=algorithm).best[0].plan
    cost = plan.predicted
    return Prediction(
        plan.algorithm, plan.schedule, plan.grid.shape, plan.grid.size, cost.bytes_received, cost.messages,
        cost.peak_workspace, kind.itemsize * received_lower_bound(m, n, k, P), cost.seconds if machine else None,
    )


def _find_cheapest(m: int, n: int, k: int, P: int, dtype: np.dtype, algorithm: str, limit: int | None, machine: Machine) -> Plan:
    """Local: find the plan of least price or, with a limit, the first that keeps it."""
    comm = make_communicator(P, machine)

    def make_builder(table: Table, order: Order, schedule: str | None) -> PlanBuilder:
        grid = ProcessGrid.trust(table.shape, comm, order, table.axes)
        A, B, C = (Operand(*operand, grid) for operand in (((m, k), table.A), ((k, n), table.B), ((m, n), table.C)))
        return PlanBuilder(A, B, C, dtype, Options(table.algorithm, table.box_option, schedule), machine)

    tables = list_native_tables(Sizes((m, n, k), P, dtype.itemsize, machine, 0, tuple(comm.homes)), algorithm, limit is not None)
    if limit is None:
        builder = make_builder(*tables[0], tables[0][0].schedule)
        return builder.plan(builder.find_cheapest())
    shapes: dict[tuple[int, ...], tuple[Table, Order]] = {}
    for table, order in tables:  # each shape once: `list_plans` tries all its schedules
        shapes.setdefault(table.shape, (table, order))
    return planner.fit((plan for way in shapes.values() for plan in planner.list_plans(make_builder(*way, None))), limit)


def words(algorithm: str, m: int, n: int, k: int, grid: Sequence[int]) -> float:
    """Count the words that a rank receives for C = A B from the algorithm's own layouts.

    The closed formula, exact where sizes divide. Not collective.

    Parameters
    ----------
    algorithm : str
        An algorithm or a schedule.
    m, n, k : int
        Sizes: C is m x n.
    grid : sequence of int
        (pr, pc) with 2-D blocks for gather, shared, fetch, summa and cannon; (pm, pn, pk) for 3d,
        2.5d (pk layers) and the stationary forms; (pr, pc, depth) for tesseract with B in every
        layer.

    Returns
    -------
    float
        Words. For Cannon's algorithm the most that any rank receives: SUMMA's words, and a block of
        A and one of B for the skew. A rank that starts inside a part receives another block: of A
        unless pc is a multiple of pr, of B unless pr is a multiple of pc.

    Raises
    ------
    PlanError
        For an unknown name, and for impossible sizes and grids.

    Examples
    --------
    >>> pdla.matmul_words("summa", 4000, 4000, 4000, (4, 4))
    6000000.0
    """
    if not checks.one_of(algorithm, (*NAMED, *SCHEDULES)):
        raise PlanError(f"algorithm={algorithm!r}: {list_choices(algorithm, dict.fromkeys((*ALGORITHMS, *SCHEDULES)))}")
    axes = 3 if algorithm in NAMED else 2
    if np.shape(grid) != (axes,) or min(grid) < 1 or min(m, n, k) < 0:
        given = f"m={m}, n={n}, k={k}, grid={grid!r}"
        raise PlanError(f"{given}: sizes are 0 or more, and {algorithm} takes a grid of {axes} axes of 1 rank or more")
    (m, n, k), grid = exact(m, n, k), exact(*grid)
    if algorithm in NAMED:
        return next(iter(NAMED[algorithm].list_tables((grid[0], grid[1], grid[2])))).even_faces(m, n, k).words(m, n, k)
    return SCHEDULES[algorithm].words(m, n, k, *grid)
