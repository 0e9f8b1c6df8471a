"""Messages of a device's arrays, through pinned memory in pieces, given to MPI, or by NCCL; NumPy's arrays where these are chosen.

tests/comm/mpi_world/test_transport.py runs this file on the stand-in for CuPy, whose device does everything as late as it may.
"""

from unittest.mock import patch

import numpy as np
import pytest

import pdla
from pdla import config
from pdla.comm.collectives import broadcast
from pdla.comm.ledger import record
from pdla.comm.mpi import staging
from pdla.errors import AgreementError, PlanError

pytestmark = pytest.mark.mpi
PIECE = 1000  # bytes


@pytest.fixture
def xp(comm, monkeypatch):
    """The namespace of all arrays; messages of some thousand bytes are long."""
    monkeypatch.setattr(staging, "PIECE", PIECE)
    return comm.xp


def sequence(rank, shape):
    return (np.arange(np.prod(shape)) * 7.0 + 1000 * rank).reshape(shape)


def laid(xp, how, shape):
    """An array of this shape that lies in memory so or so."""
    *outer, last = shape
    if how == "C":
        return xp.empty(shape, "float64")
    return xp.empty((*outer, 2 * last + 3), "float64")[..., 1 : last + 1] if how == "gaps" else xp.empty(shape[::-1], "float64").T


def filled(xp, how, rank, shape):
    """Asked for, and perhaps not done yet."""
    x, values = laid(xp, how, shape), xp.asarray(sequence(rank, shape))
    xp.copy_all([(x, values)])
    return x


LAYOUTS = ["C", "gaps", "transposed"]
SHAPES = [(1,), (124,), (125,), (126,), (33, 70), (2, 1000), (5, 6, 40)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("into", LAYOUTS)
@pytest.mark.parametrize("out_of", LAYOUTS)
def test_a_message_however_it_lies(comm, xp, out_of, into, shape):
    out = laid(xp, into, shape)
    with record() as ledger:
        comm.shift(filled(xp, out_of, comm.rank, shape), out).wait()
    np.testing.assert_array_equal(out, sequence((comm.rank - 1) % comm.size, shape))
    assert (ledger.messages, ledger.bytes_received) == ((1, out.nbytes) if comm.size > 1 else (0, 0))


@pytest.mark.parametrize(("sent", "come"), [
    ((30, 70), (70, 30)), ((2100,), (3, 700)), ((7, 300), (2100, 1)), ((2, 1050), (42, 50)),
])
@pytest.mark.parametrize("how", LAYOUTS)
def test_only_the_bytes_of_a_message_agree(comm, xp, how, sent, come):
    if comm.size > 1:
        out = laid(xp, how, come)
        comm.shift(filled(xp, how, comm.rank, sent), out).wait()
        np.testing.assert_array_equal(out, sequence((comm.rank - 1) % comm.size, come))


def test_what_is_asked_for_before_a_verb_comes_first(comm, xp):
    """All but one only receive: nothing that they send makes their devices go on."""
    x, before = filled(xp, "C", comm.rank, (40, 50)), laid(xp, "gaps", (40, 50))
    xp.copy_all([(before, x)])
    with patch.object(broadcast, "choose", lambda *_: "flat"):
        comm.bcast(x, 0).wait()
    np.testing.assert_array_equal(before, sequence(comm.rank, (40, 50)))
    np.testing.assert_array_equal(x, sequence(0, (40, 50)))


def test_what_is_asked_for_after_a_verb_does_not_wait_for_it(comm, xp):
    """And what it gives back goes to nobody who is still sent to."""
    outs = [laid(xp, "gaps", (40, 50)) for _ in range(4)]
    pending = [comm.shift(filled(xp, "gaps", comm.rank + i, (40, 50)), out) for i, out in enumerate(outs)]
    others = [filled(xp, "gaps", 99, (40, 50)) for _ in outs]
    for i in (3, 1, 0, 2):
        pending[i].wait()
        np.testing.assert_array_equal(outs[i], sequence((comm.rank - 1) % comm.size + i, (40, 50)))
    for other in others:
        np.testing.assert_array_equal(other, sequence(99, (40, 50)))


@pytest.mark.parametrize("way", ["mpi", "flat", "chain"])
@pytest.mark.parametrize("how", LAYOUTS)
def test_broadcasts_under_way_together(comm, xp, how, way, monkeypatch):
    monkeypatch.setattr(comm, "tree", True)
    monkeypatch.setattr(broadcast, "CHUNK", 3 * PIECE)
    with patch.object(broadcast, "choose", lambda *_: way):
        panels = [filled(xp, how, comm.rank + 10 * i, (45, 30)) for i in range(3)]
        pending = [comm.bcast(panel, i % comm.size) for i, panel in enumerate(panels)]
        sums = comm.allreduce(filled(xp, "C", comm.rank, (600,)))
        for i in (2, 0, 1):
            np.testing.assert_array_equal(pending[i].wait(), sequence(i % comm.size + 10 * i, (45, 30)))
    np.testing.assert_array_equal(sums.wait(), sum(sequence(r, (600,)) for r in range(comm.size)))


def test_long_sums_and_gathers(comm, xp):
    shapes = [(40 * (r % 3), 30) for r in range(comm.size)]
    outs = [laid(xp, "gaps", shape) for shape in shapes]
    comm.allgather(filled(xp, "gaps", comm.rank, shapes[comm.rank]), outs).wait()
    for r, out in enumerate(outs):
        np.testing.assert_array_equal(out, sequence(r, shapes[r]))
    parts = [filled(xp, "gaps", comm.rank + r, shapes[r]) for r in range(comm.size)]
    total = comm.reduce_scatter(parts, laid(xp, "gaps", shapes[comm.rank])).wait()
    np.testing.assert_array_equal(total, sum(sequence(r + comm.rank, shapes[comm.rank]) for r in range(comm.size)))


def test_a_message_to_oneself(comm, xp):
    out = laid(xp, "gaps", (40, 30))
    comm.alltoall({comm.rank: filled(xp, "C", comm.rank, (40, 30))}, {comm.rank: out}).wait()
    np.testing.assert_array_equal(out, sequence(comm.rank, (40, 30)))


def test_an_empty_view_of_wider_rows(comm, xp):
    """mpi4py takes strides such as its, of an array that is not NumPy's, for gaps."""
    x, out = (laid(xp, "C", (4, 10))[:, :0] for _ in range(2))
    coming, going = comm.recv(out, (comm.rank - 1) % comm.size), comm.send(x, (comm.rank + 1) % comm.size)
    assert coming.wait() is out
    going.wait()


def test_groups_talk_in_turn(comm, xp):
    group = comm.split([r for r in range(comm.size) if r % 2 == comm.rank % 2][::-1], "col")
    outer, inner = laid(xp, "C", (40, 30)), laid(xp, "C", (40, 30))
    around = comm.shift(filled(xp, "C", comm.rank, (40, 30)), outer)
    group.shift(filled(xp, "C", 50 + group.rank, (40, 30)), inner).wait()
    around.wait()
    np.testing.assert_array_equal(outer, sequence((comm.rank - 1) % comm.size, (40, 30)))
    np.testing.assert_array_equal(inner, sequence(50 + (group.rank - 1) % group.size, (40, 30)))
    group.close()


# ---------------------------------------------------------------------------------------------- nobody waits for what is not sent


def test_all_wait_for_a_message_before_their_own_has_left(comm, xp):
    ahead, back = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sent = comm.send(filled(xp, "gaps", comm.rank, (200, 300)), ahead)
    out = comm.recv(laid(xp, "gaps", (200, 300)), back).wait()
    np.testing.assert_array_equal(out, sequence(back, (200, 300)))
    sent.wait()


def test_a_message_leaves_before_a_split(comm, xp):
    """A split is MPI's alone, and the receiver comes to it only when it has the message."""
    sent = comm.send(filled(xp, "C", 5, (200, 300)), 1) if comm.rank == 0 and comm.size > 1 else None
    if comm.rank == 1:
        np.testing.assert_array_equal(comm.recv(laid(xp, "C", (200, 300)), 0).wait(), sequence(5, (200, 300)))
    comm.split(range(comm.size), "all").close()
    if sent is not None:
        sent.wait()


# ---------------------------------------------------------------------------------------------- lengths


@pytest.mark.parametrize(("sent", "expected", "says"), [
    (100, 600, r"less \(800 bytes, not"), (2000, 2001, r"less \("), (1000, 2000, r"less \("),
    (600, 100, "more"), (2001, 2000, "more"),
])
def test_long_messages_of_another_length(comm, xp, sent, expected, says):
    group = comm.split([0, 1] if comm.rank < 2 else None, "pair") if comm.size > 1 else None
    if group is not None and group.rank == 0:
        group.send(filled(xp, "C", 0, (sent,)), 1, 5).wait()
    if group is not None and group.rank == 1:
        with pytest.raises(AgreementError, match=rf"recv\(tag=5\) on 'pair': rank 0 sends {says}"):
            group.recv(laid(xp, "C", (expected,)), 0, 5).wait()
    comm.barrier()


@pytest.mark.skipif(config.settings.array == "numpy", reason="there are no streams")
def test_a_plan_run_on_several_streams_at_once(comm):
    """Its workspace on one of them is not that of another, whose work is still to be done."""
    import cupy

    grid, layout = pdla.ProcessGrid(comm.size), pdla.Layout("row")
    whole = [(sequence(i, (40, 30)) % 11, sequence(i + 5, (30, 20)) % 7) for i in range(3)]
    pairs = [[pdla.from_global(x, grid, layout) for x in pair] for pair in whole]
    outs = [pdla.zeros((40, 20), grid, layout) for _ in whole]
    plan, before = pdla.plan_matmul(*pairs[0], out=outs[0], algorithm="gather"), cupy.cuda.get_current_stream()
    comm.xp.finish()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in whole]
    try:
        for stream, pair, out in zip(streams, pairs, outs, strict=True):
            stream.use()
            plan(*pair, out=out)
    finally:
        for stream in streams[::-1]:
            stream.synchronize()
        before.use()
    for (a, b), out in zip(whole, outs, strict=True):
        np.testing.assert_array_equal(out.gather(), a @ b)


# ---------------------------------------------------------------------------------------------- what devices do not have


@pytest.mark.skipif(config.settings.array == "numpy", reason="on one node the host's memory is shared")
def test_devices_share_no_memory(comm):
    A = pdla.zeros((8, 8), pdla.ProcessGrid(comm.size), pdla.Layout("row"))
    with pytest.raises(PlanError, match=r"in the memory of GPUs.* give schedule='gather'"):
        pdla.plan_matmul(A, A, schedule="shared")
