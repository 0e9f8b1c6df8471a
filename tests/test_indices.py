"""Sets of indices: as slices where they can be, equal where they hold the same."""

import numpy as np

from pdla.indices import IndexSet


def test_overlay_gives_slices_where_it_can():
    whole = IndexSet.interval(0, 20)
    every_third = IndexSet(np.arange(1, 20, 3), np.arange(2, 21, 3))
    assert whole.overlay(IndexSet.interval(3, 9)) == (slice(3, 9), slice(0, 6), 6)
    assert whole.overlay(every_third)[:2] == (slice(1, 20, 3), slice(0, 7))
    assert whole.overlay(IndexSet.interval(4, 4)) == (slice(0, 0), slice(0, 0), 0)


def test_index_sets_are_equal_when_they_hold_the_same():
    in_two = IndexSet(np.array([0, 3]), np.array([3, 5]))
    assert in_two == IndexSet.interval(0, 5)
    assert in_two != IndexSet.interval(0, 4)
    assert len(in_two) == 5 and in_two.merge().starts.tolist() == [0]
    in_four = IndexSet(np.array([0, 3, 6, 8]), np.array([3, 5, 8, 9]))
    assert in_four == IndexSet(np.array([0, 6]), np.array([5, 9]))
