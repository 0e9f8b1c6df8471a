"""Parts of triangles: what a place offers of what is wanted of it."""

import itertools

import pytest

from pdla import Cyclic
from pdla.indices import IndexSet
from pdla.linalg.products.difference_cover import DifferenceCover
from pdla.linalg.products.trapezoid import Block, intersect


@pytest.mark.parametrize("cover", [DifferenceCover(12, 2), DifferenceCover(7, 1), DifferenceCover(1, 4)], ids=str)
def test_a_place_offers_all_that_is_wanted_of_it(cover):
    ends = itertools.product(((0, 40), (7, 8), (0, 0)), ((0, 30), (9, 50)))
    blocks = [Block(IndexSet.interval(*rows), IndexSet.interval(*cols)) for rows, cols in ends]
    blocks.append(Block(Cyclic("", 5).share(50, 4, 1), Cyclic("", 3).share(50, 5, 4)))
    for wanted, place in itertools.product(blocks, range(cover.v * cover.c)):
        offered = dict(cover.list_blocks(50, place, 0, wanted))
        for number, tile in enumerate(cover.sums(50, place)):
            assert offered.get(number, tile).rows == tile.rows
            assert number in offered or intersect(tile, wanted, None) is None
            assert place - place % cover.c in cover.find_senders(50, wanted) or intersect(tile, wanted, None) is None
        needs = cover.rows(50, place).overlay(wanted.rows)[2] > 0
        assert needs == (place - place % cover.c in cover.find_receivers(50, wanted.rows))
