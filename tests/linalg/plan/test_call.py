"""One call: a later one finds its plan, unless what a plan depends on differs; what words do not tell is checked each time."""

from itertools import count

import numpy as np
import pytest
from helpers.systems import BLOCKS, cyclic, drawn, on, positive, raised, ratio

import pdla
from pdla import Layout, linalg
from pdla.errors import AgreementError, ArgumentError, GridError, LinAlgError, PlanError, ShapeError
from pdla.linalg.plan.plan import FactorPlan

N = 24
GENERAL, POSITIVE = drawn((N, N), "float64") + 4 * np.eye(N), positive(N)
VECTOR = np.arange(1.0, N + 1)
CALLS = {
    "solve": lambda A, S: linalg.solve(A, VECTOR), "matrix": lambda A, S: linalg.solve(A, A),
    "cholesky": lambda A, S: linalg.cholesky(S), "lu_factor": lambda A, S: linalg.lu_factor(A), "lu": lambda A, S: linalg.lu(A),
    "inv": lambda A, S: linalg.inv(A), "det": lambda A, S: linalg.det(A), "cond": lambda A, S: linalg.cond(A),
    "solve_triangular": lambda A, S: linalg.solve_triangular(A, A, lower=True), "trsm": lambda A, S: linalg.trsm(A, A, lower=True),
    "cho_solve": lambda A, S: linalg.cho_solve((S, True), VECTOR),
    "lu_solve": lambda A, S: linalg.lu_solve((A, np.arange(N)), VECTOR),
}


@pytest.fixture
def planned(monkeypatch):
    """How often each rank has made a plan."""
    made, of = [], FactorPlan.of

    def counted(*given):
        made.append(pdla.world().rank)
        return of(*given)

    monkeypatch.setattr(FactorPlan, "of", staticmethod(counted))
    return made


@pytest.mark.parametrize("name", CALLS)
def test_a_later_call_with_like_operands_makes_no_plan(name, planned):
    def program(comm):
        for turn in range(3):
            A, S = (on((2, 2), a * (1 + turn), BLOCKS, comm) for a in (GENERAL, POSITIVE))
            CALLS[name](A, S)
        return planned.count(comm.rank)

    assert pdla.run(4, program) == [1, 1, 1, 1]


def test_what_a_plan_depends_on_is_looked_at():
    """Each of these calls makes a plan of its own, and all later ones none."""

    def program(comm):
        plans = []
        A, single = on((2, 2), GENERAL, BLOCKS, comm), on((2, 2), GENERAL.astype("f"), BLOCKS, comm)
        columns, other = on((2, 2), GENERAL, Layout("col"), comm), on((4, 1), GENERAL, BLOCKS, comm)
        for given in (A, single, columns, other, A.T, A[:20, :20]):
            for options in ({}, {"lower": False}, {"layout": Layout("col", "row")}, {"memory_limit": 10**6}):
                plans.append(linalg.plan_cholesky(given, **options))
        again = [linalg.plan_cholesky(given) for given in (A, single, columns, other, A.T, A[:20, :20])]
        assert [each is plan for each, plan in zip(again, plans[::4], strict=True)] == [True] * 6
        return len({id(plan) for plan in plans})

    assert pdla.run(4, program) == [24] * 4


def test_a_kept_plan_is_right_for_other_elements():
    def program(comm):
        errors = []
        for seed in range(4):
            a = drawn((N, N), "float64", seed) + 4 * np.eye(N)
            x = linalg.solve(on((2, 2), a, BLOCKS, comm), VECTOR * seed)
            errors.append(ratio(a, x[:, None], VECTOR[:, None] * seed))
        return max(errors)

    assert max(pdla.run(4, program)) < 30


def test_what_words_do_not_tell_is_checked_at_every_call():
    """NaN, memory that cannot be written to, and another communicator, once a plan is there."""

    def program(comm, spoil):
        A, B = on((2, 2), GENERAL, cyclic(8), comm), on((2, 2), GENERAL, cyclic(8), comm)
        linalg.solve(A, B, overwrite_b=True)
        return spoil(comm, A, on((2, 2), GENERAL, cyclic(8), comm))

    def nan(comm, A, B):
        if comm.rank == 2:
            B.local[1, 1] = np.nan
        linalg.solve(A, B, overwrite_b=True)

    def fixed(comm, A, B):
        if comm.rank == 1:
            B.base.flags.writeable = False
        linalg.solve(A, B, overwrite_b=True)

    def elsewhere(comm, A, B):
        linalg.solve(A, on((2, 2), GENERAL, cyclic(8), comm.split(range(4), "other")), overwrite_b=True)

    def closed(comm, A, B):
        B.grid.close()
        linalg.solve(A, B, overwrite_b=True)

    for spoil, kind in ((nan, LinAlgError), (fixed, ShapeError), (elsewhere, GridError), (closed, GridError)):
        assert raised(lambda comm, spoil=spoil: program(comm, spoil), 4)[0] is kind


def test_plans_run_with_vectors_and_into_a_matrix_and_refuse_others():
    def program(comm):
        A, out = on((2, 2), POSITIVE, BLOCKS, comm), on((2, 2), 0 * GENERAL, Layout("col", "row"), comm)
        plan = linalg.plan_solve(A, VECTOR, assume_a="pos")
        x = plan(A, VECTOR)
        assert np.array_equal(x, linalg.solve(A, VECTOR, assume_a="pos"))
        assert linalg.solve(A, A, out=out) is out
        for given in ((A,), (A, A), (A, VECTOR[:5]), (A, VECTOR.astype("f")), (A, VECTOR, VECTOR)):
            with pytest.raises(PlanError, match=r"this plan is for 24 x 24.*; array of shape \(24,\), float64, in"):
                plan(*given)
        plan.free()
        return ratio(POSITIVE, x[:, None], VECTOR[:, None]), ratio(POSITIVE, out.gather(), POSITIVE)

    assert max(max(each) for each in pdla.run(4, program)) < 30


def test_numbers_of_other_types_are_other_calls(planned):
    """Equal numbers have the same words: what is refused of one type stays refused, and a list has the dtype of its own numbers."""

    def program(comm):
        A = on((2, 2), GENERAL, BLOCKS, comm)
        assert linalg.solve(A, VECTOR.tolist()).dtype == "f8" and linalg.solve(A, (VECTOR + 0j).tolist()).dtype == "c16"
        assert linalg.solve(A.astype("f"), [np.float32(x) for x in VECTOR]).dtype == "f4"
        plan = linalg.plan_solve(A, VECTOR)
        assert np.array_equal(plan(A, VECTOR.tolist()), linalg.solve(A, VECTOR.astype(">f8")))
        linalg.cholesky(on((2, 2), POSITIVE, BLOCKS, comm), lower=np.True_)
        with pytest.raises(ArgumentError, match="lower=1"):
            linalg.cholesky(on((2, 2), POSITIVE, BLOCKS, comm), lower=1)
        linalg.trsm(A, A, lower=True, alpha=3)
        with pytest.raises(ShapeError, match="is complex"):
            linalg.trsm(A, A, lower=True, alpha=3 + 0j)
        with pytest.raises(ShapeError, match=r"out=.* X is an array of shape"):
            linalg.solve(A, VECTOR, out=VECTOR.tolist())

    pdla.run(4, program)

    def differs(comm):
        linalg.solve(on((2, 1), GENERAL, BLOCKS, comm), (VECTOR + (0j if comm.rank else 0)).tolist())

    assert raised(differs)[0] is AgreementError


def test_a_plan_whose_grid_is_closed_is_refused_before_any_message():
    def program(comm):
        A = on((2, 2), POSITIVE, BLOCKS, comm)
        plan = linalg.plan_cholesky(A)
        A.grid.close()
        plan(on((2, 2), POSITIVE, BLOCKS, comm))

    kind, said = raised(program, 4)
    assert kind is GridError and "is closed" in said


def test_communicators_that_were_closed_meanwhile_are_made_again(monkeypatch):
    """A grid closes those that have not been asked for for long: with room for two, all of another grid's."""
    monkeypatch.setattr("pdla.grid.FAMILIES", 2)

    def program(comm):
        found = []
        for _ in range(3):
            for shape in ((2, 2), (4, 1), (1, 4)):
                grid = pdla.ProcessGrid(shape, comm=comm)
                grid["row"], grid["col"]
            A, S = (on((2, 2), a, BLOCKS, comm) for a in (GENERAL, POSITIVE))
            found.append([linalg.solve(A, VECTOR), linalg.cholesky(S).gather(), linalg.solve(S, A, assume_a="pos").gather()])
        return all(np.array_equal(x, y) for each in found[1:] for x, y in zip(each, found[0], strict=True))

    assert all(pdla.run(4, program))


@pytest.mark.parametrize("layout", [Layout("row"), Layout("col", "row"), cyclic(5), Layout()], ids=repr)
@pytest.mark.parametrize("assume", ["gen", "pos", "her", "lower triangular", "diagonal"])
@pytest.mark.parametrize("columns", [3, 40])
def test_solutions_go_into_a_matrix_that_is_given(layout, assume, columns):
    a = np.diag(POSITIVE.diagonal()) if "i" in assume else POSITIVE
    b = drawn((N, columns), "float64", 1)

    def program(comm):
        A, B, out = on((2, 2), a, BLOCKS, comm), on((2, 2), b, BLOCKS, comm), on((2, 2), 0 * b, layout, comm)
        assert linalg.solve(A, B, assume_a=assume, out=out) is out
        assert np.array_equal(out.gather(), linalg.solve(A, B, assume_a=assume).gather())
        return ratio(a, out.gather(), b)

    assert max(pdla.run(5, program)) < 30


@pytest.mark.parametrize("out", ["A", "B", "shape", "dtype", "grid", "read-only"])
def test_an_out_that_does_not_go_with_the_call_is_an_error_on_every_rank(out):
    def program(comm):
        A, B = on((2, 2), POSITIVE, BLOCKS, comm), on((2, 2), POSITIVE, BLOCKS, comm)
        made = {
            "A": A, "B": B, "shape": B[:, :5], "dtype": B.astype("f"), "grid": on((1, 4), POSITIVE, BLOCKS, comm),
            "read-only": on((2, 2), POSITIVE, BLOCKS, comm),
        }[out]
        if out == "read-only" and comm.rank == 3:
            made.base.flags.writeable = False
        linalg.solve(A, B, out=made)

    kind, said = raised(program, 4)
    assert kind is (GridError if out == "grid" else ShapeError) and "out" in said


def test_a_vector_goes_into_an_array_that_is_given():
    calls = count()

    def program(comm):
        A = on((2, 2), POSITIVE, BLOCKS, comm)
        for call in (
            lambda out: linalg.solve(A, VECTOR, out=out), lambda out: linalg.solve(A, VECTOR, out=out, refine="float32"),
            lambda out: linalg.cho_solve(linalg.cho_factor(A), VECTOR, out=out, memory_limit=10**6),
            lambda out: linalg.lu_solve(linalg.lu_factor(A), VECTOR, out=out, memory_limit=10**6),
        ):
            out = np.zeros(N)
            assert call(out) is out and ratio(POSITIVE, out[:, None], VECTOR[:, None]) < 30
            next(calls)
        with pytest.raises(ShapeError, match="X is an array of shape"):
            linalg.solve(A, VECTOR, out=np.zeros(N, "f"))

    pdla.run(4, program)
    assert next(calls) == 16


@pytest.mark.parametrize("name", ["solve_triangular", "cho_solve", "lu_solve"])
def test_limits_of_solutions_by_factors_are_kept_or_refused(name):
    def program(comm):
        A, B = on((2, 2), POSITIVE, BLOCKS, comm), on((2, 2), drawn((N, 40), "float64"), BLOCKS, comm)
        call = {
            "solve_triangular": lambda limit: linalg.solve_triangular(A, B, lower=True, memory_limit=limit),
            "cho_solve": lambda limit: linalg.cho_solve((A, True), B, memory_limit=limit),
            "lu_solve": lambda limit: linalg.lu_solve((A, np.arange(N)), B, memory_limit=limit),
        }[name]
        with pytest.raises(PlanError, match=r"^memory_limit=100: \d+ bytes too few") as error:
            call(100)
        needed = int(str(error.value).split("needs ")[1].split(" ")[0])
        with pytest.raises(PlanError):
            call(needed - 1)
        with pdla.record() as ledger:
            call(needed)
        return ledger.peak_workspace - needed

    assert max(pdla.run(4, program)) <= 0
