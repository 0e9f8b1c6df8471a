"""What the verbs do in every world: here in that of threads."""

import time
from unittest.mock import patch

import ml_dtypes
import numpy as np
import pytest

from pdla import record, run
from pdla.comm.collectives import broadcast
from pdla.errors import GridError, PdlaError, ShapeError


def numbers(rank, shape, dtype="float64"):
    """Small integers that tell ranks and places apart."""
    return ((np.arange(np.prod(shape)).reshape(shape) * 7 + rank * 3) % 11).astype(dtype)


@pytest.mark.parametrize("way", ["flat", "chain"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_every_verb(size, way):
    def program(comm):
        me = comm.rank
        for root in range(size):
            np.testing.assert_array_equal(comm.bcast(numbers(me, (3, 2)), root).wait(), numbers(root, (3, 2)))
            total = comm.reduce(numbers(me, (2, 2)), root).wait()
            assert (total is None) == (me != root)
            if me == root:
                np.testing.assert_array_equal(total, sum(numbers(r, (2, 2)) for r in range(size)))
        x = numbers(me, (5, 3))
        assert comm.allreduce(x).wait() is x
        np.testing.assert_array_equal(x, sum(numbers(r, (5, 3)) for r in range(size)))
        outs = comm.allgather(numbers(me, (me % 3, 4)), [np.empty((r % 3, 4)) for r in range(size)]).wait()
        for r, out in enumerate(outs):
            np.testing.assert_array_equal(out, numbers(r, (r % 3, 4)))
        part = comm.reduce_scatter([numbers(me + r, (r % 2, 3)) for r in range(size)], np.empty((me % 2, 3))).wait()
        np.testing.assert_array_equal(part, sum(numbers(me + r, (me % 2, 3)) for r in range(size)))
        for step in (1, -1, 2, size):
            out = comm.shift(numbers(me, (2, 3)), np.empty((2, 3)), step).wait()
            np.testing.assert_array_equal(out, numbers((me - step) % size, (2, 3)))
        comm.barrier()

    with patch.object(broadcast, "choose", lambda *_: way), patch.object(broadcast, "CHUNK", 40):
        run(size, program)


@pytest.mark.parametrize("way", ["flat", "chain"])
def test_a_number_alone_is_broadcast(way):
    with patch.object(broadcast, "choose", lambda *_: way):
        assert run(4, lambda comm: comm.bcast(np.array(comm.rank + 0.5), 2).wait().tolist()) == [2.5] * 4


def test_a_verb_whose_arrivals_are_left_early_ends_where_it_is_waited_for():
    def program(comm):
        outs = [np.full(2, -1) for _ in range(comm.size)]
        with record() as ledger:
            pending = comm.allgather(np.full(2, comm.rank), outs)
            for _ in pending:
                break
            assert not ledger.events
            came = pending.wait()
        assert [(event.what, event.messages) for event in ledger.events] == [("allgather", 4)]
        return [out.tolist() for out in came]

    assert run(5, program) == [[[r, r] for r in range(5)]] * 5


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_16_bits_are_added_up_in_32_and_rounded_once(size, dtype):
    dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)

    def program(comm):
        parts = [(np.arange(1, 9, dtype=np.float32) / (3 + r) / (1 + 40 * comm.rank)).astype(dtype) for r in range(size)]
        addends = [np.stack(one).astype(np.float32) for one in zip(*comm.share(parts), strict=True)]  # each rank's, by rank
        total = addends[comm.rank][0].copy()
        for one in addends[comm.rank][1:]:
            total += one
        assert np.array_equal(comm.reduce_scatter(parts, np.empty(8, np.float32)).wait(), total)
        assert np.array_equal(comm.reduce_scatter(parts, np.empty(8, dtype)).wait(), total.astype(dtype))
        first = comm.reduce(parts[0].copy(), size - 1).wait()
        whole = comm.allreduce(parts[0].copy()).wait()
        largest = parts[0].copy()
        for half in comm.halves(largest, largest, "maximum"):
            half.wait()
        assert whole.dtype == largest.dtype == dtype and np.array_equal(largest, addends[0].max(axis=0).astype(dtype))
        return whole.tolist(), first if first is None else first.tolist(), total.astype(dtype).tolist()

    told = run(size, program)
    assert all(whole == told[0][2] for whole, _, _ in told) and told[-1][1] == told[0][2]


def test_alltoall_between_some_ranks_into_strided_views():
    def program(comm):
        outs = {r: np.zeros((4, 6))[::2, ::3].T for r in range(4) if (r + 2 * comm.rank) % 3}
        sends = {t: numbers(10 * comm.rank + t, (2, 2)).T for t in range(4) if (comm.rank + 2 * t) % 3}
        comm.alltoall(sends, outs).wait()
        for r, out in outs.items():
            np.testing.assert_array_equal(out, numbers(10 * r + comm.rank, (2, 2)).T)

    run(4, program)


def test_send_and_recv_match_by_tag():
    def program(comm):
        ahead, back = (comm.rank + 1) % 3, (comm.rank - 1) % 3
        sent = [comm.send(numbers(comm.rank + tag, (2, 2)), ahead, tag) for tag in (0, 7)]
        for tag in (7, 0):
            np.testing.assert_array_equal(comm.recv(np.empty((2, 2)), back, tag).wait(), numbers(back + tag, (2, 2)))
        for pending in sent:
            pending.wait()

    run(3, program)


@pytest.mark.parametrize("tag", [-1, 2**14])
def test_tags_are_kept_apart_from_those_of_verbs(tag):
    def program(comm):
        for verb in (comm.send, comm.recv):
            with pytest.raises(PdlaError, match=f"tag={tag}: give one from 0 to 16383"):
                verb(np.zeros(3), 0, tag)

    run(1, program)


@pytest.mark.parametrize(
    ("verb", "told"),
    [
        (lambda comm, x: comm.bcast(x, 3), "bcast on 'all': root=3: the communicator has ranks 0 to 2"),
        (lambda comm, x: comm.reduce(x, -1), "reduce on 'all': root=-1: the communicator has ranks 0 to 2"),
        (lambda comm, x: comm.send(x, comm.rank - 3), "send on 'all': to=-[1-3]: the communicator has"),
        (lambda comm, x: comm.recv(x, comm.rank + 3), "recv on 'all': source=[3-5]: the communicator has"),
        (lambda comm, x: comm.allgather(x, [x, x]), "allgather on 'all': 2 arrays: give one for each of 3 ranks"),
        (lambda comm, x: comm.reduce_scatter([x] * 4, x), "reduce_scatter on 'all': 4 arrays: give one for each of 3 ranks"),
    ],
)
def test_ranks_that_are_none_and_arrays_that_are_too_few(verb, told):
    def program(comm):
        with pytest.raises((GridError, ShapeError), match=told):
            verb(comm, np.zeros(2))

    run(3, program)


@pytest.mark.parametrize("given", [2.5, np.float64(2.5), [2.5]])
@pytest.mark.parametrize("verb", ["allreduce", "bcast", "reduce", "send", "recv", "shift"])
def test_a_verb_refuses_what_is_no_array(verb, given):
    """np.float64, which NumPy's sums give, has what a verb asks for, but cannot be written to: each rank would keep its own."""
    others = {"bcast": [0], "reduce": [0], "send": [0], "recv": [0], "shift": [np.zeros(1)]}

    def program(comm):
        with pytest.raises(ShapeError, match=rf"{verb} on 'all': .*2\.5.* is a (float|float64|list): give an array"):
            getattr(comm, verb)(given, *others.get(verb, []))

    run(2, program)


def test_a_sender_may_change_what_it_has_waited_for():
    def program(comm):
        x = np.zeros(3)
        if comm.rank == 0:
            comm.send(x, 1).wait()
            x[...] = 1
        else:
            time.sleep(0.02)  # meanwhile the sender waits
            assert not comm.recv(x, 0).wait().any()

    run(2, program)


def test_verbs_under_way_together_are_told_apart():
    def program(comm):
        group = comm.split([r for r in range(4) if r % 2 == comm.rank % 2], "half")
        panels = [numbers(comm.rank + i, (i + 1, 3)) for i in range(5)]
        pending = [(comm if i % 2 else group).bcast(panel, 1) for i, panel in enumerate(panels)]
        for i in reversed(range(5)):
            root = 1 if i % 2 else 2 + comm.rank % 2
            np.testing.assert_array_equal(pending[i].wait(), numbers(root + i, (i + 1, 3)))

    run(4, program)


@pytest.mark.parametrize("size", [1, 3])
def test_what_is_shifted_is_not_overwritten(size):
    def program(comm):
        x = numbers(comm.rank, (4, 6))
        with pytest.raises(ShapeError, match=r"shift on 'all': x and out, of shape \(4, 3\), share memory"):
            comm.shift(x[:, :3], x[:, 2:5])
        comm.shift(x[:, ::2], x[:, 1::2]).wait()
        np.testing.assert_array_equal(x[:, 1::2], numbers((comm.rank - 1) % size, (4, 6))[:, ::2])

    run(size, program)
