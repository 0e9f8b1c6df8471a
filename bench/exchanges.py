"""What share of a link exchanges reach, and how long all-gathers and sums take: directly, in steps, around the nodes, and MPI's
own.

python -m bench.cluster --hosts 16 --rate 50mbit -- python -m bench.exchanges 50     the link's rate in Mbit/s
Shares: each rank receives 6 MB, from all others of groups of 2, 4 and 16, or from the rank before it; by one MPI message from each,
and by pdla, whose long messages travel in pieces. Then the milliseconds of an all-gather and of a reduce-scatter over all ranks, by
the KiB of a rank's piece; a second number is the most.
"""

from math import inf
from statistics import median

import numpy as np
from mpi4py import MPI

import pdla
from bench.common.given import say, started
from pdla.bench.arguments import above_zero
from pdla.bench.measure.peak import elapsed
from pdla.comm import group
from pdla.comm.collectives import circulant, ring

BYTES, TURNS = 6_000_000, 4
PIECES = 0.125, 1, 4, 16, 64, 256  # KiB


def seconds(comm, work):
    """Collective: seconds that work() takes the slowest rank, the median of a few turns."""
    elapsed(comm, work)
    return median(elapsed(comm, work) for _ in range(TURNS))


def in_messages(mpi, x, outs):
    """An all-gather of one message to and from each other rank."""
    others = [r for r in range(mpi.size) if r != mpi.rank]
    receiving = [mpi.Irecv(outs[r], r) for r in others]
    MPI.Request.Waitall(receiving + [mpi.Isend(x, r) for r in others])


def gathered(comm, x, outs, long, many=inf):
    """An all-gather by pdla: in steps from `many` ranks on; else around the nodes from `long` bytes on."""
    ring.LONG, circulant.MANY, circulant.SHORT = long, many, inf
    comm.allgather(x, outs).wait()


def milliseconds(comm, kib):
    """Collective: milliseconds of an all-gather of pieces of so many KiB: directly, in steps, ring, MPI's."""
    x, whole = np.ones(int(kib * 128)), np.empty((comm.size, int(kib * 128)))
    ways = (
        lambda: gathered(comm, x, [*whole], inf),
        lambda: gathered(comm, x, [*whole], inf, many=2),
        lambda: gathered(comm, x, [*whole], 0),
        lambda: MPI.COMM_WORLD.Allgather(x, whole),
    )
    return [1e3 * seconds(comm, way) for way in ways]


def summed(comm, parts, out, relayed, many=inf):
    """A reduce-scatter by pdla: in steps from `many` ranks on; else relayed from node to node or not."""
    circulant.MANY, circulant.SHORT, ring.LONG = many, inf, 0 if relayed else inf
    group.pays = lambda nbytes, nodes, ranks, growth: relayed
    comm.reduce_scatter(parts, out).wait()


def milliseconds_of_sums(comm, kib):
    """Collective: milliseconds of a reduce-scatter of pieces of so many KiB: directly, in steps, relayed, MPI's."""
    whole, out = np.ones((comm.size, int(kib * 128))), np.empty(int(kib * 128))
    ways = (
        lambda: summed(comm, [*whole], out, False),
        lambda: summed(comm, [*whole], out, False, 2),
        lambda: summed(comm, [*whole], out, comm.nodes < comm.size),
        lambda: MPI.COMM_WORLD.Reduce_scatter_block(whole, out),
    )
    return [1e3 * seconds(comm, way) for way in ways]


def main(megabits, most=inf):
    comm, rate = pdla.world(), megabits * 1e6 / 8
    tell = say(comm)
    tell(f"{'':20}{'one message':>12}{'in pieces':>12}   of {megabits:g} Mbit/s")
    for size in (p for p in (2, 4, 16) if comm.size % p == 0):
        first = comm.rank // size * size
        group, mpi = comm.split(range(first, first + size), "group"), MPI.COMM_WORLD.Split(first, comm.rank)
        x = np.ones(BYTES // 8 // (size - 1))
        outs = [np.empty_like(x) for _ in range(size)]
        works = (lambda: in_messages(mpi, x, outs)), (lambda: gathered(group, x, outs, inf))  # noqa: B023
        shares = [x.nbytes * (size - 1) / rate / seconds(comm, work) for work in works]
        tell(f"all-gather of {size:<6}" + "".join(f"{share:12.0%}" for share in shares))
    x, out = np.ones(BYTES // 8), np.empty(BYTES // 8)
    ahead, back = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    works = (lambda: MPI.COMM_WORLD.Sendrecv(x, ahead, recvbuf=out, source=back)), (lambda: comm.shift(x, out).wait())
    shares = [x.nbytes / rate / seconds(comm, work) for work in works]
    tell(f"{'shift':20}" + "".join(f"{share:12.0%}" for share in shares))
    times = milliseconds, ("directly", "in steps", "ring", "MPI"), f"all-gather of {comm.size} on {comm.nodes} nodes"
    sums = milliseconds_of_sums, ("directly", "in steps", "pipeline", "MPI"), "reduce-scatter, the same"
    for found, ways, what in (times, sums):
        tell(f"{'KiB':>20}" + "".join(f"{way:>12}" for way in ways) + f"   ms, {what}")
        for kib in (kib for kib in PIECES if kib <= most):
            tell(f"{kib:20}" + "".join(f"{taken:12.1f}" for taken in found(comm, kib)))


if __name__ == "__main__":
    started(main, above_zero, __doc__)
