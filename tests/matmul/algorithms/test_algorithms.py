"""Algorithms with grids of their own against NumPy bit by bit; words by formula."""

import itertools

import numpy as np
import pytest
from helpers.matmuls import DTYPES, LAYOUT, check_product, exact

import pdla
from pdla import Balanced, Cyclic, Layout, ProcessGrid
from pdla.matmul.algorithms import NAMED as BY_NAME

NAMED = ("3d", "2.5d", "tesseract", "a-stationary", "b-stationary", "c-stationary")
SIZES = ((0, 3, 2), (3, 2, 0), (1, 1, 1), (13, 4, 17), (2, 3, 5), (24, 12, 36))


@pytest.mark.parametrize("algorithm", [*NAMED, "auto"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16])
def test_bitwise_for_sizes_and_transposes(ranks, algorithm):
    def program(comm):
        turns = itertools.cycle(DTYPES)
        grid = ProcessGrid(pdla.balanced_shape(ranks))
        for mnk, hows in zip(itertools.cycle(SIZES), ("NN", "TN", "NC", "CT") * (3 if ranks < 9 else 1), strict=False):
            check_product(grid, mnk, next(turns), algorithm, *hows)

    pdla.run(ranks, program)


BOXES = [("3d", (2, 3, 2), s) for s in ("gather", "summa", "cannon")] + [("2.5d", (2, 2, 3), s) for s in ("summa", "cannon")]
BOXES += [("tesseract", (2, 3, 2), None), ("tesseract", (1, 3, 4), None), ("a-stationary", (3, 1, 4), None)]
BOXES += [("b-stationary", (1, 3, 4), None), ("c-stationary", (4, 3, 1), None), ("3d", (1, 1, 11), "gather")]
BOXES += [("3d", (1, 11, 1), "summa")]


@pytest.mark.parametrize(("algorithm", "box", "schedule"), BOXES)
def test_boxes_from_and_to_any_layout(algorithm, box, schedule):
    """A fixed box, A, B and C in layouts that are not its own, C kept where beta asks, ranks left idle."""
    layouts = [LAYOUT, Layout("col"), Layout(Cyclic("row", 2), Cyclic("col", 3)), Layout(), Layout(Balanced(("row", "col"), 3))]

    def program(comm):
        grid, draw = ProcessGrid((3, 4)), np.random.default_rng(3)
        for _ in range(6):
            a, b, c = (layouts[i] for i in draw.integers(0, len(layouts), 3))
            A, B = exact((17, 11), grid, a, seed=1), exact((11, 14), grid, b, seed=2)
            expected = A.gather() @ B.gather()
            options = {"algorithm": algorithm, "box": box, "schedule": schedule, "panel": 2}
            C = pdla.matmul(A, B, layout=c, **options)
            assert np.array_equal(C.gather(), expected) and C.check_copies() and C.layout == c, (a, b, c)
            pdla.matmul(A, B, out=C, alpha=-2, beta=3, **options)
            assert np.array_equal(C.gather(), expected) and C.check_copies(), (a, b, c, "beta")

    pdla.run(12, program)


def test_matrices_on_different_grids():
    def program(comm):
        one, two, three = ProcessGrid((2, 3)), ProcessGrid((5,)), ProcessGrid((2, 2), order=(3, 1, 0, 2))
        A, B = exact((9, 7), one, LAYOUT, seed=1), exact((7, 8), two, Layout("row"), seed=2)
        C = pdla.zeros((9, 8), three, LAYOUT)
        expected = A.gather() @ B.gather()
        pdla.matmul(A, B, out=C)
        assert np.array_equal(C.gather(), expected) and np.array_equal((A @ B).gather(), expected)

    pdla.run(6, program)


def test_to_a_grid_with_the_same_names_and_layouts_but_other_ranks():
    def program(comm):
        grid = ProcessGrid((2, 2, 2), order=(7, 2, 5, 0, 3, 6, 1, 4))
        layout = Layout(("depth", "row"), "col")
        A, B, C = (exact((12, 12), grid, layout, seed=seed) for seed in range(3))
        expected = A.gather() @ B.gather()
        for _ in range(2):
            pdla.matmul(A, B, algorithm="tesseract", box=(1, 2, 4), out=C)
            assert np.array_equal(C.gather(), expected)

    pdla.run(8, program)


FORMULA = [(*each, (24, 36, 48)) for each in (
    ("3d", (2, 3, 2)), ("3d", (1, 3, 4)), ("2.5d", (2, 2, 3)), ("tesseract", (2, 2, 3)), ("a-stationary", (3, 1, 4)),
    ("b-stationary", (1, 4, 3)), ("c-stationary", (4, 3, 1)),
)]
TURNED = [("3d", (1, 4, 1), (100, 8, 3)), ("3d", (4, 1, 1), (8, 100, 3)), ("3d", (1, 1, 10), (3, 100, 40))]  # A, B and C


@pytest.mark.parametrize(("algorithm", "box", "mnk"), FORMULA + TURNED)
def test_words_recorded_copied_dry_and_by_formula(algorithm, box, mnk):
    """From the algorithm's own layouts: nothing is converted, and every rank receives what the formula says."""
    m, n, k = mnk
    table = next(iter(BY_NAME[algorithm].list_tables(box))).even_faces(m, n, k)

    def program(comm):
        grid = ProcessGrid(table.shape, table.axes)
        A, B = pdla.zeros((m, k), grid, table.A), pdla.zeros((k, n), grid, table.B)
        C = pdla.zeros((m, n), grid, table.C)
        world = getattr(comm, "world", None)
        before = world and world.bytes_copied[comm.rank]
        with pdla.record() as ledger:
            pdla.matmul(A, B, algorithm=algorithm, box=box, out=C)
        return ledger.bytes_received, ledger.messages, world and world.bytes_copied[comm.rank] - before

    real = pdla.run(12, program)
    assert all(recorded == copied for recorded, _, copied in real)
    assert [pdla.dry_run(12, program, rank=rank)[0][:2] for rank in range(12)] == [figures[:2] for figures in real]
    assert max(recorded for recorded, _, _ in real) == 8 * pdla.matmul_words(algorithm, m, n, k, box)


def test_predicted_is_measured_with_conversions():
    def program(comm, ranks, mnk):
        grid = ProcessGrid(pdla.balanced_shape(ranks))
        m, n, k = mnk
        A, B = exact((m, k), grid, LAYOUT, seed=1), exact((k, n), grid, LAYOUT, seed=2)
        C = pdla.zeros((m, n), grid, LAYOUT)
        for algorithm in ("3d", "2.5d", "auto"):
            planned = pdla.plan_matmul(A, B, out=C, algorithm=algorithm)
            with pdla.record() as ledger:
                planned(A, B, out=C)
            total, cost = ledger.total(comm), planned.predicted
            assert cost.bytes_received == total["max_bytes_received"], planned.explain()
            assert cost.messages == total["max_messages"], planned.explain()
            # Over MPI what has gaps is packed to be sent, in threads it is not.
            assert total["max_peak_workspace"] <= cost.peak_workspace, planned.explain()
        return planned.explain()

    for ranks, mnk in ((5, (30, 20, 40)), (8, (7, 90, 11)), (12, (16, 16, 400))):
        explained = pdla.run(ranks, program, ranks, mnk)[0]
        assert "bound" in explained and "next" in explained and "time" in explained


@pytest.mark.parametrize("algorithm", pdla.algorithms)
def test_sixteen_bit_floats_are_summed_in_float32(algorithm):
    """Small integers stay exact; 1 + 2048 ones, which float16 could not add up one by one, too."""
    ml_dtypes = pytest.importorskip("ml_dtypes")

    def program(comm):
        grid = ProcessGrid((2, 3))
        for dtype in (np.float16, ml_dtypes.bfloat16):
            check_product(grid, (5, 7, 6), dtype, algorithm)
            check_product(grid, (3, 4, 6), dtype, algorithm, "T", "T")
        A, B = (pdla.ones(shape, grid, LAYOUT, dtype=np.float16) for shape in ((3, 3000), (3000, 4)))
        C = pdla.matmul(A, B, algorithm=algorithm, panel=100)
        assert C.dtype == np.float16 and (C.gather() == 3000).all()

    pdla.run(6, program)
