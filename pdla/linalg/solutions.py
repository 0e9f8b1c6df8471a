"""Solve A X = B by A's factors: permute B's rows, and substitute for each triangle."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from pdla.comm.agreement import collective_section
from pdla.comm.workspace import Workspace, find_workspace, within
from pdla.linalg.panels.blocks import find_dimensions, make_working_copy
from pdla.linalg.panels.factors import Factors
from pdla.linalg.panels.rows import RowExchange
from pdla.linalg.plan.blocking import Place
from pdla.linalg.plan.plan import FactorPlan
from pdla.linalg.plan.right_side import RightSide
from pdla.linalg.routines.triangular import FEW, gather_diagonal, lay_out, place_on_diagonal, substitute, to_square_blocks
from pdla.linalg.verify import run_and_check
from pdla.matrix.core import DistMatrix

ALL = slice(None)
STRIPS = 8  # strips of right-hand sides, whose rows are exchanged one strip at a time


def factor(plan: FactorPlan, A: DistMatrix, dtype: np.dtype | None = None) -> Factors:
    """Collective: factor A by the plan's first routine; without one, A is its own factor. dtype: by default the plan's."""
    if not plan.tasks:
        assert plan.reads is not None
        return Factors(A, ((False, plan.reads),))
    overwrite = plan.overwrites("a") and dtype is None
    return plan.tasks[0].routine.factor_to_solve(plan, A, dtype or plan.dtype, overwrite)


def solve_by(factors: Factors, side: RightSide, place: Place | None = None) -> Any:
    """Collective: X in B's form, by factors without zeros on their diagonals.

    place: the blocks for triangles that are not in square blocks; None: the cheapest
    """
    solve_unscaled = partial(_solve, replace(factors, scale=1), place)
    claim = side.make_claim(*factors.triangles, solve=solve_unscaled, alpha=factors.scale, rows=factors.rows)
    return side.to_b_form(run_and_check(factors.X.grid.comm, side.dtype, lambda: _solve(factors, place, side), claim))


def _solve(factors: Factors, place: Place | None, side: RightSide) -> DistMatrix:
    """Collective, unchecked: X in the requested layout."""
    few, vector = side.shape[1] <= FEW, not isinstance(side.B, DistMatrix)
    with collective_section(factors.X.grid.comm, "a solution by factors"), within(find_workspace() or Workspace()):
        factors = replace(factors, X=to_square_blocks(factors.X, side.dtype, place))
        T = factors.triangles[0][0]
        X = _order_vector(T, factors, side) if vector else _order_matrix(T, factors, side, few)
        for number, (T, part) in enumerate(factors.triangles):
            if number:
                if few:
                    X = place_on_diagonal(T, X, side.dtype)
                else:
                    X = make_working_copy(X, lay_out(T, False), T.grid, side.dtype, True)
            X = substitute(T, X, part.lower, part.diagonal == "one", few and (vector or number > 0))
        return gather_diagonal(T, X) if vector else side.place(X)


def _order_vector(T: DistMatrix, factors: Factors, side: RightSide) -> DistMatrix:
    """Local: permute a vector's rows, scale it, and place it on the owners of T's diagonal blocks."""
    x = T.xp.take(side.B.reshape(-1, 1), factors.rows, ALL)
    X = place_on_diagonal(T, x, side.dtype)
    _scale(X, factors.scale)
    return X


def _order_matrix(T: DistMatrix, factors: Factors, side: RightSide, few: bool) -> DistMatrix:
    """Collective: permute and scale a matrix, in the layout of the substitution.

    Rows are exchanged for some columns at a time, as messages take memory.
    """
    X = side.make_working_copy(lay_out(T, few), T.grid)
    if X.grid.active and factors.pivots is not None:
        rows, count = find_dimensions(T)[0], X.stored.shape[1]
        exchange, width = RowExchange.to_order(rows, np.arange(rows.n), factors.rows), max(rows.block, -(-count // STRIPS))
        for first in range(0, count, width):
            exchange.run(X.xp, X.stored[:, first : first + width])
    _scale(X, factors.scale)
    return X


def _scale(X: DistMatrix, factor: complex) -> None:
    if factor != 1:
        X.xp.scale(X.stored, factor)
