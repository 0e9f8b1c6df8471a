"""GMRES: within as many steps as there are eigenvalues, columns apart, where a space is exhausted, with any preconditioner."""

import numpy as np
import pytest
from helpers.systems import BLOCKS, cyclic, drawn, on

import pdla
from pdla import Layout
from pdla.linalg.refinement.gmres import STEPS, find_correction, scale_columns


def corrected(comm, a, r, wanted, grid=(2, 2), solve=lambda V: V):
    D, steps = find_correction(on(grid, a, cyclic(3), comm), on(grid, r, Layout("row"), comm), solve, wanted)
    return D.gather(), steps


@pytest.mark.parametrize("kind", ["float64", "complex128"])
def test_within_as_many_steps_as_there_are_rows(kind):
    a, r = drawn((20, 20), kind) + 3 * np.eye(20), drawn((20, 3), kind, 1)
    small = 1e-11 * np.linalg.norm(r, axis=0)
    d, steps = pdla.run(4, corrected, a, r, small)[0]
    assert steps <= 20 and (np.linalg.norm(r - a @ d, axis=0) <= 1.1 * small).all()


def test_a_space_that_is_exhausted_is_the_solution():
    a = np.diag(np.repeat([1.0, 2, 4], 7))
    r = np.zeros((21, 4))
    r[3, 0], r[[3, 9], 1], r[:, 2] = 5, 1, 1  # of 1, 2 and 3 eigenvalues; the last column has nothing to correct
    for wanted, most in ((np.full(4, 1e-12), 3), (np.zeros(4), STEPS)):
        d, steps = pdla.run(4, corrected, a, r, wanted)[0]
        assert steps <= most and abs(a @ d - r).max() < 1e-12 and not d[:, 3].any()


def test_it_ends_as_soon_as_all_columns_are_as_near_as_wanted():
    a, r = drawn((25, 25), "float64") / 10 + np.eye(25), drawn((25, 2), "float64", 1)
    sizes = np.linalg.norm(r, axis=0)
    counts = [pdla.run(2, corrected, a, r, sizes * [near, 1], (2, 1))[0][1] for near in (1, 1e-2, 1e-8)]
    assert counts[0] == 1 and counts == sorted(set(counts))


def test_a_preconditioner_may_do_something_else_in_each_step():
    a, r = np.diag(np.geomspace(1, 1e6, 60)) + drawn((60, 60), "float64") / 100, drawn((60, 1), "float64", 1)

    def program(comm):
        number = iter(range(100))
        inverse = on((2, 1), np.linalg.inv(a), BLOCKS, comm)

        def solve(V):
            return (inverse @ V) * (1 + next(number)) + V * 1e-9

        return corrected(comm, a, r, np.array([1e-12]), (2, 1), solve)

    d, steps = pdla.run(2, program)[0]
    assert steps < 6 and np.linalg.norm(r - a @ d) < 2e-12


@pytest.mark.parametrize("worst", [np.inf, np.nan])
def test_a_column_whose_solution_overflows_is_lost_and_no_other(worst):
    a, r = drawn((20, 20), "float64") + 5 * np.eye(20), drawn((20, 2), "float64", 1)
    small = 1e-11 * np.linalg.norm(r, axis=0)

    def program(comm):
        left = iter(range(3, -STEPS, -1))  # steps until column 0 overflows
        with np.errstate(invalid="ignore"):
            return corrected(comm, a, r, small, solve=lambda V: scale_columns(V, np.array([1.0 if next(left) else worst, 1])))

    d, steps = pdla.run(5, program)[0]  # one rank is idle
    assert steps <= 20 and np.isnan(d[:, 0]).all() and np.linalg.norm(r[:, 1] - a @ d[:, 1]) <= 1.1 * small[1]


def test_ranks_whose_lapack_differs_take_the_same_steps(monkeypatch):
    a, r = drawn((25, 25), "float64") / 10 + np.eye(25), drawn((25, 1), "float64", 1)
    lstsq, number = np.linalg.lstsq, iter(range(10**6))
    monkeypatch.setattr(np.linalg, "lstsq", lambda h, b, rcond: [lstsq(h, b, rcond)[0] * (1 + 1e-9 * next(number))])
    found = pdla.run(4, corrected, a, r, np.array([1e-7]))
    assert all(np.array_equal(d, found[0][0]) and steps == found[0][1] for d, steps in found)
