"""Both ends of the range of numbers: what NumPy's numbers can hold is found on every grid, in every dtype, checked or not.

Backward errors are relative to what subnormal numbers can tell apart.
"""

import warnings
from itertools import cycle

import numpy as np
import pytest
from helpers.systems import BLOCKS, cut_in_blocks, cyclic, drawn, on, raised

import pdla
from pdla.errors import LinAlgError
from pdla.linalg import cho_factor, cho_solve, det, inv, lu, lu_factor, lu_solve, slogdet, solve, solve_triangular

N, MANY = 17, 40  # rows, and more columns than are worked on few at a time
LAYERS = (2, 2, 2)
GRIDS = {
    (1, 1): cyclic(4), (1, 2): cyclic(4), (2, 1): cyclic(3), (2, 2): cyclic(5), (3, 2): BLOCKS, LAYERS: cut_in_blocks(LAYERS, 3),
}
PLACES = [*zip(GRIDS, cycle(["float64", "complex64", "complex128", "float32"]), strict=False), ((2, 1), "float32")]
places = pytest.mark.parametrize(("grid", "dtype"), PLACES, ids=str)
grids = pytest.mark.parametrize("grid", GRIDS, ids=str)


def wide(a):
    return a.astype("clongdouble" if a.dtype.kind == "c" else "longdouble")


def times(a, x):
    return (wide(a) @ wide(x)).astype(a.dtype)


def backward(a, x, b):
    """How far A X is from B, for the sizes of what was added up, of each column."""
    a, x, b = map(wide, (a, x, b))
    return float((np.abs(b - a @ x) / ((np.abs(a) @ np.abs(x)).max(0) + np.abs(b).max(0))).max())


def everywhere(grid, program):
    """What ranks give, of which one is idle; nothing that was right is computed again."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*(computed again|overflow|invalid)")
        return pdla.run(int(np.prod(grid)) + 1, program)


def tiny(dtype):
    """Well-conditioned, of subnormal elements, which have twelve bits less than others."""
    return (drawn((N, N), dtype) + N * np.eye(N)) * np.finfo(dtype).tiny / 2**12


@places
@pytest.mark.parametrize("verify", [False, True])
def test_subnormal_pivots_are_divided_by(verify, grid, dtype):
    a, x = tiny(dtype), drawn((N, MANY), dtype, 1)
    h = a + a.conj().T
    said = {"gen": a, "sym": a + a.T, "her": h, "pos": h, "lower triangular": np.tril(a), "upper triangular": np.triu(a)}
    said["diagonal"] = np.diag(a.diagonal())
    eps = 2**12 * N * np.finfo(dtype).eps

    def program(comm):
        for assumed, known in said.items():
            A, b = on(grid, known.astype(dtype), GRIDS[grid], comm), times(known.astype(dtype), x)
            B = on((comm.size,), b, pdla.Layout("row"), comm)
            few, many = (solve(A, side, assume_a=assumed, verify=verify) for side in (b[:, 0], B))
            np.testing.assert_allclose(many.gather(), x, rtol=0, atol=eps)
            np.testing.assert_allclose(few, x[:, 0], rtol=0, atol=eps)
        A, b = on(grid, a.astype(dtype), GRIDS[grid], comm), times(a.astype(dtype), x)[:, 0]
        H, c = on(grid, h.astype(dtype), GRIDS[grid], comm), times(h.astype(dtype), x)[:, 0]
        again = lu_solve(lu_factor(A, verify=verify), b, verify=verify), cho_solve(cho_factor(H, verify=verify), c, verify=verify)
        np.testing.assert_allclose(again, [x[:, 0]] * 2, rtol=0, atol=eps)
        y = solve_triangular(A.H, times(np.triu(a.conj().T).astype(dtype), x)[:, 0], lower=False, verify=verify)
        np.testing.assert_allclose(y, x[:, 0], rtol=0, atol=eps)
        p, L, U = lu(A, verify=verify)
        assert np.abs(wide(L.gather())[p] @ wide(U.gather()) - wide(a)).max() < eps * np.abs(a).max()
        return tuple(slogdet(A)), det(A)

    found = everywhere(grid, program)
    sign, logarithm = np.linalg.slogdet(a.astype(np.result_type(dtype, float)) * 2.0 ** -int(np.log2(np.finfo(dtype).tiny)))
    assert found == found[:1] * len(found) and found[0][1] == 0
    assert abs(found[0][0][0] - sign) < eps and abs(found[0][0][1] - logarithm - N * np.log(np.finfo(dtype).tiny)) < N * eps


@places
def test_pivots_from_end_to_end_of_the_range(grid, dtype):
    """Graded by powers of two: rows, columns, and both; and a diagonal that is."""
    kind, a, x = np.finfo(dtype), drawn((N, N), dtype), drawn((N, MANY), dtype, 1)
    half = kind.maxexp // 2 - 12
    grades, ends = (
        np.ldexp(kind.dtype.type(1), np.linspace(*powers, N).astype(int))
        for powers in ((-half, half), (kind.minexp - 12, kind.maxexp - 3))
    )
    exact = np.log(ends.astype(float)).sum()
    mixed = np.random.default_rng(0).permutation(grades)
    zoo = [a * grades, a * grades[:, None], a * grades[:, None] * mixed, np.diag(ends).astype(dtype)]

    def program(comm):
        worst = 0.0
        for z in zoo:
            A, b = on(grid, z, GRIDS[grid], comm), times(z, x)
            B = on((comm.size,), b, pdla.Layout("row"), comm)
            for verify in (False, True):
                few, many = (solve(A, side, verify=verify) for side in (b[:, 0], B))
                worst = max(worst, backward(z, few[:, None], b[:, :1]), backward(z, many.gather(), b))
            wanted = np.linalg.slogdet(z.astype(np.result_type(dtype, float)))[1] if z is not zoo[-1] else exact
            assert slogdet(A)[1] == pytest.approx(wanted, rel=1e-4 if kind.eps > 1e-10 else 1e-11)
        return worst

    assert max(everywhere(grid, program)) < 30 * kind.eps


@places
def test_an_lu_that_overflows_is_of_a_smaller_multiple(grid, dtype):
    """Also the right-hand side's: L^-1 P B would overflow."""
    kind = np.finfo(dtype)
    a, x = drawn((N, N), dtype), drawn((N, MANY), dtype, 1) / N
    power = kind.dtype.type(2.0 ** (kind.maxexp - 1))
    z = a * power
    b = times(z, x)
    exact, (sign, logarithm) = np.linalg.inv(a.astype(np.result_type(dtype, float))), np.linalg.slogdet(a)

    def program(comm):
        A, B = on(grid, z, GRIDS[grid], comm), on((comm.size,), b, pdla.Layout("row"), comm)
        assert not np.isfinite(lu(A)[2].gather()).all()
        worst = 0.0
        for verify in (False, True):
            few, many = (solve(A, side, verify=verify) for side in (b[:, 0], B))
            worst = max(worst, backward(z, few[:, None], b[:, :1]), backward(z, many.gather(), b))
            inverse = inv(A, verify=verify).gather().astype(exact.dtype) * float(power)
            assert np.abs(inverse - exact).max() < 2e4 * kind.eps * np.abs(exact).max()
        given = slogdet(A)
        assert abs(given.sign - sign) < 1e3 * kind.eps
        assert given.logabsdet == pytest.approx(logarithm + N * np.log(float(power)), rel=10 * float(kind.eps))
        assert not np.isfinite(det(A)) and np.isnan(det(on(grid, z, GRIDS[grid], comm), overwrite_a=True))
        assert np.array_equal(A.gather(), z) and np.array_equal(B.gather(), b)
        return worst

    assert max(everywhere(grid, program)) < 30 * kind.eps


@grids
def test_an_overwritten_matrix_whose_lu_overflows_is_told_of(grid):
    a = drawn((N, N), "float64") * 2.0**1023
    layout, size = GRIDS[grid], int(np.prod(grid)) + 1
    kind, text = raised(lambda comm: solve(on(grid, a, layout, comm), np.ones(N), overwrite_a=True), size)
    assert kind is LinAlgError and "of U is not finite: A has NaN or infinity, or U overflows: without overwrite_a" in text
    for found in pdla.run(size, lambda comm: slogdet(on(grid, a, layout, comm), overwrite_a=True)):
        assert np.isnan(found).all()


@pytest.mark.parametrize("grid", [(1, 1), (1, 2), (2, 1), (2, 2)], ids=str)
def test_determinants_of_two_rows_and_their_solution(grid):
    a = np.array([[1e308, 1e308], [-1e308, 1e308]])

    def program(comm):
        A = on(grid, a, cyclic(1), comm)
        return float(det(A)), *map(float, slogdet(A)), *solve(A, np.array([1e308, 0])).tolist()

    assert pdla.run(5, program) == [(np.inf, 1, pytest.approx(np.log(2) + 616 * np.log(10), rel=1e-15), 0.5, 0.5)] * 5
