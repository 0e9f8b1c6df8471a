"""QR of any layout, shape and rank count: LAPACK's ratios on the zoo, modes, pivots, products with Q, plans, and faults."""

import warnings
from itertools import cycle

import numpy as np
import pytest
import scipy.linalg
from helpers.systems import BLOCKS, KINDS, WAYS, cyclic, drawn, on, raised
from helpers.zoo import GENERAL, animal

import pdla
from pdla import Layout
from pdla.errors import PlanError
from pdla.linalg import orth, plan_qr, predict_qr, qr, qr_multiply, qr_words

SHAPES = [(0, 3), (3, 0), (1, 1), (1, 6), (33, 20), (20, 33), (40, 40), (80, 4), (64, 8)]


def ratios(a, q, r):
    """Of the residual and of orthogonality, as LAPACK's testers measure them: right below 30."""
    kind = np.finfo(a.dtype)
    wide = np.clongdouble if a.dtype.kind == "c" else np.longdouble
    a, q, r = (x.astype(wide) for x in (a, q, r))
    unit = max(1, *a.shape) * float(kind.eps)
    size = np.abs(a).sum(0).max(initial=0)
    left = np.abs(q @ r - a).sum(0).max(initial=0) / (max(size, float(kind.tiny)) * unit)
    return float(left), float(np.abs(q.conj().T @ q - np.eye(q.shape[1])).sum(0).max(initial=0) / unit)


def factors(a, way, grid, idle=0, **options):
    def program(comm):
        A = WAYS[way](grid, a, comm) if way else on(grid, a, BLOCKS, comm)
        made = qr(A, **options)
        return [X.gather() if isinstance(X, pdla.DistMatrix) else X for X in (made if isinstance(made, tuple) else (made,))]

    return pdla.run(grid[0] * grid[1] + idle, program)[0]


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_of_all_shapes_on_all_grids(dtype, shape):
    a = drawn(shape, dtype)
    for (way, grid), idle in zip(
        [("blocks", (2, 2)), ("cyclic", (3, 1)), ("cyclic", (1, 3)), ("columns", (1, 2)), ("sums", (2, 2)), ("adjoint", (2, 3))],
        cycle((0, 1)), strict=False,
    ):
        q, r = factors(a, way, grid, idle)
        assert max(ratios(a, q, r)) < 30 and not np.tril(r, -1).any()
        assert q.shape == (shape[0], min(shape)) and q.dtype == r.dtype == a.dtype


@pytest.mark.parametrize("shape", [(300, 300), (300, 170), (140, 300)])
@pytest.mark.parametrize("grid", [(1, 1), (1, 2), (2, 1), (3, 2)])
def test_of_several_panels_in_layouts_of_pdla_s_choice(shape, grid):
    a = drawn(shape, "float64")
    assert max(ratios(a, *factors(a, "blocks", grid))) < 30


CASES = zip(GENERAL, cycle(KINDS), cycle([(2, 2), (1, 3), (4, 1), (2, 3)]), cycle(WAYS), cycle((0, 1)), strict=False)


@pytest.mark.parametrize(("name", "dtype", "grid", "way", "idle"), list(CASES))
@pytest.mark.parametrize(("mode", "n"), [("square", 33), ("tall", 8), ("wide", 9)])
def test_the_zoo(name, dtype, grid, way, idle, n, mode):
    a = animal("general", name, n, dtype)
    a = {"square": a, "tall": np.vstack([a] * 9), "wide": np.hstack([a, a])}[mode]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*computed again")
        q, r = factors(a, way, grid, idle, verify=True)
        assert max(ratios(a, q, r)) < 30
        q, r, order = factors(a, way, grid, idle, verify=True, pivoting=True)
    assert max(ratios(a[:, order], q, r)) < 30 and sorted(order) == [*range(a.shape[1])]
    d = np.abs(r.diagonal()).astype(float)
    assert (d[1:] <= d[:-1] * (1 + 1e-3) + a.shape[0] * np.finfo(dtype).eps * d[:1]).all()


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_raw_reflections_are_lapack_s_where_panels_are_whole(dtype):
    a = drawn((40, 30), dtype)
    expected, tau = scipy.linalg.qr(a, mode="raw")[0]
    found, t = factors(a, "columns", (1, 3), mode="raw")
    assert np.allclose(found, expected, atol=1e-13) and np.allclose(t, tau, atol=1e-13)


@pytest.mark.parametrize("grid", [(1, 3), (3, 1), (2, 2)])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("shape", [(30, 20), (20, 30), (90, 5)])
def test_products_with_q_are_those_of_q(grid, dtype, shape):
    a, c, d = drawn(shape, dtype), drawn((7, shape[0]), dtype, 1), drawn((min(shape), 6), dtype, 2)

    def program(comm):
        A, C, D = (on(grid, x, BLOCKS, comm) for x in (a, c, d))
        Q = qr(A)[0].gather()
        for conjugate, q in ((False, Q), (True, Q.conj())):
            right, R = qr_multiply(A, C, conjugate=conjugate)
            assert np.allclose(right.gather(), c @ q) and R.shape == (min(shape), shape[1])
            left = qr_multiply(A, D, mode="left", conjugate=conjugate, layout=Layout("row"))[0]
            assert np.allclose(left.gather(), q @ d) and left.layout == Layout("row")

    pdla.run(4, program)


@pytest.mark.parametrize("power", [1e-320, 1e-300, 1e-160, 1e160, 1e300])
@pytest.mark.parametrize("shape", [(40, 40), (80, 5), (20, 33)])
def test_near_the_ends_of_the_range(power, shape):
    """Columns of very different sizes, too: A x is compared after both are brought near 1."""
    a = np.round(drawn(shape, "float64") * 2**8)
    a[0, 0] = 256
    for way, grid in (("cyclic", (3, 1)), ("columns", (1, 2))):
        q, r = factors(a * power, way, grid)
        near = 2.0**-500 if power > 1 else 2.0**500
        back = float(np.float64(power * near)) if power > 1e-310 else None
        assert np.isfinite(r).all() and ratios(a, q, q.T @ a)[1] < 30
        if back is not None:
            assert ratios(a, q, (r * near) / back)[0] < 30


@pytest.mark.parametrize("shape", [(40, 40), (40, 24), (24, 40)])
def test_q_of_subnormal_numbers_has_all_digits(shape):
    """Integers times the least number: what R cannot hold, Q can."""
    a = np.round(drawn(shape, "float64") * 2**8)
    for way, grid in (("cyclic", (3, 1)), ("columns", (1, 2))):
        q, _ = factors(a * 2.0**-1070, way, grid)
        r = q.T @ a
        assert max(ratios(a, q, np.triu(r))) < 30


@pytest.mark.parametrize("grid", [(1, 2), (2, 2)])
def test_reflections_of_a_scaled_matrix_are_those_of_the_matrix(grid):
    """Bitwise, as factors are powers of 2; R is scaled back."""
    a = drawn((20, 12), "float64")
    found, tau = factors(a, "cyclic", grid, mode="raw")
    large, same = factors(a * 2.0**1015, "cyclic", grid, mode="raw")
    assert np.array_equal(same, tau) and np.array_equal(large, np.tril(found, -1) + np.triu(found) * 2.0**1015)


def test_columns_beside_the_diagonal_may_be_near_the_end_of_the_range():
    """R's diagonal does not show them: their sums would overflow, R itself does not."""
    a = drawn((20, 33), "float64") * 1e100
    a[:, 20:] = 0.3e308 * np.sign(a[:, 20:])
    q, r = factors(a, "cyclic", (3, 1))
    assert max(ratios(a * 2.0**-100, q, r * 2.0**-100)) < 30


def test_lauchli_s_matrix_whose_gram_matrix_has_rank_1():
    a = np.vstack([np.ones(20), 1e-9 * np.eye(20), np.zeros((200, 20))])
    for grid in ((1, 1), (4, 1), (7, 1)):
        q, r = factors(a, "copies" if grid == (1, 1) else "blocks", grid)
        assert max(ratios(a, q, r)) < 30
        expected = np.linalg.qr(a)[1]
        assert np.allclose(np.abs(r), np.abs(expected), rtol=1e-6, atol=1e-22)


def test_an_orthonormal_basis_has_as_many_columns_as_the_rank():
    a = drawn((50, 4), "float64") @ drawn((4, 30), "float64", 1)

    def program(comm):
        q = orth(on((2, 2), a, BLOCKS, comm)).gather()
        none = orth(on((2, 2), 0 * a, BLOCKS, comm)).gather()
        return q, none.shape

    q, none = pdla.run(5, program)[4]
    assert q.shape == (50, 4) and np.allclose(q @ (q.T @ a), a) and none == (50, 0)


@pytest.mark.parametrize(("shape", "block"), [((1, 4), 32), ((4, 1), 32), ((2, 2), 32), ((3, 3), 64), ((2, 4), 64), ((6, 2), 32)])
def test_words_are_those_of_the_formula_in_any_world(shape, block):
    n, ranks = 576, shape[0] * shape[1]

    def received(A):
        with pdla.record() as ledger:
            qr(A, mode="raw", check_finite=False)
        return ledger.bytes_received

    real = pdla.run(ranks, lambda comm: received(pdla.random((n, n), pdla.ProcessGrid(shape, comm=comm), cyclic(block))))
    assert sum(real) == pytest.approx(8 * ranks * qr_words(n, n, shape, block), rel=1e-12 if n % (block * shape[0]) == 0 else 0.02)
    for rank in {0, ranks // 2, ranks - 1}:
        dry = pdla.dry_run(
            ranks, lambda comm: received(pdla.zeros((n, n), pdla.ProcessGrid(shape, comm=comm), cyclic(block))), rank=rank
        )[0]
        assert dry == real[rank]


def test_plans_say_what_they_cost_and_keep_a_limit():
    def program(comm):
        A = on((2, 2), drawn((200, 120), "float64"), BLOCKS, comm)
        plan = plan_qr(A, mode="r")
        with pdla.record() as ledger:
            R = plan(A)
        assert ledger.bytes_received <= plan.predicted.bytes_received and "right-looking" in plan.explain()
        qr(A, mode="r", memory_limit=plan.predicted.peak_workspace)
        with pytest.raises(PlanError, match="bytes too few"):
            qr(A, memory_limit=1000)
        tall = plan_qr(on((4, 1), drawn((200, 12), "float64"), Layout("row"), comm))
        assert "CholeskyQR2" in tall.explain() and tall.predicted.bytes_received > 0
        return R.shape

    assert pdla.run(4, program)[0] == (120, 120)


def test_predictions_of_a_million_ranks():
    assert 1000 < predict_qr(10**7, 512, 10**6, machine="a100x4").ranks_used <= 10**6
    told = predict_qr(16384, 16384, 64, machine="a100x4")
    assert told.seconds > 4 / 3 * 16384**3 / (64 * pdla.Machine.load("a100x4").flops)
    machine = pdla.Machine.load("laptop")
    for mode, operations in (("r", 4 / 3), ("reduced", 8 / 3)):
        alone = predict_qr(8192, 8192, 1, mode=mode, machine="laptop")
        assert alone.seconds == pytest.approx(operations * 8192**3 / machine.flops, rel=0.15)


def test_more_ranks_never_take_longer():
    for m, n in ((600, 600), (20_000, 100)):
        seconds = [predict_qr(m, n, ranks, machine="a100x4").seconds for ranks in (1, 2, 3, 4, 6, 8, 12, 16)]
        assert seconds == sorted(seconds, reverse=True)


def test_r_alone_is_checked_in_the_order_of_its_columns():
    a = drawn((33, 20), "float64")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*computed again")
        r, order = factors(a, "blocks", (2, 2), mode="r", pivoting=True, verify=True)
    assert not np.array_equal(order[order], np.arange(20)) and np.allclose(r.T @ r, a[:, order].T @ a[:, order])


def test_faults_are_told_alike_on_every_rank():
    a = drawn((6, 4), "float64")
    cases = {
        "mode='q'": {"mode": "q"}, "has no pivoting": {"mode": "raw", "pivoting": True}, "pivoting=2": {"pivoting": 2},
    }
    for text, options in cases.items():
        assert text in raised(lambda comm, options=options: qr(on((2, 1), a, BLOCKS, comm), **options))[1]
    with pytest.raises(PlanError, match="mode='q'"):
        predict_qr(6, 4, 2, mode="q")
    nan = np.where(np.arange(4) == 2, np.nan, a)
    assert "A has nan at [0, 2]" in raised(lambda comm: qr(on((2, 1), nan, BLOCKS, comm)), 3)[1]
    assert "must have 6 columns" in raised(lambda comm: qr_multiply(on((2, 1), a, BLOCKS, comm), on((2, 1), a, BLOCKS, comm)))[1]
    assert "disagree" in raised(lambda comm: qr(on((2, 1), a, BLOCKS, comm), pivoting=comm.rank == 0))[1]


def test_nan_that_nobody_looks_for_stays_nan():
    a = drawn((40, 4), "float64")
    a[3, 1] = np.nan
    for shape in (a, a[:8], a[:4]):
        _q, r = factors(shape, "blocks", (2, 1), check_finite=False)
        assert np.isnan(r).any()
