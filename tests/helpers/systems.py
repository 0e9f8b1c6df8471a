"""What the tests of solutions share: matrices of known condition, on grids, and LAPACK's ratio."""

import numpy as np
import pytest

import pdla
from pdla import Cyclic, Layout
from pdla.errors import PlanError
from pdla.linalg.panels.blocks import cut_in_blocks

BLOCKS = Layout("row", "col")
KINDS = ["float32", "float64", "complex64", "complex128"]
GRIDS = [(1, 1), (1, 2), (2, 1), (3, 1), (2, 2), (1, 4), (5, 1), (2, 3), (7, 1), (4, 2)]


def cyclic(nb, rows="row", cols="col"):
    return Layout(rows and Cyclic(rows, nb), cols and Cyclic(cols, nb))


def drawn(shape, dtype, seed=0):
    """Elements from -1 to 1; of complex numbers both parts."""
    rng = np.random.default_rng(seed)
    real, imag = rng.uniform(-1, 1, (2, *shape))
    return (real + 1j * imag if np.dtype(dtype).kind == "c" else real).astype(dtype)


def triangular(n, dtype, lower=True):
    """A well-conditioned triangle; what is on its other side must not be read."""
    t = drawn((n, n), dtype) / max(1, n) + np.eye(n, dtype=dtype)
    t[np.triu_indices(n, 1) if lower else np.tril_indices(n, -1)] = 1e30
    return t


def taken(t, lower, unit=False):
    whole = np.tril(t) if lower else np.triu(t)
    return whole - np.diag(whole.diagonal()) + np.eye(len(t), dtype=t.dtype) if unit else whole


def ratio(a, x, b):
    """LAPACK's measure of a solution: below 30 it is as good as rounding allows."""
    if not b.size:
        return 0.0
    wide = np.result_type(a.dtype, np.float64)
    residual = np.abs(a.astype(wide) @ x - b).sum(0).max()
    return residual / (np.abs(a).sum(0).max() * np.abs(x).sum(0).max() * len(a) * np.finfo(a.dtype).eps + np.finfo(a.dtype).tiny)


def on(shape, a, layout, comm):
    return pdla.from_global(a, pdla.ProcessGrid(shape, comm=comm), layout)


def layered(shape, b, a, comm):
    """Over the layers of a grid of three axes, panels of b columns."""
    return on(shape, a, cut_in_blocks(shape, b), comm)


def planned_and_limited(A, plan_of, factor):
    """What a plan of a matrix in layers of 2 x 2 ranks tells, whose memory limits are kept; and what was counted."""
    plan = plan_of(A)
    assert plan.keeps_layout and plan.shape == (2, 2, 2) and plan.block == 8
    assert "in layers, panels of 8 on 2 x 2 x 2 ranks" in plan.explain()
    with pdla.record() as ledger:
        plan(A)
    with pytest.raises(PlanError, match="the leanest plan found, in layers, panels of 8"):
        factor(A, memory_limit=5000)
    factor(A, memory_limit=plan.predicted.peak_workspace)
    return plan.predicted, ledger


def part(grid, a, comm):
    """Amid what must not be read."""
    around = np.full((len(a) + 5, a.shape[1] + 5), np.nan, a.dtype)
    around[2:-3, 1:-4] = a
    return on(grid, around, BLOCKS, comm)[2:-3, 1:-4]


def sums(grid, a, comm):
    """Each column is on one rank of a grid row; the others add 0."""
    X = on(grid, a, Layout("row"), comm)
    coords = X.grid.coords or {"col": 0}
    X.local[:, np.arange(X.local.shape[1]) % grid[1] != coords["col"]] = 0
    return pdla.from_local(X.local, a.shape, X.grid, Layout("row", partial="col"))


WAYS = {
    "cyclic": lambda grid, a, comm: on(grid, a, cyclic(8), comm),
    "blocks": lambda grid, a, comm: on(grid, a, BLOCKS, comm),
    "columns": lambda grid, a, comm: on(grid, a, cyclic(8, None), comm),
    "copies": lambda grid, a, comm: on(grid, a, Layout("col"), comm),
    "sums": sums,
    "transposed": lambda grid, a, comm: on(grid, a.T, cyclic(8), comm).T,
    "adjoint": lambda grid, a, comm: on(grid, a.conj().T, BLOCKS, comm).H,
    "part": part,
}


def raised(program, size=2):
    """The kind and the text of the error, the same on every rank."""

    def caught(comm):
        with pytest.raises(Exception) as error:
            program(comm)
        comm.barrier()
        return type(error.value), str(error.value)

    said = set(pdla.run(size, caught))
    assert len(said) == 1, said
    return said.pop()


def hilbert(n):
    return 1 / (np.arange(n)[:, None] + np.arange(n) + 1)


def positive(n, dtype="float64", condition=1e2):
    """Hermitian, with eigenvalues from 1 / condition to 1."""
    q, _ = np.linalg.qr(drawn((n, n), "complex128" if np.dtype(dtype).kind == "c" else "float64"))
    return (q * np.geomspace(1 / condition, 1, n)) @ q.conj().T.astype(q.dtype) if n else np.zeros((0, 0), dtype)


def one_triangle(a, lower):
    """The other one must not be read."""
    a = a.copy()
    a[np.triu_indices(len(a), 1) if lower else np.tril_indices(len(a), -1)] = 1e30
    return a


def lu_ratio(a, x, pivots):
    """LAPACK's measure of P A - L U."""
    if not a.size:
        return 0.0
    k, order = min(a.shape), np.arange(len(a))
    for i, j in enumerate(pivots):
        order[[i, j]] = order[[j, i]]
    wide = x.astype(np.result_type(x.dtype, np.float64))
    product = (np.tril(wide[:, :k], -1) + np.eye(len(a), k)) @ np.triu(wide[:k])
    return np.abs(a[order] - product).sum(0).max() / (max(a.shape) * np.finfo(x.dtype).eps * np.abs(a).sum(0).max())


def wilkinson(n):
    """Growth of 2^(n - 1) by partial pivoting."""
    return np.eye(n) - np.tril(np.ones((n, n)), -1) + np.eye(1, n, n - 1)[[0] * n] * (np.arange(n) < n - 1)[:, None]


def factor_ratio(a, l):
    """LAPACK's measure of A - L L^H."""
    if not a.size:
        return 0.0
    wide = l.astype(np.result_type(l.dtype, np.float64))
    return np.abs(a - wide @ wide.conj().T).sum(0).max() / (len(a) * np.finfo(l.dtype).eps * np.abs(a).sum(0).max())
