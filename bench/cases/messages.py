"""Times of messages, and of verbs that consist of messages, between the ranks of a job."""

from contextlib import contextmanager
from math import inf
from statistics import median
from unittest.mock import patch

import numpy as np

import pdla
from bench.common.case import case
from pdla.bench.arguments import above_zero, positive
from pdla.bench.measure.peak import time_once
from pdla.comm import group
from pdla.comm.collectives import broadcast, circulant, ring

WAYS = {"auto": 0, "mpi": 0, "flat": 0, "chain": 0, "chain 256": 256 << 10, "chain 1024": 1 << 20}  # and bytes of a chunk
SIZES = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20]
TURNS = 4  # of exchanges
BYTES = 6_000_000  # that a rank receives, for its share of the link's rate
PIECES = 0.125, 1, 4, 16, 64, 256  # KiB


# ---------------------------------------------------------------------------------------------- broadcasts


@case(" | ".join(["KiB:8", *(f"{way}:12.2f" for way in WAYS)]))
def broadcasts(comm, repeats: positive = 5):
    """Milliseconds of a broadcast in each of pdla's ways, by message size.

    Broadcasts one after another, from several roots in turn; figures are medians, over roots and
    repeats, of the slowest rank's time. A chain is in chunks of pdla's size, of 256 and of 1024
    KiB. On an emulated cluster:

    python -m bench.cluster --hosts 4 -- python -m bench broadcasts
    """
    yield f"{comm.size} ranks on {len(set(comm.homes))} nodes of {comm.node.cores} cores"
    for size in SIZES:
        x, times = np.zeros((size >> 12, 512)), {way: [] for way in WAYS}
        for _ in range(repeats):
            for root in range(0, comm.size, max(1, comm.size // 4)):
                for way in WAYS:
                    with broadcast_by(way):
                        times[way].append(1e3 * time_once(comm, lambda: comm.bcast(x, root).wait()))  # noqa: B023
        yield size >> 10, *map(median, times.values())


@contextmanager
def broadcast_by(way):
    """Send broadcasts by `way`; auto: pdla's choice."""
    choose = broadcast.choose if way == "auto" else lambda *_: way.partition(" ")[0]
    with patch.object(broadcast, "choose", choose), patch.object(broadcast, "CHUNK", WAYS[way] or broadcast.CHUNK):
        yield


# ---------------------------------------------------------------------------------------------- exchanges


@case("exchange:<20 | one message:12.0% | in pieces:12.0%")
def shares(comm, megabits: above_zero):
    """Shares of a link's rate that exchanges reach: one MPI message from each rank, and pdla.

    Each rank receives 6 MB, from all others of groups of 2, 4 and 16, or from the rank before it.
    The link's rate is in Mbit/s:

    python -m bench.cluster --hosts 16 --rate 50mbit -- python -m bench shares 50
    """
    yield f"of {megabits:g} Mbit/s"
    rate, mpi = megabits * 1e6 / 8, comm.mpi
    for size in (p for p in (2, 4, 16) if comm.size % p == 0):
        first = comm.rank // size * size
        ranks_group, own = comm.split(range(first, first + size), "group"), mpi.Split(first, comm.rank)
        x = np.ones(BYTES // 8 // (size - 1))
        outs = [np.empty_like(x) for _ in range(size)]
        works = (lambda: gather_in_messages(own, x, outs)), (lambda: gather(ranks_group, x, outs, inf))  # noqa: B023
        yield f"all-gather of {size}", *(x.nbytes * (size - 1) / rate / time_median(comm, work) for work in works)
    x, out = np.ones(BYTES // 8), np.empty(BYTES // 8)
    ahead, back = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    works = (lambda: mpi.Sendrecv(x, ahead, recvbuf=out, source=back)), (lambda: comm.shift(x, out).wait())
    yield "shift", *(x.nbytes / rate / time_median(comm, work) for work in works)


@case("exchange:<16 | KiB:8 | directly:12.1f | in steps:12.1f | by nodes:12.1f | MPI:12.1f")
def exchanges(comm, most: above_zero = inf):
    """Milliseconds of an all-gather and of a reduce-scatter, by the KiB of a rank's piece.

    Pieces have up to `most` KiB. Columns: directly, in steps, from node to node, and MPI's own.

    python -m bench.cluster --hosts 16 --ranks-per-host 4 --rate 200mbit -- python -m bench exchanges 4
    """
    yield f"{comm.size} ranks on {comm.nodes} nodes; ms"
    for name, ways in (("all-gather", list_gathers), ("reduce-scatter", list_sums)):
        for kib in (kib for kib in PIECES if kib <= most):
            yield name, kib, *(1e3 * time_median(comm, way) for way in ways(comm, int(kib * 128)))


def time_median(comm, work):
    """Collective: seconds of work() on the slowest rank, the median of a few turns."""
    time_once(comm, work)
    return median(time_once(comm, work) for _ in range(TURNS))


def gather_in_messages(mpi, x, outs):
    """All-gather by one message to and from each other rank."""
    others = [r for r in range(mpi.size) if r != mpi.rank]
    for request in [mpi.Irecv(outs[r], r) for r in others] + [mpi.Isend(x, r) for r in others]:
        request.Wait()


def gather(comm, x, outs, long, many=inf):
    """All-gather by pdla: in steps from `many` ranks on; else by nodes from `long` bytes on."""
    ring.LONG, circulant.MANY, circulant.SHORT = long, many, inf
    comm.allgather(x, outs).wait()


def list_gathers(comm, words):
    """List all-gathers of pieces of so many words: directly, in steps, by a ring, and MPI's."""
    x, whole = np.ones(words), np.empty((comm.size, words))
    return (
        lambda: gather(comm, x, [*whole], inf),
        lambda: gather(comm, x, [*whole], inf, many=2),
        lambda: gather(comm, x, [*whole], 0),
        lambda: comm.mpi.Allgather(x, whole),
    )


def add_up(comm, parts, out, relayed, many=inf):
    """Reduce-scatter by pdla: in steps from `many` ranks on; else relayed by nodes or not."""
    circulant.MANY, circulant.SHORT, ring.LONG = many, inf, 0 if relayed else inf
    group.pays = lambda nbytes, nodes, ranks, growth: relayed
    comm.reduce_scatter(parts, out).wait()


def list_sums(comm, words):
    """List reduce-scatters of pieces of so many words: directly, in steps, relayed, and MPI's."""
    whole, out = np.ones((comm.size, words)), np.empty(words)
    return (
        lambda: add_up(comm, [*whole], out, False),
        lambda: add_up(comm, [*whole], out, False, 2),
        lambda: add_up(comm, [*whole], out, comm.nodes < comm.size),
        lambda: comm.mpi.Reduce_scatter_block(whole, out),
    )


# ---------------------------------------------------------------------------------------------- long messages


@case()
def large_counts(comm):
    """Messages of more than 2^31 bytes: an int8 matrix moves from rank 0 to 1, and back (9 GiB)."""
    if comm.size < 2:
        raise SystemExit("large_counts: a matrix moves from rank 0 to rank 1: mpirun -n 2 python -m bench large_counts")
    rows, cols = 2, 2**30 + 5
    n = rows * cols
    first, second = ((0, *[rows] * comm.size), (0, 0, *[rows] * (comm.size - 1)))
    block = np.resize(np.arange(101, dtype=np.int8), (rows if comm.rank == 0 else 0, cols))
    A = pdla.from_local(block, (rows, cols), pdla.ProcessGrid((comm.size,)), pdla.Layout(pdla.Cuts("row", first)))
    with pdla.record() as ledger:
        back = A.redistribute(pdla.Layout(pdla.Cuts("row", second))).redistribute(A.layout)
    received = comm.share((ledger.bytes_received, bool(np.array_equal(A.local, back.local))))
    yield f"{n} int8 elements ({n - 2**31} more than 2^31): bytes received by rank {received}"
    yield "equal on every rank" if all(same for _, same in received) and received[1][0] == n else "WRONG"
