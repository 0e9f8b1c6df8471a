"""Refinement from factors in float32: residuals of full solutions, few steps, full solutions where it does not converge."""

import logging
import warnings

import numpy as np
import pytest
from helpers.systems import BLOCKS, GRIDS, cyclic, drawn, hilbert, on, one_triangle, positive, raised, ratio

import pdla
from pdla import Layout
from pdla.errors import LinAlgError, PlanError
from pdla.linalg import solve
from pdla.linalg.refinement import refinement


def steps_of(caplog):
    """The steps that the last solution's ranks have told."""
    told = {int(line.split()[1]) for line in caplog.messages if line.startswith("solve: ")}
    caplog.clear()
    return told


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_any_grid_and_layout(grid):
    def program(comm):
        worst = 0.0
        for n in (0, 1, 3, 9, 33):
            a, h, b = drawn((n, n), "float64") + 2 * np.eye(n), positive(n), drawn((n, 5), "float64", 1)
            for layout in (cyclic(8), BLOCKS):
                A, B = on(grid, a, layout, comm), on(grid, b, Layout("col"), comm)
                X, x = solve(A, B, refine="float32"), solve(A, b[:, 0], refine="float32")
                assert X.layout == B.layout and X.dtype == x.dtype == float
                P = on(grid, one_triangle(h, False), layout, comm)
                Y = solve(P, B, assume_a="pos", lower=False, refine="float32", layout=BLOCKS)
                worst = max(worst, ratio(a, X.gather(), b), ratio(a, x[:, None], b[:, :1]), ratio(h, Y.gather(), b))
                assert np.array_equal(A.gather(), a) and np.array_equal(B.gather(), b) and Y.layout == BLOCKS
        return worst

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert max(pdla.run(grid[0] * grid[1] + 1, program)) < 3


def test_complex_views_integers_and_two_grids():
    a, b = drawn((40, 40), "complex128") + 3 * np.eye(40), drawn((40, 3), "complex128", 1)
    whole = np.random.default_rng(0).integers(-3, 4, (40, 40)) + 20 * np.eye(40, dtype=int)

    def program(comm):
        B = on((4,), b, Layout("row"), comm)
        for view in (lambda A: A, lambda A: A.T, lambda A: A.H):
            A = view(on((2, 2), a, BLOCKS, comm))
            assert ratio(A.gather(), solve(A, B, refine="float32").gather(), b) < 3
        x = solve(on((2, 2), whole, BLOCKS, comm), np.ones(40), refine="float32", overwrite_a=True)
        assert ratio(whole.astype(float), x[:, None], np.ones((40, 1))) < 3

    pdla.run(4, program)


@pytest.mark.parametrize("condition", [1e1, 1e3, 1e5])
def test_few_steps(condition, caplog):
    a, b = positive(60, condition=condition), drawn((60, 3), "float64", 1) * [1, 1e-200, 1e200]

    def program(comm):
        A, B = on((2, 1), a, BLOCKS, comm), on((2, 1), b, BLOCKS, comm)
        X = [solve(A, B, assume_a=assumed, refine="float32").gather() for assumed in ("gen", "pos")]
        return max(ratio(a, x[:, i : i + 1], b[:, i : i + 1]) for x in X for i in range(3))

    with caplog.at_level(logging.INFO, "pdla"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert max(pdla.run(2, program)) < 3
    assert max(steps_of(caplog)) <= {1e1: 2, 1e3: 3, 1e5: 6}[condition]


@pytest.mark.parametrize("share", [0.7, 0.6, 0.2, 0.1])
def test_it_goes_on_as_long_as_each_step_halves_what_is_left(share):
    """By factors that leave this share of each residual: after k steps share^k B, of X there is 1 - share^k."""
    n = 40
    a, b = np.eye(n), drawn((n, 2), "float64", 1)
    a[0] = 1  # a row whose sum is that of no column

    def program(comm):
        A, B = on((2, 1), a, BLOCKS, comm), on((2, 1), b, Layout("row"), comm)

        def solve(R):
            return on((2, 1), (1 - share) * np.linalg.solve(a, R.gather()), Layout("row"), comm)

        X, steps, more, left = refinement._iterate(A, B, solve)
        return X.gather(), steps, more, left

    x, steps, more, left = pdla.run(2, program)[0]
    exact, allowed = np.linalg.solve(a, b), np.sqrt(n) * np.finfo(float).eps * np.abs(a).sum(1).max()
    whole = (np.abs(b).max(0) / (allowed * np.abs(exact).max(0))).max()
    lefts = [whole * share**k / (1 - share**k) for k in range(1, 40)]
    ends = next(k for k, now in enumerate(lefts) if now <= 1 or (k and not now < lefts[k - 1] / 2))
    assert (steps, more) == (ends, 0)
    assert left == pytest.approx((np.abs(b - a @ x).max(0) / (allowed * np.abs(x).max(0))).max(), rel=0.5)
    assert (left <= 1) == (share < 0.5)


def test_a_step_that_leads_away_is_taken_back_before_gmres(monkeypatch):
    """One of -2 times the solution, after half of X: of the residual it makes three times as much."""
    monkeypatch.setattr(refinement, "WORTH", 0)
    a, b = drawn((20, 20), "float64") + 9 * np.eye(20), drawn((20, 2), "float64", 1)

    def program(comm):
        A, B = on((2, 1), a, BLOCKS, comm), on((2, 1), b, Layout("row"), comm)
        shares = iter((0.5, -2.0))

        def solve(R):
            return on((2, 1), next(shares, 1.0) * np.linalg.solve(a, R.gather()), R.layout, comm)

        X, *counts = refinement._iterate(A, B, solve)
        return ratio(a, X.gather(), b), *counts

    worst, steps, more, left = pdla.run(2, program)[0]
    assert worst < 3 and (steps, more) == (1, 1) and left <= 1


@pytest.mark.parametrize("power", [-1040, -130, -70, 70, 130, 1020])
def test_far_from_1_there_are_factors_in_float32(power):
    """Which scaled matrices have; the solutions are those of the matrix as it is, to the last bit."""
    a, h, b = drawn((40, 40), "complex128") + 9 * np.eye(40), positive(40, "complex128"), drawn((40, 3), "complex128", 1)
    factor = 2.0 ** (power // 2)

    def program(comm):
        wanted = [solve(on((2, 1), x, BLOCKS, comm), on((1, 2), b, BLOCKS, comm), refine="float32", **of) for x, of in known]
        far = [(on((2, 1), x * factor * 2.0 ** (power - power // 2), BLOCKS, comm), of) for x, of in known]
        B = on((1, 2), b * factor * 2.0 ** (power - power // 2), BLOCKS, comm)
        found = [solve(A, B, refine="float32", verify=verify, **of) for A, of in far for verify in (False, True)]
        return [X.gather() for X in wanted], [X.gather() for X in found]

    known = [(a, {}), (h, {"assume_a": "pos"})]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wanted, found = pdla.run(3, program)[0]
    eps = np.finfo(float).eps * max(1, 2.0 ** -(power + 1022 - 10))
    for x, pair in zip(wanted, (found[:2], found[2:]), strict=True):
        for y in pair:
            np.testing.assert_allclose(y, x, rtol=0, atol=1e5 * eps * np.abs(x).max())


@pytest.mark.parametrize(("size", "of_b"), [(4e-310, 1e-29), (4e-310, 1e-3), (1e305, 1e30), (1e-300, 1e-300), (1e300, 1e300)])
def test_what_scales_a_and_b_leaves_the_range_on_neither_way_back(size, of_b):
    a, b = np.array([[2.0, 1], [1, 3]]), np.array([1.0, 2])

    def program(comm):
        return solve(on((1, 2), a * size, BLOCKS, comm), b * of_b, refine="float32")

    np.testing.assert_allclose(pdla.run(2, program)[0] / (of_b / size), np.linalg.solve(a, b), rtol=1e-12)


@pytest.mark.parametrize(("dtype", "layout"), [("float64", cyclic(3)), ("complex128", BLOCKS)])
def test_factors_of_another_matrix_do_not_warn_of_its_condition(dtype, layout):
    """Elements of U grow to 2^81, beyond float32's digits: its last pivots are those of another matrix."""
    n = 82
    a = np.eye(n, dtype=dtype) - np.tril(np.ones((n, n)), -1)
    a[:, -1] = 1

    def program(comm):
        b = np.random.default_rng(0).standard_normal(n)
        solve(on((1, 3), a, layout, comm), b, refine="float32")

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        pdla.run(3, program)
    assert {"factored again" in str(each.message) for each in said} == {True}


def test_each_column_is_refined():
    """The first one, of large elements, is right at once."""
    a = np.eye(40) * 2
    a[1:, 1:] = positive(39, condition=1e4)
    b = np.eye(40, 2) * [1e100, 0] + np.arange(40)[:, None] * [0, 1]

    def program(comm):
        return ratio(a, solve(on((2, 1), a, BLOCKS, comm), on((2, 1), b, BLOCKS, comm), refine="float32").gather()[:, 1:], b[:, 1:])

    assert max(pdla.run(2, program)) < 3


HARD = {
    **{f"stalls at {condition:.0e}": positive(40, condition=condition) for condition in (1e8, 1e9)},
    "hilbert": hilbert(12),
    "graded": (drawn((12, 12), "float64") + 4 * np.eye(12)) * np.geomspace(1e-60, 1e60, 12),
    "ill": positive(40, condition=1e12),
    "rounded to singular": np.array([[1, 1], [1, 1 + 1e-12]]),
}


@pytest.mark.parametrize("name", HARD)
def test_what_does_not_converge_is_solved_in_full(name):
    a = HARD[name]

    def program(comm):
        A, b = on((2, 1), a, BLOCKS, comm), np.arange(len(a)) + 1.0
        return np.array_equal(solve(A, b, refine="float32"), solve(A, b))

    with pytest.warns(RuntimeWarning, match="A is factored again, in float64"):
        assert pdla.run(2, program) == [True, True]


@pytest.mark.parametrize("kind", ["float64", "complex128"])
def test_where_refinement_stalls_a_few_columns_go_on_by_gmres(kind, caplog, monkeypatch):
    monkeypatch.setattr(refinement, "WORTH", 8)
    orthogonal, other = (np.linalg.qr(drawn((80, 80), kind, seed))[0] for seed in (5, 7))
    a = (orthogonal * np.r_[np.ones(79), 1e-10]) @ other
    b = drawn((80, 12), kind, 1) * np.geomspace(1e-200, 1e200, 12)

    def program(comm, a, b, **named):
        A, B = (on((2, 2), x, BLOCKS, comm) for x in (a, b))
        X = solve(A, B, refine="float32", **named).gather()
        return max(ratio(a, X[:, i : i + 1], b[:, i : i + 1]) for i in range(b.shape[1]))

    with caplog.at_level(logging.INFO, "pdla"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert max(pdla.run(4, program, a, b[:, :10])) < 3
        assert max(pdla.run(4, program, positive(80, kind, condition=3e7), b[:, :1], assume_a="pos")) < 3
    assert " of GMRES, residual" in next(line for line in caplog.messages if line.startswith("solve: "))
    with pytest.warns(RuntimeWarning, match=r"after \d+ steps of refinement the residual"):  # of more columns factors take less
        assert max(pdla.run(4, program, a, b)) < 3
    with pytest.warns(RuntimeWarning, match=r"steps of refinement and 30 of GMRES the residual .* A is factored again"):
        assert max(pdla.run(4, program, positive(80, kind, condition=1e13), b[:, :1])) < 3


@pytest.mark.parametrize("ends", [(1e-30, 1e30), (1e-22, 1), (1, 1e19)])
def test_of_what_overflows_or_underflows_there_is_one_warning_and_the_full_solution(ends, monkeypatch):
    monkeypatch.setattr(refinement, "WORTH", 0)
    grades = np.geomspace(*ends, 40)
    a = positive(40, condition=1e8) * grades * grades[:, None]

    def program(comm):
        A, b = on((2, 1), a, BLOCKS, comm), np.full(40, 1.0)
        return np.array_equal(solve(A, b, refine="float32"), solve(A, b))

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert pdla.run(2, program) == [True, True]
    assert said and all("A is factored again, in float64" in str(w.message) for w in said)


@pytest.mark.parametrize(("large", "small"), [(1e37, 1e-290), (1e-31, 1e290), (1e300, 1e300), (1e-300, 1e-300), (1e-305, 1e250)])
def test_a_solution_may_leave_the_range_where_scaled_ones_do_not(large, small, monkeypatch):
    monkeypatch.setattr(refinement, "WORTH", 0)
    a = positive(40, condition=1e3)
    with np.errstate(over="ignore", under="ignore"):
        wanted = (np.linalg.solve(a, np.ones(40)).astype("longdouble") * small / large).astype(float)

    def program(comm):
        return solve(on((2, 1), large * a, BLOCKS, comm), np.full(40, small), refine="float32")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = pdla.run(2, program)[0]
    np.testing.assert_allclose(x, wanted, rtol=1e-11, atol=1e-12 * np.abs(wanted[np.isfinite(wanted)]).max(initial=0) + 1e-323)


def test_singular_matrices_nan_and_faults():
    a = drawn((12, 12), "float64")
    zero, nan = np.where(np.arange(12) == 5, 0, a), np.where(np.arange(144).reshape(12, 12) == 31, np.nan, a)

    def of(a, b=None, **named):
        return lambda comm: solve(on((1, 2), a, BLOCKS, comm), np.ones(12) if b is None else b, **{"refine": "float32", **named})

    with pytest.warns(RuntimeWarning, match="no factor in float32"):
        assert raised(of(zero), 3) == (LinAlgError, "the matrix is singular: element (5, 5) of U is 0")
    with pytest.warns(RuntimeWarning, match="no factor in float32"):
        assert "not positive definite" in raised(of(-np.eye(12), assume_a="pos"), 3)[1]
    with pytest.warns(RuntimeWarning, match="no factor in float32"):
        assert "of U is not finite" in raised(of(nan, check_finite=False))[1]
    with pytest.warns(RuntimeWarning, match="nan times the allowed one"):
        assert np.isnan(pdla.run(2, of(a, np.full(12, np.nan), check_finite=False))[0]).any()
    assert "refine='float16' of float64: None, or 'float32'" in raised(of(a, refine="float16"))[1]
    assert "refine='float32' of float32" in raised(of(a.astype("float32"), np.ones(12, "float32")))[1]
    assert "lower triangular', which needs no factors" in raised(of(a, assume_a="lower triangular"))[1]


def test_a_memory_limit_is_kept_where_refinement_fails():
    def program(comm):
        A, b = on((2, 2), HARD["ill"], cyclic(8), comm), np.ones(40)
        with pdla.record() as ledger:
            solve(A, b)
        most = max(comm.share(ledger.peak_workspace))
        with pytest.raises(PlanError, match=f"needs {most} bytes"):
            solve(A, b, refine="float32", memory_limit=most - 1)
        with pdla.record() as refined:
            solve(A, b, refine="float32", memory_limit=most)
        return refined.peak_workspace <= most

    with pytest.warns(RuntimeWarning, match="A is factored again"):
        assert all(pdla.run(4, program))


def test_vectors_of_gmres_count_in_a_memory_limit(monkeypatch):
    """Where it may follow, as a dry run takes none of its steps; there are two vectors of each of 30 steps."""
    vector = 40 * 40 // 4 * 8

    def needed(comm):
        A, B = on((2, 2), HARD["ill"], BLOCKS, comm), on((2, 2), drawn((40, 40), "float64"), BLOCKS, comm)
        with pytest.raises(PlanError) as error:
            solve(A, B, refine="float32", memory_limit=0)
        most = int(str(error.value).split("needs ")[1].split(" ")[0])
        with pdla.record() as ledger:
            solve(A, B, refine="float32", memory_limit=most)
        assert ledger.peak_workspace <= most
        return most

    with pytest.warns(RuntimeWarning, match="A is factored again"):
        assert pdla.run(4, needed)[0] < 60 * vector
        monkeypatch.setattr(refinement, "WORTH", 1)
        assert pdla.run(4, needed)[0] > 60 * vector


def test_dry_runs_count_what_is_received():
    def program(comm):
        grid = pdla.ProcessGrid((2, 3), comm=comm)
        A = pdla.from_function(lambda i, j: 9.0 * (i == j) + 1 / (1 + i + j), (64, 64), grid, cyclic(8))
        with pdla.record() as ledger:
            solve(A, np.ones(64), refine="float32")
        return ledger.by_verb()["bcast"]

    ran = pdla.run(6, program)
    dry = [pdla.dry_run(6, program, rank=rank)[0] for rank in range(6)]
    assert all(mine >= foretold for mine, foretold in zip(ran, dry, strict=True))

    def large(comm):
        return solve(pdla.zeros((4096, 4096), pdla.ProcessGrid((32, 32), comm=comm), cyclic(32)), np.ones(4096), refine="float32")

    assert pdla.dry_run(1024, large, rank=37)[0].shape == (4096,)
