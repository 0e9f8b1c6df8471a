"""Functions of Hermitian matrices against SciPy's, and against the identities that define them."""

import numpy as np
import pytest
import scipy.linalg

import pdla
from pdla import Layout, ProcessGrid, errors
from pdla.linalg import funm, logm, sqrtm


def positive(n, dtype, condition=1e4):
    draw = np.random.default_rng(n)
    q = np.linalg.qr(draw.standard_normal((n, n)) + (1j * draw.standard_normal((n, n)) if np.dtype(dtype).kind == "c" else 0))[0]
    a = (q * np.geomspace(1, 1 / condition, n)) @ q.conj().T
    return ((a + a.conj().T) / 2).astype(dtype)


@pytest.mark.parametrize("dtype", ["f", "d", "F", "D"])
@pytest.mark.parametrize("n", [1, 2, 13, 40])
def test_roots_and_logarithms(n, dtype):
    a, eps = positive(n, dtype, 1e2), float(np.finfo(dtype).eps)
    places = (ProcessGrid, (2, 2), Layout("row", "col")), (ProcessGrid, (3,), Layout((), "row"))

    def program(comm):
        found = []
        for grid, shape, layout in places:
            A = pdla.from_global(a, grid(shape, comm=comm), layout)
            R, L = sqrtm(A), logm(A)
            assert R.layout == L.layout == layout and R.dtype == L.dtype == a.dtype
            found.append((R.gather(), L.gather()))
        return found

    for root, log in pdla.run(4, program)[0]:
        assert np.abs(root @ root - a).max() <= 50 * n * eps and np.array_equal(root, root.conj().T)
        assert np.abs(log - scipy.linalg.logm(a)).max() <= 1e3 * n * eps


def test_semidefinite_zero_and_empty():
    def program(comm):
        v = np.arange(1.0, 6)[:, None]
        return [sqrtm(pdla.from_global(x)).gather() for x in (v @ v.T, np.zeros((3, 3)), np.zeros((0, 0)))]

    rank_one, zero, empty = pdla.run(2, program)[0]
    v = np.arange(1.0, 6)[:, None]
    assert np.abs(rank_one - v @ v.T / np.sqrt(55)).max() < 1e-7 and not zero.any() and empty.shape == (0, 0)


def test_the_limit_of_a_root_grows_with_n():
    """Of 16 eigenvalues one of -8 eps counts as 0, one of -32 eps is an error."""
    def program(comm):
        near, far = (np.diag([1.0] * 15 + [-size * np.finfo(float).eps]) for size in (8, 32))
        assert np.array_equal(sqrtm(pdla.from_global(near)).gather().diagonal(), [1] * 15 + [0])
        with pytest.raises(errors.LinAlgError, match="not positive semidefinite"):
            sqrtm(pdla.from_global(far))

    pdla.run(2, program)


def test_any_function():
    a = positive(9, float)

    def program(comm):
        A = pdla.from_global(a)
        return [funm(A, func).gather() for func in (np.exp, lambda w: np.exp(1j * w), lambda w: (w > 0.02).astype(int))]

    growing, turning, projector = pdla.run(3, program)[2]
    assert np.allclose(growing, scipy.linalg.expm(a), rtol=1e-13) and np.allclose(turning, scipy.linalg.expm(1j * a), rtol=1e-13)
    assert np.allclose(projector @ projector, projector, atol=1e-13)
    assert round(np.trace(projector)) == (np.geomspace(1, 1e-4, 9) > 0.02).sum()


def test_the_lower_triangle_is_read():
    a = positive(6, float)
    upper = np.where(np.tri(6, dtype=bool), a, np.nan)
    assert np.array_equal(*pdla.run(2, lambda comm: [sqrtm(pdla.from_global(x)).gather() for x in (a, upper)])[0])


@pytest.mark.parametrize("case", ["negative", "zero", "nan", "shape", "values", "count"])
def test_faults(case):
    def program(comm):
        a = np.diag([1.0, 2, -3]) if case == "negative" else np.diag([1.0, 2, 0])
        a[1, 1] = np.nan if case == "nan" else 2
        A = pdla.from_global(a[:, :2] if case == "shape" else a)
        call, error, words = {
            "negative": (lambda: sqrtm(A), errors.LinAlgError, "sqrtm: A is not positive semidefinite: its least eigenvalue is -3"),
            "zero": (lambda: logm(A), errors.LinAlgError, "logm: A is not positive definite: its least eigenvalue is 0"),
            "nan": (lambda: sqrtm(A), errors.LinAlgError, "nan"),
            "shape": (lambda: logm(A), errors.ShapeError, "3 x 2"),
            "values": (lambda: funm(A, lambda w: 1 / w), errors.LinAlgError, "func is inf at the eigenvalue 0"),
            "count": (lambda: funm(A, lambda w: w[:1]), errors.ShapeError, "of 3 eigenvalues"),
        }[case]
        with pytest.raises(error, match=words):
            call()

    pdla.run(3, program)
