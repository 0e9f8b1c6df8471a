"""The rule on the matrices' own grid, by its three schedules, against NumPy bit by bit; all combinations of cuts; bytes."""

import itertools

import numpy as np
import pytest
from helpers.covers import cover
from helpers.matmuls import DTYPES, LAYOUT, check_product, exact

import pdla
from pdla import Balanced, Cuts, Cyclic, Layout, ProcessGrid

RANKS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16)
SIZES = ((0, 3, 2), (3, 2, 0), (1, 1, 1), (13, 4, 17), (2, 3, 5), (24, 12, 36))
ALGORITHMS = ("gather", "summa", "cannon")


def grid_shapes(ranks):
    """Every factorisation in two for few ranks; for many, the squarest and the line."""
    shapes = [(p, ranks // p) for p in range(1, ranks + 1) if ranks % p == 0]
    return shapes if ranks <= 6 else [pdla.balanced_shape(ranks), (ranks, 1)]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("ranks", RANKS)
def test_bitwise_for_sizes_and_transposes(ranks, algorithm):
    """All four transposes, sizes 0, 1, primes and below the rank count, dtypes and grids: any two of them meet."""
    choices = grid_shapes(ranks), SIZES if ranks < 9 else SIZES[3:], ("NN", "TN", "NC", "CT"), DTYPES
    rows = list(cover(choices, [ranks, ALGORITHMS.index(algorithm)]))

    def program(comm):
        grids = {shape: ProcessGrid(shape) for shape in grid_shapes(ranks)}
        for shape, mnk, hows, dtype in rows:
            check_product(grids[shape], mnk, dtype, algorithm, *hows)

    pdla.run(ranks, program)


@pytest.mark.parametrize("algorithm", [*pdla.algorithms, "auto"])
@pytest.mark.parametrize("shape", [(1,), (1, 1), (2, 2), (1, 3), (2, 1, 2)], ids=str)
def test_beta_enters_once_where_k_is_empty(shape, algorithm):
    def program(comm):
        grid = ProcessGrid(shape)
        for cut, size in itertools.product(mixed_layouts(2, 2)[:5] if len(shape) > 1 else [Layout("row")], (3, 8)):
            A, B = (pdla.zeros(mn, grid, Layout()) for mn in ((size, 0), (0, 7)))
            C = pdla.from_global(np.full((size, 7), 2.0), grid, cut)
            pdla.gemm(5, A, B, -3, C, algorithm=algorithm)
            assert (C.gather() == -6).all(), (cut, size)

    pdla.run(int(np.prod(shape)), program)


@pytest.mark.parametrize("algorithm", pdla.algorithms)
def test_copies_of_c_are_alike_bit_by_bit(algorithm):
    """Every rank adds the same tiles in the same order, though its own is there first."""

    def program(comm):
        grid = ProcessGrid((4,))
        A = pdla.random((100, 48), grid, Layout(cols="row"), seed=1)
        B = pdla.random((48, 200), grid, Layout(), seed=2)
        assert pdla.matmul(A, B, algorithm=algorithm).check_copies()

    pdla.run(4, program)


@pytest.mark.parametrize("shape", [(33, 8), (100, 3), (200, 40)])
@pytest.mark.parametrize("cut", ["row", Cyclic("row", 4)])
@pytest.mark.parametrize("steps", [1, 2])
def test_copies_of_a_matrix_times_its_own_transpose_are_alike(shape, cut, steps):
    """Only a rank's own tiles of A and of A^T are the same memory, which NumPy would see, and add up in another order; and only
    they are copied for BLAS, where they have gaps."""

    def program(comm):
        A = pdla.random(shape, ProcessGrid((3,)), Layout(cut))
        A = pdla.from_local(np.repeat(A.local, steps, axis=1)[:, ::steps], shape, A.grid, A.layout)
        plan = pdla.plan_matmul(A, A.T, algorithm="gather", layout=Layout())
        assert plan.roles.copies and plan(A, A.T).check_copies()

    pdla.run(3, program)


def test_copies_of_c_are_alike_wherever_ranks_run():
    """One grid row lies on a node, the other across two, between which thin tiles would be put together."""

    def program(comm):
        comm.homes = [0, 0, 0, 0, 1, 1]
        grid, cols = ProcessGrid((2, 3)), Layout(cols="col")
        A, B = pdla.random((100, 60), grid, cols, seed=1), pdla.random((60, 900), grid, cols, seed=2)
        plan = pdla.plan_matmul(A, B, algorithm="gather", layout=cols)
        assert "row carries a copy" in str(plan.roles)
        assert plan(A, B).check_copies()

    pdla.run(6, program)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_cut_of_one_axis(algorithm):
    """A, B and C each cut along either of their dimensions or copied: 27 combinations, and the native layout of C."""

    def cut(dimension, rows, cols):
        return Layout("row") if dimension == rows else Layout(cols="row") if dimension == cols else Layout()

    def program(comm):
        grid = ProcessGrid((4,))
        for (m, n, k), a, b, c in itertools.product(((13, 9, 11), (2, 3, 1)), "mk-", "kn-", "mn-"):
            A, B = exact((m, k), grid, cut(a, "m", "k"), seed=1), exact((k, n), grid, cut(b, "k", "n"), seed=2)
            for wanted in (cut(c, "m", "n"), "native"):
                C = pdla.matmul(A, B, algorithm=algorithm, layout=wanted, panel=2)
                assert np.array_equal(C.gather(), A.gather() @ B.gather()), (m, n, k, a, b, wanted)
                assert C.check_copies() and (wanted == "native" or C.layout == wanted)

    pdla.run(4, program)


def mixed_layouts(p, q):
    """Nestings, kinds and boundaries that do not match each other, for 12 x 12 matrices on a p x q grid."""
    uneven = (0, 1, *(5 for _ in range(p - 2)), 12)
    return [
        LAYOUT, Layout("col", "row"), Layout(("row", "col")), Layout(cols=("col", "row")), Layout(("col", "row")),
        Layout(Cyclic("row", 2), Cyclic("col", 3)), Layout(Cyclic("col", 1), Cyclic("row", 5, 1)), Layout(), Layout("row"),
        Layout(cols="row"), Layout(Cuts("row", uneven), "col"), Layout("col", Cuts("row", uneven)),
        Layout(Balanced(("row", "col"), 3)), Layout("row", partial="col"),
    ]


MIXED = [(2, 2), (2, 3), (3, 2, 2)]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("shape", MIXED, ids=str)
def test_mismatched_layouts(shape, algorithm):
    """Any two of A's, B's and C's layouts meet, each such three by one algorithm on one grid."""
    part = MIXED.index(shape) * len(ALGORITHMS) + ALGORITHMS.index(algorithm)
    rows = list(cover([range(len(mixed_layouts(2, 2)))] * 3, 0))[part :: len(MIXED) * len(ALGORITHMS)]

    def program(comm):
        grid, layouts = ProcessGrid(shape), mixed_layouts(*shape[:2])
        for a, b, c in [[layouts[i] for i in row] for row in rows]:
            A, B, c = exact((12, 12), grid, a, seed=1), exact((12, 12), grid, b, seed=2), c.summed
            expected = A.gather() @ B.gather()
            C = pdla.matmul(A, B, algorithm=algorithm, layout=c, panel=4)
            assert np.array_equal(C.gather(), expected) and C.check_copies(), (a, b, c)
            pdla.gemm(-2, A, B, 3, C, algorithm=algorithm)
            assert np.array_equal(C.gather(), expected), (a, b, c, "beta")

    pdla.run(int(np.prod(shape)), program)


def test_tesseract_and_cube_layouts():
    """Activations cut over depth and row, weights copied or cut over depth; the 3-D cube: forward, dX and dW."""
    tesseract = Layout(("depth", "row"), "col")
    cases = [
        ((2, 2, 3), tesseract, LAYOUT, tesseract),
        ((2, 2, 3), tesseract, Layout(("row", "depth"), "col"), tesseract),
        ((2, 3, 2), Layout(("row", "col"), "depth"), Layout(("depth", "row"), "col"), Layout(("row", "depth"), "col")),
    ]

    def program(comm, shape, x, w, y):
        grid = ProcessGrid(shape)
        X, W, dY = exact((29, 17), grid, x, seed=1), exact((17, 23), grid, w, seed=2), exact((29, 23), grid, y, seed=3)
        for A, B, layout in ((X, W, y), (dY, W.T, x), (X.T, dY, w)):
            for algorithm in ALGORITHMS:
                C = pdla.matmul(A, B, layout=layout, algorithm=algorithm, panel=3)
                assert np.array_equal(C.gather(), A.gather() @ B.gather()) and C.check_copies(), (algorithm, layout)

    for case in cases:
        pdla.run(12, program, *case)


def test_idle_ranks_and_integers():
    def program(comm):
        grid = ProcessGrid((2, 2))
        for dtype, algorithm in itertools.product((np.int8, np.int64, np.float64), ALGORITHMS):
            A, B = exact((6, 5), grid, LAYOUT, dtype, 1), exact((5, 4), grid, LAYOUT, dtype, 2)
            C = pdla.matmul(A, B, algorithm=algorithm)
            assert C.dtype == dtype and np.array_equal(C.gather(), A.gather() @ B.gather())
        C = A @ B.astype(np.complex64)
        assert C.dtype == np.complex128

    pdla.run(7, program)


def test_random_data_within_the_componentwise_bound():
    def program(comm, algorithm):
        grid = ProcessGrid((2, 3))
        A = pdla.random((50, 70), grid, LAYOUT, seed=1, distribution="normal")
        B = pdla.random((70, 40), grid, LAYOUT, seed=2, distribution="normal")
        a, b = A.gather(), B.gather()
        error = np.abs(pdla.matmul(A, B, algorithm=algorithm).gather() - a @ b)
        assert (error <= 2 * (70 + 6) * np.finfo(float).eps * (np.abs(a) @ np.abs(b))).all()

    for algorithm in ALGORITHMS:
        pdla.run(6, program, algorithm)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (2, 2), (2, 3), (3, 4), (4, 2)], ids=str)
def test_bytes_recorded_copied_dry_and_by_formula(shape, algorithm):
    m, n, k = 120, 180, 60  # divisible by every axis, and with so little k that C stays

    def product(comm):
        grid = ProcessGrid(shape)
        A, B = pdla.zeros((m, k), grid, LAYOUT), pdla.zeros((k, n), grid, LAYOUT)
        before = getattr(comm, "world", None) and comm.world.bytes_copied[comm.rank]
        with pdla.record() as ledger:
            pdla.matmul(A, B, algorithm=algorithm, panel=100)
        copied = None if before is None else comm.world.bytes_copied[comm.rank] - before
        return ledger.bytes_received, ledger.messages, copied

    ranks = int(np.prod(shape))
    real = pdla.run(ranks, product)
    assert all(recorded == copied for recorded, _, copied in real)
    dry = [pdla.dry_run(ranks, product, rank=rank)[0][:2] for rank in range(ranks)]
    assert dry == [figures[:2] for figures in real]
    assert max(recorded for recorded, _, _ in real) == 8 * pdla.matmul_words(algorithm, m, n, k, shape)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_dry_equals_real_on_ragged_sizes_and_transposes(algorithm):
    def product(comm, hows):
        grid = ProcessGrid((2, 3))
        A, B = pdla.zeros((7, 7), grid, LAYOUT), pdla.zeros((7, 7), grid, LAYOUT)
        with pdla.record() as ledger:
            pdla.matmul(A.T if hows[0] == "T" else A, B.T if hows[1] == "T" else B, algorithm=algorithm, panel=2)
        return ledger.bytes_received, ledger.messages, ledger.flops

    for hows in ("NN", "NT", "TN", "TT"):
        assert pdla.run(6, product, hows) == [pdla.dry_run(6, product, hows, rank=rank)[0] for rank in range(6)]


def test_a_million_ranks_dry():
    def program(comm):
        grid = ProcessGrid((1000, 1000))
        A = pdla.zeros((10**6, 10**6), grid, LAYOUT)
        return pdla.matmul(A, A, algorithm="summa", panel=1000)

    C, ledger = pdla.dry_run(10**6, program)
    assert C.stored.shape == (1000, 1000)
    assert ledger.bytes_received == 8 * pdla.matmul_words("summa", 10**6, 10**6, 10**6, (1000, 1000))
