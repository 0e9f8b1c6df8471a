"""Distributed multiplication: the functions a user calls, and their checks."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.comm.agree import agreed
from pdla.errors import GridError, LayoutError, PlanError, ShapeError
from pdla.layout import Layout, axes_of
from pdla.matmul import plan as plans
from pdla.matmul.plan import ALGORITHMS, Plan
from pdla.matrix import DistMatrix


def default_layout(A: DistMatrix, B: DistMatrix) -> Layout:
    """A's row cut and B's column cut; an axis in both stays on rows."""
    rows = A.layout.rows
    kept = tuple(cut for cut in B.layout.cols if cut.axis not in axes_of(rows))
    return Layout(rows, kept)


def _check(A: Any, B: Any, out: Any, algorithm: str, layout: Any, beta: complex) -> None:
    for name, X in (("B", B), ("out", out)):
        if not isinstance(X, DistMatrix) and not (X is None and name == "out"):
            raise ShapeError(f"{name} is a {type(X).__name__}, not a DistMatrix: make one with pdla.from_global or another")
    if A.shape[1] != B.shape[0]:
        raise ShapeError(f"A is {A.shape[0]} x {A.shape[1]}, B is {B.shape[0]} x {B.shape[1]}: the inner sizes differ")
    for name, X in (("B", B), ("out", out)):
        if X is not None and X.grid.comm.identity != A.grid.comm.identity:
            raise GridError(f"A and {name} are on different communicators")
        if X is not None and X.grid != A.grid:
            raise GridError(f"A is on {A.grid!r}, {name} on {X.grid!r}: redistribute {name} to A's grid first")
    if algorithm not in (*ALGORITHMS, "auto"):
        raise PlanError(f"algorithm={algorithm!r}: one of {', '.join(ALGORITHMS)}, auto")
    if isinstance(layout, Layout):
        layout.check((A.shape[0], B.shape[1]), A.grid.sizes)
        if layout.partial:
            raise LayoutError(f"layout={layout!r}: the product cannot be left as partial sums")
    elif layout not in (None, "native"):
        raise LayoutError(f"layout={layout!r}: a Layout, 'native' or None")
    if out is None and beta != 0:
        raise ShapeError(f"beta={beta} without out: there is no C to scale")


def _check_out(A: DistMatrix, B: DistMatrix, out: DistMatrix, layout: Any, dtype: np.dtype) -> None:
    shape = (A.shape[0], B.shape[1])
    if out.shape != shape or out.dtype != dtype:
        raise ShapeError(f"out is {out.shape} {out.dtype}, the product {shape} {dtype}")
    if out.conjugated or out.layout.partial or (isinstance(layout, Layout) and layout != out.layout):
        raise LayoutError(f"out={out!r} must be no conjugate view, without partial sums, and in the layout asked for")
    if any(X.xp.overlap(out.base, X.base) for X in (A, B)) and out.base.size:
        raise ShapeError("out shares memory with A or B, which are never written to")


def _scalar_dtype(dtype: np.dtype, alpha: complex, beta: complex) -> np.dtype:
    if dtype.kind != "c" and (isinstance(alpha, complex) or isinstance(beta, complex)):
        raise ShapeError(f"alpha={alpha}, beta={beta} are complex, the matrices {dtype}: cast one to complex first")
    return dtype


def plan_matmul(
    A: DistMatrix,
    B: DistMatrix,
    *,
    algorithm: str = "auto",
    layout: Layout | str | None = None,
    out: DistMatrix | None = None,
    alpha: complex = 1,
    beta: complex = 0,
    panel: int | None = None,
    memory_limit: int | None = None,
) -> Plan:
    """Collective: how C = alpha A B + beta C will be computed; arguments as for matmul."""
    if not isinstance(A, DistMatrix):
        raise ShapeError(f"A is a {type(A).__name__}, not a DistMatrix: make one with pdla.from_global or another")
    with agreed(A.grid.comm, _call(A, B, algorithm, layout, out, alpha, beta, panel, memory_limit)):
        _check(A, B, out, algorithm, layout, beta)
        dtype = _scalar_dtype(np.result_type(A.dtype, B.dtype), alpha, beta)
        if out is not None:
            _check_out(A, B, out, layout, dtype)
        if panel is not None and panel < 1:
            raise PlanError(f"panel={panel}: at least 1")
        wanted = out.layout if out is not None else layout if isinstance(layout, Layout) else default_layout(A, B)
        made = plans.make(A, B, wanted, dtype, algorithm, panel, memory_limit, layout == "native" and out is None)
    return made


def _call(A: Any, B: Any, *others: Any) -> str:
    """The call in words that are the same on every rank."""
    words = [X.described if isinstance(X, DistMatrix) else repr(X) for X in (A, B, *others)]
    return f"matmul({'; '.join(words)})"


def matmul(
    A: DistMatrix,
    B: DistMatrix,
    *,
    algorithm: str = "auto",
    layout: Layout | str | None = None,
    out: DistMatrix | None = None,
    alpha: complex = 1,
    beta: complex = 0,
    panel: int | None = None,
    memory_limit: int | None = None,
) -> DistMatrix:
    """C = alpha A B + beta C over the grid of A and B; collective, idle ranks too. A and B are never written to.

    A, B       m x k and k x n on one grid, in any layouts; transposes and conjugates are views (A.T, A.H)
    algorithm  "gather", "summa", "cannon" or "auto"
    layout     of C: a Layout, "native" (where it costs least), or None: A's row cut and B's column cut
    out        the matrix C to fill, of the product's shape and dtype, sharing no memory with A and B
    beta       only with out; beta = 0 never reads C
    panel      width of SUMMA's panels, in indices;  memory_limit  bytes of workspace a rank, for "auto"

    dtypes promote as NumPy's do. Raises ShapeError, LayoutError, GridError, PlanError or AgreementError, on every rank.
    """
    plan = plan_matmul(
        A, B, algorithm=algorithm, layout=layout, out=out, alpha=alpha, beta=beta, panel=panel, memory_limit=memory_limit
    )
    return plan.run(A, B, out, alpha, beta)


def gemm(alpha: complex, A: DistMatrix, B: DistMatrix, beta: complex, C: DistMatrix, *, algorithm: str = "auto") -> None:
    """C = alpha A B + beta C in place, in BLAS's order of arguments; see matmul."""
    matmul(A, B, algorithm=algorithm, out=C, alpha=alpha, beta=beta)


DistMatrix.multiply = matmul  # A @ B
