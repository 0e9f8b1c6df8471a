"""Asking for products: for which machine, under which settings, and which plans are kept for the next call."""

from dataclasses import fields
from unittest.mock import patch

import numpy as np
import pytest
from helpers.matmuls import LAYOUT, exact

import pdla
from pdla import Balanced, Cuts, Cyclic, Layout, ProcessGrid, config, matmul
from pdla.errors import AgreementError, ArgumentError, GridError, LayoutError, PlanError, ShapeError
from pdla.matmul import planner
from pdla.model.machine import Machine


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


def test_plans_are_made_for_the_machine_that_is_told(tmp_path):
    """And kept for it alone."""
    slow = tmp_path / "slow.toml"
    slow.write_text(Machine(flops=1.0).text())

    def program(comm):
        A = pdla.zeros((8, 8), ProcessGrid((1, 1)), LAYOUT)
        usual = pdla.plan_matmul(A, A)
        with config.override(machine=str(slow)):
            assert pdla.plan_matmul(A, A).predicted.seconds == pytest.approx(2 * 8**3)
        assert pdla.plan_matmul(A, A) is usual
        return usual.predicted.seconds

    assert pdla.run(1, program)[0] < 2e-6


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
        with pytest.raises(ValueError, match="PDLA_MACHINE: no machine 'v100x9'"):
            pdla.native_layouts(8, 8, 8)
        A = pdla.zeros((8, 8), ProcessGrid((2, 1)), LAYOUT)
        with pytest.raises(ValueError, match="no machine 'v100x9'"):
            A @ A
        return True

    with config.override(machine="v100x9"):
        assert all(pdla.run(2, program))


def elsewhere(shape):
    return exact(shape, ProcessGrid((1, 4)), LAYOUT)


def out_in(memory):
    """Options that ask for a product of 4 x 4 in a matrix of that memory, a 2 x 2 block."""
    return {"out": pdla.from_local(memory, (4, 4), ProcessGrid((2, 2)), LAYOUT), "beta": 1}


ODD = Layout(Cuts("row", (0, 1, 5)))
REFUSED = {  # what is multiplied: A is 4 x 5, B 5 x 4, S 4 x 4, I the same of int8
    "inner sizes": (ShapeError, "inner sizes differ", lambda A, B, S, I: A @ A),
    "B, an array": (ShapeError, "B is an ndarray, not a DistMatrix", lambda A, B, S, I: matmul(A, np.ones((5, 4)))),
    "out, an array": (
        ShapeError, "out is an ndarray, not a DistMatrix", lambda A, B, S, I: matmul(A, B, out=np.ones((4, 4))),
    ),
    "boundaries of rows": (LayoutError, "boundaries", lambda A, B, S, I: matmul(A, B, layout=ODD)),
    "boundaries of columns": (LayoutError, "boundaries", lambda A, B, S, I: matmul(A, B, layout=ODD.T)),
    "B on another grid": (
        GridError, "summa works on one grid", lambda A, B, S, I: matmul(A, elsewhere((5, 4)), algorithm="summa"),
    ),
    "out on another grid": (
        GridError, "out on .*: cannon works on one grid",
        lambda A, B, S, I: matmul(A, B, algorithm="cannon", out=elsewhere((4, 4))),
    ),
    "algorithm, an array": (
        PlanError, r"algorithm=array\(.*: one of", lambda A, B, S, I: matmul(A, B, algorithm=np.arange(3)),
    ),
    "schedule, an array": (
        PlanError, r"schedule=array\(.*: one of", lambda A, B, S, I: matmul(A, B, schedule=np.arange(3)),
    ),
    "layout, an array": (
        LayoutError, r"layout=array\(.*: a Layout", lambda A, B, S, I: matmul(A, B, layout=np.arange(3)),
    ),
    "algorithm, misspelt": (
        PlanError, "algorithm='sumna': one of 'gather', .*; did you mean 'summa'",
        lambda A, B, S, I: matmul(A, B, algorithm="sumna"),
    ),
    "algorithm, a schedule": (
        PlanError, "'auto'; shared is a schedule: give matmul s", lambda A, B, S, I: matmul(A, B, algorithm="shared"),
    ),
    "no such axis": (LayoutError, "'depth'", lambda A, B, S, I: matmul(A, B, layout=Layout("depth"))),
    "partial": (
        LayoutError, "the product cannot be left as",
        lambda A, B, S, I: matmul(A, B, layout=Layout("row", partial="col")),
    ),
    "beta without out": (ShapeError, "without out", lambda A, B, S, I: matmul(A, B, beta=1)),
    "panel, a float": (ArgumentError, "panel=.*whole number", lambda A, B, S, I: matmul(A, B, panel=2.0)),
    "panel, a word": (ArgumentError, "panel=.*whole number", lambda A, B, S, I: matmul(A, B, panel="3")),
    "limit, a word": (PlanError, "memory_limit=.*bytes", lambda A, B, S, I: matmul(A, B, memory_limit="1MB")),
    "limit, NaN": (PlanError, "memory_limit=.*bytes", lambda A, B, S, I: matmul(A, B, memory_limit=np.nan)),
    "box of floats": (PlanError, "box=.*sides", lambda A, B, S, I: matmul(A, B, box=(1.0, 2, 2))),
    "box of five": (PlanError, "box=.*sides", lambda A, B, S, I: matmul(A, B, box=(1, 5, 1))),
    "out is A": (ShapeError, "shares memory", lambda A, B, S, I: matmul(S, S, out=S)),
    "alpha that int8 has not": (
        ShapeError, "alpha=300: matrices of int8 cannot be multiplied by it", lambda A, B, S, I: matmul(I, I, alpha=300),
    ),
    "out in memory to be read": (
        ShapeError, "out is in read-only memory",
        lambda A, B, S, I: matmul(S, S, **out_in(np.frombuffer(bytes(32), float).reshape(2, 2))),
    ),
    "box of another algorithm": (
        PlanError, r"box=\(2, 2, 2\): three sides", lambda A, B, S, I: matmul(S, S, algorithm="3d", box=(2, 2, 2)),
    ),
    "box of none": (
        PlanError, "works on the grid of A and B", lambda A, B, S, I: matmul(S, S, algorithm="summa", box=(2, 2, 1)),
    ),
    "no such schedule": (PlanError, "schedule='ring': one of 'gather'", lambda A, B, S, I: matmul(S, S, schedule="ring")),
    "schedule of a schedule": (
        PlanError, "which is a schedule itself",
        lambda A, B, S, I: matmul(S, S, algorithm="summa", schedule="cannon"),
    ),
    "schedule that it has not": (
        PlanError, "schedule='gather': 2.5d takes cannon or summa",
        lambda A, B, S, I: matmul(S, S, algorithm="2.5d", schedule="gather"),
    ),
    "panel of nothing": (PlanError, "panel=0", lambda A, B, S, I: matmul(S, S, panel=0)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_arguments_are_the_same_error_on_every_rank(what):
    error, text, call = REFUSED[what]

    def program(comm):
        grid = ProcessGrid((2, 2))
        A, B, S = (exact(shape, grid, LAYOUT) for shape in ((4, 5), (5, 4), (4, 4)))
        with pytest.raises(error, match=text):
            call(A, B, S, pdla.zeros((4, 4), grid, LAYOUT, dtype=np.int8))

    pdla.run(4, program)


@pytest.mark.parametrize(("rank", "word", "error", "text"), [
    (3, "cannon", AgreementError, r"rank 3: .*'cannon'"), (2, "x", PlanError, "rank 2: algorithm='x'"),
], ids=["differs", "bad"])
def test_an_argument_of_one_rank_is_an_error_on_all(rank, word, error, text):
    def program(comm):
        A = exact((4, 4), ProcessGrid((2, 2)), LAYOUT)
        with pytest.raises(error, match=text):
            matmul(A, A, algorithm=word if comm.rank == rank else "summa")

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


DEALT = Layout(Cyclic("row", 2), Cyclic("col", 3))


def test_repeated_products_find_their_plan(monkeypatch):
    made, make = [], planner.make
    monkeypatch.setattr(planner, "make", lambda *args: made.append(1) or make(*args))

    def program(comm):
        grid = ProcessGrid((1, 2))
        A = exact((6, 6), grid, LAYOUT)
        for _ in range(3):
            A = A @ A

    pdla.run(2, program)
    assert len(made) == 2  # one a rank


def test_matrices_that_differ_in_one_thing_have_plans_of_their_own():
    def program(comm):
        grid, other = ProcessGrid((2, 2)), ProcessGrid((2, 2), order="F")
        A, B = exact((12, 8), grid, LAYOUT, complex, 1), exact((8, 20), grid, LAYOUT, complex, 2)
        turned, elsewhere = exact((8, 12), grid, LAYOUT.T, complex, 3).T, exact((12, 8), other, LAYOUT, complex, 4)
        short, real, cyclic = exact((9, 8), grid, LAYOUT, complex, 5), exact((12, 8), grid, LAYOUT, seed=6), A.redistribute(DEALT)
        gaps = pdla.from_local(np.repeat(A.local, 2, axis=1)[:, ::2], (12, 8), grid, LAYOUT)
        matrices, plans = (A, turned, A.conj(), elsewhere, A.shared(), short, real, cyclic, gaps), []
        for X in matrices:
            for algorithm in ("gather", "summa", "auto") if X is not elsewhere else ("auto",):
                options = {"algorithm": algorithm, "panel": 4, "layout": "native"}
                assert np.array_equal(pdla.matmul(X, B, **options).gather(), X.gather() @ B.gather()), X
            plans.append(pdla.plan_matmul(X, B, **options))
        assert len({*map(id, plans)}) == len(matrices)

    pdla.run(4, program)
