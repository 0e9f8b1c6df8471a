"""Factorizations, triangular systems and inverses beside SciPy's and ScaLAPACK's, by turns."""

import os
import subprocess
import sys
import time
from functools import partial
from statistics import median

import numpy as np
from scipy.linalg import blas, lapack
from threadpoolctl import threadpool_limits

import pdla
from bench.common.case import case
from bench.common.launch import AS_ROOT, OPEN_MPI, ROOT, core_type, no_scalapack, threads
from bench.common.meeting import Meeting
from bench.common.turns import in_turns
from pdla.bench.arguments import positives
from pdla.linalg import cho_factor, cholesky, inv, lu_factor, qr, solve, solve_triangular
from pdla.linalg.panels.blocks import in_blocks
from pdla.linalg.plan.price import cheapest
from pdla.linalg.plan.routine import Task
from pdla.linalg.routines import CHOLESKY, LU, QR, TRIANGULAR
from pdla.model.machine import Machine

TURNS = 7
BLOCKS = pdla.Layout("row", "col")
OF_A_JOB = ("PMI", "MPI", "HYDRA", "OMPI", "PMIX", "OPENBLAS_", "OMP_")  # begins of variables that another job is not to have


@case("n:6 | :<18 | ours:8.1f | SciPy:8.1f | ratio:7.2f | ScaLAPACK:11.1f | ratio:7.2f")
def factor(comm, sizes: positives = "1024,2048,4096"):
    """Cholesky, LU, QR, triangular systems, inverses: beside SciPy's of two threads, and ScaLAPACK's.

    mpirun -n 2 python -m bench factor 1024,2048

    float64. SciPy's LAPACK works in place, in Fortran order, on rank 0 while the others sleep; ours
    in square blocks, in place ("own"), and from 2-D blocks and back ("blocks"). B of the triangular
    systems has n columns; "solve" has one, "refined" solves it by factors in float32. Checked by
    LAPACK's ratios first. ScaLAPACK (apt-get install libscalapack-openmpi2.2) runs in a job of its
    own, as many ranks of one thread, in the best of its blocks and grids (sides/pdfactor.py), by
    turns with the others. Median milliseconds of 7 turns, and ratios of our times to theirs; for
    "refined" to those of "solve, own" in ScaLAPACK's place.
    """
    meeting = Meeting(comm.mpi)
    yield f"float64, {comm.size} ranks, median ms of {TURNS} turns"
    for n in sizes:
        ours, theirs = sides(n, comm)
        words = 4 * n * n // comm.size  # as a call makes at most: copies of its share
        turn = {name: partial(timed, meeting.seconds, words, *way) for name, way in ours.items()}
        turn |= {name: partial(quietly, meeting, partial(timed, alone, words, *way)) for name, way in theirs.items()}
        job = None if comm.rank or no_scalapack() else Job(n, comm.size)
        if not no_scalapack():
            turn |= {f"ScaLAPACK, {name}": partial(quietly, meeting, partial(Job.seconds, job, name)) for name in Job.names}
        times = in_turns(TURNS, turn, first=1)
        if job:
            job.end()
        yield from ((n, name, *beside(name, times)) for name in ours if comm.rank == 0)  # which alone has timed theirs


def alone(work):
    """Seconds of work by two threads."""
    with threadpool_limits(2):
        start = time.perf_counter()
        work()
        taken = time.perf_counter() - start
    time.sleep(0.2)  # OpenBLAS's second thread polls for so long before it leaves its core
    return taken


def quietly(meeting, figure):
    """What figure() gives on rank 0, while the others sleep rather than poll."""
    taken = figure() if meeting.comm.rank == 0 else 0.0
    request = meeting.comm.Ibarrier()
    while not request.Test():
        time.sleep(0.002)
    return taken


def timed(seconds, words, make, call):
    """Seconds of the call of what is made anew, where so many words were used a moment ago.

    Memory that lay free for two seconds a virtual machine may have given back to its host: to get
    it again takes 25 times as long.
    """
    made = make()
    np.ones(words)
    return seconds(partial(call, made))


class Job:
    """ScaLAPACK's, of as many ranks, which sleep until they are asked; on rank 0."""

    names = ("Cholesky", "LU", "QR", "triangular", "inverse", "inverse, pos")

    def __init__(self, n, ranks):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_A_JOB)}
        start = ["mpirun.openmpi", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
        environment = kept | threads(1) | {"PYTHONPATH": str(ROOT)} | OPEN_MPI | AS_ROOT | core_type()
        command = [*start, sys.executable, "-m", "bench.sides.pdfactor", str(n)]
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seconds(self, name):
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        return 1e-3 * float(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def grids(comm, n):
    """Grids and layouts, as pdla chooses them: for Cholesky, for triangular systems, for LU, and for QR."""
    tasks = [Task(each, n, n, np.dtype(float), Machine.chosen()) for each in (CHOLESKY, TRIANGULAR, LU, QR)]
    blockings = [cheapest(task, comm.size)[0] for task in tasks]
    layouts = [in_blocks(*each) for each in blockings]
    return [(pdla.ProcessGrid(each.shape), layout) for each, layout in zip(blockings, layouts, strict=True)]


def of(n, grid, layout, positive):
    A = pdla.random((n, n), grid, layout, seed=2, distribution="normal")  # well conditioned: seed 1 at n = 1024 is not
    if not positive:
        return A
    return (A + A.T.redistribute(layout)) * 0.5 + pdla.eye(n, grid, layout) * (2 * n**0.5 + 1)


def sides(n, comm):
    """By name: what to make anew before each call, and the call; ours, and SciPy's."""
    squares, triangle, columns, panels = grids(comm, n)
    down = pdla.Layout(triangle[1].rows, "col")
    plain = pdla.ProcessGrid(pdla.balanced_shape(comm.size))
    P, Q = of(n, *squares, True), of(n, plain, BLOCKS, True)
    G, H, F = of(n, *columns, False), of(n, plain, BLOCKS, False), of(n, *panels, False)
    L, B = cholesky(P).redistribute(*triangle[::-1]), of(n, triangle[0], down, False)
    whole = pdla.random((n, 1), columns[0], pdla.Layout(), seed=3)
    unchecked = {"overwrite_a": True, "check_finite": False}
    ours = {
        "Cholesky, own": (P.copy, lambda X: cho_factor(X, **unchecked)),
        "Cholesky, blocks": (Q.copy, lambda X: cholesky(X, check_finite=False)),
        "LU, own": (G.copy, lambda X: lu_factor(X, **unchecked)),
        "LU, blocks": (H.copy, lambda X: lu_factor(X, check_finite=False)[0].redistribute(BLOCKS, plain)),
        "QR, own": (F.copy, lambda X: qr(X, mode="raw", **unchecked)),
        "QR, blocks": (H.copy, lambda X: qr(X, mode="r", check_finite=False)),
        "triangular, own": (B.copy, lambda X: solve_triangular(L, X, lower=True, overwrite_b=True, check_finite=False)),
        "inverse, own": (G.copy, lambda X: inv(X, **unchecked)),
        "inverse, blocks": (H.copy, lambda X: inv(X, check_finite=False)),
        "inverse, pos, own": (P.copy, lambda X: inv(X, assume_a="pos", **unchecked)),
        "solve, own": (G.copy, lambda X: solve(X, whole, **unchecked)),
        "refined, own": (G.copy, lambda X: solve(X, whole, refine="float32", check_finite=False)),
    }
    p, g, b, l = (X.gather(0) for X in (P, G, B, L))
    p, g, b, l = (None if x is None else np.asfortranarray(x) for x in (p, g, b, l))
    theirs = {
        "Cholesky": (p, potrf),
        "LU": (g, lambda x: lapack.dgetrf(x, overwrite_a=1)),
        "QR": (g, lambda x: lapack.dgeqrf(x, lwork=64 * n, overwrite_a=1)),
        "triangular": (b, lambda x: blas.dtrsm(1.0, l, x, lower=1, overwrite_b=1)),
        "inverse": (g, lambda x: lapack.dgetri(*lapack.dgetrf(x, overwrite_a=1)[:2], lwork=64 * n, overwrite_lu=1)),
        "inverse, pos": (p, lambda x: lapack.dpotri(potrf(x)[0], lower=1, overwrite_c=1)),
        "solve": (g, lambda x: lapack.dgesv(x, b[:, :1], overwrite_a=1)),
    }
    theirs = {name: (lambda x=x: x if x is None else x.copy("F"), call) for name, (x, call) in theirs.items()}
    check(n, P, L, B, solve_triangular(L, B, lower=True))
    return ours, theirs


def potrf(x):
    return lapack.dpotrf(x, lower=1, overwrite_a=1, clean=0)


def check(n, P, L, B, X):
    back = (L @ L.T).redistribute(P.layout, P.grid)
    error = max(float((L @ X - B).norm() / (L.norm() * X.norm())), float((back - P).norm() / P.norm()))
    if error > 30 * np.finfo(float).eps:
        raise SystemExit(f"n = {n}: wrong by {error:.2g}")


def beside(name, times):
    """Our milliseconds, SciPy's, ScaLAPACK's or None, and the ratios of ours to theirs."""
    kind, mine = name.rpartition(",")[0], 1e3 * median(times[name])
    scipys = 1e3 * median(times["solve" if kind == "refined" else kind])
    other = times.get("solve, own" if kind == "refined" else f"ScaLAPACK, {kind}")
    return mine, scipys, mine / scipys, *((1e3 * median(other), mine / (1e3 * median(other))) if other else (None, None))
