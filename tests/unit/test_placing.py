"""Who takes which place: what conversions bring from other nodes, as counted by a redistribution; ranks placed node by node."""

from dataclasses import replace

import numpy as np
import pytest
from matmuls import LAYOUT, exact

import pdla
from pdla import Cyclic, Layout, ProcessGrid
from pdla.matmul import planner
from pdla.matmul.placing import Kept, Overlap, Place, Side, relabelled
from pdla.matmul.planner import ways
from pdla.matmul.question import Lying, Question
from pdla.model.machine import Machine

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
        kept = Kept(side((13, 11), layout, back), side((13, 11), native, there), back.ranks.ravel(), 8)
        ends = (there, native), (back, layout)
        for far, to, from_ in zip(kept.far(there.ranks.ravel(), np.array(homes)), ends, ends[::-1], strict=True):
            X = exact((13, 11), *from_)
            with pdla.record() as ledger:
                X.redistribute(to[1], to[0])
            assert ledger.bytes_from_far == 8 * far[comm.rank], (user, homes)

    pdla.run(8, program)


def test_what_thousands_of_shares_have_in_common_takes_little_memory():
    user, native = ((10**6, (Layout(cut).rows[0],), (4096,)) for cut in ("p", Cyclic("q", 300)))
    kept = Overlap.of(user, native)
    assert kept.table().sum() == 10**6
    assert kept.pairs.nbytes + kept.sizes.nbytes < 2**20  # 2^27 if all pairs were kept


def cluster(hosts, ranks, *mnk):
    """A product of 2-D blocks into 2-D blocks, hosts of so many ranks."""
    (m, n, k), P = mnk, hosts * ranks
    place = Place(("row", "col"), pdla.balanced_shape(P), np.arange(P), P, b"")
    A, B, C = (Lying(shape, LAYOUT, place) for shape in ((m, k), (k, n), (m, n)))
    return Question(mnk, P, 8, Machine(), 0, tuple(r // ranks * ranks for r in range(P)), A=A, B=B, C=C)


def test_places_that_share_a_node_share_one_again_and_keep_more_there():
    q = cluster(16, 4, 4096, 4096, 4096)
    homes = q.homes
    [table] = {way.table for way in ways(q, "3d", (4, 4, 4), "summa")} - {None}
    order = np.arange(64)
    kept = planner.KeptOf(q)(table)
    placed = relabelled(kept, order, homes)
    assert sorted(placed) == list(range(64))
    for node in range(16):
        assert len(set(homes[placed[homes[order] == node]])) == 1

    def from_afar(order):
        return sum(one.far(order, homes)[number == 2].sum() for number, one in enumerate(kept))

    assert from_afar(placed) < 0.9 * from_afar(order)


def test_nodes_of_unlike_sizes_and_idle_ranks():
    homes = np.array([0] * 5 + [1] * 3 + [2] * 4)
    here = Place(("row", "col"), (3, 4), np.arange(12), 12, b"")
    user = Side((24, 24), LAYOUT, here.axes, here.shape)
    for shape in ((2, 5, 1), (3, 2, 2), (1, 1, 7)):
        native = Side((24, 24), Layout("m", ("k", "n")), ("m", "n", "k"), shape)
        order = np.arange(int(np.prod(shape)))[::-1].copy()
        placed = relabelled([Kept(user, native, here.order, 12)], order, homes)
        assert len(set(placed)) == len(order)
        for node in range(3):
            assert len(set(homes[placed[homes[order] == node]])) <= 1


def test_ranks_that_keep_as_much_as_they_can_stay_where_they_are():
    """Two ranks hold as much of the rows that each of them needs."""
    user, native = Side((24, 24), LAYOUT, ("row", "col"), (2, 2)), Side((24, 24), Layout("m"), ("m", "n", "k"), (2, 2, 1))
    for order in (np.array([0, 1, 2, 3]), np.array([1, 0, 3, 2])):
        assert relabelled([Kept(user, native, np.arange(4), 4)], order) is order


def test_conversions_inside_nodes_count_less():
    """From 4 x 8 blocks on 8 nodes 16 x 1 x 2 moves all of A, but inside nodes."""
    q = cluster(8, 4, 16384, 1024, 4096)
    way = ways(q, "auto", None, None)[0]
    assert way.table is not None and way.table.shape == (16, 1, 2)
    order, [A, _, _] = way.order, planner.KeptOf(q)(way.table)
    assert A.arriving(order).min() > 0 and not A.far(order, q.homes)[0].any()
    apart = ways(replace(q, nodes=tuple(range(32))), "auto", None, None)[0]
    assert apart.table is None or apart.table.shape != (16, 1, 2)
