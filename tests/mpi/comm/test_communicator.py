"""The communicator over MPI: what the verbs deliver, and that they deliver and count the same as in the other worlds."""

from collections import Counter
from unittest.mock import patch

import numpy as np
import pytest
from helpers.verbs import broadcast_by, every_dtype, every_layout, every_verb, every_way, laid, numbers, of_rank, recorded

from pdla import config
from pdla.comm.collectives import broadcast
from pdla.comm.dry import dry_run
from pdla.comm.ledger import record
from pdla.comm.threads import run
from pdla.errors import ShapeError

pytestmark = pytest.mark.mpi


def test_an_all_reduce_may_be_waited_for_before_another_verb_or_after_it(comm):
    x, y = comm.xp.asarray(np.full(50, 1.0)), comm.xp.asarray(np.full(7, float(comm.rank)))
    total = comm.allreduce(x)
    if comm.rank == 0:
        total.wait()
    sent = comm.bcast(y, comm.size - 1)
    if comm.rank:
        total.wait()
    sent.wait()
    assert (x == comm.size).all() and (y == comm.size - 1).all()


@pytest.mark.parametrize("way", ["mpi", "flat"])
def test_a_number_of_numpy_s_is_no_array(comm, way):
    with patch.object(broadcast, "choose", lambda *_: way):
        for verb in (lambda x: comm.bcast(x, 0), comm.allreduce):
            with pytest.raises(ShapeError, match=r"np.float64\(2.5\) is a float64: give an array"):
                verb(np.float64(2.5))


# ---------------------------------------------------------------------------------------------- each verb


@every_layout
@every_dtype
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (0, 4), (300, 70)])
@every_way
def test_bcast(comm, how, dtype, shape, way, monkeypatch):
    broadcast_by(way, comm, monkeypatch)
    for root in range(comm.size):
        x = of_rank(comm, how if comm.rank % 2 else "C", comm.rank, shape, dtype)
        assert comm.bcast(x, root).wait() is x
        np.testing.assert_array_equal(x, numbers(root, shape, dtype))


@every_way
def test_bcast_of_a_read_only_array(comm, way, monkeypatch):
    broadcast_by(way, comm, monkeypatch)
    x = numbers(comm.rank, (4, 4))
    x.flags.writeable = comm.rank != 0
    comm.bcast(x, 0).wait()
    np.testing.assert_array_equal(x, numbers(0, (4, 4)))


@every_way
def test_bcasts_under_way_together_are_told_apart(comm, way, monkeypatch):
    broadcast_by(way, comm, monkeypatch)
    panels = [numbers(comm.rank + 100 * i, (i + 1, 5)) for i in range(6)]
    pending = [comm.bcast(panel, i % comm.size) for i, panel in enumerate(panels)]
    for i in reversed(range(6)):
        np.testing.assert_array_equal(pending[i].wait(), numbers(i % comm.size + 100 * i, (i + 1, 5)))


@every_layout
@every_dtype
def test_allgather_of_uneven_pieces(comm, how, dtype):
    shapes = [(r % 3, 4) for r in range(comm.size)]
    outs = [laid(comm.xp, how, shape, dtype) for shape in shapes]
    comm.allgather(of_rank(comm, how, comm.rank, shapes[comm.rank], dtype), outs).wait()
    for r, out in enumerate(outs):
        np.testing.assert_array_equal(out, numbers(r, shapes[r], dtype))


def test_arrivals_are_the_other_ranks_once_each_and_there(comm):
    outs = [np.empty((4, r + 1)) if r != comm.rank else None for r in range(comm.size)]
    pending, seen = comm.allgather(numbers(comm.rank, (4, comm.rank + 1)), outs), []
    for source in pending:
        np.testing.assert_array_equal(outs[source], numbers(source, (4, source + 1)))
        seen.append(source)
    assert sorted(seen) == [r for r in range(comm.size) if r != comm.rank]


@every_layout
@pytest.mark.parametrize("dtype", ["float64", "complex64", "int32"])
def test_reduce_scatter_of_uneven_pieces(comm, how, dtype):
    shapes = [((r + 1) % 3, 3) for r in range(comm.size)]
    parts = [of_rank(comm, how, comm.rank + 10 * r, shapes[r], dtype) for r in range(comm.size)]
    out = laid(comm.xp, how, shapes[comm.rank], dtype)
    comm.reduce_scatter(parts, out).wait()
    expected = sum(numbers(r + 10 * comm.rank, shapes[comm.rank], dtype) for r in range(comm.size))
    np.testing.assert_array_equal(out, expected)


@every_layout
@pytest.mark.parametrize("shape", [(5, 3), (0, 3)])
def test_reduce(comm, how, shape):
    for root in range(comm.size):
        x, out = of_rank(comm, how, comm.rank, shape), laid(comm.xp, how, shape)
        comm.reduce(x, root, out).wait()
        np.testing.assert_array_equal(x, numbers(comm.rank, shape))
        if comm.rank == root:
            np.testing.assert_array_equal(out, sum(numbers(r, shape) for r in range(comm.size)))


@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (0, 2), (100, 101)])
def test_allreduce(comm, shape):
    x = of_rank(comm, "C", comm.rank, shape)
    assert comm.allreduce(x).wait() is x
    np.testing.assert_array_equal(x, sum(numbers(r, shape) for r in range(comm.size)))


@every_layout
def test_alltoall_of_uneven_pieces_with_some_missing(comm, how):
    def shape(source, to):
        return ((source + 2 * to) % 3, 2 + source)

    me, pairs = comm.rank, [(r, t) for r in range(comm.size) for t in range(comm.size) if (r + t) % 4 != 3]
    sends = {t: of_rank(comm, how, 10 * me + t, shape(me, t)) for r, t in pairs if r == me}
    recvs = {r: laid(comm.xp, how, shape(r, me)) for r, t in pairs if t == me}
    comm.alltoall(sends, recvs).wait()
    for source, out in recvs.items():
        np.testing.assert_array_equal(out, numbers(10 * source + me, shape(source, me)))


@every_layout
@pytest.mark.parametrize("step", [1, -1, 2, 0])
def test_shift(comm, how, step):
    out = laid(comm.xp, how, (6, 5))
    comm.shift(of_rank(comm, how, comm.rank, (6, 5)), out, step).wait()
    np.testing.assert_array_equal(out, numbers((comm.rank - step) % comm.size, (6, 5)))


def test_send_and_recv_match_by_tag_and_leave_verbs_alone(comm):
    ahead, back = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    tags = (0, 5, (1 << 14) - 1)
    sent = [comm.send(numbers(comm.rank + tag, (3, 4)), ahead, tag) for tag in tags]
    comm.barrier()
    panel = comm.bcast(numbers(comm.rank, (8, 2)), 0).wait()
    for tag in reversed(tags):
        np.testing.assert_array_equal(comm.recv(np.empty((3, 4)), back, tag).wait(), numbers(back + tag, (3, 4)))
    for pending in sent:
        pending.wait()
    np.testing.assert_array_equal(panel, numbers(0, (8, 2)))


@pytest.mark.skipif(config.settings.array != "numpy", reason="devices have no such dtypes")
@pytest.mark.parametrize("dtype", ["M8[s]", ">f8", "V7", "U3"])
@pytest.mark.parametrize("shape", [(3, 2), (), (0,)])
def test_dtypes_that_have_no_mpi_type_or_buffer_format(comm, dtype, shape):
    x, out = np.full(shape, comm.rank, "i8").astype(dtype), np.zeros(shape, dtype)
    x.flags.writeable = False
    coming, going = comm.recv(out, (comm.rank - 1) % comm.size), comm.send(x, (comm.rank + 1) % comm.size)
    assert np.array_equal(coming.wait(), np.full(shape, (comm.rank - 1) % comm.size, "i8").astype(dtype))
    going.wait()


# ---------------------------------------------------------------------------------------------- agreement, groups


def test_split_into_groups_in_an_order_of_their_own(comm):
    ranks = [r for r in range(comm.size) if r % 2 == comm.rank % 2][::-1]
    group = comm.split(ranks, "row")
    assert (group.rank, group.size, group.axis) == (ranks.index(comm.rank), len(ranks), "row")
    assert group.share(comm.rank) == ranks and group.shared_limit == comm.shared_limit
    np.testing.assert_array_equal(group.bcast(numbers(comm.rank, (3, 3)), 0).wait(), numbers(ranks[0], (3, 3)))
    assert group.identity != comm.identity
    group.close()
    group.close()


def test_split_leaves_out_who_is_in_no_group(comm):
    group = comm.split([0] if comm.rank == 0 else None, "depth")
    assert (group is None) == (comm.rank != 0)
    if group is not None:
        assert group.share("alone") == ["alone"]
        group.close()


def test_groups_and_their_parent_talk_at_the_same_time(comm):
    group = comm.split([r for r in range(comm.size) if r % 2 == comm.rank % 2], "col")
    outer = [np.empty(3) for _ in range(comm.size)]
    inner = [np.empty(3) for _ in range(group.size)]
    around = comm.allgather(numbers(comm.rank, (3,)), outer)
    group.allgather(numbers(comm.rank + 50, (3,)), inner).wait()
    around.wait()
    for r in range(comm.size):
        np.testing.assert_array_equal(outer[r], numbers(r, (3,)))
    for i in range(group.size):
        np.testing.assert_array_equal(inner[i], numbers(comm.rank % 2 + 2 * i + 50, (3,)))
    group.close()


# ---------------------------------------------------------------------------------------------- the same in every world


def counted(ledger):
    """What a ledger holds but for times and for the order in which rounds ended."""
    return Counter((event.what, event.axis, event.bytes, event.messages) for event in ledger.events)


@every_layout
@every_way
def test_same_data_and_same_ledger_in_every_world(comm, how, way, monkeypatch):
    broadcast_by(way, comm, monkeypatch)
    came, ledger = recorded(comm, how)
    came_in_threads, ledger_of_threads = run(comm.size, recorded, how)[comm.rank]
    came_dry, ledger_of_dry = dry_run(comm.size, every_verb, how, rank=comm.rank)
    assert counted(ledger) == counted(ledger_of_threads) == counted(ledger_of_dry)
    assert {event.way for event in ledger.events if event.what == "bcast"} == {way}
    assert [(x.shape, x.dtype) for x in came] == [(x.shape, x.dtype) for x in came_dry]
    for x, y in zip(came, came_in_threads, strict=True):
        np.testing.assert_array_equal(x, y)


def test_buffers_of_strided_arrays_are_counted_and_given_back(comm):
    sizes = {}
    for how in ("C", "transposed"):
        with record() as ledger:
            comm.shift(of_rank(comm, how, comm.rank, (10, 10)), laid(comm.xp, how, (10, 10))).wait()
        assert ledger.workspace == 0
        sizes[how] = ledger.peak_workspace
    pinned = comm.staged  # the host's memory is no workspace
    assert sizes == {"C": 0, "transposed": 2 * 800 if comm.size > 1 and not pinned else 0}
