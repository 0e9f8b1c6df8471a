"""What a ledger looks like at a prompt."""

from unittest.mock import patch

import numpy as np
import pytest

import pdla
from pdla import record, run
from pdla.comm.collectives import broadcast
from pdla.comm.ledger import Event
from pdla.comm.pending import to_pending


def test_the_repr_of_a_ledger_is_its_totals_in_a_few_lines():
    bytes_of = {"": 5, "fc1": 70, "fc2": 60, **{f"block {i}": 10 + i for i in range(1000)}}
    events = [Event("allgather", "row", size, 2, far=size // 2, tag=tag) for tag, size in bytes_of.items()]
    ledger = pdla.Ledger([*events, Event("gemm", flops=1000)], 64, 128, 2.0, 0.5)
    far = sum(size // 2 for size in bytes_of.values())
    total, last = sum(bytes_of.values()), "block 999: 1009, block 998: 1008, block 997: 1007, block 996: 1006, block 995: 1005"
    assert repr(ledger).splitlines() == [
        f"Ledger: 1004 events, {total} bytes received, {far} of them from other nodes, 2006 messages, 1000 flops",
        f"    bytes by verb: allgather: {total}",
        f"    bytes by axis: row: {total}",
        f"    bytes by tag: {last}, block 994: 1004, and 997 others",
        "    workspace: 64 bytes, at most 128; 2 s, 0.5 of them computing",
    ]


def test_an_empty_ledger_and_one_without_tags_have_fewer_lines():
    assert repr(pdla.Ledger()) == "Ledger: 0 events, 0 bytes received, 0 messages, 0 flops\n    workspace: 0 bytes, at most 0"
    assert "bytes by tag" not in repr(pdla.Ledger([Event("shift", "col", 8, 1)]))


def test_a_dry_run_of_all_ranks_is_told_in_a_line():
    def program(comm):
        A = pdla.zeros((64, 64), pdla.ProcessGrid((2, 2)), pdla.Layout("row", "col"))
        for _ in range(50):
            A @ A

    found = pdla.dry_run_all(4, program, machine=pdla.Machine())
    assert repr(found) == f"AllRanks(4 ranks, {found.seconds:.4g} s)"
    told = repr(found.path)
    assert told.startswith(f"Path({len(found.path.steps)} steps, {found.seconds:.4g} s: ") and len(told) < 120


def numbers(rank, shape, dtype="float64"):
    """Small integers that tell ranks and places apart."""
    return ((np.arange(np.prod(shape)).reshape(shape) * 7 + rank * 3) % 11).astype(dtype)


@pytest.mark.parametrize(
    ("way", "from_far"), [("flat", (0, 0, 160, 160)), ("chain", (160, 0, 160, 0))]
)
def test_the_ledger_tells_bytes_from_ranks_on_other_nodes(way, from_far):
    """Nodes of ranks 0 and 1, 2 and 3. A broadcast of 160 bytes from rank 1, in a chain by way of 2, 3 and 0; other verbs."""

    def program(comm):
        comm.homes = [0, 0, 2, 2]
        empty, far = comm.xp.empty, []
        x = empty((4, 5), "float64")

        def count(verb):
            with record() as ledger:
                verb().wait()
            far.append(ledger.bytes_from_far)
            assert far[-1] <= ledger.bytes_received

        count(lambda: comm.bcast(x, 1))
        count(lambda: comm.allgather(x, [empty((4, 5), "float64") for _ in range(4)]))
        count(lambda: comm.reduce(x, 3))
        count(lambda: comm.shift(x, empty((4, 5), "float64"), 1))
        count(lambda: comm.send(x, 3) if comm.rank == 0 else comm.recv(x, 0) if comm.rank == 3 else to_pending(None))
        count(lambda: comm.alltoall({comm.rank ^ 1: x}, {comm.rank ^ 1: empty((4, 5), "float64")}))
        return far

    with patch.object(broadcast, "choose", lambda *_: way), patch.object(broadcast, "CHUNK", 40):
        by_rank = run(4, program)
        assert [pdla.dry_run(4, program, rank=r)[0] for r in range(4)] == by_rank
    bcast, *others = zip(*by_rank, strict=True)
    assert bcast == from_far
    assert others == [(320,) * 4, (0, 0, 0, 320), (160, 0, 160, 0), (0, 0, 0, 160), (0, 0, 0, 0)]


def test_totals_tell_bytes_from_other_nodes_and_one_node_has_none():
    def program(comm, homes):
        comm.homes = homes
        with record() as ledger:
            comm.shift(np.zeros(comm.rank + 1), np.zeros((comm.rank - 1) % 3 + 1)).wait()
        total = ledger.total(comm)
        return total["bytes_received"], total["bytes_from_far"], total["max_bytes_from_far"]

    assert run(3, program, [0, 1, 1])[0] == (48, 32, 24)  # 0 receives 3 words from 2, 1 one from 0, 2 two from 1
    assert run(3, program, [5, 5, 5])[0] == run(3, program, ())[0] == (48, 0, 0)


def test_the_ledger_counts_what_the_world_copies():
    def program(comm):
        grid_half = comm.split([r for r in range(6) if r % 2 == comm.rank % 2], "half")
        with record() as ledger:
            comm.bcast(numbers(comm.rank, (5, 4)), 2).wait()
            grid_half.allgather(
                numbers(0, (comm.rank, 2)), [np.empty((2 * i + comm.rank % 2, 2)) for i in range(3)]
            ).wait()
            comm.allreduce(numbers(comm.rank, (7, 3), "complex64")).wait()
            grid_half.reduce(numbers(comm.rank, (3, 3), "float32"), 1).wait()
            comm.reduce_scatter([numbers(0, (r, 2)) for r in range(6)], np.empty((comm.rank, 2))).wait()
            comm.shift(numbers(0, (4, 4), "int8"), np.empty((4, 4), "int8"), 2).wait()
            comm.shift(numbers(0, (4, 4), "int8"), np.empty((4, 4), "int8"), 6).wait()  # to itself: nothing is received
            sent = comm.send(numbers(0, (2, 5)).T, (comm.rank + 1) % 6)
            comm.recv(np.empty((5, 2)), (comm.rank - 1) % 6).wait()
            sent.wait()
        comm.barrier()
        assert ledger.bytes_received == comm.world.bytes_copied[comm.rank]
        assert sum(ledger.by_axis().values()) == sum(ledger.by_verb().values()) == ledger.bytes_received
        assert set(ledger.by_axis()) == {"all", "half"}
        total = ledger.total(comm)
        assert total["bytes_received"] == sum(comm.world.bytes_copied)
        assert total["max_bytes_received"] == max(comm.world.bytes_copied)
        return ledger

    ledgers = run(6, program)
    assert ledgers[0].by_verb()["bcast"] == 5 * 4 * 8 and "bcast" not in ledgers[2].by_verb()
    assert ledgers[1].by_verb()["shift"] == 16
    assert ledgers[3].by_verb()["recv"] == 80


def test_elements_are_counted_where_they_are_copied():
    def program(comm):
        comm.bcast(numbers(comm.rank, (5, 4), "complex128"), 0).wait()
        comm.barrier()
        return comm.world.elements_copied, comm.world.bytes_copied

    assert run(3, program)[0] == ([0, 20, 20], [0, 320, 320])


def test_without_a_ledger_nothing_is_recorded():
    def program(comm):
        with record() as ledger:
            pass
        comm.bcast(numbers(0, (3, 3)), 0).wait()
        return ledger.events

    assert run(2, program) == [[], []]
