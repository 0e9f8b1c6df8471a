"""Blocks in the host's memory: parts of them, sums, copies, and what overlaps."""

from itertools import product

import numpy as np
import pytest
from helpers.matmuls import numbers

from pdla.array import numpy


@pytest.mark.parametrize("rows", [slice(1, 4), slice(0, 6, 2), np.array([0, 2, 5])])
@pytest.mark.parametrize("cols", [slice(0, 0), slice(2, 5), np.array([1, 4])])
def test_put_is_the_reverse_of_take(rows, cols):
    x = numbers((6, 5))
    part = numpy.take(x, rows, cols)
    np.testing.assert_array_equal(part, x[rows][:, cols])
    y = np.full((6, 5), 9.0)
    numpy.put(y, rows, cols, part)
    np.testing.assert_array_equal(numpy.take(y, rows, cols), part)
    assert np.count_nonzero(y == 9) == 30 - part.size
    assert np.shares_memory(part, x) == (isinstance(rows, slice) and isinstance(cols, slice) and part.size > 0)


@pytest.mark.parametrize("beta", [0, 1, -2])
@pytest.mark.parametrize(("dtype", "strip"), [("float64", 2**16), ("float16", 1), ("float16", 9), ("float16", 2**16)])
def test_combine(beta, dtype, strip, monkeypatch):
    """Sums of 16-bit floats are made in float32, some rows at a time."""
    monkeypatch.setattr(numpy, "STRIP", strip)
    wide = "float32" if dtype == "float16" else dtype
    target, source = numbers((5, 4), dtype, seed=1), numbers((5, 4), wide, seed=2)
    wanted = beta * target + source
    if beta == 0:
        target.fill(np.nan)
    numpy.combine(target, beta, source)
    np.testing.assert_array_equal(target, wanted)


def test_copy_conjugates_on_the_way():
    x, out = numbers((3, 4), "complex64"), np.empty((4, 3), "complex64").T
    numpy.copy(out, x, conjugate=True)
    np.testing.assert_array_equal(out, x.conj())
    numpy.copy(x, x, conjugate=True)
    np.testing.assert_array_equal(out, x)
    np.testing.assert_array_equal(numpy.reinterpret(x, True), x.conj())
    assert numpy.reinterpret(x, False) is x


def test_overlap():
    x = np.zeros((6, 6))
    assert numpy.overlap(x, x.T) and numpy.overlap(x[:3], x[2:])
    assert not numpy.overlap(x[:3], x[3:])
    assert not numpy.overlap(x, x.copy())


def test_elements_are_apart_where_no_two_have_one_place():
    for rows, cols, down, across in product(range(1, 5), range(2, 5), range(-4, 5), range(-4, 5)):
        places = {i * down + j * across for i in range(rows) for j in range(cols)}
        assert numpy.has_no_overlap((rows, cols), (down, across)) == (len(places) == rows * cols), (rows, cols, down, across)
