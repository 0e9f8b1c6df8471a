"""What factorizations and triangular systems cost, from their sizes alone, on up to millions of ranks: closed forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pdla.errors import PlanError
from pdla.linalg.checks import worked_on
from pdla.linalg.factorizations import price
from pdla.linalg.factorizations.cholesky import cholesky_words
from pdla.linalg.factorizations.lu import lu_words
from pdla.linalg.factorizations.price import Blocking, Task
from pdla.matmul import checks
from pdla.model.bounds import exact
from pdla.model.machine import Machine


@dataclass(frozen=True)
class FactorPrediction:
    """What a factorization or a triangular system costs where it lies in the best square blocks.

    Parameters
    ----------
    grid : tuple of two int
        pr and pc.
    block : int
        Rows of a square block.
    ranks_used : int
        Ranks of that grid.
    bytes_received : int
        Bytes that a rank receives, in the mean.
    lower_bound : float
        Bytes that a rank must receive at least where it has room for its share of the matrix alone;
        0 for a triangular system.
    seconds : float or None
        None without a machine.
    """

    grid: tuple[int, int]
    block: int
    ranks_used: int
    bytes_received: int
    lower_bound: float
    seconds: float | None


def predict_cholesky(
    n: int, P: int, *, dtype: Any = "float64", machine: Machine | str | None = None
) -> FactorPrediction:
    """Find the best grid and blocks for a Cholesky factorization, and what it costs.

    It needs no communicator.

    Parameters
    ----------
    n : int
        Rows and columns.
    P : int
        Ranks, at most.
    dtype : dtype, optional
        Of the matrix.
    machine : Machine or str, optional
        A machine, its name or its TOML file. Without one the choice is PDLA_MACHINE's, and
        `seconds` is None.

    Returns
    -------
    FactorPrediction
        The grid, the block, and what they cost.

    Raises
    ------
    PlanError
        For sizes that no matrix has.
    ShapeError
        For a dtype that LAPACK has not.

    Examples
    --------
    >>> cost = pdla.linalg.predict_cholesky(65536, 1024)
    >>> cost.grid, cost.bytes_received < 4 * cost.lower_bound
    ((32, 32), True)
    """
    return _predicted("cholesky", n, n, P, dtype, machine)


def predict_lu(
    m: int, n: int, P: int, *, dtype: Any = "float64", machine: Machine | str | None = None
) -> FactorPrediction:
    """Find the best grid and blocks for an LU factorization, and what it costs.

    It needs no communicator.

    Parameters
    ----------
    m, n : int
        Rows and columns.
    P : int
        Ranks, at most.
    dtype : dtype, optional
        Of the matrix.
    machine : Machine or str, optional
        As for `predict_cholesky`.

    Returns
    -------
    FactorPrediction
        The grid, the block, and what they cost.

    Raises
    ------
    PlanError, ShapeError
        As by `predict_cholesky`.

    Examples
    --------
    >>> pdla.linalg.predict_lu(4096, 4096, 4).ranks_used
    4
    """
    return _predicted("lu", m, n, P, dtype, machine)


def predict_solve_triangular(
    n: int, m: int, P: int, *, dtype: Any = "float64", machine: Machine | str | None = None
) -> FactorPrediction:
    """Find the best grid and blocks for a triangular system, and what it costs.

    It needs no communicator.

    Parameters
    ----------
    n : int
        Rows and columns of the triangle.
    m : int
        Right-hand sides.
    P : int
        Ranks, at most.
    dtype : dtype, optional
        Of the matrices.
    machine : Machine or str, optional
        As for `predict_cholesky`.

    Returns
    -------
    FactorPrediction
        The grid, the block, and what they cost.

    Raises
    ------
    PlanError, ShapeError
        As by `predict_cholesky`.

    Examples
    --------
    >>> pdla.linalg.predict_solve_triangular(4096, 4096, 4).ranks_used
    4
    """
    return _predicted("triangular", n, m, P, dtype, machine)


def _predicted(routine: str, m: Any, n: Any, P: Any, dtype: Any, machine: Any) -> FactorPrediction:
    m, n, P = exact(m, n, P)
    if not checks.sizes(m, n) or not isinstance(P, int) or P < 1:
        raise PlanError(f"{routine} of {m} x {n}, P={P}: sizes are whole numbers from 0 to 2^63 - 1, ranks 1 or more")
    kind = worked_on(routine, np.dtype(dtype))
    task = Task(routine, m, n, kind, Machine.chosen() if machine is None else Machine.of(machine))
    blocking, size = price.cheapest(task, P)[0], kind.itemsize
    pr, pc = blocking.shape
    used = pr * pc
    return FactorPrediction(
        (pr, pc), blocking.block, used, round(size * words(task, blocking)), size * price.bound(task, (pr, pc)),
        price.seconds(task, *blocking) if machine else None,
    )


def words(task: Task, blocking: Blocking) -> float:
    """Words that a rank receives, in the mean."""
    (pr, pc, *layers), block, m, n = blocking.shape, blocking.block, task.m, task.n
    if pr * pc == 1 or not task.order:
        return 0.0
    if task.routine == "cholesky":
        return cholesky_words(n, (pr, pc, *layers), min(block, n))
    if task.routine == "lu":
        return lu_words(m, n, (pr, pc, *layers), min(block, task.order))
    if n <= price.FEW:
        return m * n * (1 - 1 / pr + (1 - 1 / pc)) / pc
    return m * m / (2 * pr) * (1 - 1 / pc) + m * n / pc * (1 - 1 / pr)
