"""How one dimension is divided along one axis: every kind of cut, against counting by hand."""

from itertools import pairwise

import pytest
from helpers.layouts import held, places

from pdla import Balanced, Cuts, Cyclic
from pdla.cuts import block_bounds


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
@pytest.mark.parametrize("n", [0, 1, 2, 6, 7, 20])
def test_blocks_are_contiguous_and_balanced_and_the_first_are_longer(n, parts):
    bounds = [block_bounds(n, parts, i) for i in range(parts)]
    lengths = [stop - start for start, stop in bounds]
    assert bounds[0][0] == 0 and bounds[-1][1] == n
    assert all(stop == start for (_, stop), (start, _) in pairwise(bounds))
    assert lengths == sorted(lengths, reverse=True) and max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(("block", "source"), [(1, 0), (2, 0), (2, 1), (5, 2), (30, 1)])
def test_cyclic_deals_out_blocks_in_turn(block, source):
    for i in range(3):
        expected = [index for index in range(23) if (index // block + source) % 3 == i]
        assert held(Cyclic("col", block, source), 23, {"col": i}) == expected


def test_cuts_say_who_owns_what():
    cuts = Cuts("col", (0, 4, 4, 9))
    assert [held(cuts, 9, {"col": i}) for i in range(3)] == [[0, 1, 2, 3], [], [4, 5, 6, 7, 8]]
    assert held((cuts, "row"), 9, {"col": 2, "row": 1}) == [7, 8]


def test_balanced_keeps_units_whole():
    assert [held(Balanced("col", 4), 10, {"col": i}) for i in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    for where in places(("row", "depth")):
        share = held(Balanced(("row", "depth"), 3), 24, where)
        assert share[0] % 3 == 0 and len(share) == 3


def test_a_cut_divides_what_the_cut_before_it_left():
    outer = [held("row", 7, {"row": i}) for i in range(2)]
    assert outer == [[0, 1, 2, 3], [4, 5, 6]]
    assert [held(("row", "col"), 7, {"row": 0, "col": j}) for j in range(3)] == [[0, 1], [2], [3]]
    dealt = held(Cyclic("row", 2), 11, {"row": 1})
    assert held((Cyclic("row", 2), Cyclic("col", 1)), 11, {"row": 1, "col": 2}) == dealt[2::3]


def test_a_first_block_as_long_as_the_others_is_none_of_its_own():
    assert Cyclic("row", 4, first=4) == Cyclic("row", 4)
    assert repr(Cyclic("row", 4, first=3)) == "Cyclic('row', 4, first=3)"
