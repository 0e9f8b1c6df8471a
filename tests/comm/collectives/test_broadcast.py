"""Ways to broadcast: they bring the same in messages of their own, and which is taken depends on what all ranks know."""

from unittest.mock import patch

import numpy as np
import pytest

import pdla
from pdla import record, run
from pdla.comm.collectives import broadcast


def numbers(rank, shape, dtype="float64"):
    """Small integers that tell ranks and places apart."""
    return ((np.arange(np.prod(shape)).reshape(shape) * 7 + rank * 3) % 11).astype(dtype)


@pytest.mark.parametrize(("way", "messages"), [("flat", 1), ("chain", 6)])
def test_ways_to_broadcast_bring_the_same_in_messages_of_their_own(way, messages):
    def program(comm):
        x = numbers(comm.rank, (6, 8))[:, ::2]
        with record() as ledger:
            sources = list(comm.bcast(x, 1))
        np.testing.assert_array_equal(x, numbers(1, (6, 8))[:, ::2])
        assert comm.rank == 1 or sources[0] == ((comm.rank - 1) % 5 if way == "chain" else 1)  # first what others wait for
        (event,) = ledger.events
        return event.bytes, event.messages, event.way

    with patch.object(broadcast, "choose", lambda *_: way), patch.object(broadcast, "CHUNK", 40):
        done = run(5, program)
        dry = [pdla.dry_run(5, lambda comm: comm.bcast(comm.xp.empty((6, 4), "float64"), 1).wait(), rank=r)[1] for r in range(5)]
    assert [size for size, _, _ in done] == [192, 0, 192, 192, 192]
    assert [count for _, count, _ in done] == [messages, 0, messages, messages, messages]
    assert {name for _, _, name in done} == {way}
    assert [(ledger.bytes_received, ledger.messages) for ledger in dry] == [d[:2] for d in done]


def test_the_way_is_chosen_by_size_ranks_and_nodes_the_same_in_every_world():
    def program(comm):
        comm.homes = [0, 0, 2, 2]  # two nodes
        with record() as ledger:
            for rows in (1, 1000):
                comm.bcast(comm.xp.empty((rows, 100), "float64"), 0).wait()
        return [(event.way, event.bytes, event.messages) for event in ledger.events]

    assert run(4, program)[3] == [("flat", 800, 1), ("chain", 800_000, 13)]
    assert pdla.dry_run(4, program, rank=3)[0] == run(4, program)[3]
    asked = (4, 0, True), (4, 1, True), (4, 1, False), (2, 2, True), (3, 2, True)
    assert [broadcast.choose(1 << 20, *one) for one in asked] == ["mpi", "mpi", "flat", "flat", "chain"]
    assert [broadcast.choose(broadcast.LONG - 1, 4, 2, True), broadcast.choose(broadcast.LONG, 4, 2, True)] == ["mpi", "chain"]


@pytest.mark.parametrize(
    ("rows", "length", "ranks", "chunk", "chunks"),
    [(1024, 2**10, 4, None, 16), (64, 2**16, 4, None, 32), (128, 2**16, 8, None, 64), (6, 80, 4, 160, 3), (6, 80, 4, 40, 6)],
)
def test_a_chain_has_eight_chunks_a_rank_of_64_kib_or_more_and_of_a_row_at_least(rows, length, ranks, chunk, chunks, monkeypatch):
    monkeypatch.setattr(broadcast, "CHUNK", chunk or broadcast.CHUNK)
    x = np.empty((rows, length), "uint8")
    first, *_, last = (broadcast.list_messages("chain", x, rank, ranks, 1) for rank in (1, 2, 0))
    pieces = [(rows // chunks, length)] * chunks
    assert [piece.shape for _, piece in first.sends] == [piece.shape for _, piece in last.recvs] == pieces


@pytest.mark.parametrize("way", ["flat", "chain"])
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,)], ids=str)
def test_of_nothing_no_message_is_sent(way, shape):
    assert all(broadcast.list_messages(way, np.empty(shape), rank, 3, 0) == ((), (), {}) for rank in range(3))
