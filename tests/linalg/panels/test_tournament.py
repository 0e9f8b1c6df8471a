"""LU of panels that are cut over several ranks: LAPACK's ratios of the zoo on every grid and in layers, zero pivots, NaN, words."""

import warnings

import numpy as np
import pytest
from helpers.systems import KINDS, cyclic, drawn, hilbert, lu_ratio, on, raised, ratio, wilkinson

import pdla
from pdla.errors import LinAlgError
from pdla.linalg import cond, det, inv, lu_factor, lu_solve, lu_words, slogdet, solve
from pdla.linalg.panels.blocks import Dimension, cut_in_blocks

EVERY = [(rows, ranks // rows) for ranks in (2, 3, 4, 5, 6, 7, 8) for rows in range(2, ranks + 1) if ranks % rows == 0]
LAYERS = [(2, 2, 2), (3, 2, 3), (2, 2, 4)]
N = 41


def kahan(n, angle=1.2):
    return np.sin(angle) ** np.arange(n)[:, None] * (np.eye(n) - np.cos(angle) * np.triu(np.ones((n, n)), 1))


def zoo():
    a, rng = drawn((N, N), "float64"), np.random.default_rng(3)
    twins, zeros, integers = a.copy(), a.copy(), rng.integers(-1, 2, (N, N)).astype(float)
    twins[:, [3, 20]] = twins[:, [2, 7]]
    zeros[:, [0, 9, 40]] = 0
    integers[:, 5] = integers[:, 3] - integers[:, 4]
    return {
        "random": a, "Wilkinson": wilkinson(24), "Kahan": kahan(N), "Hilbert": hilbert(N), "identity": np.eye(N)[::-1],
        "graded rows": a * np.geomspace(1e-12, 1e12, N)[:, None], "graded columns": a * np.geomspace(1e12, 1e-12, N),
        "rank 9": a[:, :9] @ a[:9], "rank 1": np.ones((N, N)), "nearly zero": np.eye(N, k=5) * 1e-300, "twins": twins,
        "zero columns": zeros, "integers of rank 40": integers, "large": a * 1e307, "small": a * 1e-300,
        "diagonal": np.diag(np.arange(1.0, N + 1)), "sorted": np.sort(a, 0), "orthogonal": np.linalg.qr(a)[0],
        "tall": a[:, :13], "wide": a[:13],
    }


@pytest.mark.parametrize("grid", EVERY + LAYERS, ids=str)
def test_the_zoo_on_every_grid(grid):
    def program(comm):
        worst = {}
        for name, a in zoo().items():
            X, pivots = lu_factor(on(grid, a, cut_in_blocks(grid, 4), comm))
            assert X.layout == cut_in_blocks(grid, 4) and tuple(X.grid.sizes.values()) == grid
            scale = 2.0**-1000 if name == "large" else 1.0  # lest the check overflows
            x = X.gather()
            x[np.triu_indices(*x.shape[:1], 0, x.shape[1])] *= scale
            worst[name] = lu_ratio(a * scale, x, pivots)
        return worst

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of singular ones
        said = pdla.run(int(np.prod(grid)), program)
    assert all(told == said[0] for told in said)
    assert {name: size for name, size in said[0].items() if not size < 30} == {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("grid", [(2, 2), (4, 1), (2, 3), (2, 2, 2)], ids=str)
def test_what_uses_the_factors(grid, kind):
    a, b = drawn((N, N), kind), drawn((N, 40), kind, 1)
    sign, logarithm = np.linalg.slogdet(a)
    close = 1e3 * np.finfo(kind).eps

    def program(comm):
        A, B = on(grid, a, cut_in_blocks(grid, 8), comm), on(grid, b, cut_in_blocks(grid, 3), comm)
        factor = lu_factor(A)
        worst = [ratio(a, lu_solve(factor, B).gather(), b), ratio(a, lu_solve(factor, b[:, 0])[:, None], b[:, :1])]
        worst += [ratio(a, solve(A, B[:, :5]).gather(), b[:, :5]), ratio(a, inv(A).gather(), np.eye(N)) / N]
        found = slogdet(A)
        assert abs(found.sign - sign) < close and abs(found.logabsdet - logarithm) < close * N
        assert abs(det(A) - np.linalg.det(a)) < close * N * abs(det(A))
        exact = np.linalg.cond(a, 1)
        assert exact / 3 < cond(A) < exact * (1 + close)
        if np.finfo(kind).eps < 1e-10:
            worst.append(ratio(a, solve(A, B, refine="float32").gather(), b))
        return max(worst)

    assert max(pdla.run(int(np.prod(grid)) + 1, program)) < 30  # one rank is idle


@pytest.mark.parametrize("column", [0, 3, 4, 17, 40])
@pytest.mark.parametrize("grid", [(2, 1), (2, 2), (3, 2), (5, 1), (2, 2, 2), (2, 3, 2)], ids=str)
def test_the_first_zero_pivot_is_named_on_every_rank(grid, column):
    a = drawn((N, N), "float64")
    a[:, column] = 0
    wanted = LinAlgError, f"the matrix is singular: element ({column}, {column}) of U is 0"
    assert raised(lambda comm: solve(on(grid, a, cut_in_blocks(grid, 4), comm), np.ones(N)), int(np.prod(grid)) + 1) == wanted


@pytest.mark.parametrize("place", [(0, 0), (17, 3), (40, 40)])
def test_nan_that_nobody_looked_for_is_no_solution(place):
    a = drawn((N, N), "float64")
    a[place] = np.nan
    for grid in ((2, 2), (4, 1), (2, 2, 2)):
        size, layout = int(np.prod(grid)), cut_in_blocks(grid, 4)
        kind, text = raised(lambda comm: solve(on(grid, a, layout, comm), np.ones(N), check_finite=False), size)  # noqa: B023
        assert kind is LinAlgError and "of U is not finite" in text
        assert np.isnan(pdla.run(size, lambda comm: det(on(grid, a, layout, comm), check_finite=False))).all()  # noqa: B023


def test_l_is_small():
    """Bounded by 2^w in theory; of random matrices it is about as small as partial pivoting's, which is at most 1."""
    a = drawn((300, 300), "float64")

    def program(comm):
        X, _ = lu_factor(on((4, 2), a, cyclic(16), comm))
        x = X.gather()
        return np.abs(np.tril(x, -1)).max(), np.abs(np.triu(x)).max() / np.abs(a).max()

    size, growth = pdla.run(8, program)[0]
    assert size < 8 and growth < 60  # partial pivoting: 1 and 24


def wandering(m, n, grid, nb):
    def program(comm):
        A = pdla.random((m, n), pdla.ProcessGrid(grid, comm=comm), cyclic(nb), seed=1)
        with pdla.record() as ledger:
            lu_factor(A)
        words = ledger.by_verb()
        return words.get("bcast", 0), words.get("recv", 0), words.get("alltoall", 0), ledger.flops

    return program


@pytest.mark.parametrize("grid", [(2, 2), (4, 1), (2, 3), (3, 2), (4, 2), (1, 4)], ids=str)
@pytest.mark.parametrize(("m", "n"), [(240, 240), (240, 160), (160, 240)])
def test_words_are_those_of_a_dry_run_and_of_the_formula(grid, m, n):
    size, program = grid[0] * grid[1], wandering(m, n, grid, 8)
    ran = pdla.run(size, program)
    dry = [pdla.dry_run(size, program, rank=rank)[0] for rank in range(size)]
    assert all(mine[i] == theirs[i] for mine, theirs in zip(ran, dry, strict=True) for i in (0, 1, 3))
    total, foretold = (sum(sum(words[:3]) for words in ranks) for ranks in (ran, dry))
    assert 0.9 < foretold / total < 1.1
    assert 0.9 < 8 * size * lu_words(m, n, grid, 8) / total < 1.1


@pytest.mark.parametrize(("ranks", "shape"), [(64, (8, 8)), (256, (16, 16)), (1024, (32, 32))])
def test_words_of_many_ranks(ranks, shape):
    """N^3 / (P sqrt S), with memory for S = N^2 / P words, is n^2 / sqrt(P); the least that LU can do with is 2/3 of it."""
    n, nb = 16384, 128 if ranks < 512 else 64
    bytes_ = [sum(pdla.dry_run(ranks, wandering(n, n, shape, nb), rank=rank)[0][:3]) for rank in (0, ranks // 2 + 3, ranks - 1)]
    assert max(bytes_) / 8 < 1.3 * n * n / ranks**0.5
    assert lu_words(n, n, shape, nb) < 1.15 * n * n / ranks**0.5


def test_whose_an_index_is():
    for here in range(3):
        mine = Dimension(20, 4, 3, here)
        indices = np.flatnonzero(mine.find_owners(np.arange(20)) == here)
        assert mine.find_places(indices).tolist() == list(range(len(indices))) and len(indices) == mine.tail[mine.count].stop
