"""LAPACK on a device, function by function against NumPy's namespace; and what is made of it, in threads."""

from itertools import product

import numpy as np
import pytest
from helpers.device_arrays import FLOATS, LIE, close, there, xp
from helpers.matmuls import numbers
from helpers.systems import BLOCKS, cyclic

import pdla
from pdla import Layout, config
from pdla.array import numpy as host
from pdla.linalg import lstsq, matrix_rank, polar, qr


def positive(n, dtype):
    a = numbers((n, n), dtype) / 64
    return (a @ a.conj().T + n * np.eye(n)).astype(dtype)


@pytest.mark.parametrize("how", ["C", "F", "gaps", "steps"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_lapack_is_numpys(dtype, how):
    for n in (0, 1, 40):
        a = positive(n, dtype)
        x, y = there(a, how), a.copy()
        assert xp.potrf(x) == host.potrf(y) == (0, 0.0)
        close(x, y, y, n)
        assert xp.trtri(x) == pytest.approx(host.trtri(y), rel=1e-3)
        close(x, y, y, n)
        a = numbers((n + 3, n), dtype) / 64
        x, y = there(a, how), a.copy()
        (pivots, fault), (wanted, _) = xp.getrf(x, there(a, how)), host.getrf(y, a)
        assert np.array_equal(pivots, wanted) and fault == 0
        close(x, y, y, n)
    a = np.eye(9, dtype=dtype)
    a[4, 4] = -0.5
    assert xp.potrf(there(a, how)) == (5, -0.5)
    a = there(np.diag(np.arange(3, -2, -1.0)).astype(dtype), how)
    assert xp.getrf(a.copy(), a)[1] == 4


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_host_divides_by_subnormal_pivots(dtype):
    least = np.finfo(dtype).tiny / 8
    before = there(np.array([[least, 0], [2 * least, least]], dtype), "F")
    a = before.copy()
    assert xp.getrf(a, before)[0].tolist() == [1, 1]
    assert np.array_equal(xp.host(a), np.array([[2 * least, least], [0.5, -least / 2]], dtype))


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("dtype", FLOATS)
def test_trsm_is_numpys(dtype, lower):
    t, b = numbers((33, 33), dtype) / 2048 + np.eye(33, dtype=dtype), numbers((33, 5), dtype)
    for one, other, (unit, conjugate) in product(LIE[:4], LIE[:4], product((False, True), repeat=2)):
        x, y = there(b, other), b.copy()
        xp.trsm(there(t, one), x, lower, unit, conjugate)
        host.trsm(t, y, lower, unit, conjugate)
        close(x, y, y, 33)


@pytest.mark.parametrize("how", ["C", "F", "gaps", "steps"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_reflections_are_numpys(dtype, how):
    for m, n in ((0, 0), (3, 0), (1, 1), (9, 9), (40, 13)):
        a = numbers((m, n), dtype) / 64
        x, y = there(a, how), a.copy("F")
        t, wanted = xp.geqrt(x), host.geqrt(y)
        close(x, y, y, max(1, m))
        close(t, wanted, wanted, max(1, m))
        v = np.tril(y, -1) + np.eye(m, n, dtype=dtype)
        for unused in ([], [0, n - 1]):
            tau = wanted.diagonal().copy()
            tau[unused[: 2 * n]] = 0
            gram = v.conj().T @ v
            close(xp.larft(there(gram, how), tau), host.larft(gram, tau), wanted, max(1, m))
        q = np.linalg.qr(a)[0].astype(dtype)[:n] if n else np.zeros((0, 0), dtype)
        for found, other in zip(xp.orhr_col(there(q, how)), host.orhr_col(q), strict=True):
            close(found, other, other, max(1, m))
    with pytest.raises(AssertionError, match="geqrt of 2 x 3"):
        xp.geqrt(there(np.ones((2, 3), dtype), how))


@pytest.mark.parametrize("how", ["C", "F", "gaps", "steps"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_eigenvectors_are_right(dtype, how):
    kind = np.finfo(dtype)
    for n in (0, 1, 2, 40):
        a = numbers((n, n), dtype) / 64
        a = (a + a.conj().T).astype(dtype)
        for power in (1, float(kind.tiny) * 2**8, float(kind.max) / 2**16):
            given = (a * kind.dtype.type(power)).astype(dtype)
            given[np.triu_indices(n, 1)] = np.nan  # not read
            if given.dtype.kind == "c":
                given.imag[range(n), range(n)] = np.nan
            x = there(given, how)
            w, v = xp.syevd(x), xp.host(x)
            assert type(w) is np.ndarray and w.dtype == kind.dtype
            close(xp.asarray(w / kind.dtype.type(power)), host.syevd(a.copy()), np.abs(a).max(initial=1), n)
            close(xp.asarray(a @ v), v * (w / kind.dtype.type(power)), np.abs(a).max(initial=1), n)
    a = there(np.where(np.arange(3) == 0, np.inf, np.eye(3)).astype(dtype), how)
    assert np.isnan(xp.syevd(a)).all()


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_factors_fits_and_polar_factors_on_devices(dtype):
    """In threads: panels that are cut and whole; both ways of a tall matrix; a polar factor by QR and by Cholesky factors."""
    a, eps = numbers((26, 26), dtype) / 64, float(np.finfo(dtype).eps)
    lauchli = np.vstack([np.ones(3), eps * np.eye(3), np.zeros((22, 3))]).astype(dtype)
    cases = [((2, 2), cyclic(8), a), ((1, 4), cyclic(4), a[:, :17]), ((4, 1), cyclic(4), a[:17])]
    cases += [((4, 1), Layout("row"), a[:, :3]), ((4, 1), Layout("row"), lauchli)]

    def program(comm, grid, layout, x):
        A = pdla.from_global(x, pdla.ProcessGrid(grid, comm=comm), layout)
        Q, R = qr(A)
        assert Q.xp is R.xp is xp
        q, r = Q.gather().get(), R.gather().get()
        assert np.abs(q @ r - x).sum(0).max() < 30 * 60 * eps * np.abs(x).sum(0).max()
        assert np.abs(q.conj().T @ q - np.eye(q.shape[1])).sum(0).max() < 30 * 60 * eps and not np.tril(r, -1).any()
        b = numbers((len(x), 2), dtype)
        X, _, rank, _ = lstsq(A, pdla.from_global(b, A.grid, BLOCKS))
        wanted, _, full, _ = np.linalg.lstsq(x, b, rcond=max(x.shape) * eps)
        assert X.xp is xp and rank == full == matrix_rank(A)
        near = 1e4 * eps * np.linalg.cond(x) if rank == min(x.shape) < 26 else np.inf  # a itself is ill-conditioned
        assert np.abs(X.gather().get() - wanted).max() <= near * np.abs(wanted).max()
        if grid == (2, 2):
            for y in (x, x + 9 * np.eye(26, dtype=dtype)):
                U, H = (Y.gather().get() for Y in polar(pdla.from_global(y, A.grid, layout)))
                assert np.abs(U @ H - y).max() < 1e3 * eps * np.abs(y).max() * 60
                assert np.abs(U.conj().T @ U - np.eye(26)).max() < 1e3 * eps

    with config.override(array="cupy"):
        for case in cases:
            pdla.run(4, program, *case)
