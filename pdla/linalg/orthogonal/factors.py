"""Factors of A = Q R, for later steps: R, Q, and Q or Q^H times a matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any

import numpy as np

from pdla.array.dtypes import near_one
from pdla.comm.agreement import collective_section
from pdla.comm.communicator import Communicator
from pdla.comm.workspace import Workspace, find_workspace, within
from pdla.cuts import Block
from pdla.errors import LinAlgError
from pdla.layout import Layout, axes_of, effective
from pdla.linalg.panels import kernels
from pdla.linalg.panels.blocks import count_workspace, make_working_copy
from pdla.linalg.plan.plan import FactorPlan
from pdla.linalg.products.triangle import triangle
from pdla.linalg.routines.qr import QR, Product
from pdla.linalg.routines.tall_qr import TALL_QR
from pdla.matmul import matmul
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import local_shape
from pdla.matrix.triangles import tril, triu


@dataclass(frozen=True)
class Tall:
    """Factors of a tall matrix: Q = X L^-H, m x n, or X without an inverse; R, n x n, and inverse, L^-1, are on every rank."""

    X: DistMatrix
    inverse: DistMatrix | None
    R: DistMatrix

    def form_q(self) -> DistMatrix:
        """Local: form Q, m x n."""
        X = self.X
        if self.inverse is None:
            return X
        made = X.xp.empty(X.stored.shape, X.dtype)
        if X.grid.active:
            kernels.multiply_by_inverse(X.xp, X.stored, self.inverse.stored, made)
        return DistMatrix(made, X.shape, X.grid, X.layout)

    def multiply(self, C: DistMatrix, adjoint: bool, layout: Layout | None = None) -> DistMatrix:
        """Collective: Q^H C, or Q times the n rows of C."""
        if self.inverse is None:
            return matmul(self.X.H if adjoint else self.X, C, layout=layout)
        if adjoint:
            return matmul(self.inverse, matmul(self.X.H, C), layout=layout)
        return matmul(self.X, matmul(self.inverse.H, C), layout=layout)


@dataclass(frozen=True)
class Reflections:
    """Factors of scale A: R, k x n, on and above the diagonal of X, reflections below, and tau; k = min(m, n)."""

    X: DistMatrix
    tau: np.ndarray
    scale: float = 1.0

    @property
    def k(self) -> int:
        """The columns of Q."""
        return min(self.X.shape)

    @property
    def R(self) -> DistMatrix:
        """Collective: R as a matrix of its own."""
        R = count_workspace(triangle(self.X[: self.k, :], False))
        return R if self.scale == 1 else R * (1 / self.scale)

    def to_raw(self) -> tuple[DistMatrix, np.ndarray]:
        """Local: R and reflections in one matrix, and tau."""
        return (self.X if self.scale == 1 else tril(self.X, -1) + triu(self.X) * (1 / self.scale)), self.tau

    def form_q(self) -> DistMatrix:
        """Collective: form Q, m x k, in X's layout."""
        made = self._make_zeros(self.k, self.X.layout)
        made.xp.place(made.stored, *made.indices[0].find_common(made.indices[1]), 1)
        self._run(made, False, lower=True)
        return made

    def multiply(self, C: DistMatrix, adjoint: bool, layout: Layout | None = None) -> DistMatrix:
        """Collective: Q^H C, k rows; or Q times the k rows of C."""
        X = self.X
        rows = Layout.trust(X.layout.rows, tuple(map(Block, axes_of(effective(X.layout.cols, X.grid.sizes)))))
        if adjoint:
            made = make_working_copy(C, rows, X.grid, X.dtype)
        else:
            made = self._make_zeros(C.shape[1], rows)
            made[: self.k, :] = C
        self._run(made, adjoint)
        made = made[: self.k, :] if adjoint else made
        return made if layout is None else made.redistribute(layout)

    def _make_zeros(self, columns: int, layout: Layout) -> DistMatrix:
        """Local: make a matrix of zeros of m rows."""
        X, shape = self.X, (self.X.shape[0], columns)
        block = X.xp.empty(local_shape(shape, layout, X.grid), X.dtype)
        X.xp.scale(block, 0)
        return count_workspace(DistMatrix(block, shape, X.grid, layout))

    def _run(self, C: DistMatrix, adjoint: bool, lower: bool = False) -> None:
        with collective_section(C.grid.comm, "a product with Q"), within(find_workspace() or Workspace()):
            product = Product(self.X, self.tau)
            if C.grid.active:
                product.run(C.stored, adjoint, lower)


Factored = Tall | Reflections


def factor_qr(plan: FactorPlan, A: DistMatrix, keep: bool = False) -> Factored:
    """Collective, unchecked: factor A by the plan's routine. keep: A is not written to, whatever the plan allows."""
    if plan.tasks[0].routine is TALL_QR:
        return Tall(*TALL_QR.factor(A, plan.place, plan.dtype))
    overwrite = plan.overwrites("a") and not keep
    compute = partial(QR.compute, place=plan.place, dtype=plan.dtype)
    X, tau, _, largest = compute(A, overwrite=overwrite)
    kind = np.finfo(plan.dtype)
    least, most = float(kind.tiny) / float(kind.eps) ** 2, float(kind.max) * float(kind.eps)
    if overwrite or (isfinite(largest) and (least < largest < most) and A.shape[0] >= A.shape[1]) or not tau.size:
        return Reflections(X, tau)
    size = find_largest(A)
    if size == 0 or least < size < most or not isfinite(size):
        return Reflections(X, tau)
    del X  # lest there be three copies of A
    power = float(near_one(size, plan.dtype))
    X, tau, _, _ = compute(count_workspace(A * power), overwrite=True)
    return Reflections(X, tau, power)


def replicate(x: np.ndarray, like: DistMatrix) -> DistMatrix:
    """Local: make a matrix of an array that every rank has, on the grid of `like`."""
    block = like.xp.asarray(np.ascontiguousarray(x if like.grid.active else x[:0, :0]))
    return count_workspace(DistMatrix(block, x.shape, like.grid, Layout()))


def run_on_first_rank(comm: Communicator, work: Callable[[], Any]) -> Any:
    """Collective: run work() on the first rank; return its result, or raise its LinAlgError, on every rank."""
    found, error = None, ""
    if comm.rank == 0 or comm.xp.name == "meta":  # in a dry run this rank's result stands for the first rank's
        try:
            found = work()
        except np.linalg.LinAlgError as raised:
            error = f"{raised}"
    found, error = comm.share((found, error))[0]
    if error:
        raise LinAlgError(error)
    return found


def compute_svd(R: DistMatrix, vectors: bool = True, full: bool = False) -> Any:
    """Collective: U, singular values and V^H of R, or the values alone. The first rank computes them for all."""
    whole, (k, n) = R.gather(root=0), R.shape

    def find() -> Any:
        if R.xp.name == "meta":
            s = np.ones(min(k, n))
            return (np.zeros((k, len(s)), R.dtype), s, np.zeros((n if full else len(s), n), R.dtype)) if vectors else s
        return np.linalg.svd(R.xp.host(whole), full_matrices=full, compute_uv=vectors)  # type: ignore[call-overload]

    return run_on_first_rank(R.grid.comm, find)


def find_largest(A: DistMatrix) -> float:
    """Collective: the largest absolute value of A's elements, NaN if one is NaN; 1 for arrays without data."""
    mine = A.xp.host_or(abs(A.stored).max() if A.stored.size else A.xp.asarray(np.zeros(())), np.ones(()))
    return float(np.max(A.grid.comm.share(float(mine))))
