"""Hidden communication: products and layers run without communication, without computing, and with both.

A sleep may replace a product, as if each rank had its own machine. Between threads an array may
travel for a given time.
"""

import os
import time
from contextlib import ExitStack, nullcontext
from unittest.mock import patch

import numpy as np

import pdla
from bench.common.case import case
from pdla import nn
from pdla.array import choose
from pdla.array import numpy as local
from pdla.bench.arguments import above_zero
from pdla.bench.measure.peak import time_once
from pdla.comm.pending import to_pending
from pdla.comm.threads import ThreadComm

TIMES = "s:9.3f | comm. s:10.3f | both s:10.3f | hidden:8.0%"


def time_parts(run, silent, idle, busy, turns=1):
    """The least seconds of run()'s figures over turns, and the hidden share of communication.

    Columns: products alone, communication alone, both, (products + communication - both) / communication.
    """
    least = [np.inf] * 3
    for _ in range(turns):
        for i, patches in enumerate(((silent, busy), (idle,), (busy,))):
            with ExitStack() as stack:
                for patched in patches:
                    stack.enter_context(patched)
                least[i] = np.minimum(least[i], run())
    products, communication, both = least
    return np.transpose([*least, (products + communication - both) / communication])


# ---------------------------------------------------------------------------------------------- products

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


@case(f"product:<8 | ranks:6 | n:7 | panel:7 | GEMMs:9 | delay:8.3 | {TIMES}")
def overlap(delay: above_zero = None):
    """The share of a product's communication that GEMMs hide: SUMMA, Cannon and fetch.

    python -m bench overlap [delay]        ranks are threads; an array travels `delay` seconds
    mpirun -n 4 python -m bench overlap    ranks are processes, on the network there is
    python -m bench.cluster --hosts 4 -- python -m bench overlap

    Times are the least of a few turns: the GEMMs alone (verbs return at once), the communication
    alone (GEMMs return at once), and both. Hidden is (GEMMs + communication - both) /
    communication. No GEMM can hide the first panel, or the skew. SUMMA and fetch have four panels
    under way at once, so of s panels they hide at most 1 - 4/s. Cannon hides at most 1 - 1/s of its
    s steps, of all slices.

    If ranks outnumber the cores, GEMMs are "slept": sleeps of 1.5 delays. On GPUs GEMMs are real.
    The default delay is 0.06 s over MPI, and at most 0.2 s between threads. For threads with real
    GEMMs it is at most the time of 2.75 panels, as SUMMA is three panels ahead.
    """
    try:
        comm = pdla.world()
    except pdla.errors.NoMPIError:
        comm = None
    alone = comm is None or comm.size == 1
    yield from (row for row in (run_threads(delay) if alone else run_processes(comm, delay)) if alone or comm.rank == 0)


def time_product(comm, algorithm, n, panel):
    """Collective: seconds of C = A B on the slowest rank, the second time."""
    layout = pdla.Layout("row", "col")
    with pdla.ProcessGrid(pdla.balanced_shape(comm.size), comm=comm) as grid:
        A, B, C = (pdla.random((n, n), grid, layout, seed=seed) for seed in range(3))
        options = {"schedule": "fetch", "box": (*grid.shape, 1)} if algorithm == "fetch" else {"algorithm": algorithm}
        plan = pdla.plan_matmul(A, B, out=C, panel=panel, **options)
        plan(A, B, out=C)
        return time_once(comm, lambda: plan(A, B, out=C))


def silence(world):
    """Replace the world's verbs by ones that send nothing and return at once."""
    return patch.multiple(
        world, bcast=lambda comm, x, root: to_pending(x), shift=lambda comm, x, out, step=1: to_pending(out),
        alltoall=lambda comm, sends, recvs: to_pending(recvs),
    )


def sleep_in_gemms(seconds):
    """Replace GEMMs by sleeps."""
    return patch.object(choose(), "gemm", lambda *operands: time.sleep(seconds) if seconds else None)


def measure_hidden(run, world, sleeps, delay):
    return time_parts(run, silence(world), sleep_in_gemms(0), sleep_in_gemms(1.5 * delay) if sleeps else nullcontext(), TURNS)


def run_threads(given):
    yield "threads; an array travels for the delay, in seconds"
    for algorithm, ranks, n, panel in THREADS:
        sleeps = ranks > 2 * len(os.sched_getaffinity(0))
        delay = given or (LATE if sleeps else min(LATE, 2.75 * time_gemms(ranks, algorithm, n, panel) * panel / n))

        def run(case=(ranks, time_product, algorithm, n, panel), delay=delay):
            return pdla.run(*case, delay=delay)[0]

        yield algorithm, ranks, n, panel, "slept" if sleeps else "real", delay, *measure_hidden(run, ThreadComm, sleeps, delay)


def time_gemms(ranks, *case):
    """Seconds of a product's GEMMs alone, by ranks as threads."""
    with silence(ThreadComm):
        return min(pdla.run(ranks, time_product, *case)[0] for _ in range(2))


def run_processes(comm, given):
    delay, case = given or 0.06, PROCESSES[comm.xp.name]
    yield f"{comm.size} processes on {len(set(comm.homes))} nodes"
    for sleeps in (False, True) if comm.xp.name == "numpy" else (False,):
        figures = measure_hidden(lambda: time_product(comm, *case), type(comm), sleeps, delay)
        yield case[0], comm.size, *case[1:], "slept" if sleeps else "real", delay if sleeps else None, *figures


# ---------------------------------------------------------------------------------------------- layers

GRID, AXES = (2, 2, 2), ("row", "col", "depth")
SEQUENCE, SEQUENCES, HIDDEN, HEADS = 16, 16, 64, 4
PASSES = 2
MESSAGE = 0.1  # seconds that half of an all-reduce of tokens x HIDDEN takes
BANDWIDTH = SEQUENCE * SEQUENCES // 2 * HIDDEN * 8 / 2 / MESSAGE  # bytes a second


@case(f"shards:6 | pass:10 | {TIMES}")
def layer_overlap(ratio: above_zero = 2.0):
    """The share of a layer's communication that its products hide, by shards of Tensor3D.

    `ratio` is the time of a linear's product, which is a sleep, over that of its messages. The
    bandwidth decides how long an array travels. The table has 1, 2 and 4 shards, forward and
    backward. Columns are seconds of the products alone (verbs return at once), of the communication
    alone (products take no time), and of both. Hidden is (products + communication - both) /
    communication.
    """
    yield f"{dict(zip(AXES, GRID, strict=True))}, {BANDWIDTH / 1e6:.1f} MB a second"
    instant_verbs = patch.multiple(
        ThreadComm, allgather=lambda comm, x, outs, verb="", gather_buffer=None: to_pending(outs),
        reduce_scatter=lambda comm, parts, out, verb="", op="": to_pending(out),
    )
    for shards in (1, 2, 4):

        def run(shards=shards):
            return pdla.run(int(np.prod(GRID)), time_passes, shards, bandwidth=BANDWIDTH)[0]

        with np.errstate(all="ignore"):
            passes = time_parts(run, instant_verbs, sleep_by_work(0), sleep_by_work(ratio * 2 * MESSAGE))
        yield from ((shards, name, *figures) for name, figures in zip(("forward", "backward"), passes, strict=True))


def time_passes(comm, shards):
    """Collective: seconds of the fastest forward and of the fastest backward pass."""
    scheme = nn.Tensor3D(pdla.ProcessGrid(GRID, AXES, comm), shards=shards)
    net = nn.TransformerLayer(scheme, HIDDEN, HEADS, sequence=SEQUENCE)
    x = scheme.shard(np.zeros((SEQUENCES * SEQUENCE, HIDDEN)), sequence=SEQUENCE)
    seconds = []
    for _ in range(PASSES):
        y = []
        forward = time_once(comm, lambda: y.append(net.forward(x)))  # noqa: B023
        seconds.append((forward, time_once(comm, lambda: net.backward(y[0]))))  # noqa: B023
    return [min(each) for each in zip(*seconds, strict=True)]


def sleep_by_work(seconds):
    """Replace GEMMs by sleeps: `seconds` for a linear of a rank's tokens, others by their work."""
    whole = SEQUENCE * SEQUENCES // 2 * HIDDEN * HIDDEN // 4

    def gemm(a, b, c, alpha=1, beta=0, room=None, alike=False):
        c[...] = 0
        time.sleep(seconds * a.shape[0] * a.shape[1] * b.shape[1] / whole)

    return patch.object(local, "gemm", gemm)
