"""How much of the communication a product hides behind its local GEMMs: SUMMA, Cannon and fetch.

python -m bench.overlap [delay]              ranks are threads; an array travels `delay` seconds (0.2, or less: see below)
mpirun -n 4 python -m bench.overlap          ranks are processes, on the network there is
python -m bench.cluster --hosts 4 -- python -m bench.overlap

For each product, the least seconds of a few turns: the GEMMs alone (verbs return at once), the communication alone (GEMMs return at
once), both together; and the share hidden: (GEMMs + communication - together) / communication. The first panel, or the skew, has
nothing to hide behind. In the communication alone, SUMMA and fetch have four panels under way at once: of s panels at most 1 - 4/s
can be hidden, of Cannon's s steps, those of all slices, 1 - 1/s.

Where ranks outnumber the cores, GEMMs are "slept", as if each rank had its own machine: a sleep of 1.5 delays (over MPI a delay is
0.06 s unless given); on GPUs they are real. Where those of threads are real, the default delay is at most the time that 2.75 panels
take, as SUMMA is three panels ahead.
"""

import os
import time
from contextlib import nullcontext
from unittest.mock import patch

import pdla
from bench.common.given import say, started
from pdla.array import chosen
from pdla.bench.arguments import above_zero
from pdla.bench.measure.peak import elapsed
from pdla.comm.pending import done

TURNS = 4
LATE = 0.2  # seconds that an array travels between threads, at most
THREADS = (
    ("summa", 4, 6144, 128),
    ("summa", 16, 2048, 64),
    ("cannon", 16, 1024, 128),
    ("cannon", 64, 1024, None),
    ("fetch", 16, 2048, 64),
)
PROCESSES = {"numpy": ("summa", 4096, 256), "cupy": ("summa", 16384, 1024)}
HEAD = f"{'':8}{'ranks':>6}{'n':>7}{'panel':>7}{'GEMMs':>9}{'delay':>8}{'s':>8}{'comm. s':>10}{'both s':>10}{'hidden':>8}"


def product(comm, algorithm, n, panel):
    """Collective: seconds of C = A B on the slowest rank, the second time."""
    layout = pdla.Layout("row", "col")
    with pdla.ProcessGrid(pdla.balanced_shape(comm.size), comm=comm) as grid:
        A, B, C = (pdla.random((n, n), grid, layout, seed=seed) for seed in range(3))
        asked = {"schedule": "fetch", "box": (*grid.shape, 1)} if algorithm == "fetch" else {"algorithm": algorithm}
        plan = pdla.plan_matmul(A, B, out=C, panel=panel, **asked)
        plan(A, B, out=C)
        return elapsed(comm, lambda: plan(A, B, out=C))


def silent(world):
    """Replace the world's verbs by ones that send nothing and return at once."""
    fakes = {
        "bcast": lambda comm, x, root: done(x),
        "shift": lambda comm, x, out, step=1: done(out),
        "alltoall": lambda comm, sends, recvs: done(recvs),
    }
    return patch.multiple(world, **fakes)


def gemm_is(compute):
    return patch.object(chosen(), "gemm", compute)


def idle(*operands):
    """A GEMM that takes no time."""


def measured(run, world, gemm):
    """The least seconds of the GEMMs alone, of the communication alone, of both, in turns; run() gives the seconds of one run."""
    least = [float("inf")] * 3
    for _ in range(TURNS):
        for i, (verbs, gemms) in enumerate(((silent(world), gemm), (nullcontext(), gemm_is(idle)), (nullcontext(), gemm))):
            with verbs, gemms:
                least[i] = min(least[i], run())
    return least


def line(algorithm, ranks, n, panel, slept, delay, seconds):
    gemms, communication, together = seconds
    hidden = (gemms + communication - together) / communication
    start = f"{algorithm:8}{ranks:6}{n:7}{panel or '':>7}{'slept' if slept else 'real':>9}{delay or '':>8.3}"
    return f"{start}{gemms:8.3f}{communication:10.3f}{together:10.3f}{hidden:8.0%}"


def with_threads(given):
    print(f"threads, each array so many seconds on its way\n{HEAD}")
    for algorithm, ranks, n, panel in THREADS:
        slept = ranks > 2 * len(os.sched_getaffinity(0))
        delay = given or (LATE if slept else min(LATE, 2.75 * alone(ranks, algorithm, n, panel) * panel / n))

        def run(case=(ranks, product, algorithm, n, panel), delay=delay):
            return pdla.run(*case, delay=delay)[0]

        seconds = measured(run, pdla.comm.threads.ThreadComm, gemm_of(slept, delay))
        print(line(algorithm, ranks, n, panel, slept, delay, seconds), flush=True)


def alone(ranks, *case):
    """Seconds of a product's GEMMs alone, by ranks as threads."""
    with silent(pdla.comm.threads.ThreadComm):
        return min(pdla.run(ranks, product, *case)[0] for _ in range(2))


def with_processes(comm, given):
    delay = given or 0.06
    tell = say(comm)
    tell(f"{comm.size} processes on {len(set(comm.homes))} nodes\n{HEAD}")
    case = PROCESSES[comm.xp.name]
    for slept in (False, True) if comm.xp.name == "numpy" else (False,):
        seconds = measured(lambda: product(comm, *case), type(comm), gemm_of(slept, delay))
        tell(line(case[0], comm.size, *case[1:], slept, delay if slept else None, seconds), flush=True)


def gemm_of(slept, delay):
    return gemm_is(lambda *operands: time.sleep(1.5 * delay)) if slept else nullcontext()


def main(delay=None):
    try:
        comm = pdla.world()
    except pdla.errors.NoMPIError:
        comm = None
    if comm is None or comm.size == 1:
        with_threads(delay)
    else:
        with_processes(comm, delay)


if __name__ == "__main__":
    started(main, above_zero, __doc__)
