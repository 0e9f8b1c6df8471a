"""Eigenvalues and vectors over MPI, as in threads."""

import numpy as np
import pytest

import pdla
from pdla import Cyclic, Layout
from pdla.errors import LinAlgError
from pdla.linalg import eigh, eigvalsh
from pdla.linalg.routines import tridiagonal

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("n", [0, 1, 3, 41, 130])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_values_and_vectors(n, dtype, monkeypatch):
    monkeypatch.setattr(tridiagonal, "SMALL", 10)
    world = pdla.world()
    for grid in ((1, world.size), (world.size, 1), (max(1, world.size - 1), 1)):
        for layout in (Layout("row", "col"), Layout(Cyclic("row", 4), Cyclic("col", 4))):
            A = pdla.random((n, n), pdla.ProcessGrid(grid), layout, low=-1, dtype=dtype)
            A = A + A.H
            w, V = eigh(A)
            a, v, far = A.gather(), V.gather(), 1e-4 if dtype == "float32" else 1e-11
            assert np.allclose(a @ v, v * w, atol=far) and np.allclose(v.conj().T @ v, np.eye(n), atol=far)
            assert np.allclose(eigvalsh(A, lower=False), w, atol=far) and np.allclose(w, np.linalg.eigvalsh(a), atol=far)


def test_a_matrix_without_values_is_an_error_on_every_rank():
    A = pdla.ones((9, 9))
    A.local[...] = np.nan if pdla.world().rank == pdla.world().size - 1 else 1
    for call in (eigh, eigvalsh):
        with pytest.raises(LinAlgError, match="nan"):
            call(A)
        with pytest.raises(LinAlgError, match="NaN"):
            call(A, check_finite=False)
