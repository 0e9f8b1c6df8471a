"""Right-hand sides of systems: matrices, or vectors that all ranks have. Solutions have the same form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pdla.array import namespace
from pdla.checks import describe
from pdla.errors import LayoutError, ShapeError
from pdla.grid import ProcessGrid, check_same_communicator
from pdla.layout import Layout, Shape
from pdla.linalg import checks
from pdla.linalg.panels.blocks import count_workspace, fill, make_working_copy, to_layout
from pdla.linalg.verify import Claim, explain_loss
from pdla.matmul.images import Images, Pair, Part, scale
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import convert


def check_side(name: str, A: DistMatrix, B: Any, layout: Layout | None, out: Any) -> np.dtype:
    """Local: the dtype of A X = B. ShapeError, GridError or LayoutError if B, `layout` or `out` does not fit A."""
    if isinstance(B, DistMatrix):
        check_same_communicator(A.grid, B.grid, "B")
        if B.shape[0] != A.shape[0]:
            raise ShapeError(f"{name}: A is {A.shape[0]} x {A.shape[1]}, B {B.shape[0]} x {B.shape[1]}: as many rows as A's")
        dtype = checks.find_working_dtype(name, A.dtype, B.dtype)
        checks.check_result(B, (A.shape[1], B.shape[1]), dtype, out, layout)
        return dtype
    if B.shape != A.shape[:1]:
        raise ShapeError(
            f"{name}: A is {A.shape[0]} x {A.shape[1]}, B has shape {tuple(B.shape)}: a vector has {A.shape[0]} numbers; "
            "of several columns make a DistMatrix by pdla.from_global"
        )
    if layout is not None:
        raise LayoutError(f"layout={layout!r}: X is whole on every rank, as B is; give a DistMatrix for another")
    dtype = checks.find_working_dtype(name, A.dtype, B.dtype)
    if out is not None and (not isinstance(out, type(B)) or (out.shape, out.dtype) != (B.shape, dtype)):
        raise ShapeError(f"out={describe(out)}: X is an array of shape {B.shape}, {dtype}, as B is on every rank")
    return dtype


@dataclass(frozen=True)
class RightSide:
    """B of A X = B: a matrix, or an array (a vector).

    layout     of X; None: B's
    dtype      of the work on B and X
    overwrite  whether B may be overwritten
    out        the matrix or array that receives X; None: a new one
    """

    B: Any
    layout: Layout | None
    dtype: np.dtype
    overwrite: bool = False
    out: Any = None

    @property
    def shape(self) -> Shape:
        return self.B.shape if isinstance(self.B, DistMatrix) else (len(self.B), 1)

    def make_working_copy(self, layout: Layout, grid: ProcessGrid) -> DistMatrix:
        """Collective: copy B to this layout and `dtype`, as workspace; B itself if it may be overwritten."""
        if isinstance(self.B, DistMatrix):
            return make_working_copy(self.B, layout, grid, self.dtype, self.overwrite)
        xp, (rows, cols) = grid.comm.xp, layout.indices(self.shape, grid.sizes, grid.coords)
        block = xp.empty((len(rows), len(cols)), self.dtype)
        xp.copy(block, xp.take(self.B.reshape(len(self.B), 1), rows.selection, cols.selection).astype(self.dtype, copy=False))
        return count_workspace(DistMatrix(block, self.shape, grid, layout))

    def make_claim(
        self, *factors: tuple[DistMatrix, Part], solve: Callable[[RightSide], DistMatrix] | None = None, alpha: complex = 1,
        rows: np.ndarray | slice = slice(None),
    ) -> Callable[[Images], Claim]:
        """Claim that the product of the factors times X is alpha B, with B's rows in this order; X as `place` returns it.

        solve: solves for another right-hand side, with alpha = 1
        """
        terms = 2 * self.shape[1] + 2 * len(factors) * self.shape[0]

        def multiply_b(images: Images, x: Pair) -> Pair:
            if isinstance(self.B, DistMatrix):
                return scale(images.multiply(self.B, x), alpha)
            b = namespace(self.B).host(self.B).reshape(-1, 1)
            return scale((b * x[0], np.abs(b) * x[1]), alpha)

        def claim(images: Images) -> Claim:
            parts = [partial(images.multiply, T, part=part) for T, part in reversed(factors)]
            return Claim(
                self.shape[1], terms, partial(multiply_b, images), lambda X: (partial(images.multiply, X), *parts),
                rows=lambda X: rows, operands=factors, lost=explain_loss("B", self.overwrite),
                solve=None if solve is None else lambda b: solve(self._make_side(b)),
            )

        return claim

    def _make_side(self, b: np.ndarray) -> RightSide:
        """Local: other right-hand sides for this system, b on every rank."""
        comm = self.B.grid.comm
        everyone = ProcessGrid.everyone(comm)
        return RightSide(DistMatrix(comm.xp.asarray(b), b.shape, everyone, Layout()), None, self.dtype)

    def place(self, X: DistMatrix) -> DistMatrix:
        """Collective: redistribute X to `out`, to `layout` or to B's layout; a vector to every rank."""
        if isinstance(self.out, DistMatrix):
            fill(self.out, X)
            return self.out
        if isinstance(self.B, DistMatrix):
            return to_layout(X, self.layout or self.B.layout.summed, self.B.grid)
        return convert(X, Layout(), ProcessGrid.everyone(X.grid.comm))

    def to_b_form(self, X: DistMatrix) -> Any:
        """Local: X in B's form: a matrix, or a vector on every rank."""
        if isinstance(self.B, DistMatrix):
            return X
        x = X.local.reshape(-1)
        if self.out is None:
            return x
        X.xp.copy(self.out, x)
        return self.out
