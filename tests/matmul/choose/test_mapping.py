"""Who takes which place: what conversions bring from other nodes, as counted by a redistribution; ranks placed node by node."""

import itertools

import numpy as np
import pytest
from helpers.matmuls import LAYOUT, exact
from helpers.problems import cluster

import pdla
from pdla import Balanced, Cyclic, Layout, ProcessGrid
from pdla.indices import runs
from pdla.layout import shares as layout_shares
from pdla.matmul.algorithms import NAMED
from pdla.matmul.choose import mapping, price
from pdla.matmul.choose.candidates import list_ways
from pdla.matmul.choose.mapping import Holding, Overlap, Place, Side, relabel, sum_held

USERS = {
    "blocks": ((2, 4), ("row", "col"), LAYOUT),
    "cyclic": ((2, 4), ("row", "col"), Layout(Cyclic("row", 2), Cyclic("col", 3))),
    "a line, one rank idle": ((7,), ("p",), Layout("p")),
    "other order of axes": ((4, 2), ("row", "col"), Layout("col", "row")),
}


def side(shape, layout, grid):
    return Side(shape, layout, grid.axes, grid.shape)


@pytest.mark.parametrize("homes", [(0, 0, 0, 0, 1, 1, 1, 1), (0, 1, 0, 1, 2, 2, 0, 1), (0, 0, 0, 0, 0, 0, 0, 1)], ids=str)
@pytest.mark.parametrize("user", USERS)
def test_words_from_other_nodes_are_those_that_a_redistribution_brings(user, homes):
    def program(comm):
        comm.homes = homes
        shape, axes, layout = USERS[user]
        there, back = ProcessGrid((2, 2, 2), axes=("m", "n", "k"), order=(3, 1, 7, 5, 0, 2, 6, 4)), ProcessGrid(shape, axes)
        native = Layout("m", ("k", "n"))
        kept = Holding(side((13, 11), layout, back), side((13, 11), native, there), back.ranks.ravel(), 8)
        ends = (there, native), (back, layout)
        for far, to, from_ in zip(kept.count_far(there.ranks.ravel(), np.array(homes)), ends, ends[::-1], strict=True):
            X = exact((13, 11), *from_)
            with pdla.record() as ledger:
                X.redistribute(to[1], to[0])
            assert ledger.bytes_from_far == 8 * far[comm.rank], (user, homes)

    pdla.run(8, program)


@pytest.mark.parametrize("shape", [(7, 12), (2, 3)], ids=str)
@pytest.mark.parametrize("layout", [Layout("col", "row"), Layout(Cyclic("row", 2), "col"), Layout(cols=("col", "row"))], ids=repr)
@pytest.mark.parametrize("box", [(1, 1, 1), (2, 1, 3), (3, 2, 1)])
def test_messages_of_conversions_are_those_that_a_redistribution_brings(shape, layout, box):
    table, order = next(iter(NAMED["3d"].list_tables(box))), np.array([4, 2, 0, 5, 1, 3])[: int(np.prod(box))]

    def program(comm):
        grid, there = ProcessGrid((2, 3)), ProcessGrid(box, table.axes, order=order)
        user, native = pdla.zeros(shape, grid, layout), pdla.zeros(shape, there, table.A)
        kept, received = Holding(*(side(X.shape, X.layout, X.grid) for X in (user, native)), np.arange(6), 6), []
        for X, new in ((user, native), (native, user)):
            with pdla.record() as ledger:
                X.redistribute(new.layout, new.grid)
            received.append(ledger.messages)
        return received, [int(kept.count_messages(order, back)[comm.rank]) for back in (False, True)]

    for received, told in pdla.run(6, program):
        assert told == received


def test_what_thousands_of_shares_have_in_common_takes_little_memory():
    user, native = ((10**6, (Layout(cut).rows[0],), (4096,)) for cut in ("p", Cyclic("q", 300)))
    kept = Overlap.of(user, native)
    assert kept.table().sum() == 10**6
    assert kept.pairs.nbytes + kept.sizes.nbytes < 2**20  # 2^27 if all pairs were kept


def test_places_that_share_a_node_share_one_again_and_keep_more_there():
    q = cluster(16, 4, 4096, 4096, 4096)
    homes = q.homes
    [table] = {way.table for way in list_ways(q, "3d", (4, 4, 4), "summa")} - {None}
    order = np.arange(64)
    kept = price.Holdings(q)(table)
    held = sum_held(kept)
    placed = relabel(held, order, homes)
    assert sorted(placed) == list(range(64))
    for node in range(16):
        tile = np.flatnonzero(homes[order] == node)
        assert len(set(homes[placed[tile]])) == 1
        stay = [held[list(ranks), tile].sum() for ranks in itertools.permutations(placed[tile])]
        assert stay[0] == max(stay)

    def from_afar(order):
        return sum(one.count_far(order, homes)[number == 2].sum() for number, one in enumerate(kept))

    assert from_afar(placed) < 0.9 * from_afar(order)


def test_nodes_of_unlike_sizes_and_idle_ranks():
    homes = np.array([0] * 5 + [1] * 3 + [2] * 4)
    here = Place(("row", "col"), (3, 4), np.arange(12), 12, b"")
    user = Side((24, 24), LAYOUT, here.axes, here.shape)
    for shape in ((2, 5, 1), (3, 2, 2), (1, 1, 7)):
        native = Side((24, 24), Layout("m", ("k", "n")), ("m", "n", "k"), shape)
        order = np.arange(int(np.prod(shape)))[::-1].copy()
        placed = relabel(Holding(user, native, here.order, 12).elements, order, homes)
        assert len(set(placed)) == len(order)
        for node in range(3):
            assert len(set(homes[placed[homes[order] == node]])) <= 1


def test_ranks_that_keep_as_much_as_they_can_stay_where_they_are():
    """Two ranks hold as much of the rows that each of them needs."""
    user, native = Side((24, 24), LAYOUT, ("row", "col"), (2, 2)), Side((24, 24), Layout("m"), ("m", "n", "k"), (2, 2, 1))
    for order in (np.array([0, 1, 2, 3]), np.array([1, 0, 3, 2])):
        assert relabel(Holding(user, native, np.arange(4), 4).elements, order) is order


@pytest.mark.parametrize("n", [0, 1, 7, 64, 2**61 + 3, 2**63 - 1])
@pytest.mark.parametrize("nest", [("p",), ("q", "p"), (Balanced("p", 4), "q"), (Cyclic("q", 3), "p"), ()], ids=str)
def test_the_runs_of_all_shares_are_those_of_each(n, nest):
    sizes = {"p": 3, "q": 5}
    layout = Layout(nest)
    if n > 64 and not layout.contiguous:
        return
    rows, _ = Side((n, 1), layout, ("p", "q"), (3, 5)).nests
    found = [*map(list, mapping._find_runs(rows))]
    cuts = layout.rows
    each = layout_shares(n, cuts, sizes, tuple(cut.axis for cut in cuts), {})
    assert found == [*map(list, runs(each))] and list(mapping._count_lengths(rows)) == [len(share) for share in each]
