"""The normal distribution's quantile: right to its last digits, and the same for u and 1 - u but for its sign."""

import numpy as np
import pytest
from scipy.special import ndtri

from pdla.array.quantile import normal

STEPS = 2**53
ENDS = np.concatenate([np.arange(4), np.geomspace(4, STEPS // 2 - 1, 2000).astype(np.int64)])


def test_it_is_the_inverse_of_the_normal_distribution():
    found = normal(ENDS / STEPS)
    np.testing.assert_allclose(found, ndtri(ENDS / STEPS + 2.0**-54), rtol=2e-15, atol=3e-16)  # what ndtri is given is rounded
    assert (np.diff(found) > 0)[np.diff(ENDS) > ENDS[1:] / 2**40].all()


def test_both_tails_are_alike_and_nothing_is_infinite():
    lower, upper = normal(ENDS / STEPS), normal((STEPS - 1 - ENDS) / STEPS)
    np.testing.assert_array_equal(upper, -lower)
    assert lower[0] == pytest.approx(-8.292361, abs=1e-6)


def test_any_shape_and_what_is_given_stays():
    x = np.random.default_rng(0).random((40, 30))
    before = x.copy()
    np.testing.assert_array_equal(normal(x), [[normal(x[i, j : j + 1])[0] for j in range(30)] for i in range(40)])
    np.testing.assert_array_equal(x, before)
    assert normal(np.empty((0, 3))).shape == (0, 3)
