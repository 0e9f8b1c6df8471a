"""Singular values, by one rank's LAPACK and by all ranks; pseudo-inverses, ranks and null spaces: NumPy's, below full rank, too."""

import numpy as np
import pytest
from helpers.systems import BLOCKS, WAYS, cyclic, drawn, on, raised
from helpers.zoo import GENERAL, animal

import pdla
from pdla import Layout
from pdla.array.composed import LEADING
from pdla.linalg import lstsq, matrix_rank, null_space, pinv, svd, svdvals
from pdla.linalg.functions import singular

SHAPES = [(40, 40), (33, 20), (20, 33), (80, 4), (4, 80), (7, 3), (1, 1), (0, 4), (4, 0)]
GRIDS = [("cyclic", (3, 1), 1), ("columns", (1, 2), 0), ("adjoint", (2, 2), 0)]


@pytest.fixture(params=["one rank", "all ranks"])
def ranks(request, monkeypatch):
    """Who decomposes: the first rank alone, or all ranks."""
    if request.param == "all ranks":
        monkeypatch.setattr(singular, "SMALL", 0)


def ratios(a, u, s, vh):
    """Of residual, orthogonality and values, as LAPACK's testers measure them: right below 30."""
    kind, k = np.finfo(a.dtype), min(a.shape)
    unit = max(1, *a.shape) * float(kind.eps)
    wide = np.clongdouble if a.dtype.kind == "c" else np.longdouble
    u, vh, a = (x.astype(wide) for x in (u, vh, a))
    near = np.linalg.svd(a.astype(complex), compute_uv=False)
    size = max(float(near.max(initial=0)), float(kind.tiny))
    left, eye = np.abs((u * s) @ vh - a).max(initial=0) / size, np.eye(k)
    turned = max(np.abs(u.conj().T @ u - eye).max(initial=0), np.abs(vh @ vh.conj().T - eye).max(initial=0))
    return float(left / unit), float(turned / unit), float(np.abs(s - near).max(initial=0) / size / unit)


def compute(a, way, grid, idle=0):
    def program(comm):
        A = WAYS[way](grid, a, comm)
        U, s, Vh = svd(A)
        assert np.allclose(svdvals(A), s, atol=40 * max(a.shape) * np.finfo(a.dtype).eps * s.max(initial=0))
        return U.gather(), s, Vh.gather()

    found = pdla.run(grid[0] * grid[1] + idle, program)
    assert all(np.array_equal(x, y) for other in found[1:] for x, y in zip(found[0], other, strict=True))
    return found[0]


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.usefixtures("ranks")
def test_of_all_shapes(dtype, shape):
    a = drawn(shape, dtype)
    for way, grid, idle in GRIDS[: 3 if dtype == "float64" else 1]:
        u, s, vh = compute(a, way, grid, idle)
        assert (u.shape, vh.shape) == ((shape[0], min(shape)), (min(shape), shape[1])) and u.dtype == vh.dtype == a.dtype
        assert max(ratios(a, u, s, vh)) < 30 and (s[1:] <= s[:-1]).all() and (s >= 0).all()


@pytest.mark.parametrize("name", GENERAL)
@pytest.mark.usefixtures("ranks")
def test_the_zoo(name):
    a = animal("general", name, 33, "float64")
    assert max(ratios(a, *compute(a, "cyclic", (2, 2)))) < 30
    assert max(ratios(a[:, :20].copy(), *compute(a[:, :20].copy(), "blocks", (3, 1)))) < 30


@pytest.mark.parametrize("power", [1e-300, 1e-160, 1e160, 1e300])
@pytest.mark.usefixtures("ranks")
def test_near_the_ends_of_the_range(power):
    a = drawn((24, 24), "float64") * power
    u, s, vh = compute(a, "blocks", (2, 2))
    assert max(ratios(a / power, u, s / power, vh)) < 30


@pytest.mark.usefixtures("ranks")
def test_signs_and_layouts():
    """Both ways find the same vectors; U is in A's layout, or in the layout that is asked for."""
    a = np.diag([1.0, 5, 3, 2, 4]) @ np.linalg.qr(drawn((5, 5), "float64"))[0]

    def program(comm):
        A = on((2, 2), a, BLOCKS, comm)
        U, s, Vh = svd(A)
        assert U.layout == Vh.layout == A.layout and svd(A, layout=Layout("row"))[0].layout == Layout("row")
        return U.gather(), s, Vh.gather()

    u, s, vh = pdla.run(4, program)[0]
    assert np.allclose(s, [5, 4, 3, 2, 1]) and np.allclose((u * s) @ vh, a)
    large = np.abs(vh) >= LEADING * np.abs(vh).max(axis=1)[:, None]
    assert (vh[np.arange(5), large.argmax(axis=1)] > 0).all()


def test_of_more_than_1024_columns_all_ranks_share_the_work():
    def program(comm, m, n):
        return singular._is_for_one_rank(pdla.zeros((m, n), pdla.ProcessGrid(comm.size, comm=comm)))

    cases = (2, 1025, 1024), (2, 1025, 1025), (1, 1025, 1025)
    assert [pdla.dry_run(ranks, program, m, n)[0] for ranks, m, n in cases] == [True, False, True]


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rank", [99, 3, 0])
@pytest.mark.usefixtures("ranks")
def test_inverses_ranks_and_null_spaces_are_numpy_s(dtype, shape, rank):
    inner = min(rank, *shape)
    a = drawn((shape[0], inner), dtype) @ drawn((inner, shape[1]), dtype, 1)
    close, limit = 1e4 * np.finfo(dtype).eps, max(shape) * np.finfo(dtype).eps
    found = np.linalg.matrix_rank(a) if a.size else 0

    def program(comm, way, grid):
        A = WAYS[way](grid, a, comm)
        assert np.allclose(pinv(A).gather(), np.linalg.pinv(a, rcond=limit), atol=close)
        assert matrix_rank(A) == found
        N = null_space(A).gather()
        assert N.shape == (shape[1], shape[1] - found)
        assert np.allclose(a @ N, 0, atol=close) and np.allclose(N.conj().T @ N, np.eye(N.shape[1]), atol=close)

    for way, grid, idle in GRIDS[: 3 if dtype == "float64" else 1]:
        pdla.run(grid[0] * grid[1] + idle, program, way, grid)


@pytest.mark.usefixtures("ranks")
def test_a_limit_of_one_s_own():
    a = np.diag([1.0, 1e-3, 1e-9])

    def program(comm):
        A = on((2, 1), a, Layout("row"), comm)
        return matrix_rank(A, tol=1e-2), matrix_rank(A, rtol=1e-4), null_space(A, rcond=1e-6).shape, pinv(A, rcond=0.5).trace()

    *counts, trace = pdla.run(2, program)[0]
    assert counts == [1, 2, (3, 1)] and trace == pytest.approx(1)


@pytest.mark.parametrize("shape", [(40, 4), (4, 40)])
def test_the_limit_counts_the_longer_side(shape):
    """Of singular values that are as large as 10 and 100 eps, the limit is 40 eps."""
    def program(comm, least):
        a = np.zeros(shape)
        a[range(4), range(4)] = 1, 1, 1, least * np.finfo(float).eps
        A = on((2, 1), a, BLOCKS, comm)
        assert matrix_rank(A) == np.linalg.matrix_rank(a) == lstsq(A, np.ones(shape[0]))[2]
        return matrix_rank(A), null_space(A).shape[1]

    assert [pdla.run(2, program, least)[0] for least in (10, 100)] == [(3, shape[1] - 3), (4, shape[1] - 4)]


@pytest.mark.parametrize("call", [svd, svdvals, pinv, matrix_rank, null_space], ids=lambda call: call.__name__)
def test_faults_are_told_alike_on_every_rank(call):
    a = drawn((6, 4), "float64")
    for value in (np.nan, np.inf):
        a[5, 3] = value
        assert f"A has {value}" in raised(lambda comm: call(on((2, 1), a, cyclic(2), comm)))[1]
    assert "A is an ndarray, not a DistMatrix" in raised(lambda comm: call(a))[1]
    assert "A is a Stack, not a DistMatrix" in raised(lambda comm: call(pdla.stack(np.ones((2, 4, 4)))))[1]
