"""Factorizations and solutions over MPI: the threads world's bits, and faults that all ranks raise."""

import numpy as np
import pytest

import pdla
from pdla import Cyclic, Layout
from pdla.errors import LinAlgError
from pdla.linalg import cho_factor, cho_solve, cholesky, cond, det, inv, lu_factor, lu_solve, norm, solve, solve_triangular

pytestmark = pytest.mark.mpi
N, BLOCKS = 150, Layout("row", "col")


def drawn(kind="float64", seed=0):
    real, imag = np.random.default_rng(seed).uniform(-1, 1, (2, N, N))
    return (real + 1j * imag if np.dtype(kind).kind == "c" else real).astype(kind)


def results(comm, kind):
    """By name, from every way that is worked on, on this grid."""
    a, b = drawn(kind), drawn(kind, 1)
    grid = pdla.ProcessGrid(pdla.balanced_shape(comm.size), comm=comm)
    cyclic = Layout(Cyclic("row", 16), Cyclic("col", 16))
    made = {}
    for name, layout in (("cyclic", cyclic), ("blocks", BLOCKS)):
        A, B = pdla.from_global(a, grid, layout), pdla.from_global(b, grid, BLOCKS)
        P = pdla.from_global(a @ a.conj().T + N * np.eye(N, dtype=kind), grid, layout)
        made[f"{name}: L"] = cholesky(P).gather()
        made[f"{name}: U"] = cholesky(P, lower=False, layout=Layout("col")).gather()
        made[f"{name}: pos"] = cho_solve(cho_factor(P), b[:, 0])
        X, made[f"{name}: pivots"] = lu_factor(A)
        made[f"{name}: LU"], made[f"{name}: gen"] = X.gather(), lu_solve((X, made[f"{name}: pivots"]), B).gather()
        made[f"{name}: tri"] = solve_triangular(P.H, B, lower=True).gather()
        made[f"{name}: inverses"] = np.stack([inv(A).gather(), inv(P, assume_a="pos").gather()])
        made[f"{name}: numbers"] = np.array([det(A), cond(A), *(norm(A, ord) for ord in (1, np.inf, "max"))])
    return made


@pytest.mark.parametrize("kind", ["float64", "complex64"])
def test_the_same_bits_as_in_threads(comm, kind):
    mine = results(comm, kind)
    wanted = pdla.run(comm.size, results, kind)[0] if comm.rank == 0 else None
    for name, x in (comm.share(wanted)[0]).items():  # a device's products may have other bits where arrays lie elsewhere
        assert np.array_equal(mine[name], x) if comm.xp.name == "numpy" else np.allclose(mine[name], x, 1e-3, 1e-3), name


def test_solutions(comm):
    a, b = drawn(), drawn(seed=1)
    A = pdla.from_global(a, pdla.ProcessGrid(comm.size, comm=comm), Layout("row"))
    for x in (solve(A, b[:, 0]), solve(A, b[:, 0], refine="float32")):
        x = comm.xp.host(x)
        assert np.abs(a @ x - b[:, 0]).max() < 1e3 * N * np.finfo(float).eps * np.abs(x).max()


def test_both_ends_of_the_range(comm):
    """Subnormal pivots, and a U that overflows, where ranks of a grid row and of a grid column have panels."""
    b, kind = drawn(seed=1), np.finfo(float)
    for shape in ((1, comm.size), (comm.size, 1)):
        for a, power in ((drawn() + N * np.eye(N), 2.0**-1034), (drawn(), 2.0**1023)):
            z, least = a * power, N * kind.smallest_subnormal / power
            A = pdla.from_global(z, pdla.ProcessGrid(shape, comm=comm), Layout(Cyclic("row", 16), Cyclic("col", 16)))
            c = b[:, 0] / N * power
            x = comm.xp.host(solve(A, c))
            assert np.abs(z / power @ x - c / power).max() < 1e3 * N * kind.eps * np.abs(x).max() + least


def test_one_triangle_is_read_and_what_is_ill_conditioned_is_warned_of_on_every_rank(comm):
    a, b = drawn("complex128"), drawn(seed=1)[:, 0]
    a = a + a.conj().T
    x = np.linalg.solve(a, b)
    for lower in (True, False):
        half = np.where(np.tri(N, k=0, dtype=bool) if lower else np.tri(N, dtype=bool).T, a, np.nan) + 1j * np.eye(N)
        A = pdla.from_global(half, pdla.ProcessGrid(comm.size, comm=comm), Layout("row"))
        assert np.allclose(comm.xp.host(solve(A, b, assume_a="her", lower=lower)), x)
    small = pdla.from_global(np.diag(np.geomspace(1, 1e-20, N)), A.grid, A.layout)
    for call in (lambda: solve(small, b), lambda: inv(small, assume_a="pos")):
        with pytest.warns(RuntimeWarning, match=r"A is ill-conditioned \(rcond=1e-20\)"):
            call()


def test_faults_are_raised_on_every_rank_and_the_next_call_works(comm):
    a = np.eye(N)
    a[77, 77] = -1
    A = pdla.from_global(a, pdla.ProcessGrid(comm.size, comm=comm), Layout("row"))
    with pytest.raises(LinAlgError, match=r"order 78 is not positive definite \(pivot -1\)"):
        cholesky(A)
    Z = pdla.from_global(np.where(a == -1, 0, a), A.grid, A.layout)
    with pytest.raises(LinAlgError, match=r"element \(77, 77\) of U is 0"):
        solve(Z, np.ones(N))
    assert np.array_equal(solve(A, a.diagonal().copy()), np.ones(N))
