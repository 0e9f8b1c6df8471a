"""Checks of arguments, for this package and those above. Inside `agreed`, an error is the same on every rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.array.dtypes import promote
from pdla.array.lapack import PREFIXES
from pdla.checks import matrix, one_of, same_grid, takes, writeable
from pdla.errors import LayoutError, LinAlgError, PlanError, ShapeError, list_choices
from pdla.indices import IndexSet
from pdla.layout import Layout, Shape
from pdla.matmul.images import Part, find_not_finite
from pdla.matrix.core import DistMatrix

FACTORLESS = ("lower triangular", "upper triangular", "diagonal")
ASSUMED = ("gen", "pos", "sym", "her", *FACTORLESS)  # the structures of A that `assume_a` names


def check_square(name: str, A: Any) -> None:
    """ShapeError unless A is a square matrix."""
    if matrix(A).shape[0] != A.shape[1]:
        raise ShapeError(f"{name}: A is {A.shape[0]} x {A.shape[1]}, it must be square")


def find_working_dtype(name: str, *dtypes: np.dtype) -> np.dtype:
    """Find the dtype in which matrices are factored: float64 for integers. ShapeError for a dtype that LAPACK lacks."""
    kind = promote(*(np.dtype(float) if dtype.kind in "biu" else dtype for dtype in dtypes)).newbyteorder("=")
    if kind.char not in PREFIXES:
        raise ShapeError(
            f"{name} of {' and '.join(dict.fromkeys(map(str, dtypes)))}: LAPACK has float32, float64, complex64 and complex128: "
            "cast the matrix by astype first"
        )
    return kind


def check_row_count(name: str, A: DistMatrix, dtype: np.dtype) -> None:
    """ShapeError unless this dtype represents A's row numbers, which are sent as elements."""
    if A.shape[0] > (largest := int(2 / np.finfo(dtype).eps)):
        raise ShapeError(
            f"{name}: A has {A.shape[0]} rows, {dtype} has integers up to {largest} only: "
            "cast A to double precision by astype first"
        )


def check_pivots(name: str, X: DistMatrix, pivots: Any) -> None:
    """ShapeError unless these are the pivots of LU factors in X: one row number for each row."""
    n = X.shape[0]
    is_vector = isinstance(pivots, np.ndarray) and pivots.dtype.kind in "iu" and pivots.shape == (n,)
    if not is_vector or not 0 <= pivots.min(initial=0) <= pivots.max(initial=0) < max(1, n):
        raise ShapeError(f"{name}: pivots={pivots!r}: {n} row numbers, as lu_factor returns them")


def check_formula(grid: tuple[int, ...], dimensions: tuple[int, ...] = (2,), block: int = 1, **sizes: int) -> None:
    """ShapeError unless sizes are at least 0, grid and block at least 1, and the grid has one of these dimensions."""
    if len(grid) not in dimensions or min(*grid, block) < 1 or min(sizes.values()) < 0:
        sizes_text = ", ".join(f"{name}={value}" for name, value in sizes.items())
        raise ShapeError(
            f"{sizes_text}, grid={grid}, block={block}: sizes are 0 or more; "
            f"block, and the {' or '.join(map(str, dimensions))} numbers of grid, are 1 or more"
        )


def check_assumption(name: str, assume_a: Any) -> None:
    """PlanError unless assume_a is in ASSUMED."""
    if not one_of(assume_a, ASSUMED):
        raise PlanError(f"{name}: assume_a={assume_a!r}: {list_choices(assume_a, ASSUMED)}")


def find_part(assume_a: str, lower: bool) -> Part | None:
    """Find the part of A that an assumption lets be read; None: all of A."""
    parts = {
        "gen": None, "sym": Part(lower), "her": Part(lower, "real"), "pos": Part(lower, "real"),
        "lower triangular": Part(True), "upper triangular": Part(False), "diagonal": Part(True, "alone"),
    }
    return parts[assume_a]


def check_overwrite(name: str, X: DistMatrix, *others: Any) -> None:
    """ShapeError unless X is writeable and shares no memory with the other operands."""
    writeable(X, f"overwrite_{name.lower()}: {name}")
    blocks = [Y.base if isinstance(Y, DistMatrix) else Y for Y in others]  # a vector is its own block
    if X.base.size and any(isinstance(y, type(X.base)) and X.xp.overlap(X.base, y) for y in blocks):
        raise ShapeError(f"overwrite_{name.lower()}: {name} shares memory with the other operand, which must not be overwritten")


def check_finite(A: DistMatrix, B: Any = None, *, part: Part | None = None) -> None:
    """LinAlgError for an infinite or NaN element on this rank, in this part of A or in B, a matrix or a vector."""
    _check_block("A", A.stored, A.indices, part)
    if isinstance(B, DistMatrix):
        _check_block("B", B.stored, B.indices)
    elif B is not None:
        _check_block("B", B.reshape(len(B), 1), (IndexSet.interval(0, len(B)), IndexSet.interval(0, 1)), dimensions=1)


def _check_block(name: str, x: Any, indices: tuple[IndexSet, IndexSet], part: Part | None = None, dimensions: int = 2) -> None:
    if found := find_not_finite(x, indices, part):
        raise LinAlgError(f"{name} has {found[0]} at {found[1][:dimensions]}: elements must be finite")


def check_result(A: Any, shape: Shape, dtype: np.dtype, out: Any, layout: Any) -> None:
    """LayoutError, GridError or ShapeError unless a result of this shape and dtype fits `layout` and `out`.

    A is a matrix or a stack, on the result's grid. None for `layout` is the default layout, for `out` a new matrix.
    """
    if layout is not None:
        if not isinstance(layout, Layout):
            raise LayoutError(f"layout={layout!r}: a Layout or None")
        layout.check(shape, A.grid.sizes)
        if layout.partial:
            raise LayoutError(f"layout={layout!r}: the result cannot be left as partial sums")
    if out is None:
        return
    same_grid(A, out, "out")
    takes(out, shape, dtype, layout)


