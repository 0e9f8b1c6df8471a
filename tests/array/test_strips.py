"""Large parts of blocks are copied in strips."""

import numpy as np
import pytest
from helpers.arrays import laid

from pdla.array import numpy, strips

WAYS = {  # of choosing from 500 positions, and whether they are copied as strips
    "cyclic": (np.flatnonzero(np.arange(500) // 16 % 3 == 1), True),
    "first and last run shorter": (np.flatnonzero((np.arange(500) + 5) // 20 % 2 == 0), True),
    "two distances": (np.flatnonzero(np.isin(np.arange(500) // 10, [0, 2, 4, 6, 9, 12, 15, 18, 30, 31, 32, 33])), True),
    "single": (np.flatnonzero(np.arange(500) % 3 == 1), False),
    "random": (np.sort(np.random.default_rng(5).permutation(500)[:200]), False),
    "slice": (slice(3, 490, 2), None),
}


@pytest.mark.parametrize("how", ["C", "F", "gaps", "backwards"])
@pytest.mark.parametrize("down", WAYS)
@pytest.mark.parametrize("across", WAYS)
def test_large_parts_in_strips(down, across, how, monkeypatch):
    monkeypatch.setattr(strips, "LARGE", 1)
    (rows, by_rows), (cols, by_cols) = WAYS[down], WAYS[across]
    x = laid(np.arange(250_000, dtype="float32").reshape(500, 500), how)
    wanted = x[rows][:, cols]
    lists = [as_strips for as_strips in (by_rows, by_cols) if as_strips is not None]
    assert not lists or (strips.find(x, rows, cols) is not None) == all(lists)
    part = numpy.take(x, rows, cols)
    np.testing.assert_array_equal(part, wanted, strict=True)
    assert numpy.is_contiguous(part) or not lists  # as a dry run has it: else it would be copied again to travel
    y = laid(np.full((500, 500), -1, "float32"), how)
    numpy.put(y, rows, cols, laid(wanted, how))
    np.testing.assert_array_equal(y[rows][:, cols], wanted)
    assert np.count_nonzero(y == -1) == y.size - wanted.size
