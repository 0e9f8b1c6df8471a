"""Difference covers: every tile is computed once, from few rows."""

import itertools

import numpy as np
import pytest
from helpers.level3 import (
    both,
)

import pdla
from pdla import Cyclic, errors
from pdla.indices import IndexSet
from pdla.linalg.products.difference_cover import DifferenceCover, find_mark_pairs, find_ruler
from pdla.linalg.products.trapezoid import Block


def test_rulers_measure_every_distance_with_few_marks():
    for length in range(200):
        marks = find_ruler(length)
        measured = {b - a for a, b in itertools.combinations(marks, 2)}
        assert set(range(1, length + 1)) <= measured
        assert len(marks) <= 1.8 * length**0.5 + 2
    assert [len(find_ruler(v // 2)) for v in (1, 2, 3, 7, 13, 64)] == [1, 2, 2, 3, 4, 10]


@pytest.mark.parametrize("n", [40, 7])
def test_every_tile_is_computed_once_from_the_rows_at_hand(n):
    for v in range(1, 30):
        cover, seen, work = DifferenceCover(v, 1), np.zeros((n, n), int), []
        for place in range(v):
            rows = cover.rows(n, place).indices()
            tiles = [(t.rows.indices(), t.cols.indices()) for t in cover.tiles(n, place)]
            for i, j in tiles:
                seen[np.ix_(i, j)] += 1
                assert {*i, *j} <= {*rows}
            work.append(sum((i[:, None] >= j).sum() for i, j in tiles))
        assert (both(seen, True) == both(np.ones_like(seen), True)).all(), v
        if n % (2 * v) == 0:
            assert len(set(work)) == 1, "the same work for all"


@pytest.mark.parametrize(
    ("held", "halves"), [(IndexSet.interval(0, 80), 0), (Cyclic("", 10).share(640, 8, 3), 4)], ids=["together", "in turn"]
)
def test_of_many_places_few_offer_something(held, halves):
    """Eight row blocks of 64, and as many columns; pairs that are 32 blocks apart are offered by two places."""
    offered = sum(len(DifferenceCover(64, 1).list_blocks(640, place, 0, Block(held, held))) for place in range(64))
    assert offered == 8 * 9 / 2 + halves


def test_measures_name_marks():
    assert find_mark_pairs(7) == {1: (0, 1), 2: (1, 3), 3: (0, 3)}


def test_words_public():
    assert pdla.syrk_words(60, 600, 1) == 60 * 600  # all of A, from elsewhere
    assert pdla.syrk_words(700, 70, 7) == 3 / 7 * 700 * 70
    assert pdla.syrk_words(12, 10**6, 4) == 12 * 10**6 / 4 + 3 * 4 * 3 * 4 / 2
    with pytest.raises(errors.ShapeError, match="P=0"):
        pdla.syrk_words(1, 1, 0)
