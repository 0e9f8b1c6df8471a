"""Copies that are worked on: they count as workspace; integers in partial sums are added up before they become floats."""

import numpy as np
import pytest
from helpers.systems import cyclic, on, sums

import pdla
from pdla import Layout
from pdla.errors import PlanError
from pdla.linalg import cho_solve, cholesky, cond, det, inv, lu, lu_factor, lu_solve, plan_solve, solve, solve_triangular

N = 12
OF = {  # of an integer, symmetric, positive definite A, what is computed of integers in any layout
    "solve": lambda A: solve(A, np.ones(N)),
    "refine": lambda A: solve(A, np.ones(N), refine="float32"),
    "refine, positive definite": lambda A: solve(A, np.ones(N), refine="float32", assume_a="pos"),
    "right-hand side": lambda A: solve(A, A).gather(),
    "diagonal": lambda A: solve(A, np.ones(N), assume_a="diagonal"),
    "memory_limit": lambda A: solve(A, np.ones(N), memory_limit=10**6),
    "verify": lambda A: solve(A, np.ones(N), verify=True),
    "plan": lambda A: plan_solve(A, A)(A, A).gather(),
    "cholesky": lambda A: cholesky(A).gather(),
    "lu": lambda A: lu(A)[2].gather(),
    "lu_solve": lambda A: lu_solve(lu_factor(A), np.ones(N)),
    "cho_solve": lambda A: cho_solve((A, True), np.ones(N)),
    "triangle": lambda A: solve_triangular(A, A, lower=True).gather(),
    "inv": lambda A: inv(A).gather(),
    "inv, positive definite": lambda A: inv(A, assume_a="pos").gather(),
    "det": det,
    "cond": cond,
}


@pytest.mark.parametrize("name", OF)
def test_integers_in_partial_sums(name):
    rng = np.random.default_rng(0)
    a = np.tril(rng.integers(-3, 4, (N, N)), -1)
    a = a + a.T + 30 * np.eye(N, dtype=int)

    def program(comm):
        made = [OF[name](A) for A in (sums((2, 2), a, comm), on((2, 2), a, Layout("row"), comm))]
        return np.allclose(*made, rtol=1e-14, atol=1e-14)

    assert all(pdla.run(5, program))


def test_addends_that_wrap_around_are_the_sum_that_the_matrix_has():
    def program(comm):
        addends = np.where(np.eye(N), 200, 0).astype("uint8")
        A = pdla.from_local(addends, (N, N), pdla.ProcessGrid((2,), comm=comm), Layout(partial="row"))
        assert np.array_equal(A.gather(), 144 * np.eye(N))
        return [found == 144 for found in (1 / solve(A, np.ones(N))[0], cholesky(A).gather()[0, 0] ** 2)]

    assert all(map(all, pdla.run(2, program)))


COPIES = {  # of an n x n A in square blocks: shares of n^2 / P words that lie at once in copies, besides operands and result
    "cholesky": (1, lambda A, **limit: cholesky(A, **limit)),
    "lu": (3, lambda A, **limit: lu(A, **limit)),  # with L and U
    "right-hand sides": (3, lambda A, **limit: solve(A, A, **limit)),  # with B's rows that are exchanged
    "triangle": (1, lambda A, **limit: solve(A, A, assume_a="lower triangular", **limit)),
    "inv": (2, lambda A, **limit: inv(A, **limit)),
    "refine": (6.5, lambda A, **limit: solve(A, A, refine="float32", **limit)),  # the factor, and six matrices like X
    "refine, positive definite": (7.5, lambda A, **limit: solve(A, A, refine="float32", assume_a="pos", **limit)),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_are_counted_while_they_live_and_in_memory_limits(name):
    shares, call = COPIES[name]

    def program(comm):
        A = on((2, 2), 4 * np.eye(128), cyclic(8), comm)
        with pytest.raises(PlanError) as error:
            call(A, memory_limit=0)
        needed = int(str(error.value).split("needs ")[1].split(" ")[0])
        with pdla.record() as ledger:
            made = call(A, memory_limit=needed)
        del made
        return shares * 128**2 * 8 / 4 <= ledger.peak_workspace <= needed, ledger.workspace

    assert pdla.run(4, program) == [(True, 0)] * 4
