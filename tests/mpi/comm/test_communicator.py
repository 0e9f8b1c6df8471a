"""The communicator over MPI: what the verbs deliver, and that they deliver and count the same as in the other worlds."""

import re
import threading
import time
import weakref
from collections import Counter
from dataclasses import replace
from functools import partial
from math import inf

import numpy as np
import pytest

import pdla
from pdla import config
from pdla.comm.agreement import agree
from pdla.comm.collectives import broadcast, circulant, pipeline, ring
from pdla.comm.dry import dry_run
from pdla.comm.ledger import record
from pdla.comm.mpi import node
from pdla.comm.threads import run
from pdla.errors import AgreementError, GridError, PdlaError, ShapeError

pytestmark = pytest.mark.mpi
every_layout = pytest.mark.parametrize("how", ["C", "transposed", "gaps"])
every_way = pytest.mark.parametrize("way", ["mpi", "flat", "chain"])
DTYPES = ["float64", "complex64", "float16", "int8", "bool", *["longdouble"] * (config.settings.array == "numpy")]
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


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
    with config.override(bcast=way):
        for verb in (lambda x: comm.bcast(x, 0), comm.allreduce):
            with pytest.raises(ShapeError, match=r"np.float64\(2.5\) is a float64: give an array"):
                verb(np.float64(2.5))


def test_a_group_is_made_while_messages_are_sent_on(comm):
    """The last rank waits for what comes through the others, which are to wait for it in a call of MPI's."""
    x = comm.xp.asarray(np.full(2**18, float(comm.rank == 0)))
    with config.override(bcast="chain"):
        sent = comm.bcast(x, 0)
    if comm.rank == comm.size - 1:
        sent.wait()
    made = comm.split(range(comm.size), "again")
    if comm.rank < comm.size - 1:
        sent.wait()
    assert (x == 1).all() and made.size == comm.size
    made.close()


def test_without_a_timeout_a_rank_waits_as_long_as_it_takes(comm):
    with config.override(timeout=0.0):
        if comm.rank == 0:
            time.sleep(0.1)
        comm.allreduce(comm.xp.asarray(np.ones(3))).wait()


def test_a_node_has_the_cores_of_any_of_its_ranks_and_the_least_room_counts(comm, monkeypatch):
    monkeypatch.setattr(node.os, "sched_getaffinity", lambda _: {99, comm.rank})
    for quota, cores in ((inf, comm.size + 1), (1.5, 1)):
        monkeypatch.setattr(node.cores, "quota", lambda quota=quota: quota)
        assert node.this_node(comm.mpi) == (node.Node(comm.size, cores), [0] * comm.size)
    monkeypatch.setattr(node, "room", lambda: 100 - comm.rank)
    assert node.least_room(comm.mpi) == 101 - comm.size


@pytest.mark.parametrize(("said", "ranks"), [("1", 1), ("64", inf), ("", 0), ("several", 0)])
@pytest.mark.parametrize("name", node._STARTED)
def test_of_a_launcher_that_says_more_ranks_than_there_are_no_more_are_believed(comm, name, said, ranks, monkeypatch):
    """Its variables are of another job where a rank starts a program."""
    for other in node._STARTED:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, said)
    assert node.started() == min(ranks, comm.size)


def laid(xp, how, shape, dtype="float64"):
    """An array of this shape that lies in memory so or so."""
    m, n = shape
    if how == "C":
        return xp.empty(shape, dtype)
    return xp.empty((n, m), dtype).T if how == "transposed" else xp.empty((2 * m, n + 3), dtype)[::2, 2 : n + 2]


def numbers(rank, shape, dtype="float64"):
    """Small integers that tell ranks and places apart."""
    return ((np.arange(np.prod(shape)).reshape(shape) * 7 + rank * 3) % 11).astype(dtype)


def of_rank(comm, how, rank, shape, dtype="float64"):
    """numbers(rank, ...), or no data in the dry world."""
    x = laid(comm.xp, how, shape, dtype)
    if comm.xp.name != "meta":
        comm.xp.copy(x, comm.xp.asarray(numbers(rank, shape, dtype)))
    return x


def broadcast_by(way, comm, monkeypatch):
    """Let all worlds broadcast this way, a chain in chunks of some hundred bytes."""
    monkeypatch.setattr(comm, "tree", True)
    monkeypatch.setattr(config, "settings", replace(config.settings, bcast=way))
    monkeypatch.setattr(broadcast, "CHUNK", 500)


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


def test_messages_too_long_for_an_old_mpi(comm, monkeypatch):
    from pdla.comm.mpi import messages

    monkeypatch.setattr(comm, "tree", True)
    monkeypatch.setattr(messages, "_INT_MAX", 1000)
    monkeypatch.setattr(messages.MPI, "Get_version", lambda: (3, 1))
    for size in (1000, 1001, 5 << 20, (3 << 20) + 7):
        x, out = numbers(comm.rank, (size,), "int8"), np.zeros(size, "int8")
        assert messages.pieces(x, 0)[0][1] == (1 if size > 1000 else 1000)
        comm.shift(x, out).wait()
        np.testing.assert_array_equal(out, numbers((comm.rank - 1) % comm.size, (size,), "int8"))
        np.testing.assert_array_equal(comm.bcast(x, 0).wait(), numbers(0, (size,), "int8"))


def test_mpi_is_given_bytes(comm):
    from pdla.comm.mpi import messages

    for shape in ((), (0, 3), (5, 4)):
        ((raw, count, kind),) = messages.pieces(comm.xp.empty(shape, "float64"), 0)
        assert (raw.dtype, raw.size, count, kind) == (np.uint8, raw.nbytes, 8 * int(np.prod(shape)), messages.MPI.BYTE)


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


def test_share_brings_objects_of_any_length_in_order(comm):
    expected = [("x" * (100 * r), r) if r % 2 else None for r in range(comm.size)]
    assert comm.share(expected[comm.rank]) == expected


def test_an_object_that_cannot_be_shared_is_an_error_on_every_rank(comm):
    odd = comm.size - 1
    with pytest.raises(PdlaError, match=f"^share: rank {odd}'s object: .*pickle"):
        comm.share((lambda: 0) if comm.rank == odd else 0)


def test_words_may_be_a_files_name_that_is_no_text(comm):
    assert comm.same("load(b\udcff)") and comm.same(f"\udcff{comm.rank}") == (comm.size == 1)


def test_same_says_the_same_on_every_rank(comm):
    assert comm.same("A @ B")
    for odd in range(comm.size):
        assert comm.same("A @ B" if comm.rank != odd else "A @ C") == (comm.size == 1)
    assert comm.same(f"rank {comm.rank}") == (comm.size == 1)


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        (lambda comm: comm.share("x" * 99), "share"), (lambda comm: comm.barrier(), "barrier"),
        (lambda comm: comm.split([0], ""), "split('')"),
    ],
)
def test_ranks_in_different_calls_learn_of_it_and_go_on_together(comm, verb, name):
    """A rank that compares words would else read parts of what others share, and the other way round."""
    if comm.size == 1:
        pytest.skip("one rank is in one call")
    last = comm.size - 1
    with pytest.raises(AgreementError, match=f"^ranks disagree: .*words; rank {last}: {re.escape(name)}$"):
        verb(comm) if comm.rank == last else agree(comm, "words")
    assert comm.share(comm.rank) == [*range(comm.size)]


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


def test_a_communicator_is_wrapped_once_and_closed_with_the_users(comm):
    from mpi4py import MPI

    from pdla.comm import as_communicator

    assert as_communicator(MPI.COMM_WORLD) is comm
    theirs = MPI.COMM_WORLD.Dup()
    ours = as_communicator(theirs)
    assert as_communicator(theirs) is ours
    assert ours.identity not in (theirs.handle, comm.identity)
    assert ours.share(comm.rank) == list(range(comm.size))
    ours.close()
    again = as_communicator(theirs)
    assert again is not ours and again.share(comm.rank) == list(range(comm.size))
    theirs.Free()
    assert again.mpi == ours.mpi == MPI.COMM_NULL
    x, out = np.zeros(3), np.zeros(3)
    verbs = [
        lambda: agree(again, "a product"), lambda: again.send(x, 0), lambda: again.recv(x, 0), lambda: again.bcast(x, 0),
        lambda: again.allgather(x, [out] * comm.size), lambda: again.split([comm.rank], "alone"), lambda: again.share(1),
    ]
    for verb in verbs:
        with pytest.raises(GridError, match="has been freed"):
            verb()
    with pytest.raises(GridError, match="null communicator"):
        as_communicator(MPI.COMM_NULL)


def test_the_communicator_of_a_node_is_closed_with_the_one_that_it_was_made_from(comm):
    from mpi4py import MPI

    own = comm.split(range(comm.size), "own")
    own.homes = [r // 2 for r in range(comm.size)]
    near = own.near
    assert near.share(comm.rank) == [r for r in range(comm.size) if r // 2 == comm.rank // 2]
    own.close()
    assert near.mpi == MPI.COMM_NULL


def test_an_intercommunicator_is_refused_in_the_same_words_on_all_ranks(comm):
    if comm.size == 1:
        pytest.skip("one rank makes no two groups")
    from mpi4py import MPI

    from pdla.comm import as_communicator

    half = MPI.COMM_WORLD.Split(comm.rank % 2)
    between = half.Create_intercomm(0, MPI.COMM_WORLD, 1 - comm.rank % 2)
    with pytest.raises(GridError, match="intercommunicator") as refused:
        as_communicator(between)
    assert len(set(comm.share(str(refused.value)))) == 1
    both = between.Merge()
    assert as_communicator(both).size == comm.size
    for made in (both, between, half):
        made.Free()


# ---------------------------------------------------------------------------------------------- the same in every world


def every_verb(comm, how):
    """All verbs on uneven, empty and strided arrays, on the world and on a group; gives copies of what came."""
    me, size, came = comm.rank, comm.size, []
    group = comm.split([r for r in range(size) if r % 2 == me % 2], "row")
    for c in (comm, group):
        shapes = [(r % 3, 4) for r in range(c.size)]
        outs = [laid(c.xp, how, shape) for shape in shapes]
        came += c.allgather(of_rank(c, how, me, shapes[c.rank]), outs).wait()
        parts = [of_rank(c, how, me + r, (r % 3, 4)) for r in range(c.size)]
        came.append(c.reduce_scatter(parts, laid(c.xp, how, (c.rank % 3, 4))).wait())
        came.append(c.allreduce(of_rank(c, "C", me, (7, 3))).wait())
        came.append(c.shift(of_rank(c, how, me, (2, 5), "complex64"), laid(c.xp, how, (2, 5), "complex64")).wait())
        for root in range(c.size):
            came.append(c.bcast(of_rank(c, how, me, (root, 9), "float32"), root).wait())
            total = c.reduce(of_rank(c, how, me, (3, 2)), root).wait()
            came += [] if total is None else [total]
        sent = c.send(of_rank(c, how, me, (2, 2)), (c.rank + 1) % c.size, 7)
        came.append(c.recv(laid(c.xp, how, (2, 2)), (c.rank - 1) % c.size, 7).wait())
        sent.wait()
    return [x.copy() for x in came]


def recorded(comm, how):
    with record() as ledger:
        came = every_verb(comm, how)
    return came, ledger


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


@pytest.mark.parametrize(("rows", "says"), [(3, r"sends less \(24 bytes, not 32\)"), (5, "sends more")])
def test_messages_of_another_length(comm, rows, says):
    group = comm.split([0, 1] if comm.rank < 2 else None, "pair") if comm.size > 1 else None
    if group is not None and group.rank == 0:
        group.send(np.ones(rows), 1, 5).wait()
    if group is not None and group.rank == 1:
        with pytest.raises(AgreementError, match=rf"recv\(tag=5\) on 'pair': rank 0 {says} than rank 1 expects"):
            group.recv(np.empty(4), 0, 5).wait()
    comm.barrier()


# ---------------------------------------------------------------------------------------------- pieces

PIECE = 512 << 10  # bytes


@pytest.fixture
def far_apart(comm, monkeypatch):
    """Each rank as if on a node of its own: long messages travel in pieces."""
    monkeypatch.setattr(comm, "homes", list(range(comm.size)))
    monkeypatch.setitem(comm.__dict__, "nodes", comm.size)
    return comm


@pytest.mark.parametrize(
    ("size", "lengths"),
    [
        (0, [0]), (PIECE - 1, [PIECE - 1]), (PIECE, [PIECE, 0]), (PIECE + 1, [PIECE, 1]), (16 * PIECE, [PIECE] * 16 + [0]),
        (32 * PIECE + 5, [2 * PIECE] * 16 + [5]),
    ],
    ids=str,
)
def test_long_messages_have_sixteen_pieces_and_a_rest_at_most(size, lengths):
    from pdla.comm.mpi.messages import pieces

    assert [length for _, length, _ in pieces(np.empty(size, np.int8), PIECE)] == lengths
    assert [length for _, length, _ in pieces(np.empty(size, np.int8), 0)] == [size]


@pytest.mark.parametrize("size", [0, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 20 * PIECE, 20 * PIECE + 7])
def test_long_messages_between_nodes(far_apart, size):
    comm = far_apart
    x = np.full(size, comm.rank + 1, np.int8)
    outs = [np.zeros(size, np.int8) for _ in range(comm.size)]
    with record() as ledger:
        came = [(r, np.unique(outs[r]).tolist()) for r in comm.allgather(x, outs)]  # once each, and whole
    assert sorted(came) == [(r, [r + 1]) for r in range(comm.size) if size and r != comm.rank]
    assert [np.unique(out).tolist() for out in outs] == [[r + 1] if size else [] for r in range(comm.size)]
    assert (ledger.messages, ledger.bytes_received) == ((comm.size - 1 if size else 0), (comm.size - 1) * size)


every_place = pytest.mark.parametrize(
    "place", [lambda r: r, lambda r: r // 2, lambda r: r % 2, lambda r: min(r, 1), lambda r: max(r, 2)],
    ids=["one a node", "pairs", "interleaved", "one alone", "three and the others alone"],
)


@pytest.mark.parametrize("empty", [False, True], ids=["all", "rank 0 has nothing"])
def test_where_each_sends_to_each_few_messages_are_on_their_way_at_once(far_apart, monkeypatch, empty):
    """What is left is sent on as others' come, by a rank that waits for something else, too."""
    from pdla.comm.mpi import communicator

    monkeypatch.setattr(communicator, "AT_ONCE", 1)
    comm = far_apart
    sizes = [0 if empty and r == 0 else 3 for r in range(comm.size)]
    parts = [[comm.xp.asarray(np.full(n, turn + 10.0 * comm.rank + r)) for r, n in enumerate(sizes)] for turn in range(2)]
    outs = [comm.xp.empty((sizes[comm.rank],), "float64") for _ in range(2)]
    pending = [comm.reduce_scatter(some, out) for some, out in zip(parts, outs, strict=True)]
    if comm.xp.name == "numpy":
        going = sum(n > 0 for r, n in enumerate(sizes) if r != comm.rank)
        later = 0 if empty else max(0, going - 2)
        assert all((len(round_.sends), len(round_.onward)) == (going - later, later) for round_, _ in comm._under_way.values())
    if comm.rank == 0:
        comm.barrier()
    for one in reversed(pending):
        one.wait()
    if comm.rank:
        comm.barrier()
    for turn, out in enumerate(outs):
        total = sum(turn + 10.0 * r + comm.rank for r in range(comm.size))
        np.testing.assert_array_equal(comm.xp.host(out), np.full(sizes[comm.rank], total))
    comm.barrier()


@pytest.fixture
def placed(comm, monkeypatch):
    """A communicator of all ranks as if rank r ran on node place(r), where all-gathers go around the nodes."""
    monkeypatch.setattr(ring, "LONG", 0)
    made = []

    def placing(place):
        made.append(comm.split(range(comm.size), "all"))
        made[-1].homes = [place(r) for r in range(comm.size)]
        del made[-1].nodes
        return made[-1]

    yield placing
    for each in made:
        each.close()


def around(comm):
    """The way of an all-gather of any length there."""
    return "" if comm.nodes == 1 or comm.size == 2 else "ring"


@every_place
@every_layout
def test_allgather_around_nodes(placed, place, how):
    comm = placed(place)
    shapes = [((r * r + r) % 5, 5) for r in range(comm.size)]  # some are empty
    outs = [laid(comm.xp, how, shape) if r != comm.rank else None for r, shape in enumerate(shapes)]
    with record() as ledger:
        came = []
        for owner in comm.allgather(of_rank(comm, how, comm.rank, shapes[comm.rank]), outs):
            np.testing.assert_array_equal(outs[owner], numbers(owner, shapes[owner]))
            came.append(owner)
    full = [r for r in range(comm.size) if shapes[r][0] and r != comm.rank]
    assert sorted(came) == full and [event.way for event in ledger.events] == [around(comm)]
    assert (ledger.messages, ledger.bytes_received) == (len(full), 8 * 5 * sum(shapes[r][0] for r in full))
    far = comm.share(ledger.bytes_from_far)
    for home in set(comm.homes):
        outside = 8 * 5 * sum(rows for (rows, _), there in zip(shapes, comm.homes, strict=True) if there != home)
        assert comm.size == 2 or sum(size for size, there in zip(far, comm.homes, strict=True) if there == home) == outside


@every_place
def test_long_messages_around_nodes_under_way_together(placed, place):
    comm = placed(place)
    sizes = [3 * PIECE + 7, PIECE, 5]
    gathered = [[np.zeros(size, np.int8) for _ in range(comm.size)] for size in sizes]
    sums = comm.xp.asarray(np.full(7, comm.rank + 1.0))
    pending = [comm.allgather(np.full(s, comm.rank + 1, np.int8), outs) for s, outs in zip(sizes, gathered, strict=True)]
    comm.allreduce(sums).wait()
    for each in pending:
        each.wait()
    for outs in gathered:
        assert [np.unique(out).tolist() for out in outs] == [[r + 1] for r in range(comm.size)]
    np.testing.assert_array_equal(sums, np.full(7, comm.size * (comm.size + 1) / 2))


@pytest.mark.parametrize("length", [0, 5, 3 * PIECE // 8 + 1], ids=["empty", "short", "in pieces"])
def test_sums_from_node_to_node(placed, monkeypatch, length):
    """Of random addends: the same bits as sent directly; other verbs are under way meanwhile."""
    monkeypatch.setattr(pipeline, "STEP", -inf)
    monkeypatch.setattr(pipeline, "CHUNK", 64)
    direct, comm = placed(lambda r: 0), placed(lambda r: r // 2)
    rng = np.random.default_rng(comm.rank)
    parts = [comm.xp.asarray(rng.standard_normal((length + r, 2))) for r in range(comm.size)]
    ways, outs = [], []
    for each in (direct, comm):
        outs.append(comm.xp.empty(parts[comm.rank].shape, "float64"))
        with record() as ledger:
            coming = each.reduce_scatter(parts, outs[-1])
            each.allreduce(comm.xp.asarray(np.ones(4))).wait()
            coming.wait()
        ways.append(ledger.events[-1].way)
    np.testing.assert_array_equal(*map(comm.xp.host, outs))
    assert ways == ["", "pipeline" if comm.adds and comm.size in (4, 6) else ""]


def in_steps(comm):
    """Short pieces gathered, and random addends summed in two ways, all under way together: the bits of the sums, and the ways."""
    rng = np.random.default_rng(comm.rank)
    x, parts = rng.standard_normal(23), [rng.standard_normal((r % 3, 2)) for r in range(comm.size)]
    x, *parts = (comm.xp.asarray(each) for each in (x, *parts))
    out, outs = comm.xp.empty((comm.rank % 3, 2), "float64"), [comm.xp.empty((r % 3, 4), "int8") for r in range(comm.size)]
    mine = comm.xp.asarray(np.full((comm.rank % 3, 4), comm.rank, "int8"))
    with record() as ledger:
        pending = comm.reduce_scatter(parts, out), comm.allgather(mine, outs), comm.allreduce(x)
        for each in pending:
            each.wait()
    assert all(np.array_equal(comm.xp.host(each), np.full((r % 3, 4), r)) for r, each in enumerate(outs))
    return comm.xp.host(out).tolist(), comm.xp.host(x).tolist(), [(event.what, event.way, event.bytes) for event in ledger.events]


def test_short_pieces_in_steps(comm, monkeypatch):
    if hasattr(comm, "nccl"):
        pytest.skip("steps begin when they are waited for, and NCCL's calls must come in one order")
    monkeypatch.setattr(circulant, "MANY", 2)
    assert in_steps(comm) == run(comm.size, in_steps)[comm.rank]


@every_place
def test_products_around_nodes(placed, place):
    comm = placed(place)
    grid = pdla.ProcessGrid((1, comm.size), comm=comm)
    a, b = numbers(1, (17, 23)), numbers(2, (23, 29))
    A, B = (pdla.from_global(x, grid, pdla.Layout("row", "col")) for x in (a, b))
    with record() as ledger:
        C = pdla.matmul(A, B, algorithm="gather")
    np.testing.assert_array_equal(C.gather(), a @ b)
    assert around(comm) in {event.way for event in ledger.events}


@pytest.fixture
def with_gather_buffers(placed):
    """The same, with memory that the ranks of a node share."""
    if config.settings.array != "numpy":
        pytest.skip("devices do not share the host's memory")

    def placing(place):
        comm = placed(place)
        comm.shared_limit = 2**26
        return comm

    return placing


def test_ranks_on_several_nodes_have_no_memory_in_common(with_gather_buffers):
    near, far = with_gather_buffers(lambda r: 0), with_gather_buffers(lambda r: min(r, 1))
    if near.size == 1:
        pytest.skip("one rank is on one node")
    assert near.shared_buffer() is not None and near.common(64) is not None
    assert far.shared_buffer() is None and far.common(64) is None


@every_place
@pytest.mark.parametrize("sizes", [[5, 700], [2**20], [9, 2**20, 3, 3, 2**20 + 1, 2**21, 2**19, 1]], ids=str)
@pytest.mark.parametrize("share", [lambda r: (r * r + r) % 5, lambda r: r % 2], ids=["some empty", "some bring none"])
def test_gather_buffers(with_gather_buffers, place, sizes, share):
    """Turn after turn, by ranks that come early and late, nobody sees anything but this turn's pieces."""
    comm, delays = with_gather_buffers(place), np.random.default_rng(len(sizes)).random((8, 64)) * 2e-3
    delays[:4, -1] = 2e-2  # the first rank reads late
    for turn, late in enumerate(delays):
        lengths = [sizes[turn % len(sizes)] * share(r) // 4 for r in range(comm.size)]
        gather_buffer = comm.gather_buffer(sum(lengths), comm.size)
        if gather_buffer is None:
            assert comm.nodes in (1, comm.size)
            return
        outs = [gather_buffer.take(comm.xp, (length,), np.int8) for length in lengths]
        time.sleep(late[comm.rank])
        with record() as ledger:
            for owner in comm.allgather(np.full(lengths[comm.rank], comm.rank + turn, np.int8), outs, gather_buffer=gather_buffer):
                assert (outs[owner] == owner + turn).all()
        (event,) = ledger.events
        assert (event.way, event.bytes) == (around(comm), sum(lengths) - lengths[comm.rank])
        time.sleep(late[-1 - comm.rank])
        assert all((out == owner + turn).all() for owner, out in enumerate(outs))
        del outs
        gather_buffer.leave()


@every_place
@pytest.mark.parametrize(
    ("shape", "layouts"),
    [
        ((40, 24, 36), ("row", "col")), ((400, 12, 36), ("row", None)),
        ((9, 250, 5), (None, "col")), ((7, 3, 300), ("col", "row")),
    ],
    ids=str,
)
def test_products_in_gather_buffers(with_gather_buffers, place, shape, layouts):
    comm = with_gather_buffers(place)
    m, n, k = shape
    grid = pdla.ProcessGrid((2, comm.size // 2) if comm.size % 2 == 0 else (comm.size, 1), comm=comm)
    plan = None
    for turn in range(4):
        a, b = numbers(turn, (m, k)), numbers(turn + 1, (k, n))
        A, B = (pdla.from_global(x, grid, pdla.Layout(*cuts)) for x, cuts in ((a, layouts), (b, ("row", "col"))))
        plan = plan or pdla.plan_matmul(A, B, algorithm="gather")
        with record() as ledger:
            C = plan(A, B)
        np.testing.assert_array_equal(C.gather(), a @ b)
        assert ledger.peak_workspace <= plan.predicted.peak_workspace, plan.explain()
        assert ledger.bytes_received <= plan.predicted.bytes_received


@every_way
def test_long_broadcasts_between_nodes(far_apart, way, monkeypatch):
    comm = far_apart
    broadcast_by(way, comm, monkeypatch)
    monkeypatch.setattr(broadcast, "CHUNK", 3 * PIECE)
    x = np.arange(3 * PIECE, dtype=np.float32) * (comm.rank == 0)
    with record() as ledger:
        comm.bcast(x, 0).wait()
    np.testing.assert_array_equal(x, np.arange(3 * PIECE, dtype=np.float32))
    assert ledger.bytes_from_far == (x.nbytes if comm.rank else 0)


@pytest.mark.parametrize(("pieces", "says"), [(1, "sends less"), (2, "sends less"), (4, "sends more"), (20, "sends more")])
def test_long_messages_of_another_length(far_apart, pieces, says):
    comm = far_apart.split(range(far_apart.size), "own")  # no other test is to receive what is left over,
    comm._progress = None  # nor its thread to look after that for ever
    if comm.rank == 0 and comm.size > 1:
        sending = comm.send(np.ones(pieces * PIECE, np.int8), 1, 5)
        comm.recv(np.empty(1), 1, 99).wait()
        del sending  # never received to the end
    if comm.rank == 1:
        with pytest.raises(AgreementError, match=f"rank 0 {says} "):
            comm.recv(np.empty(3 * PIECE, np.int8), 0, 5).wait()
        comm.send(np.ones(1), 0, 99).wait()
    comm.barrier()
    comm.close()


# ---------------------------------------------------------------------------------------------- progress


@pytest.fixture
def progress(comm, monkeypatch):
    """The thread that otherwise runs only where ranks are on several nodes."""
    from pdla.comm.mpi import messages

    thread = messages.Progress(comm.node)
    monkeypatch.setattr(comm, "_progress", thread)
    yield thread
    thread.end()


def test_messages_arrive_while_a_rank_computes(comm, progress):
    outs = [np.zeros(1 << 20) for _ in range(comm.size)]
    gathered = comm.allgather(np.full(1 << 20, comm.rank + 1.0), outs)
    give_up = time.monotonic() + 60
    while not all(out[-1] for r, out in enumerate(outs) if r != comm.rank) and time.monotonic() < give_up:
        time.sleep(0.001)  # no call of this thread lets MPI work
    assert [out[-1] for out in outs] == [r + 1 for r in range(comm.size)]
    gathered.wait()
    comm.barrier()


def test_what_has_all_come_while_a_rank_computed_is_told_and_copied(comm, progress):
    """Behind it nothing is on its way any more, and strided arrays have come to boxes of their own."""
    outs = [laid(comm.xp, "gaps", (5, 3)) for _ in range(comm.size)]
    gathered = comm.allgather(comm.xp.asarray(numbers(comm.rank, (5, 3))), outs)
    give_up = time.monotonic() + 60
    while any(round_.left for round_, _ in comm._under_way.values()) and time.monotonic() < give_up:
        time.sleep(0.001)
    assert sorted(gathered) == [r for r in range(comm.size) if r != comm.rank]
    for r, out in enumerate(outs):
        np.testing.assert_array_equal(out, numbers(r, (5, 3)))
    comm.barrier()


def test_a_chain_goes_on_while_a_rank_computes(comm, progress, monkeypatch):
    broadcast_by("chain", comm, monkeypatch)
    x = np.full((300, 100), comm.rank + 1.0)
    pending, give_up = comm.bcast(x, 0), time.monotonic() + 60
    while (x != 1).any() and time.monotonic() < give_up:  # all of it: pieces of a slice may come in any order
        time.sleep(0.001)
    np.testing.assert_array_equal(x, np.ones((300, 100)))
    pending.wait()
    comm.barrier()


def test_progress_is_wanted_only_while_rounds_are_under_way(comm, progress):
    first, second = (comm.shift(np.ones(5), np.empty(5)) for _ in range(2))
    assert progress.wanted.is_set() == (comm.size > 1)
    second.wait()
    assert progress.wanted.is_set() == (comm.size > 1)
    first.wait()
    assert not progress.wanted.is_set()
    comm.barrier()


def test_progress_rests_while_a_rank_waits(comm, progress):
    seen = []

    def third_time():
        seen.append(progress.resting)
        return len(seen) == 3

    pending = comm.shift(np.ones(5), np.empty(5))
    comm._until("test", third_time)
    assert seen == [False, True, True] and not progress.resting
    pending.wait()
    comm.barrier()


def test_progress_leaves_the_looking_to_a_rank_that_waits(comm, progress, monkeypatch):
    if comm.size == 1:
        pytest.skip("no message")
    from pdla.comm.mpi.messages import Round

    looked, advance = [], Round.advance
    monkeypatch.setattr(Round, "advance", lambda self: (looked.append(threading.current_thread()), advance(self))[1])
    progress.resting = True
    pending = comm.shift(np.ones(5), np.empty(5))
    time.sleep(0.05)
    assert not looked
    progress.resting, give_up = False, time.monotonic() + 60
    while not looked and time.monotonic() < give_up:
        time.sleep(0.001)
    assert {*looked} == {progress.thread}
    pending.wait()
    comm.barrier()


def test_what_came_while_own_data_was_packed_is_sent_on_then(comm):
    """A message from this rank to itself, to be sent on behind another that is still packed when it comes."""
    from pdla.comm.mpi.libmpi import MPI
    from pdla.comm.mpi.messages import Round

    class Packing:
        done = False

    mpi, me, came, after = comm.mpi, comm.rank, np.zeros(3), np.zeros(3)
    sent_on = mpi.Irecv(after, me, 2)
    own = mpi.Irecv(np.zeros(3), me, 3)
    recvs, sends, packing = [mpi.Irecv(came, me, 1)], [mpi.Isend(np.ones(3), me, 1)], Packing()
    later = {0: [lambda: mpi.Isend(came, me, 2)]}
    round_ = Round(recvs, [(0, 0, came.nbytes)], sends, later, [(packing, lambda: mpi.Isend(came, me, 3))])
    comm._until("test", lambda: round_.advance() and bool(round_.come))
    assert came.all() and not sent_on.Test() and round_.left
    packing.done = True
    round_.come.clear()
    comm._until("test", round_.advance)
    MPI.Request.Waitall([own, sent_on])
    assert after.all()
    comm.barrier()


def test_what_has_been_sent_on_is_let_go_of(comm):
    """Also while somebody still looks at the round, as the thread that lets MPI work may."""
    from pdla.comm.mpi.libmpi import MPI
    from pdla.comm.mpi.messages import Round

    mpi, me = comm.mpi, comm.rank
    came, after = np.zeros(3), np.zeros(3)
    sent_on, memory = mpi.Irecv(after, me, 2), weakref.ref(came)
    round_ = Round(
        [mpi.Irecv(came, me, 1)], [(0, 0, came.nbytes)], [mpi.Isend(np.ones(3), me, 1)], {0: [partial(mpi.Isend, came, me, 2)]}
    )
    del came
    comm._until("test", lambda: round_.advance() and not round_.left)
    MPI.Request.Wait(sent_on)
    assert after.all() and memory() is None
    ended, round_ = weakref.ref(round_), None
    assert ended() is None
    comm.barrier()


@pytest.mark.parametrize("threads", [False, True], ids=["alone", "beside progress"])
def test_verbs_that_nobody_waits_for_are_let_go_of_when_they_have_ended(comm, request, threads):
    if threads:
        request.getfixturevalue("progress")
    kept, memory = comm.shift(np.ones(5), np.zeros(5)), []
    for _ in range(20):
        out = np.zeros(5)
        memory.append(weakref.ref(out))
        comm.shift(np.ones(5), out)
        del out
    for _ in range(3):  # what comes later comes behind
        comm.shift(np.ones(5), np.zeros(5)).wait()
    assert len(comm._under_way) == (comm.size > 1) and not any(one() is not None for one in memory)
    assert kept.wait().all() and not comm._under_way
    if threads:
        assert not comm._progress.wanted.is_set()
    comm.barrier()


def test_who_waits_for_one_message_sends_others_on(comm, monkeypatch):
    """Rank 2 answers when the broadcast has come by rank 1, which waits for the answer, not for the broadcast."""
    if comm.size < 3:
        pytest.skip("a chain of three")
    broadcast_by("chain", comm, monkeypatch)
    x, answer = np.full((300, 100), comm.rank + 1.0), np.zeros(1)
    pending = comm.bcast(x, 0)
    if comm.rank == 1:
        comm.recv(answer, 2).wait()
    pending.wait()
    if comm.rank == 2:
        comm.send(x[0, :1], 1).wait()
    assert x[-1, -1] == 1 and answer[0] == (comm.rank == 1)
    comm.barrier()


def test_who_waits_while_another_thread_of_the_rank_begins_a_call_waits_no_longer(comm):
    """Else it would wait for a rank that may never come: that one, too, has been told that its calls are mixed up."""
    if comm.size == 1:
        pytest.skip("one rank waits for no other")
    own, last = comm.split(range(comm.size), "own"), comm.size - 1
    if comm.rank == 0:
        coming, told = own.recv(comm.xp.asarray(np.zeros(3)), last), []

        def wait():
            try:
                coming.wait()
            except AgreementError as error:
                told.append(str(error))

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        while own.user is None:
            time.sleep(1e-3)
        with pytest.raises(AgreementError, match=r"two threads of rank 0 .*, in recv\(tag=0\) and in a call"):
            agree(own, "a call")
        thread.join(10)
        assert told == [own.clash]
    comm.barrier()
    if comm.rank == last:
        own.send(comm.xp.asarray(np.ones(3)), 0).wait()
    own.close()


@every_layout
@every_way
def test_every_verb_beside_progress(comm, progress, how, way, monkeypatch):
    broadcast_by(way, comm, monkeypatch)
    progress.nap = 0
    came, _ = recorded(comm, how)
    expected, _ = run(comm.size, recorded, how)[comm.rank]
    for x, y in zip(came, expected, strict=True):
        np.testing.assert_array_equal(x, y)


def test_progress_ends_once(comm, progress):
    progress.end()
    progress.end()
    assert not progress.thread.is_alive()
