"""What the functions of this room ask of their arguments; the same errors on every rank, raised inside `agreed`."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.errors import GridError, LayoutError, ShapeError
from pdla.layout import Layout, Shape
from pdla.matrix import DistMatrix


def matrix(X: Any, name: str = "A") -> DistMatrix:
    """X, if it is a DistMatrix; raised on this rank alone: without one there is nobody to agree with."""
    if not isinstance(X, DistMatrix):
        raise ShapeError(f"{name} is a {type(X).__name__}, not a DistMatrix: make one with pdla.from_global or another")
    return X


def words(name: str, *arguments: Any, **named: Any) -> str:
    """The call in words that are the same on every rank."""
    said = [_said(argument) for argument in arguments] + [f"{key}={_said(value)}" for key, value in named.items()]
    return f"{name}({'; '.join(said)})"


def _said(argument: Any) -> str:
    return argument.described if isinstance(argument, DistMatrix) else repr(argument)


def same_grid(A: DistMatrix, X: Any, name: str) -> None:
    X = matrix(X, name)
    if X.grid.comm.identity != A.grid.comm.identity:
        raise GridError(f"A and {name} are on different communicators")
    if X.grid != A.grid:
        raise GridError(f"A is on {A.grid!r}, {name} on {X.grid!r}: redistribute {name} to A's grid first")


def result(A: DistMatrix, shape: Shape, dtype: np.dtype, out: Any, layout: Any) -> None:
    """That a result of this shape and dtype can be left in `layout` (None: the default) or written to `out` (None: new)."""
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
    if out.conjugated or out.layout.partial or (layout is not None and layout != out.layout):
        raise LayoutError(f"out={out.described} must be no conjugate view, without partial sums, and in the layout asked for")
    if A.xp.overlap(out.base, A.base) and out.base.size:
        raise ShapeError("out shares memory with A, which is never written to")


def scalars(dtype: np.dtype, alpha: complex, beta: complex, out: Any) -> None:
    if dtype.kind != "c" and (isinstance(alpha, complex) or isinstance(beta, complex)):
        raise ShapeError(f"alpha={alpha}, beta={beta} are complex, the matrices {dtype}: cast one to complex first")
    if out is None and beta != 0:
        raise ShapeError(f"beta={beta} without out: there is no C to scale")
