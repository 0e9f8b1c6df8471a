"""Least squares: NumPy's and SciPy's, of full rank and below, tall and wide."""

import numpy as np
import pytest
import scipy.linalg
from helpers.systems import BLOCKS, WAYS, cyclic, drawn, on, raised

import pdla
from pdla import Layout
from pdla.errors import ArgumentError, LayoutError, LinAlgError, PlanError
from pdla.linalg import lstsq, plan_lstsq, predict_lstsq, predict_qr

SHAPES = [(40, 40), (33, 20), (20, 33), (80, 4), (4, 80), (7, 3), (1, 1), (0, 4), (4, 0)]
GRIDS = [("blocks", (2, 2), 1), ("cyclic", (1, 3), 0), ("columns", (1, 2), 0), ("cyclic", (3, 1), 1), ("adjoint", (2, 2), 0)]


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rank", [99, 3, 0])
def test_numpy_s(dtype, shape, rank):
    inner = min(rank, *shape)
    a = drawn((shape[0], inner), dtype) @ drawn((inner, shape[1]), dtype, 1)
    b, close = drawn((shape[0], 3), dtype, 2), 1e4 * np.finfo(dtype).eps
    limit = max(shape) * np.finfo(dtype).eps
    x, residuals, found, s = np.linalg.lstsq(a, b, rcond=limit)

    def program(comm, way, grid):
        A, B = WAYS[way](grid, a, comm), on(grid, b, BLOCKS, comm)
        X, left, r, values = lstsq(A, B)
        assert r == found and np.allclose(X.gather(), x, atol=close) and X.dtype == a.dtype and X.layout == B.layout
        assert left.shape == residuals.shape and np.allclose(left, residuals, rtol=1e-3, atol=close)
        assert values is None or np.allclose(values, s, atol=close)
        y, *_ = lstsq(A, b[:, 0].copy())
        assert np.allclose(y, x[:, 0], atol=close)

    for way, grid, idle in GRIDS[:: 1 if dtype == "float64" else 2]:
        pdla.run(grid[0] * grid[1] + idle, program, way, grid)


@pytest.mark.parametrize("shape", [(40, 20), (80, 4), (20, 40)])
def test_residuals_are_those_of_an_a_that_may_be_overwritten(shape):
    a, b = drawn(shape, "float64"), drawn((shape[0], 2), "float64", 1)

    def program(comm):
        A, B = on((2, 2), a, cyclic(4), comm), on((2, 2), b, BLOCKS, comm)
        X, residuals, *_ = lstsq(A, B, overwrite_a=True)
        return X.gather(), residuals

    x, residuals = pdla.run(4, program)[0]
    expected = np.linalg.lstsq(a, b, rcond=None)
    assert np.allclose(x, expected[0]) and np.allclose(residuals, expected[1])


PLANNED = [
    ((64, 64), "right-looking"), ((60, 33), "right-looking"), ((33, 60), "right-looking"), ((256, 16), "CholeskyQR2"),
    ((16, 256), "CholeskyQR2"),
]


@pytest.mark.parametrize(("shape", "algorithm"), PLANNED)
@pytest.mark.parametrize("columns", [0, 3])
def test_a_plan_receives_what_it_says(shape, algorithm, columns, monkeypatch):
    """The estimate of the condition, whose steps depend on R, is left out."""
    monkeypatch.setattr("pdla.linalg.orthogonal.least_squares.estimate_reciprocal_condition", lambda factors: 1.0)
    k = min(shape)
    a = drawn((shape[0], k), "float64") * np.linspace(1, 30, k) @ drawn((k, shape[1]), "float64", 1)
    b = drawn((shape[0], columns or 1), "float64", 2)
    expected = np.linalg.lstsq(a, b, rcond=None)[0]

    def program(comm, grid, layout):
        A, B = on(grid, a, layout, comm), b[:, 0].copy() if columns == 0 else on(grid, b, BLOCKS, comm)
        plan = plan_lstsq(A, B, check_finite=False)
        with pdla.record() as ledger:
            X = plan(A, B)[0]
        assert np.allclose(X if columns == 0 else X.gather(), expected[:, 0] if columns == 0 else expected)
        told, said = plan.predicted, plan.explain()
        assert algorithm in said and ("A^H" in said) == (shape[0] < shape[1])
        return ledger.bytes_received, told.bytes_received, ledger.peak_workspace <= told.peak_workspace

    for grid, layout in (((2, 2), BLOCKS), ((3, 1), Layout("row"))):
        received, told, fits = zip(*pdla.run(grid[0] * grid[1], program, grid, layout), strict=True)
        assert max(received) == told[0] > 0 and all(fits)


@pytest.mark.parametrize("shape", [(40, 40), (16, 160)])
def test_a_memory_limit_is_kept(shape):
    a, b = drawn(shape, "float64"), drawn((shape[0],), "float64", 1)

    def program(comm):
        A = on((2, 1), a, Layout("row"), comm)
        most = plan_lstsq(A, b).predicted.peak_workspace
        with pytest.raises(PlanError, match="bytes too few"):
            lstsq(A, b, memory_limit=most // 9)
        with pdla.record() as ledger:
            x = lstsq(A, b, memory_limit=most)[0]
        return x if ledger.peak_workspace <= most else None

    assert all(np.allclose(a @ x, b) for x in pdla.run(2, program))


def test_predictions():
    seconds = [predict_lstsq(m, n, 4, machine="a100x4").seconds for m, n in ((2000, 10), (10, 2000), (200, 200))]
    assert seconds[0] == seconds[1] < seconds[2]
    assert 1000 < predict_lstsq(10**7, 512, 10**6, machine="a100x4").ranks_used <= 10**6
    assert seconds[2] > predict_qr(200, 200, 4, mode="r", machine="a100x4").seconds
    with pytest.raises(ArgumentError, match="whole numbers"):
        predict_lstsq(1.5, 2, 4)


def test_predictions_of_many_steps_run_nothing_dry(monkeypatch):
    monkeypatch.setattr("pdla.linalg.plan.plan.predict_cost", None)
    assert predict_lstsq(20_001, 8000, 4, machine="laptop").seconds > 4


def test_numpy_sizes_are_sizes():
    m, n = np.int64(65536), np.int64(64)
    assert predict_lstsq(m, n, 4) == predict_lstsq(65536, 64, 4)
    assert predict_qr(m, n, 4) == predict_qr(65536, 64, 4)


def test_a_limit_of_one_s_own():
    a = np.diag([1.0, 1e-3, 1e-9])

    def program(comm):
        A, B = (on((2, 1), x, Layout("row"), comm) for x in (a, np.ones((3, 1))))
        return [lstsq(A, B, rcond=rcond)[2] for rcond in (None, 1e-6, 0.1)]

    assert pdla.run(2, program)[0] == [3, 2, 1]


@pytest.mark.parametrize("m", [40, 400])
def test_fits_where_the_normal_equations_fail(m):
    """A polynomial of degree 30 in powers: fitted values are as near as SciPy's, the normal equations lose all digits."""
    t = np.linspace(-1, 1, m)
    a, b = np.vander(t, 31), np.cos(5 * t)

    def program(comm):
        A = on((comm.size, 1), a, Layout("row"), comm)
        return lstsq(A, b)[0]

    x = pdla.run(3, program)[0]
    expected = scipy.linalg.lstsq(a, b, cond=m * np.finfo(float).eps)[0]
    assert np.abs(a @ x - b).max() < 2 * np.abs(a @ expected - b).max() + 1e-12


def test_faults_are_told_alike_on_every_rank():
    a = drawn((6, 4), "float64")
    cases = (
        ("shape (5,): a vector has 6", np.ones(5), {}), ("rcond=2", np.ones(6), {"rcond": 2}), ("B has shape", np.ones((6, 1)), {}),
    )
    for text, b, options in cases:
        assert text in raised(lambda comm, b=b, options=options: lstsq(on((2, 1), a, BLOCKS, comm), b, **options))[1]
    vector = raised(lambda comm: lstsq(on((2, 1), a, BLOCKS, comm), np.ones(6), layout=Layout()))
    assert vector[0] is LayoutError and "whole on every rank" in vector[1]
    assert "has inf" in raised(lambda comm: lstsq(on((2, 1), a, BLOCKS, comm), np.full(6, np.inf)), 3)[1]
    a[3, 1] = np.nan
    unseen = raised(lambda comm: lstsq(on((2, 1), a, BLOCKS, comm), np.ones(6), check_finite=False), 3)
    assert unseen == (LinAlgError, "SVD did not converge")
