"""Backward errors beside SciPy's, on matrices with which explicit inverses of diagonal blocks err: kernels, Hilbert, Kahan, graded.

PDLA_TEST_FULL=1 (`make test-full`) takes sizes up to 2000 and every grid; else the sizes and the
grids come in turns.
"""

import os
from functools import partial
from itertools import cycle, product
from math import prod

import numpy as np
import pytest
import scipy.linalg
from helpers.systems import BLOCKS, KINDS, cyclic, drawn, on
from helpers.zoo import GENERAL, KERNELS, animal, plain

import pdla
from pdla.linalg import cho_factor, cho_solve, cholesky, inv, lstsq, lu, qr, solve, solve_triangular, trsm
from pdla.linalg.panels.blocks import cut_in_blocks

FULL = os.environ.get("PDLA_TEST_FULL") == "1"
pytestmark = pytest.mark.filterwarnings("ignore:.*ll-conditioned")  # SciPy's, of what is to be so
GRIDS = [(1, 1), (2, 1), (1, 2), (3, 1), (2, 2), (1, 5), (2, 3), (7, 1), (4, 2), (3, 3), (2, 2, 2), (2, 1, 3)]
SIZES = [64, 97, 200] + [331, 600, 1000, 2000] * FULL
GENERALS = [*KERNELS, "kahan", "hilbert", "graded rows", "graded columns", "growing rows", "mode 3, most"]
ORTHOGONAL = [
    *KERNELS, "kahan", "hilbert", "lauchli", "glued", "graded rows", "graded columns", "growing rows", "mode 3, most", "rank",
]
TRIANGLES = ["kahan", "hilbert", "graded rows", "graded columns", "growing rows", "mode 3, most", *KERNELS]


def cases(names, turns=2):
    """Of name, dtype, grid and size."""
    if FULL:
        return [*product(names, KINDS, GRIDS, SIZES)]
    return list(zip([*names] * turns, *map(cycle, (KINDS, GRIDS, SIZES + [33])), strict=False))


def glued(n, dtype):
    """Blocks of columns that are ill-conditioned each, of ever smaller sizes: Smoktunowicz, Barlow, Langou (2006)."""
    a, eps = plain(n, dtype), np.finfo(dtype).eps
    width = max(1, n // 5)
    for first in range(0, n, width):
        part = a[:, first : first + width]
        u, s, v = np.linalg.svd(part, full_matrices=False)
        a[:, first : first + width] = (u * np.geomspace(1, eps**0.4, len(s))) @ v * eps ** (0.4 * first / n)
    return a


GENERAL["glued"] = glued


def of(name, n, dtype):
    return animal("kernel" if name in KERNELS else "general", name, n, dtype)


def wide(x):
    return x.astype(np.result_type(x.dtype, np.longdouble if FULL else np.float64))


def lying(grid, n):
    """Layouts in which panels of 16 columns are cut by the grid, others, and one in which pdla chooses."""
    return (cut_in_blocks(grid, 16),) if len(grid) == 3 else (cyclic(16), cyclic(max(1, n // 5)), BLOCKS)


def of_factors(a, *factors):
    """The largest element of a less the product of its factors, over that of a."""
    return float(np.abs(np.linalg.multi_dot(list(map(wide, factors))) - a).max() / np.abs(a).max())


def of_solution(a, x, b):
    """Rigal and Gaches: the least relative change of a and b of which x is the solution, in largest row sums."""
    sizes = np.abs(a).sum(1).max() * np.abs(x).max(0) + np.abs(b).max(0)
    return float((np.abs(wide(a) @ x - b).max(0) / sizes).max())


def of_inverse(a, x):
    """The smaller residual of both sides."""
    size = np.abs(a).sum(1).max() * np.abs(x).sum(1).max()
    return float(min(np.abs(wide(a) @ x - np.eye(len(a))).max(), np.abs(wide(x) @ a - np.eye(len(a))).max()) / size)


def of_triangle(t, x, b):
    """Oettli and Prager: the least relative change of each element of t of which x is the solution; of what does not underflow."""
    apart, sizes = np.abs(wide(t) @ x - b), np.abs(wide(t)) @ np.abs(x)
    return float((apart / np.where(sizes > np.finfo(t.dtype).tiny / np.finfo(t.dtype).eps, sizes, np.inf)).max())


def agree(grid, n, dtype, scipys, found):
    """Each error of found(layout, comm), on all layouts, is at most 3 times SciPy's and 3 eps."""
    for layout in lying(grid, n):
        for error in pdla.run(prod(grid), partial(found, layout)):
            for name, wanted in scipys.items():
                assert error[name] <= 3 * wanted + 3 * np.finfo(dtype).eps, (layout, name, error[name], wanted)


@pytest.mark.parametrize(("name", "dtype", "grid", "n"), cases(KERNELS))
def test_positive_definite(name, dtype, grid, n):
    """What SciPy factors is not refused."""
    a, b = animal("kernel", name, n, dtype), drawn((n, 2), dtype, 5)
    try:
        l = scipy.linalg.cholesky(a, lower=True)
    except np.linalg.LinAlgError:
        pytest.skip("not positive definite in this precision")
    scipys = {
        "lower": of_factors(a, l, l.conj().T), "upper": of_factors(a, l, l.conj().T),
        "solve": of_solution(a, scipy.linalg.cho_solve((l, True), b), b), "inverse": of_inverse(a, scipy.linalg.inv(a)),
    }
    scipys["one"] = scipys["solve"]

    def found(layout, comm):
        A, B = on(grid, a, layout, comm), on(grid, b, BLOCKS, comm)
        l, u = cholesky(A).gather(), cholesky(A, lower=False).gather()
        x = cho_solve(cho_factor(A), b[:, 0])[:, None]
        return {
            "lower": of_factors(a, l, l.conj().T), "upper": of_factors(a, u.conj().T, u),
            "solve": of_solution(a, solve(A, B, assume_a="pos").gather(), b), "one": of_solution(a, x, b[:, :1]),
            "inverse": of_inverse(a, inv(A, assume_a="pos").gather()),
        }

    agree(grid, n, dtype, scipys, found)


@pytest.mark.parametrize(("name", "dtype", "grid", "n"), cases(GENERALS))
def test_general(name, dtype, grid, n):
    a, b = of(name, n, dtype), drawn((n, 2), dtype, 5)
    p, l, u = scipy.linalg.lu(a, p_indices=True)
    scipys = {
        "lu": of_factors(a, l[p], u), "solve": of_solution(a, scipy.linalg.solve(a, b), b),
        "inverse": of_inverse(a, scipy.linalg.inv(a)),
    }

    def found(layout, comm):
        A, B = on(grid, a, layout, comm), on(grid, b, BLOCKS, comm)
        p, L, U = lu(A)
        return {
            "lu": of_factors(a, L.gather()[p], U.gather()), "solve": of_solution(a, solve(A, B).gather(), b),
            "inverse": of_inverse(a, inv(A).gather()),
        }

    agree(grid, n, dtype, scipys, found)


@pytest.mark.parametrize(("name", "dtype", "grid", "n"), cases(TRIANGLES))
def test_triangles(name, dtype, grid, n):
    """In each element: substitution is backward stable whatever the condition of diagonal blocks."""
    t, b = np.triu(of(name, n, dtype)), drawn((n, 40), dtype, 5)
    with np.errstate(all="ignore"):
        x = scipy.linalg.solve_triangular(t, b)
    if not np.isfinite(x).all():
        pytest.skip("beyond the numbers of this precision")
    scipys = {"many": of_triangle(t, x, b), "one": of_triangle(t, x[:, :1], b[:, :1]), "right": of_triangle(t, x, b)}

    def found(layout, comm):
        A, B = on(grid, t, layout, comm), on(grid, b, BLOCKS, comm)
        right = trsm(A.T, B.T, lower=True, side="right").gather().T
        return {
            "many": of_triangle(t, trsm(A, B, lower=False).gather(), b), "right": of_triangle(t, right, b),
            "one": of_triangle(t, solve_triangular(A, b[:, 0], lower=False)[:, None], b[:, :1]),
        }

    agree(grid, n, dtype, scipys, found)


def of_q(q):
    return float(np.abs(wide(q).conj().T @ q - np.eye(q.shape[1])).max())


def of_fit(a, x, b):
    """Of least squares: A^H (A x - b), over the sizes of A twice, of x and of b."""
    size = np.linalg.norm(a, 2)
    slope = np.linalg.norm(wide(a).conj().T @ (wide(a) @ x - b))
    return float(slope / (size * (size * np.linalg.norm(x) + np.linalg.norm(b))))


@pytest.mark.parametrize(("name", "dtype", "n"), sorted({(name, dtype, n) for name, dtype, _, n in cases(ORTHOGONAL, 1)}))
def test_orthogonal_factors_and_fits(name, dtype, n):
    """Of square matrices by reflections, and of tall ones, in ways that their conditions decide. B is, and is not, in A's range."""
    square, eps = of(name, n, dtype), float(np.finfo(dtype).eps)
    given = [(a, np.hstack([a @ drawn((a.shape[1], 1), dtype, 6)] * 2)) for a in (square, square[:, : n // 9])]
    for _, b in given:
        b[:, 1:] += drawn((n, 1), dtype, 7) * np.abs(b).max()

    def errors(a, b, q, r, x):
        slopes = {f"slope {which}": of_fit(a, x[:, which], b[:, which]) for which in (0, 1)}
        return {"qr": of_factors(a, q, r), "q": of_q(q), "left": of_solution(a, x[:, :1], b[:, :1]), **slopes}

    def found(grid, comm):
        for layout in lying(grid, n) if FULL else (cyclic(16),):
            for a, b in given:
                A, B = on(grid, a, layout, comm), on(grid, b, BLOCKS, comm)
                yield [X.gather() for X in (*qr(A), lstsq(A, B)[0])]

    scipys = [errors(a, b, *scipy.linalg.qr(a, mode="economic"), scipy.linalg.lstsq(a, b, cond=n * eps)[0]) for a, b in given]
    for grid in ((1, 4), (2, 2), (4, 1)):
        for i, made in enumerate(pdla.run(4, lambda comm: [*found(grid, comm)])[0]):  # noqa: B023
            wanted = scipys[i % 2]
            for measure, error in errors(*given[i % 2], *made).items():
                assert error <= 3 * wanted[measure] + 3 * eps, (grid, i, measure, error, wanted[measure])
