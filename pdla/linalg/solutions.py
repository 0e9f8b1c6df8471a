"""X of A X = B by the factors of A: B's rows in order, and a substitution for each triangle."""

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
STRIPS = 8  # of right-hand sides, whose rows are exchanged one strip after another


def factor(plan: FactorPlan, A: DistMatrix, dtype: np.dtype | None = None) -> Factors:
    """Collective: the factors of A by the plan's first routine; without one A itself. dtype: by default the plan's."""
    if not plan.tasks:
        assert plan.reads is not None
        return Factors(A, ((False, plan.reads),))
    overwrite = plan.overwrites("a") and dtype is None
    return plan.tasks[0].routine.factor_to_solve(plan, A, dtype or plan.dtype, overwrite)


def solve_by(factors: Factors, side: RightSide, place: Place | None = None) -> Any:
    """Collective: X in B's form, by factors without a zero on their diagonals.

    place: where triangles are worked on that do not lie in square blocks; None: in the cheapest
    """
    again = partial(_solve, replace(factors, scale=1), place)
    claim = side.make_claim(*factors.triangles, solve=again, alpha=factors.scale, rows=factors.rows)
    return side.to_b_form(run_and_check(factors.X.grid.comm, side.dtype, lambda: _solve(factors, place, side), claim))


def _solve(factors: Factors, place: Place | None, side: RightSide) -> DistMatrix:
    """Collective, unchecked: X where it is asked for."""
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
    """Local: the factors' scale times a vector, its rows in order, on the owners of T's diagonal blocks."""
    x = T.xp.take(side.B.reshape(-1, 1), factors.rows, ALL)
    X = place_on_diagonal(T, x, side.dtype)
    _scale(X, factors.scale)
    return X


def _order_matrix(T: DistMatrix, factors: Factors, side: RightSide, few: bool) -> DistMatrix:
    """Collective: the same of a matrix, as it is worked on.

    Some columns at a time: all rows may go, and what is on its way takes memory.
    """
    X = side.make_working_copy(lay_out(T, few), T.grid)
    if X.grid.active and factors.pivots is not None:
        down, count = find_dimensions(T)[0], X.stored.shape[1]
        exchange, width = RowExchange.to_order(down, np.arange(down.n), factors.rows), max(down.block, -(-count // STRIPS))
        for first in range(0, count, width):
            exchange.run(X.xp, X.stored[:, first : first + width])
    _scale(X, factors.scale)
    return X


def _scale(X: DistMatrix, factor: complex) -> None:
    if factor != 1:
        X.xp.scale(X.stored, factor)
