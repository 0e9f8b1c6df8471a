"""Checks of arguments, of this room and those above. They run inside `agreed`, so that an error is the same on every rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.comm.agreement import in_words
from pdla.errors import GridError, LayoutError, ShapeError
from pdla.grid import one_communicator
from pdla.layout import Layout, Shape
from pdla.matmul.checks import matrix, writeable
from pdla.matrix.core import DistMatrix


def words(name: str, *arguments: Any, **named: Any) -> str:
    """The call in words that are the same on every rank."""
    said = [X.described if isinstance(X, DistMatrix) else in_words(X) for X in arguments]
    return f"{name}({'; '.join([*said, *(f'{key}={value!r}' for key, value in named.items())])})"


def flags(**named: Any) -> None:
    """ShapeError unless each of these is True or False: otherwise any text, such as "upper", would count as True."""
    for name, value in named.items():
        if not isinstance(value, (bool, np.bool_)):
            raise ShapeError(f"{name}={value!r}: True or False")


def same_grid(A: DistMatrix, X: Any, name: str) -> None:
    X = matrix(X, name)
    one_communicator(A.grid, X.grid, name)
    if X.grid != A.grid:
        raise GridError(f"A is on {A.grid!r}, {name} on {X.grid!r}: redistribute {name} to A's grid first")


def result(A: DistMatrix, shape: Shape, dtype: np.dtype, out: Any, layout: Any) -> None:
    """LayoutError, GridError or ShapeError unless a result of this shape and dtype can be left in `layout` (None: the default one)
    and written to `out` (None: a new matrix)."""
    if layout is not None:
        if not isinstance(layout, Layout):
            raise LayoutError(f"layout={layout!r}: a Layout or None")
        layout.check(shape, A.grid.sizes)
        if layout.partial:
            raise LayoutError(f"layout={layout!r}: the result cannot be left as partial sums")
    if out is None:
        return
    same_grid(A, out, "out")
    if out.shape != shape or out.dtype != dtype:
        raise ShapeError(f"out is {out.shape} {out.dtype}, the result {shape} {dtype}")
    writeable(out)
    if out.conjugated or out.layout.partial or (layout is not None and layout != out.layout):
        raise LayoutError(f"out={out.described} must be no conjugate view, without partial sums, and in the layout asked for")
    if A.xp.overlap(out.base, A.base) and out.base.size:
        raise ShapeError("out shares memory with A, which is never written to")
