"""Panels that come straight from where A and B lie: NumPy's products bit by bit, no word twice, evenly spread, as foretold."""

import itertools
import os
from dataclasses import replace

import numpy as np
import pytest
from helpers.matmuls import LAYOUT, exact, lacks
from hypothesis import given, settings
from hypothesis import strategies as st

import pdla
from pdla import Cuts, Cyclic, Layout, ProcessGrid
from pdla.matmul import planner
from pdla.matmul.algorithms import NAMED
from pdla.matmul.builder import PlanBuilder
from pdla.matmul.choose import candidates, price, problem
from pdla.matmul.choose.problem import Operand, Problem
from pdla.matmul.options import Options
from pdla.matmul.schedules import fetch
from pdla.model.machine import Machine

FULL = os.environ.get("PDLA_TEST_FULL") == "1"
LYING = (
    LAYOUT, Layout("col", "row"), Layout(("row", "col")), Layout(cols="row"), Layout(Cyclic("row", 2), Cyclic("col", 3)), Layout(),
)
SHAPES = ((1, 1), (2, 3), (3, 4), (12, 1), (1, 5))
BOXES = [box for box in itertools.product(range(1, 13), repeat=3) if np.prod(box) <= 12]

size = st.integers(0, 19)


@settings(max_examples=60 if FULL else 20, deadline=None)
@given(
    mnk=st.tuples(size, size, size), box=st.sampled_from(BOXES), lying=st.tuples(*[st.sampled_from(LYING)] * 3),
    shapes=st.tuples(*[st.sampled_from(SHAPES)] * 2), panel=st.integers(1, 7), turned=st.booleans(),
)
def test_any_layouts_on_any_grids(mnk, box, lying, shapes, panel, turned):
    """Bit by bit, over NaN and then with beta; of A and B a rank receives what its faces have and it has not, as foretold."""
    m, n, k = mnk

    def program(comm):
        grids = [ProcessGrid(shape, order=range(11, 11 - shape[0] * shape[1], -1)) for shape in shapes]
        A, B = exact((k, m) if turned else (m, k), grids[0], lying[0], seed=1), exact((k, n), grids[1], lying[1], seed=2)
        A, C = A.T if turned else A, pdla.zeros((m, n), grids[0], lying[2])
        C.local.fill(np.nan)
        expected = A.gather() @ B.gather()
        plan = pdla.plan_matmul(A, B, out=C, box=box, schedule="fetch", panel=panel)
        with pdla.record() as ledger:
            plan(A, B, out=C)
        assert np.array_equal(C.gather(), expected)
        pdla.matmul(A, B, out=C, alpha=2, beta=3, box=box, schedule="fetch", panel=panel)
        assert np.array_equal(C.gather(), 5 * expected)
        a, b, _ = plan.roles.layouts
        needed = lacks(A, a, plan.grid) + lacks(B, b, plan.grid)
        home = lacks(pdla.zeros((m, n), plan.grid, plan.native[2]), C.layout, C.grid)
        assert ledger.by_verb().get("alltoall", 0) == 8 * (needed + home)
        told, total = plan.predicted, ledger.total(comm)
        assert (total["max_bytes_received"], total["max_messages"]) == (told.bytes_received, told.messages)
        assert total["max_peak_workspace"] <= told.peak_workspace  # MPI, which is foretold, copies what has gaps; threads do not

    pdla.run(12, program)


@pytest.mark.parametrize("lying", [Layout(Cuts("row", [0, 1, 9, 9, 30])), Layout("row", partial="col")], ids=repr)
@pytest.mark.parametrize("dtypes", [("float16", "float16"), ("float32", "complex128"), ("int64", "int32")], ids=str)
def test_other_cuts_sums_and_dtypes(lying, dtypes):
    def program(comm):
        grid = ProcessGrid((4, 2))
        A, B = pdla.ones((30, 22), grid, lying, dtype=dtypes[0]), pdla.ones((22, 9), grid, LAYOUT, dtype=dtypes[1])
        expected = 22 * A.gather()[:, :1]
        C = pdla.matmul(A, B.conj(), box=(2, 2, 2), schedule="fetch", panel=4)
        assert C.dtype == np.result_type(*dtypes)
        assert (C.gather() == expected).all()

    pdla.run(8, program)


def test_panels_may_come_as_soon_as_they_are_asked_for(monkeypatch):
    """Each has room of its own until it has been multiplied; by threads they come no sooner than they are waited for."""
    start = fetch.start

    def at_once(*arguments):
        start(*arguments)()
        return lambda: None

    def program(comm):
        grid = ProcessGrid((2, 2))
        A, B = exact((6, 30), grid, LAYOUT, seed=1), exact((30, 5), grid, LAYOUT, seed=2)
        C = pdla.matmul(A, B, box=(2, 2, 1), schedule="fetch", panel=3)
        assert np.array_equal(C.gather(), A.gather() @ B.gather())

    monkeypatch.setattr(fetch, "start", at_once)
    pdla.run(4, program)


def test_ranks_that_need_the_same_panels_begin_evenly_apart():
    """In each step a rank sends about as many words as in any other: not all panels to all ranks that need them at once."""

    def program(comm):
        grid = ProcessGrid((4, 4))
        A, B = (pdla.zeros((64, 64), grid, LAYOUT) for _ in "AB")
        plan = pdla.plan_matmul(A, B, box=(4, 4, 1), schedule="fetch", panel=4, layout=LAYOUT)
        steps = list(fetch.list_steps(A, B, plan.roles, plan.grid, 4))
        assert len(steps) == 16
        return [sum(np.prod(piece.shape) for route in step.routes for piece in route.sends) for step in steps]

    for words in pdla.run(16, program):
        assert words == [2 * 16 * 4] * 16


def test_a_face_that_is_narrower_than_others_has_fewer_panels():
    def program(comm):
        A, B = exact((6, 7), ProcessGrid(3), Layout("row"), seed=1), exact((7, 5), ProcessGrid(3), Layout("row"), seed=2)
        plan = pdla.plan_matmul(A, B, box=(1, 1, 3), schedule="fetch", panel=1)
        widths = [step.shapes[0][1] for step in fetch.list_steps(A, B, plan.roles, plan.grid, 1)]
        assert np.array_equal(plan(A, B).gather(), A.gather() @ B.gather())
        return widths

    assert pdla.run(3, program) == [[1, 1, 1], [1, 1, 0], [1, 1, 0]]


def test_large_blocks_are_fetched_where_that_receives_less_than_converting():
    """What a rank holds of its faces is more than what it holds of its shares of them."""

    def program(comm):
        lies = [Operand((32768, 32768), LAYOUT, ProcessGrid((8, 12))) for _ in "ABC"]
        found = candidates.list_ways(Problem.of(*lies, 8, Machine()), "auto", None, None)
        others = min(way.words + way.moved for way in found if way.schedule == "summa" and way.table)
        return found[0].schedule, (found[0].words + found[0].moved) / others

    schedule, share = pdla.dry_run(96, program)[0]
    assert schedule == "fetch"
    assert share < 0.97


@pytest.mark.parametrize("large", [64, 10])
def test_what_few_ranks_send_to_all_counts(monkeypatch, large):
    """One rank that holds A would send it to 4 places for each word, fetched, and once to the box's own layouts."""
    monkeypatch.setattr(problem, "LARGE", large)

    def program(comm):
        lies = [Operand((64, 64), Layout(), ProcessGrid((1, 1))), *[Operand((64, 64), LAYOUT, ProcessGrid((8, 8)))] * 2]
        q = Problem.of(*lies, 8, Machine())
        first, *_, last = NAMED["3d"].list_tables((4, 4, 4))
        for table, copies in ((first, 1), (last, 4)):
            way = price.price_way(q, price.Holdings(q), table, np.arange(64))
            sent = copies * 64 * 64 - 16 * 16  # but for its own face
            assert way.price >= q.price(way.schedule, table.box, sent + way.words, 0)
            assert way.moved < sent or large < 64

    pdla.dry_run(64, program)


def test_where_faces_come_at_once_they_can_come_in_panels_within_less_memory():
    def program(comm):
        A, B = exact((96, 96), ProcessGrid((2, 4)), LAYOUT, seed=1), exact((96, 96), ProcessGrid((2, 4)), LAYOUT, seed=2)
        ways = planner.list_plans(PlanBuilder(*(Operand.of(X) for X in (A, B)), None, A.dtype, Options(box=(2, 2, 2)), Machine()))
        plans = [(plan.schedule, plan.native[:2] == plan.roles.layouts[:2]) for plan in ways]
        return plans[plans.index(("gather", True)) + 1]

    assert pdla.run(8, program)[0] == ("fetch", True)


def test_copies_of_c_are_not_fetched():
    """Ranks with the same face of C begin with different panels: so "fetch" makes a grid of its own, without copies."""

    asked = "auto", None, "fetch"

    def program(comm):
        grid = ProcessGrid((2, 2))
        A, B = pdla.random((40, 30), grid, Layout("row"), seed=1), pdla.random((30, 20), grid, Layout(cols="row"), seed=2)
        plan = pdla.plan_matmul(A, B, schedule="fetch", layout=Layout("row"), panel=3)
        assert plan(A, B).check_copies()
        q = Problem.of(Operand.of(A), Operand.of(B), None, 8, Machine())
        assert all(way.table for way in candidates.list_ways(q, *asked))

    pdla.run(4, program)


def test_a_memory_limit_narrows_the_panels():
    def program(comm):
        grid = ProcessGrid((4, 2))
        A, B = exact((256, 512), grid, LAYOUT, seed=1), exact((512, 256), grid, LAYOUT, seed=2)
        wide = pdla.plan_matmul(A, B, schedule="fetch", box=(2, 4, 1))
        limit = wide.predicted.peak_workspace // 12
        assert limit < 8 * 512 * (128 + 64)  # less than the faces
        plan = pdla.plan_matmul(A, B, schedule="fetch", box=(2, 4, 1), memory_limit=limit)
        with pdla.record() as ledger:
            C = plan(A, B)
        assert replace(plan, panel=2 * plan.panel).predicted.peak_workspace > limit
        assert ledger.peak_workspace <= limit
        assert np.array_equal(C.gather(), A.gather() @ B.gather())

    pdla.run(8, program)
