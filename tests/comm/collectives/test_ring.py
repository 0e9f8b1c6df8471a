"""All-gathers around the nodes: each piece comes once to each rank, and once over each node's link, wherever ranks run."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import pdla
from pdla import record, run
from pdla.comm.collectives import ring
from pdla.layout import usual_order
from pdla.matmul.choose.candidates import list_native_tables
from pdla.matmul.choose.nodes import list_orders, share_from_outside
from pdla.matmul.choose.problem import Sizes
from pdla.model.machine import Machine

HOMES = {
    "two nodes": [0, 0, 2, 2],
    "one rank a node": [0, 1, 2, 3, 4],
    "interleaved": [0, 1, 2, 0, 1, 2, 0, 1, 2],
    "unequal": [5, 5, 5, 5, 1, 7, 7, 7, 0, 0],
    "unequal and interleaved": [3, 0, 3, 1, 1, 3, 0, 3, 3, 1, 3, 3, 0],
    "one alone": [0, 1, 1, 1, 1, 1, 1],
}
every_place = pytest.mark.parametrize("homes", HOMES.values(), ids=HOMES)
# A second carries 1e6 bytes near, 5e5 far (a node's 1e6 shared by two); 1 ms and 10 ms until they come.
NODES = Machine(
    flops=1e9, call=0.0, gap=0.0, memory=1e300, bandwidth=1e6, latency=1e-3, network=2e6, far_latency=1e-2, node=2, injection=1e6
)
TENTH = 12_500  # elements, 0.1 s on a link within a node


@pytest.fixture
def always(monkeypatch):
    """However short the pieces are."""
    monkeypatch.setattr(ring, "LONG", 0)


def numbers(rank, shape):
    """Small integers that tell ranks and places apart."""
    return ((np.arange(np.prod(shape)).reshape(shape) * 7 + rank * 3) % 11).astype("float64")


def shape_of(rank):
    return ((rank * rank + rank) % 5, 3)  # some are empty


def gathering(comm, homes, turned=False):
    """Who came, in that order, each there when it comes; the pieces; and the event."""
    comm.homes = homes
    real, shapes, came = comm.xp.name == "numpy", [shape_of(r) for r in range(comm.size)], []
    x = comm.xp.empty(shapes[comm.rank], "float64")
    if real:
        x = numbers(comm.rank, shapes[comm.rank])
    outs = [comm.xp.empty(shape[::-1], "float64").T if turned else comm.xp.empty(shape, "float64") for shape in shapes]
    with record() as ledger:
        for owner in comm.allgather(x, [None if r == comm.rank else out for r, out in enumerate(outs)]):
            if real:
                np.testing.assert_array_equal(outs[owner], numbers(owner, shapes[owner]))
            came.append(owner)
    (event,) = ledger.events
    return came, (event.what, event.bytes, event.messages, event.far, event.way)


@every_place
@pytest.mark.parametrize("turned", [False, True], ids=["C", "transposed"])
def test_every_piece_comes_once_to_each_rank_and_once_to_each_node(always, homes, turned):
    told = run(len(homes), gathering, homes, turned)
    sizes = [8 * shape_of(r)[0] * shape_of(r)[1] for r in range(len(homes))]
    full = {r for r, size in enumerate(sizes) if size}
    far = dict.fromkeys(homes, 0)
    for rank, (came, event) in enumerate(told):
        assert sorted(came) == sorted(full - {rank})
        assert event[:3] == ("allgather", sum(sizes) - sizes[rank], len(full - {rank})) and event[4] == "ring"
        far[homes[rank]] += event[3]
    assert far == {home: sum(size for size, there in zip(sizes, homes, strict=True) if there != home) for home in homes}
    assert [pdla.dry_run(len(homes), gathering, homes, rank=r)[0][1] for r in range(len(homes))] == [event for _, event in told]


def in_gather_buffers(comm, homes, turns=3):
    """Gather in memory that a node's ranks share; gives of each turn where that is, the event, and bytes copied by messages."""
    comm.homes, comm.shared_limit = homes, 2**20
    real, shapes = comm.xp.name == "numpy", [shape_of(r) for r in range(comm.size)]
    size, told = 8 * sum(np.prod(shape) for shape in shapes), []
    for turn in range(turns):
        x = numbers(comm.rank + turn, shapes[comm.rank]) if real else comm.xp.empty(shapes[comm.rank], "float64")
        gather_buffer = comm.gather_buffer(size, comm.size)
        outs = [gather_buffer.take(comm.xp, shape, "float64") for shape in shapes]
        before = comm.world.bytes_copied[comm.rank] if real else 0
        with record() as ledger:
            for owner in comm.allgather(x, outs, gather_buffer=gather_buffer):
                if real:
                    np.testing.assert_array_equal(outs[owner], numbers(owner + turn, shapes[owner]))
        copied = comm.world.bytes_copied[comm.rank] - before if real else 0
        if real:
            np.testing.assert_array_equal(outs[comm.rank], x)
        gather_buffer.leave()
        (event,) = ledger.events
        where = outs[1].ctypes.data if real else 0
        told.append((where, copied, (event.what, event.bytes, event.messages, event.far, event.way), ledger.peak_workspace))
    return told


gather_buffers = pytest.mark.parametrize("homes", [homes for homes in HOMES.values() if len(set(homes)) < len(homes)], ids=str)


@gather_buffers
def test_in_a_gather_buffer_only_what_comes_from_other_nodes_is_received(always, homes):
    """And all of a node see it in one place; it is counted as ever."""
    ranks = range(len(homes))
    told, by_messages = run(len(homes), in_gather_buffers, homes), run(len(homes), gathering, homes)
    for turns in zip(*told, strict=True):
        for rank, (_, copied, event, _) in enumerate(turns):
            assert event == by_messages[rank][1] and copied == event[3]
        places = {home: {turns[r][0] for r in ranks if homes[r] == home} for home in homes}
        assert all(len(where) == 1 for where in places.values())
        assert len(set.union(*places.values())) == len(places)
    for r in ranks:
        dry = pdla.dry_run(len(homes), in_gather_buffers, homes, rank=r)[0]
        assert [turn[2:] for turn in dry] == [turn[2:] for turn in told[r]]


def test_gather_buffers_are_for_nodes_of_several_ranks_and_long_pieces():
    def program(comm, homes, limit, nbytes):
        comm.homes, comm.shared_limit = homes, limit
        return comm.gather_buffer(nbytes, 1) is not None

    def granted(*args):
        (one,) = {*run(4, program, *args)}
        return one

    pairs, most = [0, 0, 2, 2], 2 * (ring.LONG + 64)
    assert granted(pairs, most, ring.LONG)
    assert not granted(pairs, most - 1, ring.LONG)  # more than the two ranks of a node may share
    assert not granted(pairs, most, ring.LONG - 1)
    assert not granted([0, 1, 2, 3], most, ring.LONG)
    assert not granted([], most, ring.LONG)


def test_a_rank_counts_its_share_of_a_gather_buffer_until_it_leaves():
    """Each piece may take up to 64 bytes more."""

    def program(comm):
        comm.homes, comm.shared_limit = [0, 0, 0, 3], 2**20
        with record() as ledger:
            gather_buffer = comm.gather_buffer(ring.LONG, 2)
            held = ledger.workspace
            gather_buffer.leave()
        return held, ledger.workspace

    size = ring.LONG + 2 * 64
    assert run(4, program) == [(size // 3, 0)] * 3 + [(size, 0)]


@every_place
def test_a_node_shares_what_it_fetches_among_its_ranks(homes):
    nodes = ring.Nodes(homes)
    for rank in range(len(homes)):
        to, _, hops = nodes.make_route(rank)
        assert homes[to] != homes[rank]
        assert [hop.far for hop in hops] == [homes[hop.source] != homes[rank] for hop in hops]
        assert nodes.count_carried(rank) == sum(hop.far for hop in hops)
    for there in nodes.ranks:
        carried = [nodes.count_carried(rank) for rank in there]
        assert sum(carried) == len(homes) - len(there)
    if len({len(there) for there in nodes.ranks}) == 1:
        assert {nodes.count_carried(rank) for rank in range(len(homes))} == {len(nodes.ranks) - 1}


@every_place
def test_sums_have_the_same_bits_on_nodes_as_anywhere(always, homes):
    def program(comm, homes):
        comm.homes = homes
        return comm.allreduce(np.random.default_rng(comm.rank).random((29, 3))).wait()

    here, there = run(len(homes), program, ()), run(len(homes), program, homes)
    assert all((x == here[0]).all() and (y == here[0]).all() for x, y in zip(here, there, strict=True))


@every_place
def test_dry_halves_are_counted_as_threads_count_theirs(always, homes):
    def program(comm):
        comm.homes = homes
        with record() as ledger:
            x = comm.xp.empty((3 * comm.size,), "float64")
            for half in comm.halves(x, x):
                half.wait()
        return [(e.what, e.bytes, e.messages, e.far, e.way) for e in ledger.events]

    real = run(len(homes), program)
    assert [way for *_, way in real[0]] == ["", "ring"]
    assert [pdla.dry_run(len(homes), program, rank=r)[0] for r in range(len(homes))] == real


def test_short_pieces_are_sent_directly():
    def program(comm, homes, length):
        comm.homes = homes
        outs = [comm.xp.empty((length,), "int8") for _ in range(comm.size)]
        with record() as ledger:
            comm.allgather(outs[comm.rank], outs).wait()
        return ledger.events[0].way, ledger.bytes_from_far

    piece = ring.LONG // 4
    assert run(4, program, [0, 0, 2, 2], piece) == [("ring", piece)] * 4
    assert run(4, program, [0, 1, 2, 3], piece) == [("ring", 3 * piece)] * 4
    assert run(4, program, [0, 0, 2, 2], piece - 1) == [("", 2 * (piece - 1))] * 4
    assert run(4, program, [0, 0, 0, 0], piece) == run(4, program, (), piece) == [("", 0)] * 4
    assert run(2, program, [0, 1], 4 * piece) == [("", 4 * piece)] * 2


@pytest.mark.parametrize(("nodes", "seconds"), [(2, 0.21 + 0.101), (3, 0.42 + 0.101)])
def test_the_time_around_the_nodes(nodes, seconds):
    """Each rank carries one piece of each other node, which take 0.2 s a hop behind each other, and sends it to its neighbour."""

    def program(comm):
        outs = [comm.xp.empty((TENTH,), "float64") for _ in range(comm.size)]
        comm.allgather(outs[comm.rank], outs).wait()

    every = pdla.dry_run_all(2 * nodes, program, machine=NODES)
    assert [ledger.seconds for ledger in every.ledgers] == pytest.approx([seconds] * 2 * nodes)
    assert {ledger.bytes_from_far for ledger in every.ledgers} == {(nodes - 1) * 8 * TENTH}
    _, alone = pdla.dry_run(2 * nodes, program, machine=NODES)
    assert alone.seconds == pytest.approx(0.01 + 0.2 * (nodes - 1))  # who is taken alone does not wait for its neighbours'


def test_a_plan_counts_words_from_other_nodes_as_they_come():
    """A 4 x 4 grid on nodes of 4: a row on each. Up a column 3 of 3 peers are outside, and nobody shares what comes from them;
    of 16 ranks 12 of 15 are, and four of a node fetch a piece each, but not of addends. In tiles of 2 x 2 two fetch it."""
    rows = np.repeat(np.arange(4), 4).reshape(4, 4)
    tiles = np.kron([[0, 1], [2, 3]], np.ones((2, 2), int))
    assert [share_from_outside(rows, [axis], False) for axis in (0, 1)] == [1.0, 0.0]
    assert [share_from_outside(tiles, [axis], False) for axis in (0, 1)] == [pytest.approx(1 / 3)] * 2
    assert share_from_outside(tiles, [1], True) == pytest.approx(2 / 3)
    assert share_from_outside(tiles[:, [0, 2, 1, 3]], [1], True) == pytest.approx(2 / 3)  # the peers need not stand side by side
    assert share_from_outside(np.zeros((1, 1), int), [], False) == 0  # a rank alone has no peers
    for along in ([0, 1], []):
        assert share_from_outside(rows, along, False) == pytest.approx(12 / 15 / 4)
        assert share_from_outside(rows, along, True) == pytest.approx(12 / 15)


def test_a_grid_without_tiles_of_a_node_is_filled_along_each_axis():
    """30 places, dealt in turn to nodes of 4 and 3 ranks: no tile of 4 fits; what is left is node after node along each axis."""
    shape, homes = (2, 1, 3, 5), np.arange(30) % 8
    usual, *others = list_orders(shape, homes)
    assert np.array_equal(usual, usual_order(shape).ravel())
    for fast, order in zip((0, 2, 3), others, strict=True):
        assert sorted(order) == list(range(30))
        assert (np.diff(np.moveaxis(homes[order].reshape(shape), fast, -1).ravel()) >= 0).all()


def test_matrices_are_dealt_out_in_tiles_of_a_node():
    """16 ranks on 4 nodes: a node takes 2 x 2 of a 4 x 4 grid; rows and columns then bring half of what a node's row would."""
    q = Sizes((2048, 2048, 128), 16, 8, Machine(), 0, tuple(np.repeat([0, 4, 8, 12], 4).tolist()))
    table, order = list_native_tables(q, "auto")[0]
    assert table.shape == (4, 4, 1)
    assert order.reshape(4, 4).tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    in_turn = replace(q, nodes=(0, 1, 2, 3) * 4)
    assert (np.array(in_turn.nodes)[list_native_tables(in_turn, "auto")[0][1]].reshape(4, 4)[:2, :2] == 0).all()
    assert list_native_tables(replace(q, nodes=()), "auto")[0][1] is None


@pytest.mark.parametrize("shape", [(4,), (4, 2), (2, 4), (8,)], ids=str)
def test_ranks_of_a_node_lay_out_their_gather_buffer_alike(shape, monkeypatch):
    """Though some have fewer rows or columns of C than the others, and would rather not join thin tiles. A gather buffer that
    were too small for them would be an error, however short the pieces."""
    monkeypatch.setattr(ring, "LONG", 0)
    ranks = int(np.prod(shape))
    homes = [r // (ranks // 2) for r in range(ranks)]

    def program(comm):
        comm.homes, comm.shared_limit, wrong = homes, 2**28, []
        grid, rng = pdla.ProcessGrid(shape, comm=comm), np.random.default_rng(3)
        cuts = [("row", None), (None, "row")] if len(shape) == 1 else [("row", "col"), ("col", "row")]
        for n, layout in product((501,), (pdla.Layout(*cut) for cut in cuts)):
            a, b = rng.integers(-2, 3, (2, n, n)).astype(float)
            A, B = (pdla.from_global(x, grid, layout) for x in (a, b))
            for algorithm in ("gather", "auto"):
                if not np.array_equal(pdla.matmul(A, B, algorithm=algorithm).gather(), a @ b):
                    wrong.append((n, layout, algorithm))
        return wrong

    assert run(ranks, program) == [[]] * ranks
