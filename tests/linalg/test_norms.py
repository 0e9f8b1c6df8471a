"""The 2-norm, and the condition number in it, against NumPy's; the others are in test_condition.py."""

import numpy as np
import pytest

import pdla
from pdla import ProcessGrid, errors
from pdla.linalg import cond, norm

SHAPES = [(1, 1), (5, 5), (7, 3), (3, 7), (40, 40), (0, 4)]


@pytest.mark.parametrize("scale", [1, 1e-170, 1e170])
@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_two_norm(shape, dtype, scale):
    draw = np.random.default_rng(1)
    a = (draw.standard_normal(shape) + (1j * draw.standard_normal(shape) if dtype is complex else 0)) * scale
    hermitian = (a + a.conj().T) / 2 if shape[0] == shape[1] else a

    def program(comm):
        return [norm(pdla.from_global(x), 2) for x in (a, hermitian)]

    for found in pdla.run(3, program):
        wanted = [np.linalg.norm(x, 2) if x.size else 0.0 for x in (a, hermitian)]
        assert np.allclose(found, wanted, rtol=1e-13, atol=0)


def test_two_norm_of_integers_zeros_and_nan():
    def program(comm):
        whole = np.arange(12).reshape(3, 4)
        return norm(pdla.from_global(whole), 2), norm(pdla.zeros((4, 4)), 2), norm(pdla.from_global(np.full((2, 2), np.nan)), 2)

    found, zero, nan = pdla.run(2, program)[1]
    assert np.isclose(found, np.linalg.norm(np.arange(12).reshape(3, 4), 2), rtol=1e-14) and zero == 0 and np.isnan(nan)


@pytest.mark.parametrize("ends", [(1.0, 2.0), (1e-12, 1.0), (-3.0, 1e-6)])
def test_condition_of_hermitian_matrices(ends):
    n, draw = 24, np.random.default_rng(2)
    q = np.linalg.qr(draw.standard_normal((n, n)) + 1j * draw.standard_normal((n, n)))[0]
    w = np.linspace(*ends, n)
    a = (q * w) @ q.conj().T
    a = (a + a.conj().T) / 2
    found = pdla.run(4, lambda comm: cond(pdla.from_global(a, ProcessGrid((2, 2))), 2))
    assert len({*found}) == 1 and np.isclose(found[0], abs(w).max() / abs(w).min(), rtol=1e-3)


def test_condition_of_others():
    def program(comm):
        assert cond(pdla.zeros((3, 3)), 2) == np.inf
        with pytest.raises(errors.LinAlgError, match="needs a Hermitian A, and A is not Hermitian"):
            cond(pdla.from_global(np.triu(np.ones((3, 3)))), 2)
        with pytest.raises(errors.LinAlgError, match="A has nan"):
            cond(pdla.eye(3) * np.nan, 2)
        with pytest.raises(errors.LinAlgError, match="0 x 0"):
            cond(pdla.zeros((0, 0)), 2)
        with pytest.raises(errors.ShapeError):
            cond(pdla.zeros((2, 3)), 2)
        with pytest.raises(errors.PlanError, match=r"memory_limit=1000: .* bytes too few"):
            cond(pdla.eye(40), 2, memory_limit=1000)

    pdla.run(2, program)
