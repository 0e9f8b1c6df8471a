"""What the tests of the rest of level 3 share: each function once against NumPy, on exact data."""

import itertools

import numpy as np

import pdla
from helpers.matmuls import exact
from pdla import Cyclic, Layout, ProcessGrid

BLOCKS, TURNS = Layout("row", "col"), Layout(Cyclic("row", 2), Cyclic("col", 2))
VIEWS = {"A": lambda X: X, "T": lambda X: X.T, "H": lambda X: X.conj().T, "conj": lambda X: X.conj()}


def random_array(shape, dtype, seed):
    """The same small integers on every rank."""
    draw = np.random.default_rng(seed)
    parts = draw.integers(-4, 5, (2, *shape))
    return (parts[0] + 1j * parts[1] if np.dtype(dtype).kind == "c" else parts[0]).astype(dtype)


def both(x, lower, strict=0):
    return np.tril(x, -strict) if lower else np.triu(x, strict)


def real_diagonal(x):
    """As BLAS takes the diagonal of a Hermitian matrix: imaginary parts there are not read."""
    return x - 1j * np.diag(np.diagonal(x).imag) if x.dtype.kind == "c" else x


def check_rank_k(A, hermitian, lower, wanted, alpha=1, beta=0, mirror=False):
    """alpha A A^T + beta C: its triangle NumPy's, bitwise, the other one as it was or mirrored, copies equal, A untouched."""
    a, n = A.xp.host(A.gather()), A.shape[0]
    C = exact((n, n), A.grid, wanted, A.dtype, 3)
    if beta == 0:
        C.stored.fill(np.nan if C.dtype.kind in "fc" else 77)
    before = C.xp.host(C.gather())
    function = pdla.herk if hermitian else pdla.syrk
    function(A, alpha=alpha, beta=beta, out=C, lower=lower, mirror=mirror)
    read = real_diagonal(before) if hermitian else before
    product = alpha * (a @ (a.conj().T if hermitian else a.T)) + (beta * read if beta else 0)
    triangle = both(product, lower)
    other = both(triangle, lower, 1).T
    rest = (other.conj() if hermitian else other) if mirror else both(before, not lower, 1)
    where = f"{function.__name__} of {A}, lower={lower} to {wanted}, alpha={alpha}, beta={beta}, mirror={mirror}"
    assert np.array_equal(C.gather(), triangle + rest, equal_nan=C.dtype.kind in "fc"), where
    assert C.check_copies() and np.array_equal(A.gather(), a), where


def check_symm(grid, n, m, layouts, dtype, hermitian, lower, side):
    """Products with half a matrix, whose other half is NaN."""
    a = random_array((n, n), dtype, 1)
    half = both(a, lower)
    whole = real_diagonal(half) + both(a, lower, 1).conj().T if hermitian else half + both(a, lower, 1).T
    nan = np.full_like(a, np.nan)
    A = pdla.from_global(half + both(nan, not lower, 1), grid, layouts[0])
    B = exact((n, m) if side == "left" else (m, n), grid, layouts[1], dtype, 2)
    b = B.xp.host(B.gather())
    C = (pdla.hemm if hermitian else pdla.symm)(A, B, lower=lower, side=side, alpha=2)
    assert np.array_equal(C.gather(), 2 * (whole @ b if side == "left" else b @ whole)), (grid, layouts, lower, side)


def check_matvec(A, vector_layout, layout=None):
    """A x for a distributed x and for a vector that every rank has."""
    a = A.gather()
    x = exact((A.shape[1], 1), A.grid, vector_layout, A.dtype, 4)
    y = pdla.matvec(A, x, layout=layout)
    expected = a @ x.gather()
    assert y.dtype == A.dtype and np.array_equal(y.gather(), expected) and y.check_copies(), (A, x, layout)
    assert layout is None or y.layout == layout
    everywhere = pdla.matvec(A, x.gather()[:, 0])
    assert everywhere.dtype == A.dtype and np.array_equal(everywhere, expected[:, 0]), (A, x)


def check_stack(grid, axis, layout, bmnk, dtype, views=("A", "A"), algorithm="auto"):
    """A stack's products against numpy.matmul on three-dimensional arrays."""
    batch, m, n, k = bmnk
    turned = {"A": lambda x: x, "T": lambda x: np.swapaxes(x, 1, 2), "H": lambda x: np.swapaxes(x, 1, 2).conj(), "conj": np.conj}
    a, b = turned[views[0]](random_array((batch, m, k), dtype, 1)), turned[views[1]](random_array((batch, k, n), dtype, 2))
    A, B = VIEWS[views[0]](pdla.stack(a, grid, layout, axis)), VIEWS[views[1]](pdla.stack(b, grid, layout, axis))
    a, b = turned[views[0]](a), turned[views[1]](b)
    C = pdla.batched_matmul(A, B, algorithm=algorithm)
    assert np.array_equal(A.gather(), a) and C.dtype == a.dtype, (grid, axis, layout, bmnk)
    assert C.shape == (batch, m, n) and np.array_equal(C.gather(), a @ b), (grid, axis, layout, bmnk, views)


def rank_k(comm, shape, n, k, layout, wanted, product=pdla.syrk):
    """Bytes by verb, bytes, messages and flops of an update on this rank."""
    grid = ProcessGrid(shape)
    A, C = pdla.zeros((n, k), grid, layout), pdla.zeros((n, n), grid, wanted)
    before = comm.world.bytes_copied[comm.rank] if hasattr(comm, "world") else 0
    with pdla.record() as ledger:
        product(A, out=C)
    copied = comm.world.bytes_copied[comm.rank] - before if hasattr(comm, "world") else ledger.bytes_received
    assert copied == ledger.bytes_received
    return ledger.by_verb(), ledger.bytes_received, ledger.messages, ledger.flops


def pairs(block):
    """The elements of a block, as a set."""
    return set(itertools.product(block[0].indices().tolist(), block[1].indices().tolist()))
