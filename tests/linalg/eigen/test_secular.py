"""Deflation leaves the same matrix but for rounding, and poles that are apart; roots to the last digits, for two poles, too."""

from fractions import Fraction

import numpy as np
import pytest

from pdla.array import numpy as xp
from pdla.linalg.eigen.secular import DEFLATED, deflate, find_roots


def problem(kind, n=40, dtype="float64"):
    rng = np.random.default_rng(n)
    d, z = rng.standard_normal(n), rng.standard_normal(n)
    if kind == "pairs":
        d[1::2] = d[::2]
    elif kind == "one":
        d[:] = 1
    elif kind == "clusters":
        d = np.repeat(np.arange(n // 5), 5) + rng.standard_normal(n) * 1e-15
    elif kind == "zeros":
        z[::3] = 0
        z[1::3] *= 1e-17
    elif kind == "zero":
        d[:], z[:] = 0, 1
    return d.astype(dtype), (z / np.linalg.norm(z)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rho", [0.0, 1e-17, 1e-3, 1.0, 1e3])
@pytest.mark.parametrize("kind", ["random", "pairs", "one", "clusters", "zeros", "zero"])
def test_what_is_left_is_the_same_matrix(kind, rho, dtype):
    d, z = problem(kind, dtype=dtype)
    left, q = deflate(d, z, rho), np.eye(len(d))
    for wave in left.waves:
        assert len({*wave.x, *wave.y}) == 2 * len(wave.x)
        q[:, wave.x], q[:, wave.y] = q[:, wave.x] * wave.c + q[:, wave.y] * wave.s, q[:, wave.y] * wave.c - q[:, wave.x] * wave.s
    inside = np.where(np.isin(np.arange(len(d)), left.kept), left.z, 0).astype(float)
    before, after = np.diag(d.astype(float)) + rho * np.outer(z, z), np.diag(left.d) + rho * np.outer(inside, inside)
    limit = DEFLATED * np.finfo(dtype).eps * max(abs(d).max(), rho)
    assert abs(q.T @ before @ q - after).max() <= 4 * limit
    assert sorted([*left.kept, *left.dropped]) == [*range(len(d))]
    assert (np.diff(left.d[left.kept]) > 0).all() and (rho * abs(left.z[left.kept]) > limit).all()
    if kind == "pairs" and rho == 1:
        assert len(left.kept) == len(d) // 2 and len(left.waves) == 1
    if kind in ("one", "zero"):
        assert len(left.kept) <= 1


def test_nan_leaves_nothing():
    d, z = problem("random")
    d[7] = np.nan
    assert not len(deflate(d, z, 1.0).kept)


@pytest.mark.parametrize("n", [1, 2, 3, 9])
@pytest.mark.parametrize("gap", [1.0, 1e-8, 1e-15])
def test_roots_change_sign_to_the_last_digits(n, gap):
    """In exact arithmetic 1 + rho sum z^2 / (d - x) changes its sign within a few units in the last place of x - d."""
    rng = np.random.default_rng(n)
    for rho in (1e-6, 1.0, 1e6):
        d = np.cumsum(rng.uniform(gap, 2 * gap, n))
        z = rng.choice([-1, 1], n) * rng.uniform(0.1, 1, n)
        z /= np.linalg.norm(z)
        tau = find_roots(xp, d, z, rho, 0, n)
        assert np.array_equal(tau[n // 2 :], find_roots(xp, d, z, rho, n // 2, n))
        assert tau[-1] > 0
        assert (2 * np.abs(tau[:-1]) <= np.diff(d) * (1 + 1e-12)).all()  # the pole that is subtracted is the nearer one
        for i in range(n):
            near = Fraction(d[i + (tau[i] < 0)])
            values = []
            for side in (1 - Fraction(1, 10**13), 1 + Fraction(1, 10**13)):
                x = near + Fraction(tau[i]) * side
                values.append(1 + sum(Fraction(rho) * Fraction(zj) ** 2 / (Fraction(dj) - x) for dj, zj in zip(d, z, strict=True)))
            assert values[0] * values[1] < 0
            assert d[i] <= d[i + (tau[i] < 0)] + tau[i]
