"""Systems with a diagonal matrix, and its inverse: all ranks receive the diagonal, 2 n words, and divide."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from pdla.array import namespace
from pdla.array.lapack import divide
from pdla.comm.agreement import collective_section
from pdla.errors import LinAlgError
from pdla.layout import Layout
from pdla.linalg.condition import warn_if_below
from pdla.linalg.panels.blocks import pick_diagonal, to_layout
from pdla.linalg.plan.right_side import RightSide
from pdla.linalg.products.rank_k import make_zeros
from pdla.linalg.verify import Claim, run_and_check, settle
from pdla.matmul.images import Images, Pair, Part
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import sum_partials


def replicate_diagonal(A: DistMatrix, dtype: np.dtype) -> np.ndarray:
    """Collective: the diagonal of a square matrix, on every rank; ones for arrays without data."""
    comm, own_elements = A.grid.comm, np.zeros(A.shape[0], dtype)
    with collective_section(comm, "a diagonal"):
        A = sum_partials(A, A.layout.summed) if A.layout.partial else A
        if A.first and A.stored.size:
            places, elements = pick_diagonal(A)
            own_elements[places] = np.conj(elements) if A.conjugated else elements
        total = comm.xp.asarray(own_elements)
        for half in comm.halves(total.copy(), total, "add") if own_elements.size else ():
            half.wait()
    return A.xp.host(comm.xp.host_or(total, np.ones(A.shape[0], dtype)))


def replicate_nonzero_diagonal(A: DistMatrix, dtype: np.dtype) -> np.ndarray:
    """Collective: the diagonal on every rank, with a warning if it is ill-conditioned; LinAlgError, on every rank, for a zero."""
    diagonal = settle(A.grid.comm, replicate_diagonal(A, dtype))
    if not diagonal.all():
        at = int(np.argmin(diagonal != 0))
        raise LinAlgError(f"the diagonal matrix is singular: element ({at}, {at}) is 0")
    if diagonal.size and np.isfinite(diagonal).all():
        with np.errstate(over="ignore", under="ignore"):
            sizes = np.abs(diagonal)
            warn_if_below(float(sizes.min() / sizes.max()), float(np.finfo(dtype).eps))
    return diagonal


def solve_diagonal(A: DistMatrix, side: RightSide) -> Any:
    """Collective: X of A X = B, in B's form."""

    def solve(side: RightSide) -> DistMatrix:
        numbers, matrix = replicate_nonzero_diagonal(A, side.dtype), isinstance(side.B, DistMatrix)
        X = side.make_working_copy(*((side.B.layout.summed, side.B.grid) if matrix else (Layout(), A.grid)))
        divisors = numbers[X.indices[0].indices()].reshape(-1, 1)
        X.xp.copy(X.stored, divide(X.stored, divisors, X.xp.asarray))
        return side.place(X)

    claim = side.make_claim(solve=solve)
    checked = run_and_check(A.grid.comm, side.dtype, lambda: solve(side), lambda images: _make_claim(A, images, claim(images)))
    return side.to_b_form(checked)


def invert_diagonal(A: DistMatrix, dtype: np.dtype, layout: Layout) -> DistMatrix:
    """Collective: the inverse, in this layout."""

    def compute() -> DistMatrix:
        numbers = replicate_nonzero_diagonal(A, dtype)
        inverse = make_zeros(A, A.shape, A.layout.summed, dtype)
        rows, cols = inverse.indices
        i, j = rows.find_common(cols)
        inverse.xp.place(inverse.stored, i, j, inverse.xp.asarray(divide(dtype.type(1), numbers[rows.indices()[i]])))
        return to_layout(inverse, layout, A.grid)

    def zeros(X: DistMatrix) -> tuple[tuple[DistMatrix, Part], ...]:
        return (X, Part(True, "none")), (X, Part(False, "none"))

    claim = Claim(A.shape[0], 2 * A.shape[0], lambda x: x, lambda X: (), zeros=zeros)
    return run_and_check(A.grid.comm, dtype, compute, lambda images: _make_claim(A, images, claim))


def _make_claim(A: DistMatrix, images: Images, claim: Claim) -> Claim:
    """Claim that the diagonal times X is B, or the identity."""

    def multiply_by_diagonal(x: Pair) -> Pair:
        numbers, xp = replicate_diagonal(A, images.wide)[:, None], namespace(x[0])
        return xp.asarray(numbers) * x[0], xp.asarray(np.abs(numbers)) * x[1]

    return replace(claim, steps=lambda X: (partial(images.multiply, X), multiply_by_diagonal), operands=((A, Part(True, "alone")),))
