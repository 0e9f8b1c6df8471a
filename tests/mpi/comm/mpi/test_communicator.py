"""The communicator of MPI's world: agreement, groups, what it wraps and closes, and what it lets go of."""

import threading
import time
import weakref
from unittest.mock import patch

import numpy as np
import pytest

import pdla
from pdla import config
from pdla.comm.agreement import agree
from pdla.comm.collectives import broadcast
from pdla.errors import AgreementError, GridError, PdlaError

pytestmark = pytest.mark.mpi


def test_a_group_is_made_while_messages_are_sent_on(comm):
    """The last rank waits for what comes through the others, which are to wait for it in a call of MPI's."""
    x = comm.xp.asarray(np.full(2**18, float(comm.rank == 0)))
    with patch.object(broadcast, "choose", lambda *_: "chain"):
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
    near = own.node_comm
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
        assert all((len(round_.sends), len(round_.forwards)) == (going - later, later) for round_, _ in comm._under_way.values())
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
        assert not comm._progress.busy.is_set()
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


def test_ranks_of_no_group_leave_their_cores_to_the_others(comm):
    """As many work at once as there are cores, and where the others wait they need not sleep between two polls."""
    world = pdla.world()
    some = world.split([*range(world.workers)] if world.rank < world.workers else None, "some")
    assert world.workers == min(world.size, world.node.cores)
    if some is not None:
        assert some.node.ranks == (world.workers if world.node.is_crowded else world.node.ranks) and not some.node.is_crowded
        some.close()
