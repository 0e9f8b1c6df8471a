"""LAPACK on a device, function by function against NumPy's namespace."""

from itertools import product

import numpy as np
import pytest
from helpers.device_arrays import FLOATS, LIE, close, there, xp
from helpers.matmuls import numbers

from pdla.array import numpy as host


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
        (pivots, singular), (wanted, _) = xp.getrf(x), host.getrf(y)
        assert np.array_equal(pivots, wanted) and singular == 0
        close(x, y, y, n)
    a = np.eye(9, dtype=dtype)
    a[4, 4] = -0.5
    assert xp.potrf(there(a, how)) == (5, -0.5)
    assert xp.getrf(there(np.diag(np.arange(3, -2, -1.0)).astype(dtype), how))[1] == 4


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("dtype", FLOATS)
def test_trsm_is_numpys(dtype, lower):
    t, b = numbers((33, 33), dtype) / 2048 + np.eye(33, dtype=dtype), numbers((33, 5), dtype)
    for one, other, (unit, conjugate) in product(LIE[:4], LIE[:4], product((False, True), repeat=2)):
        x, y = there(b, other), b.copy()
        xp.trsm(there(t, one), x, lower, unit, conjugate)
        host.trsm(t, y, lower, unit, conjugate)
        close(x, y, y, 33)
