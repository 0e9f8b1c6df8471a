"""Distributed products beside NumPy on all cores and beside allgather + numpy.matmul by hand, all in one run.

mpirun -n 4 python bench/against_numpy.py [n] [repeats]

Prints, for each side, the median and least seconds, NumPy's median over the side's, and the greatest workspace of a rank in MiB: by
the ledger (for the hand-made product the gathered matrix), and by the growth of the process's peak memory.
"""

import os
import resource
import time
from statistics import median

import numpy as np
from mpi4py import MPI
from sides.given import started
from threadpoolctl import threadpool_limits

import pdla
from pdla.bench.arguments import positive

MIB = 2**20


def quietly(comm, work):
    """Rank 0 works while the others sleep rather than poll, so that it has all the cores."""
    if comm.rank == 0:
        work()
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.002)


def timed(comm, work):
    comm.Barrier()
    start = time.perf_counter()
    work()
    return comm.allreduce(time.perf_counter() - start, MPI.MAX)


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def by_hand(comm, n):
    """A product by 1-D cuts, written by hand: A's rows stay, B's rows are gathered, and numpy.matmul multiplies."""
    rows = n // comm.size
    a, b = (np.random.default_rng(comm.rank + i).random((rows, n)) for i in (0, 99))
    c, whole = np.empty((rows, n)), np.empty((n, n))

    def work():
        comm.Allgather(b, whole)
        np.matmul(a, whole, out=c)

    return work, whole.nbytes


def ours(n, algorithm, ranks):
    grid = pdla.ProcessGrid(pdla.balanced_shape(ranks))
    layout = pdla.Layout("row", "col")
    A, B = (pdla.random((n, n), grid, layout, seed=seed) for seed in (1, 2))
    C = pdla.zeros((n, n), grid, layout)
    return lambda: pdla.matmul(A, B, algorithm=algorithm, out=C)


def main(n=4096, repeats=7):
    comm, world = MPI.COMM_WORLD, pdla.world()
    say = print if comm.rank == 0 else lambda *_, **__: None
    sides = {f"pdla {algorithm}": ours(n, algorithm, comm.size) for algorithm in ("auto", "gather", "summa", "cannon", "3d")}
    spaces = {}
    for name, work in sides.items():
        before = peak()
        with pdla.record() as ledger:
            work()
        growth = world.share(peak() - before)
        spaces[name] = ledger.total(world)["max_peak_workspace"], max(growth)
    before = peak()
    sides["by hand"], space = by_hand(comm, n)
    sides["by hand"]()
    spaces["by hand"] = space, max(world.share(peak() - before))
    times = {name: [] for name in ("numpy, all cores", *sides)}
    a = b = c = None
    if comm.rank == 0:
        a, b, c = np.random.default_rng(0).random((n, n)), np.random.default_rng(1).random((n, n)), np.empty((n, n))

    def numpy_alone():
        with threadpool_limits(len(os.sched_getaffinity(0))):
            np.matmul(a, b, out=c)

    for _ in range(repeats):
        start = time.perf_counter()
        quietly(comm, numpy_alone)
        times["numpy, all cores"].append(time.perf_counter() - start)
        for name, work in sides.items():
            times[name].append(timed(comm, work))
    reference = median(times["numpy, all cores"])
    say(f"float64 n = {n}, {comm.size} ranks, {repeats} repeats")
    say(f"{'':18}{'median s':>10}{'least s':>10}{'numpy/it':>10}{'workspace MiB':>15}{'peak growth MiB':>17}")
    for name, seconds in times.items():
        space = "".join(f"{x / MIB:>{w}.1f}" for x, w in zip(spaces.get(name, (0, 0)), (15, 17), strict=True))
        say(f"{name:18}{median(seconds):10.3f}{min(seconds):10.3f}{reference / median(seconds):10.2f}{space}")


if __name__ == "__main__":
    started(main, positive, __doc__)
