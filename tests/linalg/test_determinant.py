"""Determinants: NumPy's numbers on any grid, those of integers exactly, without overflow."""

from fractions import Fraction

import numpy as np
import pytest
from helpers.systems import BLOCKS, GRIDS, KINDS, cyclic, drawn, hilbert, on, raised

import pdla
from pdla import Layout
from pdla.linalg import det, slogdet


def close(x, y, eps):
    return abs(x - y) <= 200 * eps * max(abs(y), 1e-30)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_any_grid_and_layout_gives_numpys(grid):
    def program(comm):
        for n in (0, 1, 2, 7, 9, 33):
            a = drawn((n, n), "float64")
            wanted = np.linalg.slogdet(a)
            for layout in (cyclic(4), BLOCKS, Layout()):
                A = on(grid, a, layout, comm)
                given = slogdet(A)
                assert given.sign == wanted.sign and close(given.logabsdet, wanted.logabsdet, 2e-16)
                assert close(det(A), np.linalg.det(a), 2e-16)
        return True

    pdla.run(grid[0] * grid[1] + 1, program)


@pytest.mark.parametrize("dtype", KINDS)
def test_dtypes_and_views(dtype):
    a, eps = drawn((20, 20), dtype), np.finfo(dtype).eps

    def program(comm):
        A = on((2, 2), a, BLOCKS, comm)
        wanted = np.linalg.slogdet(a.astype("complex128" if a.dtype.kind == "c" else "float64"))
        for X, y in ((A, wanted.sign), (A.T, wanted.sign), (A.H, wanted.sign.conj()), (A[:, :], wanted.sign)):
            sign, logarithm = slogdet(X)
            assert sign.dtype == det(X).dtype == np.dtype(dtype) and logarithm.dtype == np.empty(0, dtype).real.dtype
            assert close(sign, y, eps) and close(logarithm, wanted.logabsdet, eps)

    pdla.run(4, program)


def test_neither_overflows_nor_loses_digits():
    swapped = np.eye(40)[::-1]

    def program(comm):
        for scale, power in ((2.0**500, 20000), (2.0**-500, -20000), (2.0**-1000, -40000)):
            A = on((2, 1), swapped * scale, cyclic(4), comm)
            assert slogdet(A) == (1, power * np.log(2))
            assert det(A) == (np.inf if power > 0 else 0)
        mixed = on((2, 1), np.diag(np.tile([2.0**600, -(2.0**-600)], 21)), BLOCKS, comm)
        assert det(mixed) == -1 and slogdet(mixed) == (-1, 0)
        assert det(on((2, 1), np.diag([1e308 + 1e308j, 1e-308]), BLOCKS, comm)) == pytest.approx(1 + 1j)
        assert det(on((2, 1), np.array([[1, 2], [3, 4]]), BLOCKS, comm)) == pytest.approx(-2, rel=1e-15)

    pdla.run(3, program)


@pytest.mark.parametrize("factor", [1j, -1, 1 + 1j])
@pytest.mark.parametrize("size", [1e200, 1e-200])
def test_numbers_of_any_phase_are_scaled(factor, size):
    def program(comm):
        return slogdet(on((1, 2), factor * size * np.eye(41), BLOCKS, comm))

    sign, logarithm = pdla.run(2, program)[0]
    assert sign == pytest.approx((factor / abs(factor)) ** 41) and logarithm == pytest.approx(41 * np.log(abs(factor) * size))


def test_hilbert():
    n, exact = 6, Fraction(1)
    for i in range(n):  # Cauchy's formula
        for j in range(n):
            exact *= Fraction(max(1, abs(i - j)) if i < j else 1) ** 2 / Fraction(i + j + 1)
    found = pdla.run(3, lambda comm: det(on((3, 1), hilbert(n), BLOCKS, comm)))
    assert found == found[:1] * 3 and abs(found[0] / float(exact) - 1) < 1e-9


def test_singular_matrices_nan_and_faults():
    a = drawn((12, 12), "float64")
    zero, nan = np.where(np.arange(12) == 5, 0, a), np.where(np.arange(144).reshape(12, 12) == 31, np.nan, a)

    def program(comm):
        Z, N = on((1, 2), zero, BLOCKS, comm), on((1, 2), nan, BLOCKS, comm)
        assert det(Z) == 0 and slogdet(Z) == (0, -np.inf)
        assert np.isnan([det(N, check_finite=False), *slogdet(N, check_finite=False)]).all()

    pdla.run(3, program)
    assert "A has nan at [2, 7]" in raised(lambda comm: det(on((1, 2), nan, BLOCKS, comm)))[1]
    assert "det: A is 5 x 12, it must be square" in raised(lambda comm: det(on((1, 2), a[:5], BLOCKS, comm)))[1]


def test_dry_runs_of_1024_ranks():
    def program(comm):
        return slogdet(pdla.zeros((4096, 4096), pdla.ProcessGrid((32, 32), comm=comm), cyclic(32)))

    assert pdla.dry_run(1024, program, rank=37)[0].logabsdet == 0
