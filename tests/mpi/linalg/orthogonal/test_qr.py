"""QR, least squares and functions of matrices over MPI, as in threads."""

import numpy as np
import pytest

import pdla
from pdla import Cyclic, Layout
from pdla.errors import LinAlgError
from pdla.linalg import expm, lstsq, matrix_rank, plan_lstsq, plan_polar, polar, qr, sqrtm, svd

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("shape", [(41, 41), (30, 47), (90, 7)])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_factors_and_fits(shape, dtype):
    world = pdla.world()
    grids = [(pr, world.size // pr) for pr in range(1, world.size + 1) if world.size % pr == 0]
    for grid in [*grids, (max(1, world.size - 1), 1)]:
        for layout in (Layout("row", "col"), Layout(Cyclic("row", 4), Cyclic("col", 4))):
            A = pdla.random(shape, pdla.ProcessGrid(grid), layout, low=-1, dtype=dtype)
            Q, R = qr(A)
            q, r, a = Q.gather(), R.gather(), A.gather()
            assert np.allclose(q @ r, a) and np.allclose(q.conj().T @ q, np.eye(min(shape)))
            b = np.cos(np.arange(shape[0]))
            x, _, rank, _ = lstsq(A, b)
            assert np.allclose(x, np.linalg.lstsq(a, b, rcond=None)[0]) and rank == min(shape) == matrix_rank(A)
            assert np.array_equal(plan_lstsq(A, b)(A, b)[0], x)
            U, s, Vh = svd(A)
            assert np.allclose(U.gather() * s @ Vh.gather(), a) and np.allclose(s, np.linalg.svd(a)[1])


def test_a_matrix_without_factors_is_an_error_on_every_rank():
    A = pdla.ones((9, 9))
    A.local[...] = np.nan if pdla.world().rank == pdla.world().size - 1 else 1
    for call in (qr, expm, sqrtm, polar):
        with pytest.raises(LinAlgError, match="nan"):
            call(A)


def test_functions():
    S = pdla.random((20, 20))
    S = S @ S.T + pdla.eye(20)
    U, H = polar(S)
    assert (U - pdla.eye(20)).norm() < 1e-10 and (H - S).norm() < 1e-10 * S.norm()
    D = pdla.from_global(np.diag([1.0] * 9 + [1e-20, 0]))
    U, H = polar(D)
    assert (U.H @ U - pdla.eye(11)).norm() < 1e-14 and (U @ H - D).norm() < 1e-14
    assert np.array_equal(plan_polar(D)(D)[0].gather(), U.gather())
    root = sqrtm(S)
    assert (root @ root - S).norm() < 1e-10 * S.norm()
