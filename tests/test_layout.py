"""Who owns what: every index once, cuts within cuts, and the words for a layout, against counting by hand."""

import os
import pickle
import subprocess
import sys
from itertools import chain, permutations, product

import numpy as np
import pytest
from helpers.layouts import SIZES, held, places

from pdla import Balanced, Cuts, Cyclic, Layout
from pdla.cuts import Block
from pdla.errors import LayoutError
from pdla.indices import IndexSet, find_overlaps
from pdla.layout import axes_of, effective, find_shares, points, share, shares

SPECS = [
    None,
    "row",
    ("row", "col"),
    ("depth", "row", "col"),
    Cyclic("col", 2),
    Cyclic("col", 1, source=2),
    Cyclic("col", 4, source=1, first=3),
    (Cyclic("row", 3, first=1), "depth"),
    ("col", Cyclic("depth", 2, source=1)),
    (Cyclic("row", 2), Cyclic("col", 1)),
    Balanced("depth", 4),
    Balanced(("row", "depth"), 3),
    (Balanced("row", 4), "col", Balanced("depth", 2)),
]


# ---------------------------------------------------------------------------------------------- shares


@pytest.mark.parametrize("n", [0, 1, 5, 23, 24])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_every_index_is_held_once_by_the_axes_that_cut(spec, n):
    axes = Layout(rows=spec).axes
    everything = [index for where in places(axes) for index in held(spec, n, where)]
    assert sorted(everything) == list(range(n))


@pytest.mark.parametrize("n", [0, 1, 5, 23, 24])
@pytest.mark.parametrize("spec", [*SPECS, *(Cyclic("col", 5, 2, first) for first in (1, 4))], ids=str)
def test_the_shape_of_a_block_is_that_of_its_indices(spec, n):
    layout = Layout(spec)
    for where in places():
        assert layout.local_shape((n, 1), SIZES, where) == tuple(map(len, layout.indices((n, 1), SIZES, where)))


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_share_is_ascending_and_the_same_along_axes_not_named(spec):
    axes = Layout(rows=spec).axes
    for where in places():
        share = held(spec, 23, where)
        assert share == sorted(share)
        assert share == held(spec, 23, {axis: where[axis] if axis in axes else 0 for axis in SIZES})


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_the_innermost_axis_gathered_gives_the_layout_without_it(spec):
    cuts = Layout(rows=spec).rows
    for where in places() if cuts else []:
        inner = [held(cuts, 23, where | {cuts[-1].axis: i}) for i in range(SIZES[cuts[-1].axis])]
        assert sorted(chain(*inner)) == held(cuts[:-1], 23, where)


# ---------------------------------------------------------------------------------------------- index sets


@pytest.mark.parametrize("n", [0, 1, 7, 24])
@pytest.mark.parametrize(("first", "second"), list(product(SPECS[1:], SPECS[1:])), ids=str)
def test_overlay_finds_what_both_hold(first, second, n):
    places1, places2 = places(Layout(first).axes), places(Layout(second).axes)
    for here, there in [(places1[0], places2[-1]), (places1[-1], places2[0]), (places1[len(places1) // 2], places2[0])]:
        mine, theirs = Layout(first).indices((n, 0), SIZES, here)[0], Layout(second).indices((n, 0), SIZES, there)[0]
        positions1, positions2, size = mine.overlay(theirs)
        common = np.intersect1d(mine.indices(), theirs.indices())
        np.testing.assert_array_equal(mine.indices()[positions1], common)
        np.testing.assert_array_equal(theirs.indices()[positions2], common)
        assert size == len(common)


@pytest.mark.parametrize("other", SPECS)
@pytest.mark.parametrize("spec", SPECS)
def test_the_parts_of_two_lists_that_meet_are_found_together(spec, other):
    for n in (0, 1, 5, 29):
        xs, ys = (shares(n, Layout(rows=nest).rows, SIZES, axes_of(Layout(rows=nest).rows), {}) for nest in (spec, other))
        met = [(x, y) for x, y in product(range(len(xs)), range(len(ys))) if xs[x].overlay(ys[y])[2]]
        assert find_overlaps(xs, ys) == met


# ---------------------------------------------------------------------------------------------- layouts


def layouts():
    for spec in SPECS:
        named = Layout(spec).axes
        free = [axis for axis in SIZES if axis not in named]
        yield Layout(spec)
        yield Layout(cols=spec, partial=free)
        if free:
            yield Layout(spec, free[0], tuple(free[1:]))


@pytest.mark.parametrize("layout", [*layouts(), Layout(), Layout((Cuts("row", (0, 2, 5)), "col"))], ids=repr)
def test_repr_is_how_one_writes_it(layout):
    again = eval(repr(layout))
    assert again == layout and hash(again) == hash(layout)


@pytest.mark.parametrize("layout", list(layouts()), ids=repr)
def test_the_transpose_swaps_rows_and_columns(layout):
    assert layout == layout.T.T
    for where in places():
        rows, cols = layout.indices((9, 13), SIZES, where)
        assert layout.T.indices((13, 9), SIZES, where) == (cols, rows)
        assert layout.local_shape((9, 13), SIZES, where) == (len(rows), len(cols))


@pytest.mark.parametrize("shape", [(1, 1), (9, 13), (24, 2)])
@pytest.mark.parametrize("layout", list(layouts()), ids=repr)
def test_owner_is_who_holds_the_element(layout, shape):
    for i, j in [(0, 0), (shape[0] - 1, shape[1] - 1), (shape[0] // 2, shape[1] // 3)]:
        owner = layout.owner((i, j), shape, SIZES)
        assert sorted(owner) == sorted(layout.axes)
        rows, cols = layout.indices(shape, SIZES, owner)
        assert i in rows.indices() and j in cols.indices()


@pytest.mark.parametrize("layout", [*layouts(), Layout()], ids=repr)
def test_shares_along_any_axes_are_those_of_the_ranks_there(layout):
    for over in chain.from_iterable(permutations(SIZES, count) for count in range(len(SIZES) + 1)):
        for coords in points(SIZES, tuple(SIZES), {}):
            wanted = [share(24, layout.cols, SIZES, where) for where in points(SIZES, over, coords)]
            assert shares(24, layout.cols, SIZES, over, coords) == wanted


@pytest.mark.parametrize("layout", [*layouts(), Layout(), Layout((Cuts("row", (0, 2, 5)), "col"))], ids=repr)
def test_shares_that_meet_some_indices(layout):
    """The same shares as by looking at every one of them, in the same order, and for cuts by rule none besides."""
    for n, runs in product((5, 24), ([], [(0, 1)], [(0, 5)], [(1, 2), (3, 5)])):
        held = IndexSet(*np.array(runs, np.int64).reshape(-1, 2).T)
        cuts = layout.rows if n == 5 or not any(isinstance(cut, Cuts) for cut in layout.rows) else ()
        every = [(where, share(n, cuts, SIZES, where)) for where in points(SIZES, axes_of(cuts), {})]
        wanted = [(where, part) for where, part in every if held.overlay(part)[2]]
        found = list(find_shares(n, cuts, SIZES, held))
        assert [(where, part) for where, part in found if held.overlay(part)[2]] == wanted
        assert len(found) == len(wanted) or not runs or any(isinstance(cut, Cuts) for cut in cuts)


def test_few_of_very_many_shares_are_looked_at():
    held = IndexSet.interval(10**12, 10**12 + 3)
    for cut in (Block("row"), Block("row", 7), Cyclic("row", 2, 5, 1)):
        assert 1 <= len(list(find_shares(10**13, (cut,), {"row": 10**6}, held))) <= 2


def test_owner_by_cuts():
    assert Layout(Cuts("col", (0, 4, 4, 9))).owner((4, 0), (9, 1), SIZES) == {"col": 2}
    with pytest.raises(LayoutError, match=r"\(9, 0\) is outside a matrix of shape \(9, 1\)"):
        Layout("row").owner((9, 0), (9, 1), SIZES)


def test_owner_in_a_dimension_longer_than_memory():
    n = 10**13
    assert Layout("row").owner((n - 1, 0), (n, 1), SIZES) == {"row": 1}
    assert Layout(("col", "row"), "depth").owner((n // 2, 2), (n, 9), SIZES) == {"col": 1, "row": 0, "depth": 0}


@pytest.mark.parametrize("whole", [np.uint8, np.int8, np.uint64, np.int64])
def test_numpy_s_whole_numbers_are_taken_as_python_s(whole):
    """In short dtypes, and below 0 in those without signs, they would wrap around."""
    cut, sizes = Cyclic("col", whole(64), whole(1), whole(3)), {"col": 5}
    assert repr(cut) == "Cyclic('col', 64, source=1, first=3)"
    shares = [Layout(cut).indices((999, 1), sizes, {"col": i})[0] for i in range(5)]
    assert all(held == Layout(Cyclic("col", 64, 1, 3)).indices((999, 1), sizes, {"col": i})[0] for i, held in enumerate(shares))
    assert sorted(chain.from_iterable(held.indices().tolist() for held in shares)) == list(range(999))
    assert repr(Layout(Balanced("col", whole(100)))) == "Layout(rows=Balanced('col', unit=100))"
    assert sum(len(Layout(Balanced("col", whole(100))).indices((999, 1), sizes, {"col": i})[0]) for i in range(5)) == 999


def test_two_ways_of_writing_one_cut_are_one_cut():
    sizes = SIZES | {"one": 1}
    same = Layout(("one", "row")).same_cuts(Layout("row", "one"), (8, 5), sizes)
    assert same and effective(Layout(("one", "row")).rows, sizes) == Layout("row").rows
    assert Layout("row").same_cuts(Layout(Cuts("row", (0, 4, 8))), (8, 5), sizes)
    assert Layout("row").same_cuts(Layout(Cyclic("row", 4)), (8, 5), sizes)
    assert not Layout("row").same_cuts(Layout(Cyclic("row", 3)), (8, 5), sizes)
    assert not Layout("row").same_cuts(Layout("col"), (8, 5), sizes)
    assert not Layout("col").same_cuts(Layout(Cuts("col", (0, 3, 5, 8))), (8, 5), sizes)  # though the first shares are the same
    assert Layout("row", partial="col").same_cuts(Layout("row"), (8, 5), sizes)
    assert Layout("row", partial="col").summed == Layout("row")


def test_a_layout_of_another_process_is_the_same_here():
    make = "Layout(('row', Cyclic('col', 2)), partial='depth')"
    send = f"import pickle, sys; from pdla import *; L = {make}; hash(L); sys.stdout.buffer.write(pickle.dumps(L))"
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    came = pickle.loads(subprocess.run([sys.executable, "-c", send], env=environment, capture_output=True, check=True).stdout)
    here = Layout(("row", Cyclic("col", 2)), partial="depth")
    assert came == here and {here: 1}[came] == 1


def test_partial_sums_have_no_order():
    one, two = Layout("row", partial=("col", "depth")), Layout("row", partial=["depth", "col"])
    assert one == two and hash(one) == hash(two) and one != Layout("row", partial="col") and one != one.summed
    assert one != "row"
    assert repr(Layout(partial={"row", "depth", "col"})) == "Layout(partial=('col', 'depth', 'row'))"  # as a set on any rank


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Layout("row", "row"), "names the axis 'row' twice"),
        (lambda: Layout("row", partial="row"), "names the axis 'row' twice"),
        (lambda: Layout(("row", "row")), "names the axis 'row' twice"),
        (lambda: Layout(cols=3), "cols=3 is not a cut"),
        (lambda: Layout(["row", "col"]), r"is a list: Layout\('row', 'col'\) cuts rows and columns; a tuple, rows=\("),
        (lambda: Layout("row", ["col", "depth"]), r"cols=\['col', 'depth'\] is a list: .*; a tuple, cols=\('col', 'depth'\), cuts"),
        (lambda: Layout(("row", Cuts("col", (0, 1, 2, 3)))), "must be the outermost cut"),
        (lambda: Cuts("row", (1, 2, 3)), "boundaries must start with 0"),
        (lambda: Cuts("row", (0, 3, 2)), "never fall"),
        (lambda: Cyclic("row", 0), "block must be at least 1"),
        (lambda: Cyclic("row", 2**40 + 1), r"at most 2\^40"),
        (lambda: Cyclic("row", 1, -1), "source at least 0"),
        (lambda: Cyclic("row", 4, first=5), "the first block has at most 4 indices"),
        (lambda: Balanced("row", 0), "unit must be at least 1"),
        (lambda: Balanced(("row", 3)), "the axis comes first, by its name"),
        (lambda: Balanced(None), "the axis comes first, by its name"),
        (lambda: Cuts("row", 5), "boundaries must start with 0"),
        (lambda: Layout(partial=None), "partial=None: give the name of an axis"),
        (lambda: Layout(partial=("row", 1)), r"partial=\('row', 1\): give the name of an axis"),
    ],
)
def test_layouts_that_make_no_sense(make, message):
    with pytest.raises(LayoutError, match=message):
        make()


PARTS = [None, "col", Cyclic("col", 2), Cyclic("col", 4, source=1, first=3), Cuts("col", (0, 0, 8, 13)), Balanced("col", 5)]


@pytest.mark.parametrize("spec", PARTS, ids=str)
def test_part_of_a_layout_leaves_every_index_where_it_is(spec):
    for start, stop in ((a, b) for a in range(14) for b in range(a, 14)):
        part = Layout(spec).part((13, 1), SIZES, range(start, stop), range(1))
        part.check((stop - start, 1), SIZES)
        for where in places(("col",)):
            kept = [index - start for index in held(spec, 13, where) if start <= index < stop]
            assert part.indices((stop - start, 1), SIZES, where)[0].indices().tolist() == kept


@pytest.mark.parametrize("spec", [*PARTS, Cyclic("col", 6, 2, 1)], ids=str)
@pytest.mark.parametrize("step", [2, 3, 20])
def test_steps_through_a_layout_leave_every_index_where_it_is(spec, step):
    block = spec.block if isinstance(spec, Cyclic) else step
    for start, stop in ((a, b) for a in range(0, 14, 3) for b in range(a, 14)):
        some = range(start, stop, step)
        if block % step and some != range(13):
            with pytest.raises(LayoutError, match=f"rows {start} to {stop} of 13 in steps of {step} in .* divide cyclic blocks"):
                Layout(spec).part((13, 1), SIZES, some, range(1))
            continue
        part = Layout(spec).part((13, 1), SIZES, some, range(1))
        part.check((len(some), 1), SIZES)
        for where in places(("col",)):
            whole = Layout(spec).indices((13, 1), SIZES, where)[0]
            kept = [some.index(index) for index in whole.indices().tolist() if index in some]
            assert part.indices((len(some), 1), SIZES, where)[0].indices().tolist() == kept
            assert whole.indices()[whole.positions(some)].tolist() == [some[i] for i in kept]


@pytest.mark.parametrize("cuts", [
    (Cyclic("row", 4), Cyclic("col", 2)), (Cyclic("row", 3, 1, 2), Cyclic("col", 2, 1), Cyclic("depth", 1)),
])
def test_the_first_indices_of_cyclic_cuts_lie_as_all_do(cuts):
    axes = tuple(cut.axis for cut in cuts)
    for n in range(17):
        part = Layout(cuts).part((16, 1), SIZES, range(n), range(1))
        for where in places(axes):
            kept = [index for index in held(cuts, 16, where) if index < n]
            assert part.indices((n, 1), SIZES, where)[0].indices().tolist() == kept
    with pytest.raises(LayoutError, match="cut along several axes"):
        Layout(cuts).part((16, 1), SIZES, range(1, 16), range(1))
    with pytest.raises(LayoutError, match="cut along several axes"):
        Layout(cuts).part((16, 1), SIZES, range(0, 16, 2), range(1))


def test_part_of_a_cut_within_a_cut_is_an_error_but_the_whole_is_not():
    layout = Layout(("row", "col"), "depth")
    assert layout.part((12, 9), SIZES, range(12), range(2, 4)).rows == layout.rows
    with pytest.raises(LayoutError, match=r"rows 1 to 12 of 12 in .* cut along several axes"):
        layout.part((12, 9), SIZES, range(1, 12), range(9))


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout("x"), "names the axis 'x'; the grid has row, col, depth"),
        (Layout(partial="x"), "names the axis 'x'; the grid has row, col, depth"),
        (Layout(Cuts("row", (0, 3, 8))), "needs 3 boundaries from 0 to 9"),
        (Layout(Cuts("row", (0, 9))), "needs 3 boundaries from 0 to 9"),
        (Layout(cols=Cyclic("col", 2, 3)), "source must be below 3"),
    ],
)
def test_layouts_that_do_not_fit(layout, message):
    with pytest.raises(LayoutError, match=message):
        layout.check((9, 5), SIZES)


@pytest.mark.parametrize("layout", [Layout("x"), Layout("row", "x"), Layout(Cuts("row", (0, 9)))])
def test_a_share_in_a_layout_that_does_not_fit_is_told(layout):
    for ask in (layout.indices, layout.local_shape):
        with pytest.raises(LayoutError, match=r"names the axis 'x'; the grid has row|needs 3 boundaries from 0 to 9"):
            ask((9, 5), SIZES, {"row": 1, "col": 0, "depth": 0})


@pytest.mark.parametrize("layout", [Layout("row", "col"), Layout()])
def test_an_idle_rank_holds_nothing(layout):
    assert layout.local_shape((9, 5), SIZES, None) == (0, 0)
    assert [len(held) for held in layout.indices((9, 5), SIZES, None)] == [0, 0]
