"""The rule on the matrices' own grid, by its three schedules, against NumPy bit by bit; all combinations of cuts; bytes."""

import itertools
from dataclasses import fields
from math import inf
from types import SimpleNamespace
from unittest.mock import patch

import ml_dtypes
import numpy as np
import pytest
from matmuls import DTYPES, LAYOUT, check_product, exact

import pdla
from pdla import Balanced, Cuts, Cyclic, Layout, ProcessGrid, config
from pdla.comm.collectives import ring
from pdla.comm.threads import ThreadComm
from pdla.indices import IndexSet
from pdla.matmul import planner
from pdla.matmul.builder import PlanBuilder
from pdla.matmul.choose.problem import Operand
from pdla.matmul.options import Options
from pdla.matmul.roles import Roles, choose
from pdla.matmul.schedules import gather, streams, summa, walk
from pdla.matmul.schedules.streams import PlanCache, Sink
from pdla.model.machine import Machine

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
    """All four transposes, sizes 0, 1, primes and below the rank count; dtypes in turn, so that each meets each."""

    def program(comm):
        turns = itertools.cycle(DTYPES)
        for shape in grid_shapes(ranks):
            grid = ProcessGrid(shape)
            for mnk, hows in itertools.product(SIZES if ranks < 9 else SIZES[3:], ("NN", "TN", "NC", "CT")):
                check_product(grid, mnk, next(turns), algorithm, *hows)
            next(turns)

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


@pytest.mark.parametrize("algorithm", ["gather", "summa", "cannon"])
def test_what_a_local_product_needs_besides_is_foretold(algorithm):
    """Integers are multiplied apart from C where they are added to it, 16-bit floats in float32."""

    def program(comm, dtype, beta):
        grid = ProcessGrid((2, 2))
        A, B, C = (exact((40, 40), grid, LAYOUT, seed=seed).astype(dtype) for seed in (1, 2, 3))
        wanted = A.gather() @ B.gather() + beta * C.gather()
        plan = pdla.plan_matmul(A, B, out=C, beta=beta, algorithm=algorithm)
        with pdla.record() as ledger:
            plan(A, B, out=C, beta=beta)
        assert np.array_equal(C.gather(), wanted)
        assert plan.predicted.peak_workspace == ledger.total(comm)["max_peak_workspace"] <= plan.workspace.held
        return plan.predicted.peak_workspace

    floats, whole, halves = (pdla.run(4, program, dtype, 1)[0] for dtype in (float, "int64", "float16"))
    assert whole == floats + 8 * 20 * 20
    assert halves >= floats // 4 + 2 * 4 * 20 * 20


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


def test_a_plan_knows_the_sizes_of_its_product():
    def program(comm):
        grid = ProcessGrid((2, 2))
        A, B = pdla.ones((7, 5), grid, Layout("row", "col")), pdla.ones((7, 3), grid, Layout("row"))
        assert pdla.plan_matmul(A.T, B).mnk == pdla.plan_matmul(A.T, B, out=pdla.zeros((5, 3), grid, Layout())).mnk == (5, 3, 7)

    pdla.run(4, program)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("schedule", ["gather", "summa", "cannon", "shared"])
def test_sixteen_bits_are_rounded_once_wherever_c_lies(schedule, dtype):
    """70000 is infinite in float16, and rounded in bfloat16."""

    def program(comm):
        grid, other = ProcessGrid((2, 2)), ProcessGrid((4,))
        A = pdla.ones((4, 7), grid, LAYOUT, dtype=dtype) * 100
        B = pdla.ones((7, 8), grid, LAYOUT, dtype=dtype) * 100
        for C in (pdla.ones((4, 8), where, layout, dtype=dtype) for where, layout in ((grid, LAYOUT), (other, Layout("row")))):
            C *= 30000
            wanted = (70000 - 2 * C.gather().astype(float)).astype(C.dtype)
            plan = pdla.plan_matmul(A, B, out=C, beta=-2, algorithm="3d", box=(2, 1, 2), schedule=schedule)
            with pdla.record() as ledger:
                plan(A, B, out=C, beta=-2)
            assert np.array_equal(C.gather(), wanted), C
            assert ledger.total(comm)["max_peak_workspace"] <= plan.predicted.peak_workspace

    pdla.run(4, program)


@pytest.mark.parametrize(("dtype", "view"), [(complex, pdla.DistMatrix.conj), (np.float32, pdla.DistMatrix.conj)])
def test_conjugates_and_other_dtypes_are_copied_within_the_promise(dtype, view):
    def program(comm):
        grid = ProcessGrid((2, 2))
        A, B = view(exact((60, 60), grid, LAYOUT, dtype)), exact((60, 60), grid, LAYOUT, complex, 2)
        plan = pdla.plan_matmul(A, B, algorithm="summa", panel=2)
        with pdla.record() as ledger:
            C = plan(A, B)
        assert np.array_equal(C.gather(), A.gather() @ B.gather())
        assert plan.predicted.peak_workspace == ledger.total(comm)["max_peak_workspace"] > 16 * 60 * 60 / 4
        with pytest.raises(pdla.errors.PlanError, match="bytes too few"):
            pdla.plan_matmul(A, B, algorithm="summa", memory_limit=16 * 60 * 60 // 4)

    pdla.run(4, program)


@pytest.mark.parametrize("lying", [np.s_[::2, ::2], np.s_[::-1], np.s_[:, ::-1], np.s_[::2], np.s_[:1, ::2]], ids=str)
def test_blocks_that_no_blas_takes_are_copied_within_the_promise(lying):
    block = np.arange(40.0 * 40).reshape(40, 40)[lying]

    def program(comm):
        A = pdla.from_local(block, block.shape, ProcessGrid(1), Layout())
        plan = pdla.plan_matmul(A.T, A[:, :7])
        with pdla.record() as ledger:
            C = plan(A.T, A[:, :7])
        assert np.array_equal(C.local, block.T @ block[:, :7])
        copied = 0 if lying == np.s_[::2] else 8 * len(block) * (block.shape[1] + 7)
        assert ledger.peak_workspace <= plan.predicted.peak_workspace == copied

    pdla.run(1, program)


@pytest.mark.parametrize("algorithm", ["gather", "cannon", "3d"])
@pytest.mark.parametrize("part", [lambda A: A[3:17, :], lambda A: A.T[:, 3:17], lambda A: A[3:17, 0:20], lambda A: A.copy()[:, :]])
def test_whole_rows_have_no_gaps_to_be_packed(part, algorithm):
    def program(comm):
        A = part(exact((20, 20), ProcessGrid((2, 2)), LAYOUT))
        A, B = (A, A.T) if A.shape[0] <= A.shape[1] else (A.T, A)
        plan = pdla.plan_matmul(A, B, algorithm=algorithm, panel=10)
        with pdla.record() as ledger:
            plan(A, B)
        assert plan.predicted.peak_workspace == ledger.total(comm)["max_peak_workspace"]

    pdla.run(4, program)


@pytest.mark.parametrize("algorithm", pdla.algorithms)
def test_plans_of_a_grid_end_with_it(algorithm):
    """A grid made like one that is closed has plans of its own."""

    def program(comm):
        for turn in range(2):
            with ProcessGrid((2, 2)) as grid:
                A, B = exact((8, 8), grid, LAYOUT, seed=turn), exact((8, 8), grid, Layout("col", "row"), seed=2)
                for layout in (None, Layout(("row", "col")), "native"):
                    C = pdla.matmul(A, B, algorithm=algorithm, layout=layout)
                    assert np.array_equal(C.gather(), A.gather() @ B.gather()), layout

    pdla.run(4, program)


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("algorithm", pdla.algorithms)
def test_a_product_on_a_closed_grid_is_an_error_before_any_message(algorithm, made):
    """The idle rank found the grid closed one message later than the others: the next call was an error, too, or a deadlock."""

    def program(comm):
        with ProcessGrid(2) as grid:
            A = exact((4, 4), grid, Layout(cols="row"))
            plan = pdla.plan_matmul(A, A, layout=Layout("row"), algorithm=algorithm)
        with pytest.raises(pdla.errors.GridError, match="is closed: redistribute"):
            plan(A, A) if made else pdla.matmul(A, A, layout=Layout("row"), algorithm=algorithm)
        again = ProcessGrid(2)
        B = A.redistribute(Layout("row"), again)
        assert np.array_equal((B @ B).gather(), A.gather() @ A.gather())
        with pytest.raises(pdla.errors.GridError, match="is closed: redistribute"):
            plan(B.redistribute(A.layout), A)

    pdla.run(3, program)


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


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("shape", [(2, 2), (2, 3), (3, 2, 2)], ids=str)
def test_mismatched_layouts(shape, algorithm):
    def program(comm):
        grid, draw = ProcessGrid(shape), np.random.default_rng(5)
        layouts = mixed_layouts(*shape[:2])
        for _ in range(60):
            a, b, c = (layouts[i] for i in draw.integers(0, len(layouts), 3))
            A, B, c = exact((12, 12), grid, a, seed=1), exact((12, 12), grid, b, seed=2), c.summed
            expected = A.gather() @ B.gather()
            C = pdla.matmul(A, B, algorithm=algorithm, layout=c, panel=4)
            assert np.array_equal(C.gather(), expected) and C.check_copies(), (a, b, c)
            pdla.gemm(-2, A, B, 3, C, algorithm=algorithm)
            assert np.array_equal(C.gather(), expected), (a, b, c, "beta")

    pdla.run(int(np.prod(shape)), program)


TURNED = LAYOUT.T


@pytest.mark.parametrize(
    ("a", "b", "c"),
    [
        (LAYOUT, LAYOUT, LAYOUT),
        (TURNED, LAYOUT, TURNED),  # A^T B: `row` cuts k alone
        (LAYOUT, TURNED, LAYOUT),  # A B^T
        (Layout("row"), Layout(cols="row"), Layout("row")),  # no axis is left over
        (Layout(cols="row"), Layout("row"), Layout()),  # nothing is to be cut along it
        (TURNED, Layout("row", Cyclic("col", 3, 1)), Layout("col", Cyclic("row", 3))),
        (TURNED, Layout("row", Balanced("col", 4)), Layout("col", Balanced("row", 4))),
        (TURNED, Layout("row", Cuts("col", (0, 5, 6, 12))), TURNED),
        (Layout("col", ("row", "depth")), Layout(("row", "depth"), "col"), TURNED),
        (Layout("col"), Layout("depth", ("row", "col")), Layout("col", ("row", "depth"))),
        (Layout(("row", "col")), Layout("depth", ("row", "col")), Layout(("row", "col"), "depth")),
    ],
)
def test_the_layout_of_a_product_where_none_is_asked_for(a, b, c):
    def program(comm):
        grid = ProcessGrid((2, 3, 2), ("row", "col", "depth"), comm)
        A, B = exact((12, 24), grid, a), exact((24, 12), grid, b)
        C = A @ B
        assert C.layout == c and np.array_equal(C.gather(), A.gather() @ B.gather())

    pdla.run(12, program)


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


@pytest.mark.parametrize(
    ("k", "cut", "nodes", "products"),
    [
        (600, Balanced("row"), 1, 1),
        (600, Balanced("row"), 4, 4),  # tiles of 75 rows, of which two together are wide enough
        (1000, Balanced("row"), 4, 4),
        (3, Balanced("row"), 4, 1),  # most have none
        (0, Balanced("row"), 4, 0),
        (600, Cyclic("row", 5), 4, 1),  # interleaved
        (900, Cuts("row", (0, 0, 100, 150, 150, 270, 398, 400, 900)), 4, 6),  # one is wide by itself: none is put together
        (500, Cuts("row", (0, 0, 100, 150, 150, 270, 398, 400, 500)), 4, 2),  # what is left after 398 would be thin again
    ],
)
def test_thin_tiles_of_b_are_multiplied_together_and_between_nodes_while_others_come(monkeypatch, k, cut, nodes, products):
    groups = gather._groups
    monkeypatch.setattr(gather, "_groups", lambda tiles, *_: groups(tiles, nodes, 0.0))

    def program(comm):
        grid = ProcessGrid((8,))
        A, B = exact((2003, k), grid, Layout("row"), seed=1), exact((k, 9), grid, Layout(rows=cut), seed=2)
        expected = A.gather() @ B.gather()
        plan = pdla.plan_matmul(A, B, algorithm="gather", layout=A.layout)
        with pdla.record() as ledger:
            C = plan(A, B)
        assert np.array_equal(C.gather(), expected)
        return sum(event.what == "gemm" for event in ledger.events)

    assert pdla.run(8, program) == [products] * 8


@pytest.mark.parametrize(
    ("n", "k", "nodes", "products"),
    [
        (40, 64, 4, 1),  # 8 tiles of A of 8 columns, all of B here
        (40, 64, 1, 8),  # one node: each by itself
        (40, 640, 4, 8),  # tiles wider than C
        (200, 640, 4, 4),  # of 80 columns, of which two together are wide enough
        (40, 3, 4, 1),
        (40, 0, 4, 0),
    ],
)
def test_thin_tiles_of_a_are_multiplied_together_between_nodes(n, k, nodes, products):
    roles = Roles((("row", "k"),), Layout(), Layout(), Layout())

    def program(comm):
        comm.homes = [r * nodes // 8 for r in range(8)]
        grid = ProcessGrid((8,))
        A, B = exact((1003, k), grid, Layout(cols="row"), seed=1), exact((k, n), grid, Layout(), seed=2)
        turned = exact((k, 1003), grid, Layout("row"), seed=3).T
        done = []
        for X in (A, turned):
            sink = Sink(comm.xp, np.full((1003, n), np.nan), 1, 0)
            with pdla.record() as ledger:
                gather.run(X, B, roles, sink, PlanCache(), Machine(network=1e3))
            assert np.array_equal(sink.block, X.gather() @ B.gather())
            done.append(sum(event.what == "gemm" for event in ledger.events))
        return done

    assert pdla.run(8, program) == [[products, min(k, 8)]] * 8  # tiles of a transpose are not joined


def test_a_panel_is_as_wide_as_the_call_says_else_the_plan():
    def program(comm):
        A = pdla.zeros((4000, 4000), ProcessGrid((2, 2), comm=comm), LAYOUT)
        return [pdla.plan_matmul(A, A, algorithm="summa", panel=panel).panel for panel in (3, None)]

    assert pdla.dry_run(4, program)[0] == [3, 512]


def test_before_a_panel_is_given_the_next_three_are_started():
    begun = []
    assert [(panel, len(begun)) for panel, _ in summa.started(begun.append, range(5))] == [(0, 4), (1, 5), (2, 5), (3, 5), (4, 5)]


def test_a_walk_counts_the_words_of_whole_panels_of_its_ranks_rows_and_columns():
    sizes, mnk = {"row": 2, "col": 4}, (12, 20, 8)
    met, _ = choose(LAYOUT, LAYOUT, LAYOUT, *mnk, tuple(sizes.items()))
    assert walk.choose(LAYOUT, LAYOUT, LAYOUT, met, sizes, mnk).words == 12 * 8 / 2 + 8 * 20 / 4
    assert walk.choose(LAYOUT, LAYOUT, LAYOUT, met, sizes, mnk, "m").words == 0
    turned = Roles((("row", "k"), ("col", "n")), Layout(cols="row"), LAYOUT, Layout(cols="col", partial="row"))
    found = walk.choose(LAYOUT.T, LAYOUT, LAYOUT, turned, sizes, mnk)
    assert (found.dimension, found.words) == ("m", 12 * 8 / 2 + 12 * 20 / 4)


@pytest.mark.parametrize(
    "pace, widths",
    [
        (0.0, [128] * 5),
        (1.6, [128, 208, 304]),  # 204.8 come meanwhile, then 332.8 would
        (1.0, [128] * 5),
        (4.5, [128, 512]),
        (3.5, [128, 512]),  # the 64 after 448 are too few to go over C for
        (inf, [128, 512]),
    ],
)
def test_groups_of_tiles_grow_as_the_network_outruns_the_products(pace, widths):
    tiles = {r: IndexSet.interval(i * 16, i * 16 + 16) for i, r in enumerate(reversed(range(40)))}
    groups = gather._groups(tiles, 8, pace)
    assert [len(part) for _, part in groups] == widths
    assert [r for ranks, _ in groups for r in ranks] == list(range(40))[::-1]
    assert [len(part) for _, part in gather._groups(tiles, 1, pace)] == [640]


def test_plans_are_made_for_the_machine_that_is_told(tmp_path):
    """And kept for it alone."""
    slow = tmp_path / "slow.toml"
    slow.write_text(Machine(flops=1.0).text())

    def program(comm):
        A = pdla.zeros((8, 8), ProcessGrid((1, 1)), LAYOUT)
        usual = pdla.plan_matmul(A, A)
        with config.override(machine=str(slow)):
            assert pdla.plan_matmul(A, A).predicted.seconds == 2 * 8**3
        assert pdla.plan_matmul(A, A) is usual
        return usual.predicted.seconds

    assert pdla.run(1, program)[0] < 1e-6


OTHER = {"machine": "a100x4", "array": "cupy", "gpu_mpi": "off", "blas": "another"}


@pytest.mark.parametrize("setting", [each.name for each in fields(config.Settings)])
def test_a_plan_kept_under_other_settings_is_not_found_where_a_new_one_would_differ(setting):
    usual = getattr(config.settings, setting)
    other = OTHER.get(setting, not usual if isinstance(usual, bool) else type(usual)(8))

    def plans(comm):
        A = pdla.zeros((512, 512), ProcessGrid((1, 4), comm=comm), LAYOUT)
        return [pdla.plan_matmul(A, A, algorithm=algorithm).explain() for algorithm in ("gather", "summa", "cannon", "3d", "2.5d")]

    def program(comm):
        before = plans(comm)
        with config.override(**{setting: other}):
            found, made = plans(comm), pdla.dry_run(4, plans)[0]
        assert found == made and plans(comm) == before
        return found != before

    assert pdla.dry_run(4, program)[0] == (setting == "machine")


@pytest.mark.parametrize("adds", [True, False])
def test_a_plan_foretells_sums_as_this_world_can_send_them(adds, monkeypatch):
    """On GPUs none goes from node to node."""
    monkeypatch.setattr(ThreadComm, "adds", adds)

    def program(comm):
        comm.homes = [r // 4 for r in range(8)]
        grid = ProcessGrid((8,))
        A, B = pdla.zeros((400, 2000), grid, Layout(cols="row")), pdla.zeros((2000, 400), grid, Layout("row"))
        plan = pdla.plan_matmul(A, B, algorithm="gather", layout=Layout("row"))
        with pdla.record() as ledger:
            plan(A, B)
        assert plan.predicted.messages == ledger.total(comm)["max_messages"]
        return any(event.way == "pipeline" for event in ledger.events)

    assert pdla.run(8, program) == 8 * [adds]


def test_another_machine_makes_another_choice(tmp_path):
    """Where messages cost nothing words alone decide; what each keeps a rank busy counts, not what passes for all at once."""
    prompt, late = tmp_path / "prompt.toml", tmp_path / "late.toml"
    prompt.write_text(Machine(latency=0.0).text())
    late.write_text(Machine(gap=2e-6, latency=1.0).text())
    shapes = []
    for machine in ("", str(late), str(prompt)):
        with config.override(machine=machine):
            shapes += pdla.run(16, lambda comm: pdla.native_layouts(1000, 64, 64).grid.shape)[:1]
            assert pdla.predict_matmul(1000, 64, 64, 16).grid == shapes[-1]
    assert shapes == [(4, 2, 2), (4, 2, 2), (16, 1, 1)]


def test_a_machine_that_is_none_is_an_error_on_every_rank():
    def program(comm):
        with pytest.raises(FileNotFoundError, match="PDLA_MACHINE: no machine 'v100x9'"):
            pdla.native_layouts(8, 8, 8)
        A = pdla.zeros((8, 8), ProcessGrid((2, 1)), LAYOUT)
        with pytest.raises(FileNotFoundError, match="no machine 'v100x9'"):
            A @ A
        return True

    with config.override(machine="v100x9"):
        assert all(pdla.run(2, program))


def test_a_node_receives_by_one_link_what_its_ranks_multiply():
    machine = Machine(flops=1e9, network=1e6, memory=1e12, call=0.0)
    comms = [SimpleNamespace(size=8, nodes=nodes) for nodes in (8, 2)]
    pace = [gather._pace(100, 50, 50, comm, np.dtype("float64"), machine) for comm in comms]
    assert pace == pytest.approx([1e-5 / 4e-4, 1e-5 / 1e-4])


@pytest.mark.parametrize("nodes", [1, 4, 8])
def test_a_plan_foresees_what_is_put_together_between_nodes(nodes):
    def program(comm):
        comm.homes = [r * nodes // 8 for r in range(8)]
        grid = ProcessGrid((2, 4))
        A, B = exact((200, 64), grid, LAYOUT, seed=1), exact((64, 240), grid, LAYOUT, seed=2)
        plan = pdla.plan_matmul(A, B, algorithm="gather")
        with pdla.record() as ledger:
            plan(A, B)
        return plan.predicted.peak_workspace, ledger.peak_workspace

    figures = pdla.run(8, program)
    assert all(peak <= promised for promised, peak in figures), figures


@pytest.mark.parametrize("rows", [slice(0, 3), slice(2, 6, 1), slice(0, 6, 2), slice(None), np.array([0, 1, 4])], ids=str)
@pytest.mark.parametrize("cols", [slice(0, 4), slice(1, 4), slice(0, 4, 2), slice(None), np.array([0, 1, 2, 3])], ids=str)
def test_what_has_gaps_is_known_without_strides(rows, cols):
    """A dry run foresees the memory through which messages into parts with gaps go."""
    whole = np.zeros((6, 4))
    views = isinstance(rows, slice) and isinstance(cols, slice)
    assert streams._gapless(whole.shape, rows, cols) == (views and whole[rows, cols].flags.c_contiguous)


# ---------------------------------------------------------------------------------------------- bytes


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


@pytest.mark.parametrize(
    ("algorithm", "sizes", "grid", "match"),
    [
        ("summa", (10, 10, 10), (2, 2, 2), "summa takes a grid of 2 axes"), ("summa", (10, 10, 10), 4, "grid=4"),
        ("tesseract", (10, 10, 10), (2, 2), "tesseract takes a grid of 3 axes"), ("gather", (10, 10, 10), (2, 0), r"grid=\(2, 0\)"),
        ("3d", (10, -1, 10), (2, 2, 2), "n=-1"), ("sum", (10, 10, 10), (2, 2), "one of gather, .*, shared"),
    ],
)
def test_words_of_what_is_no_grid_of_an_algorithm(algorithm, sizes, grid, match):
    with pytest.raises(pdla.errors.PlanError, match=match):
        pdla.matmul_words(algorithm, *sizes, grid)


@pytest.mark.parametrize(("a", "b"), [(LAYOUT, LAYOUT), (LAYOUT, Layout(cols="col")), (Layout("row"), LAYOUT)], ids=str)
@pytest.mark.parametrize(("algorithm", "panels"), [("summa", 4), ("cannon", 2)])
def test_panels_that_move_are_all_the_workspace(algorithm, panels, a, b):
    """As docs/memory.md has it, whether both matrices move or one. 100 indices are cut into four panels of 25, as none may be wider
    than 30."""

    def program(comm):
        grid = ProcessGrid((2, 2))
        A, B = pdla.zeros((60, 200), grid, a), pdla.zeros((200, 80), grid, b)
        with pdla.record() as ledger:
            pdla.matmul(A, B, algorithm=algorithm, panel=30)
        return ledger.peak_workspace

    moved = 60 // 2 * bool(a.cols) + 80 // 2 * bool(b.rows)
    assert set(pdla.run(4, program)) == {8 * panels * 25 * moved}


def test_cannon_brings_a_block_more_where_a_rank_begins_inside_one():
    """As docs/cannon.md has it: of A where pc is no multiple of pr, of B where pr is none of pc."""
    for pr, pc in itertools.product(range(2, 7), range(2, 7)):
        extra = [60 * 60 / pr / pc * bool(long % short) for long, short in ((pc, pr), (pr, pc))]
        assert pdla.matmul_words("cannon", 60, 60, 60, (pr, pc)) == pytest.approx(60 * 60 / pr / pc * (pc + pr) + sum(extra))


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


# ---------------------------------------------------------------------------------------------- plans and errors


@pytest.mark.parametrize(("P", "words"), [(1, ["roles       one rank", "in 0 messages"]), (2, ["col carries n", "in 1 message, "])])
def test_a_plan_of_few_ranks_is_explained(P, words):
    def program(comm):
        grid = ProcessGrid((1, P))
        A, B = pdla.zeros((4, 6), grid, LAYOUT), pdla.zeros((6, 8), grid, LAYOUT)
        return pdla.plan_matmul(A, B, algorithm="gather").explain()

    (explained, *_) = pdla.run(P, program)
    assert all(word in explained for word in words), explained


def test_plan_predicts_explains_and_runs():
    def program(comm):
        grid = ProcessGrid((2, 3))
        A, B = exact((12, 18), grid, LAYOUT, seed=1), exact((18, 6), grid, LAYOUT, seed=2)
        C = pdla.zeros((12, 6), grid, LAYOUT)
        plan = pdla.plan_matmul(A, B, out=C, algorithm="summa", panel=2)
        with pdla.record() as ledger:
            plan(A, B, out=C)
        figures = ledger.total(comm)
        assert np.array_equal(C.gather(), A.gather() @ B.gather())
        assert plan.predicted.bytes_received == figures["max_bytes_received"]
        assert plan.predicted.peak_workspace == figures["max_peak_workspace"]
        assert "summa" in plan.explain() and str(plan.predicted.bytes_received) in plan.explain()
        assert repr(plan) == "Plan(C(12, 6) = A(12, 18) B(18, 6), float64, on ProcessGrid(row=2, col=3), summa)"
        with pytest.raises(pdla.errors.PlanError, match="this plan is for") as refused:
            plan(A, A.T[:17, :17])
        return str(refused.value)

    (told,) = set(pdla.run(6, program))
    grid, factor = "ProcessGrid(row=2, col=3)", "Layout(rows='row', cols='col') on ProcessGrid(row=2, col=3)"
    assert f"for 12 x 18, {factor}; 18 x 6, {factor}; out=12 x 6, {factor}, in float64, not for 12 x 18, float64, " in told, told
    assert told.endswith(f" on {grid}, by columns, with gaps; out=None")


def test_plan_predicts_the_messages_of_ranks_in_the_middle():
    def program(comm):
        grid = ProcessGrid((2, 5))
        A, B = pdla.zeros((100, 140), grid, LAYOUT), pdla.zeros((140, 80), grid, LAYOUT)
        plan = pdla.plan_matmul(A, B, algorithm="gather", layout=LAYOUT)
        with pdla.record() as ledger:
            plan(A, B)
        assert "col carries k" in str(plan.roles)  # B's halves come in fifths, and the third fifth is in both halves
        return ledger.messages, plan.predicted.messages

    counted, told = zip(*pdla.run(10, program), strict=True)
    assert {max(counted)} == set(told) == {13}


def test_bad_arguments_are_the_same_error_on_every_rank():
    errors = pdla.errors

    def program(comm):
        grid, other = ProcessGrid((2, 2)), ProcessGrid((1, 4))
        A, B = exact((4, 5), grid, LAYOUT), exact((5, 4), grid, LAYOUT)
        cases = [
            (errors.ShapeError, "inner sizes differ", lambda: A @ A),
            (errors.ShapeError, "B is an ndarray, not a DistMatrix", lambda: pdla.matmul(A, np.ones((5, 4)))),
            (errors.ShapeError, "out is an ndarray, not a DistMatrix", lambda: pdla.matmul(A, B, out=np.ones((4, 4)))),
            (errors.LayoutError, "boundaries", lambda: pdla.matmul(A, B, layout=Layout(cols=Cuts("row", (0, 1, 5))))),
            (errors.LayoutError, "boundaries", lambda: pdla.matmul(A, B, layout=Layout(Cuts("row", (0, 1, 5))))),
            (errors.GridError, "summa works on one grid", lambda: pdla.matmul(A, exact((5, 4), other, LAYOUT), algorithm="summa")),
            (
                errors.GridError, "out on .*: cannon works on one grid",
                lambda: pdla.matmul(A, B, algorithm="cannon", out=exact((4, 4), other, LAYOUT)),
            ),
            (errors.PlanError, r"algorithm=array\(.*: one of", lambda: pdla.matmul(A, B, algorithm=np.arange(3))),
            (errors.PlanError, r"schedule=array\(.*: one of", lambda: pdla.matmul(A, B, schedule=np.arange(3))),
            (errors.LayoutError, r"layout=array\(.*: a Layout", lambda: pdla.matmul(A, B, layout=np.arange(3))),
            (errors.PlanError, "algorithm='sumna': one of gather", lambda: pdla.matmul(A, B, algorithm="sumna")),
            (errors.PlanError, "auto; shared is a schedule: give matmul s", lambda: pdla.matmul(A, B, algorithm="shared")),
            (errors.LayoutError, "'depth'", lambda: pdla.matmul(A, B, layout=Layout("depth"))),
            (errors.LayoutError, "the product cannot be left as", lambda: pdla.matmul(A, B, layout=Layout("row", partial="col"))),
            (errors.ShapeError, "without out", lambda: pdla.matmul(A, B, beta=1)),
        ]
        for kind, text, call in cases:
            with pytest.raises(kind, match=text):
                call()
        wrong = {"panel": (2.0, "3"), "memory_limit": ("1MB", np.nan), "box": ((1.0, 2, 2), (1, 5, 1))}
        for name, value in ((name, value) for name, values in wrong.items() for value in values):
            with pytest.raises(errors.PlanError, match=r"(panel=.*whole number|memory_limit=.*bytes|box=.*sides)"):
                pdla.matmul(A, B, **{name: value})
        square = exact((4, 4), grid, LAYOUT)
        with pytest.raises(errors.ShapeError, match="shares memory"):
            pdla.matmul(square, square, out=square)
        whole = pdla.zeros((4, 4), grid, LAYOUT, dtype=np.int8)
        with pytest.raises(errors.ShapeError, match="alpha=300: matrices of int8 cannot be multiplied by it"):
            pdla.matmul(whole, whole, alpha=300)
        fixed = np.frombuffer(bytes(32 * 4 // 4), float).reshape(2, 2)
        with pytest.raises(errors.ShapeError, match="out lies in memory that is only to be read"):
            pdla.matmul(square, square, out=pdla.from_local(fixed, (4, 4), grid, LAYOUT), beta=1)
        with pytest.raises(errors.AgreementError, match=r"rank 3: .*'cannon'"):
            pdla.matmul(A, B, algorithm="cannon" if comm.rank == 3 else "summa")
        with pytest.raises(errors.PlanError, match="rank 2: algorithm='x'"):
            pdla.matmul(A, B, algorithm="x" if comm.rank == 2 else "summa")

    pdla.run(4, program)


LARGE = [
    ("float32", 1e60), ("float32", 10**60), ("float32", np.float64(1e39)), ("float32", -3.5e38), ("float16", 1e39),
    ("float64", 10**309), ("complex64", 1e60), ("complex64", 1e60j), ("complex64", np.complex128(1 - 1e60j)), ("bfloat16", -1e39),
    ("int32", 2**40),
]


@pytest.mark.parametrize(("dtype", "factor"), LARGE, ids=lambda x: str(x)[:9])
def test_a_factor_that_the_dtype_does_not_have_is_refused_on_every_rank(dtype, factor):
    """As infinity it would make NaN of each zero. 16-bit floats are multiplied in float32."""

    def program(comm):
        A, C = (exact((4, 4), ProcessGrid((1, 2)), LAYOUT, dtype) for _ in "AC")
        plan, told = pdla.plan_matmul(A, A, out=C), f"=.*: matrices of {dtype} cannot be multiplied by it: cast"
        for name in ("alpha", "beta"):
            for call in (
                lambda given: pdla.matmul(A, A, out=C, **given), lambda given: plan(A, A, out=C, **given),
                lambda given: pdla.plan_matmul(A, A, out=C, **given), lambda given: pdla.symm(A, A, out=C, **given),
                lambda given: pdla.syrk(A, out=C, **given), lambda given: pdla.herk(A, out=C, **given),
            ):
                with pytest.raises(pdla.errors.ShapeError, match=name + told):
                    call({name: factor})
        with pytest.raises(pdla.errors.ShapeError, match="rank 1: alpha" + told):
            pdla.matmul(A, A, alpha=factor if comm.rank else 1)

    pdla.run(2, program)


@pytest.mark.parametrize(
    ("dtype", "factor"),
    [
        ("float32", np.inf), ("float32", -np.inf), ("float32", 3.4028235e38), ("float16", 1e6), ("float16", -70000),
        ("complex64", np.inf), ("bfloat16", np.inf), ("float32", 1e-60), ("float32", 3.40282356e38),
    ],
    ids=str,
)
def test_infinity_and_what_the_dtype_rounds_to_a_number_are_factors(dtype, factor):
    def program(comm):
        A = pdla.ones((4, 4), ProcessGrid((1, 2)), LAYOUT, dtype=dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            wanted = (4 * np.ones(1, "c16" if dtype == "complex64" else float) * factor).astype(A.dtype)
            C = pdla.matmul(A, A, alpha=factor)
        assert np.array_equal(C.gather().real, np.broadcast_to(wanted.real, (4, 4)))
        assert np.isnan(pdla.matmul(A, A, alpha=np.nan).gather()).all()

    pdla.run(2, program)


VIEWS = {
    "itself": lambda X: X, "T": lambda X: X.T, "T of T": lambda X: X.T.T, "all": lambda X: X[:, :], "part": lambda X: X[1:5, 2:6],
    "part of T": lambda X: X.T[2:6, :4], "block": lambda X: pdla.from_local(X.local, X.shape, X.grid, X.layout),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("which", ["A", "B"])
def test_a_result_that_shares_memory_with_a_factor_is_refused(which, view):
    """Whichever of the two it is, and in whatever view: the product would overwrite what other ranks, or itself, still read."""

    def program(comm):
        whole = {name: exact((6, 6), ProcessGrid((2, 2)), LAYOUT, seed=seed) for seed, name in enumerate("AB")}
        parts = view.startswith("part")
        A, B = (X[:4, :4] if parts else X for X in whole.values())
        out = VIEWS[view](whole[which])
        fine = exact(out.shape, out.grid, out.layout)
        plan = pdla.plan_matmul(A, B, out=fine)
        for call in (
            lambda: pdla.matmul(A, B, out=out), lambda: pdla.gemm(2, A, B, 3, out), lambda: plan(A, B, out=out),
            lambda: pdla.plan_matmul(A, B, out=out), lambda: pdla.symm(A, B, out=out),
            lambda: pdla.hemm(A, B, out=out, side="right"),
            *([lambda: pdla.syrk(A, out=out), lambda: pdla.herk(A, out=out)] if which == "A" else []),
        ):
            with pytest.raises(pdla.errors.ShapeError, match="out shares memory with A"):
                call()
        a, b = A.gather(), B.gather()
        assert np.array_equal(pdla.matmul(A, B, out=fine).gather(), a @ b)

    pdla.run(4, program)


@pytest.mark.parametrize(("lying", "asked"), [
    (lambda C: C.conj(), None), (lambda C: C, Layout("col", "row")),
    (lambda C: pdla.zeros(C.shape, C.grid, Layout("row", partial="col"), dtype=C.dtype), None),
], ids=["conj", "another layout", "partial sums"])
def test_a_result_that_lies_as_no_product_can_is_refused(lying, asked):
    def program(comm):
        A, C = (pdla.ones((4, 4), ProcessGrid((2, 2)), LAYOUT, dtype=complex) for _ in range(2))
        out = lying(C)
        calls = [
            lambda: pdla.matmul(A, A, out=out, layout=asked), lambda: pdla.plan_matmul(A, A, out=out, layout=asked),
            lambda: pdla.syrk(A, out=out, layout=asked), lambda: pdla.herk(A, out=out, layout=asked),
            lambda: pdla.symm(A, A, out=out, layout=asked),
        ]
        plan = pdla.plan_matmul(A, A)
        calls += [lambda: plan(A, A, out=out)] if out.conjugated else []
        for call in calls:
            with pytest.raises(pdla.errors.LayoutError, match=r"out=.* must be no conjugate view, .* and in the layout"):
                call()
        assert (C.gather() == 1).all()

    pdla.run(4, program)


@pytest.mark.parametrize(("strides", "fine"), [
    ((0, 1), False), ((1, 0), False), ((0, 0), False), ((1, 1), False), ((2, 1), False), ((1, 2), True), ((3, 2), True),
    ((9, 2), True),
])
def test_a_result_whose_elements_lie_on_one_another_is_refused(strides, fine):
    """On every rank where they do on one."""

    def program(comm):
        grid, rows = pdla.ProcessGrid(2, comm=comm), pdla.Layout("row")
        here = np.lib.stride_tricks.as_strided(np.zeros(40), (2, 4), [8 * n for n in (strides if comm.rank else (4, 1))])
        A, C = exact((4, 4), grid, rows), pdla.from_local(here, (4, 4), grid, rows)
        for product in (lambda: pdla.matmul(A, A, out=C), lambda: pdla.syrk(A, out=C, mirror=True)):
            if fine:
                product()
            else:
                with pytest.raises(pdla.errors.ShapeError, match="rank 1: out has two elements in one place"):
                    product()
        whole = A.gather()
        assert not fine or np.array_equal(C.gather(), whole @ whole.T)

    pdla.run(2, program)


@pytest.mark.parametrize("view", [lambda A: A.T, lambda A: A.conj()], ids=["T", "conj"])
@pytest.mark.parametrize(
    "call",
    [
        lambda A: A @ A, lambda A: A.redistribute(Layout("row")), lambda A: A.gather(), lambda A: A.check_copies(),
        lambda A: A.norm(), lambda A: A.trace(), lambda A: A.sum(),
    ],
    ids=["@", "redistribute", "gather", "check_copies", "norm", "trace", "sum"],
)
def test_a_view_on_one_rank_alone_is_an_error_on_every_rank(call, view):
    """Otherwise the ranks' pieces would be taken for parts of one matrix, or their messages for each other's."""

    def program(comm):
        A = pdla.ones((4, 4), ProcessGrid((2, 2)), Layout(), dtype=complex)
        with pytest.raises(pdla.errors.AgreementError, match=r"rank 0: .*(by columns|conjugated).*; ranks 1, 2, 3: "):
            call(view(A) if comm.rank == 0 else A)

    pdla.run(4, program)


@pytest.mark.parametrize("short", [np.int8, np.uint8, np.int16])
def test_numpys_short_numbers_are_counted_like_pythons(short):
    def program(comm):
        A = pdla.ones((260, 260), ProcessGrid((2, 2)), LAYOUT)
        for options in ({"panel": short(100)}, {"box": (short(2), short(2), short(1))}, {"memory_limit": np.int32(2**30)}):
            assert (pdla.matmul(A, A, algorithm="3d", schedule="summa", **options).gather() == 260).all(), options
        with pytest.raises(pdla.errors.PlanError, match="of at most 4 ranks in all"):
            pdla.matmul(A, A, algorithm="3d", box=(short(64),) * 3)

    pdla.run(4, program)


def test_a_call_that_failed_on_one_rank_leaves_all_with_the_same_plans():
    """A rank that had dropped another plan than the rest would wait in its first run of the one that they still have."""

    def program(comm):
        grid = ProcessGrid((2, 2))
        A, Bs = exact((8, 8), grid, LAYOUT, seed=1), [exact((8, n), grid, LAYOUT, seed=n) for n in (8, 16, 24)]
        for B in Bs[:2]:
            pdla.matmul(A, B, algorithm="cannon")
        with pytest.raises(pdla.errors.ShapeError, match="rank 0: alpha=1j is complex"):
            pdla.matmul(A, Bs[0], algorithm="cannon", alpha=1j if comm.rank == 0 else 1)
        with pytest.raises(pdla.errors.ShapeError, match=r"rank 0: alpha=10* \.\.\. 0*: matrices of float64 cannot be"):
            pdla.matmul(A, Bs[0], alpha=10**400 if comm.rank == 0 else 1)
        pdla.matmul(A, Bs[2], algorithm="cannon")
        assert np.array_equal(pdla.matmul(A, Bs[0], algorithm="cannon").gather(), A.gather() @ Bs[0].gather())

    with patch.object(pdla.comm.cache, "MOST", 2):
        pdla.run(4, program)


@pytest.mark.parametrize("algorithm", ["tesseract", "a-stationary"])
def test_what_is_added_to_c_is_foreseen_and_kept_below_the_limit(algorithm):
    """On its way home it needs memory of its own."""

    def program(comm):
        grid = ProcessGrid((2, 2))
        A, B = exact((40, 4), grid, LAYOUT, seed=1), exact((40, 4), grid, LAYOUT, seed=2).T
        C = pdla.zeros((40, 40), grid, Layout("col", "row"))
        plan = pdla.plan_matmul(A, B, out=C, beta=1, algorithm=algorithm)
        with pdla.record() as ledger:
            plan(A, B, out=C, beta=1)
        assert ledger.total(comm)["max_peak_workspace"] <= plan.predicted.peak_workspace
        assert np.array_equal(C.gather(), A.gather() @ B.gather())
        with pytest.raises(pdla.errors.PlanError, match="bytes too few"):
            pdla.matmul(A, B, out=C, beta=1, algorithm=algorithm, memory_limit=8 * 40 * 40 // 4)

    pdla.run(4, program)


@pytest.mark.parametrize(
    ("algorithm", "shape", "mnk", "a", "b", "c"),
    [
        ("gather", (5,), (7, 3, 50), Layout(cols=Cuts("row", (0, 1, 2, 47, 48, 50))), Layout("row"), Layout()),  # one has most
        ("cannon", (7, 2), (55, 20, 13), LAYOUT, LAYOUT, Layout(cols=("col", "row"))),  # cuts that do not match
    ],
    ids=["gather", "cannon"],
)
def test_any_rank_may_be_the_one_that_pays_most(algorithm, shape, mnk, a, b, c):
    def program(comm):
        grid, (m, n, k) = ProcessGrid(shape), mnk
        A, B = exact((m, k), grid, a, seed=1), exact((k, n), grid, b, seed=2)
        plan = pdla.plan_matmul(A, B, algorithm=algorithm, layout=c)
        with pdla.record() as ledger:
            plan(A, B)
        cost, total = plan.predicted, ledger.total(comm)
        assert (cost.bytes_received, cost.messages) == (total["max_bytes_received"], total["max_messages"])
        assert total["max_peak_workspace"] <= cost.peak_workspace

    pdla.run(int(np.prod(shape)), program)


def test_cannons_parts_line_up_on_all_ranks_or_on_none():
    """Those of the first layer do, which a dry run of one of its ranks has to know of the others."""

    def program(comm):
        grid, layers = ProcessGrid((2, 2, 2)), Cuts("depth", (0, 100, 130))
        A = exact((40, 130), grid, Layout("row", (layers, Cyclic("col", 50))), seed=1)
        B = exact((130, 40), grid, Layout((layers, "row"), "col"), seed=2)
        plan = pdla.plan_matmul(A, B, algorithm="cannon", layout=Layout(("row", "depth"), "col"))
        with pdla.record() as ledger:
            C = plan(A, B)
        cost, total = plan.predicted, ledger.total(comm)
        assert (cost.bytes_received, cost.messages) == (total["max_bytes_received"], total["max_messages"])
        assert np.array_equal(C.gather(), A.gather() @ B.gather())

    pdla.run(8, program)


def test_buffers_are_kept_within_the_limit():
    """Those of A and B on their way are of other sizes than those of C."""

    def program(comm):
        grid, cyclic = ProcessGrid((2, 2)), Layout(Cyclic("row", 3), Cyclic("col", 3))
        A, B, C = (exact((48, 48), grid, cyclic, seed=seed) for seed in (1, 2, 3))
        options = {"out": C, "beta": 1, "algorithm": "3d", "box": (1, 2, 2)}
        before = C.gather()
        limit = pdla.plan_matmul(A, B, **options).predicted.peak_workspace
        plan = pdla.plan_matmul(A, B, memory_limit=limit, **options)
        most = limit + 64 * 20  # a buffer takes whole cache lines
        for _ in range(2):
            plan(A, B, beta=1, out=C)
            assert plan.workspace.held <= most
        pdla.matmul(A, B, memory_limit=limit, **options)
        assert comm._plans.workspace.held <= most
        assert np.array_equal(C.gather(), before + 3 * (A.gather() @ B.gather()))

    pdla.run(4, program)


@pytest.mark.parametrize("algorithm", ["summa", "cannon"])
def test_a_limit_narrows_panels_of_cyclic_matrices_no_further_than_those_of_blocks(algorithm):
    """A panel has indices of many runs: one of a matrix dealt out row by row is no narrower than one of a matrix in blocks."""

    def program(comm):
        grid, panels = ProcessGrid((2, 2), comm=comm), []
        for layout in (LAYOUT, Layout(Cyclic("row", 1), Cyclic("col", 1))):
            A = pdla.zeros((512, 512), grid, layout)
            whole = pdla.plan_matmul(A, A, algorithm=algorithm, panel=128).predicted.peak_workspace
            panels.append(pdla.plan_matmul(A, A, algorithm=algorithm, panel=128, memory_limit=whole // 2).panel)
        assert panels == [64, 64]

    pdla.dry_run(4, program)


@pytest.mark.parametrize(
    ("a", "b", "width"),
    [
        ("row", "row", 8), ("row", Cuts("row", [0, 1, 16]), 8), (Cuts("row", [0, 1, 16]), Cuts("row", [0, 3, 16]), 13),
        (None, "row", 8),
    ],
    ids=str,
)
def test_the_widest_panel_is_what_any_two_shares_have_in_common(a, b, width):
    """Not only the first rank's two."""
    walked = walk.Walk("k", (), (), (), Layout(cols=a), Layout(b), Layout(), 0.0)
    assert walk.widest(walked, (4, 4, 16), {"row": 2}) == width


@pytest.mark.parametrize(
    "layouts",
    [
        (LAYOUT, LAYOUT, LAYOUT), (Layout("row"), Layout("col"), LAYOUT), (Layout(None, "row"), Layout("row"), Layout("row")),
        (Layout(Cyclic("row", 3), "col"), Layout("col", Cyclic("row", 16)), Layout(None, ("row", "col"))),
        (Layout(("row", "col")), Layout(), Layout("row", partial="col")),
    ],
    ids=str,
)
@pytest.mark.parametrize("mnk", [(61, 40, 200), (300, 7, 9), (5, 5, 5)], ids=str)
def test_the_bound_on_workspace_without_a_dry_run_is_one(layouts, mnk):
    """Plans whose bound is above a limit are not looked at, though one of them might keep it."""
    m, n, k = mnk

    def program(comm):
        grid, shapes = ProcessGrid((2, 3), comm=comm), ((m, k), (k, n), (m, n))
        sides = [Operand(shape, layout.summed, grid) for shape, layout in zip(shapes, layouts, strict=True)]
        plans = list(planner.lean(PlanBuilder(*sides, np.dtype(float), Options(memory_limit=1), Machine())))
        return [(planner._least(plan), plan.predicted.peak_workspace) for plan in plans]

    found, _ = pdla.dry_run(6, program)
    assert all(0 <= bound <= peak for bound, peak in found)
    assert any(bound > peak / 3 for bound, peak in found)


def test_the_bound_on_workspace_is_one_on_several_nodes(monkeypatch):
    """There the ranks of a node share what they gather."""
    monkeypatch.setattr(ring, "LONG", 0)

    def program(comm):
        comm.homes, comm.shared_limit = [0, 0, 0, 1, 1, 1], 2**30
        plans = []
        for shape, mnk in ((2, 3), (60, 50, 70)), ((1, 6), (30, 30, 300)):
            grid, (m, n, k) = ProcessGrid(shape, comm=comm), mnk
            sides = [Operand(size, LAYOUT, grid) for size in ((m, k), (k, n), (m, n))]
            plans += planner.lean(PlanBuilder(*sides, np.dtype(float), Options(memory_limit=1), Machine()))
        return [(planner._least(plan), plan.predicted.peak_workspace) for plan in plans if plan.schedule == "gather"]

    found, _ = pdla.dry_run(6, program)
    assert all(0 <= bound <= peak for bound, peak in found) and any(bound > peak / 3 for bound, peak in found)


@pytest.mark.parametrize("ranks", [(36, 2), (2, 36), (1, 33)])
@pytest.mark.parametrize("cuts", [LAYOUT, Layout(Cyclic("row", 3), Cyclic("col", 2))], ids=["blocks", "cyclic"])
def test_short_tiles_come_at_once_and_are_one_product(ranks, cuts):
    """In steps, so that none could be multiplied earlier; with gaps or without."""
    mnk = 200, 200, 72

    def program(comm):
        grid = ProcessGrid(ranks)
        A, B = exact((mnk[0], mnk[2]), grid, cuts, seed=1), exact(mnk[2:] + mnk[1:2], grid, cuts, seed=2)
        plan = pdla.plan_matmul(A, B, algorithm="gather", layout=cuts)
        with pdla.record() as ledger:
            C = plan(A, B)
        most = ledger.total(comm)["max_peak_workspace"]
        assert np.array_equal(C.gather(), A.gather() @ B.gather()) and most == plan.predicted.peak_workspace
        return sum(event.what == "gemm" for event in ledger.events)

    assert max(pdla.run(ranks[0] * ranks[1], program)) <= min(ranks)
