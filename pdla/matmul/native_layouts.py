"""The grid and layouts in which to make matrices, so that their product costs the least."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pdla import checks
from pdla.comm import as_communicator
from pdla.comm.agreement import agreed
from pdla.errors import PlanError, ShapeError, list_choices, misfit
from pdla.grid import ProcessGrid
from pdla.layout import Layout
from pdla.matmul.algorithms import NAMED
from pdla.matmul.choose.candidates import list_native_tables
from pdla.matmul.choose.problem import Sizes
from pdla.model.bounds import exact
from pdla.model.machine import Machine


class Native(NamedTuple):
    """A grid, and on it the layouts of A, B and C.

    Parameters
    ----------
    grid : ProcessGrid
        The grid of the product.
    A, B, C : Layout
        As the plan takes and leaves them.
    """

    grid: ProcessGrid
    A: Layout
    B: Layout
    C: Layout


def native_layouts(m: int, n: int, k: int, *, comm: Any = None, dtype: Any = np.float64, algorithm: str = "auto") -> Native:
    """Find the grid and the layouts in which C (m x n) = A (m x k) B (k x n) is cheapest.

    In these none of the three has to be redistributed. Neighbours on the grid are put on one node
    where that saves words from other nodes. Ranks may be idle. Collective over `comm`.

    Parameters
    ----------
    m, n, k : int
        Sizes: C is m x n.
    comm : communicator, optional
        Whose ranks the grid may have; the world by default.
    dtype : dtype, optional
        Of the matrices.
    algorithm : str, optional
        "auto": the best box of any sides; or one of the algorithms that have a grid of their own.

    Returns
    -------
    Native
        grid, A, B, C.

    Raises
    ------
    ShapeError
        For sizes that no matrix has, on every rank.
    PlanError
        For an algorithm that works on the matrices' own grid, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     grid, a, b, c = pdla.native_layouts(400, 400, 400)
    ...     A, B = pdla.ones((400, 400), grid, a), pdla.ones((400, 400), grid, b)
    ...     return grid.shape, pdla.matmul(A, B, layout=c).layout == c
    >>> pdla.run(8, program)[0]
    ((2, 2, 2), True)
    """
    world, (m, n, k) = as_communicator(comm), exact(m, n, k)
    with agreed(world, f"native_layouts({m}, {n}, {k}, dtype={dtype!r}, algorithm={algorithm!r})"):
        if not checks.sizes(m, n, k):
            raise misfit(ShapeError, m, n, k)(f"m={m}, n={n}, k={k}: sizes are whole numbers from 0 to 2^63 - 1")
        if not checks.one_of(algorithm, (*NAMED, "auto")):
            raise PlanError(f"algorithm={algorithm!r}: {list_choices(algorithm, (*NAMED, 'auto'))}")
        kind, machine = np.dtype(dtype), Machine.choose()
    q = Sizes((m, n, k), world.size, kind.itemsize, machine, world.shared_limit, tuple(world.homes))
    table, order = list_native_tables(q, algorithm)[0]
    return Native(ProcessGrid.trust(table.shape, world, order, table.axes), table.A, table.B, table.C)
