"""Factorizations, triangular systems and inverses beside SciPy's and ScaLAPACK's, in turns."""

import os
import subprocess
import sys
import time
from argparse import ArgumentTypeError
from ctypes.util import find_library
from functools import partial
from statistics import median

import numpy as np
from scipy import linalg
from scipy.linalg import blas, lapack
from threadpoolctl import threadpool_limits

import pdla
from bench.common.case import case
from bench.common.launch import AS_ROOT, OPEN_MPI, ROOT, find_core_type, find_scalapack_fault, make_thread_limits
from bench.common.meeting import Meeting
from bench.common.turns import take_turns
from pdla.bench.arguments import by_x, positive
from pdla.bench.arguments import sides as numbers
from pdla.linalg import cho_factor, cholesky, eigh, eigvalsh, inv, lstsq, lu_factor, polar, qr, solve, solve_triangular
from pdla.linalg.panels.blocks import cut_in_blocks
from pdla.linalg.plan.price import sort_by_price
from pdla.linalg.plan.routine import Task
from pdla.linalg.routines import CHOLESKY, LU, QR, TRIANGULAR
from pdla.model.machine import Machine

TURNS = 7
BLOCKS = pdla.Layout("row", "col")
CONDITIONS = ("1e5", "1e15")  # of matrices for polar factors
PEERS = ("eigh, pdsyevr", "eigh, ELPA")  # of all eigenvectors, besides pdsyevd
SIZES = "1024,2048,4096,65536x64,65536x256,16384x512"
OF_A_JOB = ("PMI", "MPI", "HYDRA", "OMPI", "PMIX", "OPENBLAS_", "OMP_")  # prefixes of variables of one job alone


def read_shapes(text):
    """Read numbers of rows and columns: n for n x n, or m x n, m > n; separated by commas."""
    what = "n, or m x n, such as 65536x64"
    found = [(positive(word),) * 2 if word.isdecimal() else tuple(numbers(word, 2, what)) for word in text.split(",")]
    for m, n in found:
        if m < n:
            raise ArgumentTypeError(f"'{m}x{n}' is not {what}, of more rows than columns")
    return found


@case("size:10 | :<18 | ours:8.1f | SciPy:8.1f | ratio:7.2f | ScaLAPACK:11.1f | ratio:7.2f")
def factor(comm, sizes: read_shapes = SIZES, *, only: str = ""):
    """Factorizations, solutions, inverses, polar factors: beside SciPy's of two threads, and ScaLAPACK's.

    mpirun -n 2 python -m bench factor 1024,2048,65536x64 --only QR

    n x n matrices: Cholesky, LU, QR, triangular systems, inverses, systems, polar factors and
    symmetric eigenproblems. m x n matrices, m > n: QR with Q, and least squares for one right side.
    --only selects rows by the start of their names.

    | row | data |
    |---|---|
    | own | ours in place: in square blocks, or for m x n with rows cut over all ranks |
    | blocks | ours from 2-D blocks and back |
    | triangular | n columns of B |
    | solve | one column of b |
    | refined | one column, by factors in float32; beside "solve, own" in ScaLAPACK's place |
    | polar | a matrix of that condition number; beside SciPy's product of two such matrices |
    | eigh, eigvalsh | beside evd and pdsyevd with all vectors, and pdsyev without |
    | eigh, pdsyevr; eigh, ELPA | "eigh, all"; beside those in pdsyevd's place |

    All matrices are float64, and LAPACK's ratios check them first. SciPy works in place, in Fortran
    order, on rank 0 while the others sleep; its QR is the economic one, its least squares gelsd.
    ScaLAPACK and ELPA (apt-get install libscalapack-openmpi2.2 libelpa19) have a job of their own,
    with as many ranks of one thread. The job uses the best of its blocks and grids
    (sides/pdfactor.py). All alternate. Prints median milliseconds of 7 turns, and ratios of our times
    to theirs.
    """
    meeting = Meeting(comm.mpi)
    yield f"float64, {comm.size} ranks, median ms of {TURNS} turns"
    for m, n in sizes:
        ours, theirs = list_square(n, comm) if m == n else list_tall(m, n, comm)
        rows = [name for name in (*ours, *(PEERS if m == n else ())) if name.startswith(only)]
        kinds, pairs = {find_kind(name) for name in rows}, {each for name in rows for each in find_pair(name)}
        ours = {name: way for name, way in ours.items() if name in pairs}
        words = 4 * m * n // comm.size  # the most that a call allocates: copies of its share
        turn = {name: partial(time_fresh, meeting.seconds, words, *way) for name, way in ours.items()}
        theirs = {name: way for name, way in theirs.items() if name in kinds}
        turn |= {name: partial(run_quietly, meeting, partial(time_fresh, time_alone, words, *way)) for name, way in theirs.items()}
        others = [] if find_scalapack_fault() else sorted(name for name in Job.known if f"ScaLAPACK, {name}" in pairs)
        rows = [name for name in rows if name not in PEERS or name in others]
        job = Job(m, n, comm.size, others) if others and comm.rank == 0 else None
        turn |= {f"ScaLAPACK, {name}": partial(run_quietly, meeting, partial(Job.seconds, job, name)) for name in others}
        times = take_turns(TURNS, turn, first=1)
        if job:
            job.end()
        size = f"{n}" if m == n else by_x((m, n))
        yield from ((size, name, *compute_figures(name, times)) for name in rows if comm.rank == 0)  # rank 0 alone has timed theirs


def time_alone(work):
    """Seconds of work() by two threads."""
    with threadpool_limits(2):
        start = time.perf_counter()
        work()
        seconds = time.perf_counter() - start
    time.sleep(0.2)  # OpenBLAS's second thread polls until then
    return seconds


def run_quietly(meeting, work):
    """Collective: run work() on rank 0, while the others sleep instead of polling; return its figure."""
    seconds = work() if meeting.comm.rank == 0 else 0.0
    request = meeting.comm.Ibarrier()
    while not request.Test():
        time.sleep(0.002)
    return seconds


def time_fresh(seconds, words, make, call):
    """Seconds of call(make()), after a touch of `words` words.

    A virtual machine may return memory to its host after two idle seconds; new memory takes 25 times
    as long.
    """
    operand = make()
    np.ones(words)
    return seconds(partial(call, operand))


class Job:
    """ScaLAPACK's job of as many ranks, which sleep until rank 0 sends a name."""

    known = frozenset((
        "Cholesky", "LU", "QR", "triangular", "inverse", "inverse, pos", "QR with Q", "lstsq", "eigh", "eigvalsh",
        *(peer for peer in PEERS if "ELPA" not in peer or find_library("elpa")),
    ))

    def __init__(self, m, n, ranks, names):
        variables = {name: value for name, value in os.environ.items() if not name.startswith(OF_A_JOB)}
        start = ["mpirun.openmpi", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
        environment = variables | make_thread_limits(1) | {"PYTHONPATH": str(ROOT)} | OPEN_MPI | AS_ROOT | find_core_type()
        command = [*start, sys.executable, "-m", "bench.sides.pdfactor", str(m), str(n), ";".join(names)]
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seconds(self, name):
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        return 1e-3 * float(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def choose_grids(comm, n):
    """Choose pdla's grids and layouts for Cholesky, triangular systems, LU and QR."""
    tasks = [Task(each, n, n, np.dtype(float), Machine.choose()) for each in (CHOLESKY, TRIANGULAR, LU, QR)]
    blockings = [sort_by_price(task, comm.size)[0] for task in tasks]
    layouts = [cut_in_blocks(*each) for each in blockings]
    return [(pdla.ProcessGrid(each.shape), layout) for each, layout in zip(blockings, layouts, strict=True)]


def draw(n, grid, layout, positive):
    A = pdla.random((n, n), grid, layout, seed=2, distribution="normal")  # well conditioned, unlike seed 1 at n = 1024
    if not positive:
        return A
    return (A + A.T.redistribute(layout)) * 0.5 + pdla.eye(n, grid, layout) * (2 * n**0.5 + 1)


def list_square(n, comm):
    """By name: a function that makes the operand before each call, and the call; ours, and SciPy's."""
    square, triangle, columns, panels = choose_grids(comm, n)
    down = pdla.Layout(triangle[1].rows, "col")
    plain = pdla.ProcessGrid(pdla.balanced_shape(comm.size))
    P, Q = draw(n, *square, True), draw(n, plain, BLOCKS, True)
    G, H, F = draw(n, *columns, False), draw(n, plain, BLOCKS, False), draw(n, *panels, False)
    L, B = cholesky(P).redistribute(*triangle[::-1]), draw(n, triangle[0], down, False)
    whole = pdla.random((n, 1), columns[0], pdla.Layout(), seed=3)
    options = {"overwrite_a": True, "check_finite": False}
    ours = {
        "Cholesky, own": (P.copy, lambda X: cho_factor(X, **options)),
        "Cholesky, blocks": (Q.copy, lambda X: cholesky(X, check_finite=False)),
        "LU, own": (G.copy, lambda X: lu_factor(X, **options)),
        "LU, blocks": (H.copy, lambda X: lu_factor(X, check_finite=False)[0].redistribute(BLOCKS, plain)),
        "QR, own": (F.copy, lambda X: qr(X, mode="raw", **options)),
        "QR, blocks": (H.copy, lambda X: qr(X, mode="r", check_finite=False)),
        "triangular, own": (B.copy, lambda X: solve_triangular(L, X, lower=True, overwrite_b=True, check_finite=False)),
        "inverse, own": (G.copy, lambda X: inv(X, **options)),
        "inverse, blocks": (H.copy, lambda X: inv(X, check_finite=False)),
        "inverse, pos, own": (P.copy, lambda X: inv(X, assume_a="pos", **options)),
        "solve, own": (G.copy, lambda X: solve(X, whole, **options)),
        "refined, own": (G.copy, lambda X: solve(X, whole, refine="float32", check_finite=False)),
    }
    tenth, chol = (0, max(0, n // 10 - 1)), cho_factor(Q, check_finite=False)
    ours |= {
        "eigh, all": (Q.copy, lambda X: eigh(X, check_finite=False)),
        "eigh, a tenth": (Q.copy, lambda X: eigh(X, subset_by_index=tenth, check_finite=False)),
        "eigh, factor of B": (Q.copy, lambda X: eigh(X, chol, check_finite=False)),
        "eigvalsh, blocks": (Q.copy, lambda X: eigvalsh(X, check_finite=False)),
    }
    for condition in CONDITIONS:
        E = draw_conditioned(n, float(condition), plain)
        ours[f"polar, {condition}"] = (lambda E=E: E, lambda X: polar(X, check_finite=False))
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
        "polar": (g, lambda x: blas.dgemm(1.0, x, g)),
        "eigh": (p, lambda x: linalg.eigh(x, driver="evd", overwrite_a=True, check_finite=False)),
        "eigvalsh": (p, lambda x: linalg.eigvalsh(x, driver="evd", overwrite_a=True, check_finite=False)),
    }
    check(n, P, L, B, solve_triangular(L, B, lower=True))
    return ours, add_copies(theirs)


def draw_conditioned(n, condition, grid):
    """An n x n matrix of that condition number, equal on every rank, with logarithmically spaced singular values."""
    draw = np.random.default_rng(4).standard_normal
    u, v = (np.linalg.qr(draw((n, n)))[0] for _ in range(2))
    return pdla.from_global(u * np.geomspace(1, 1 / condition, n) @ v, grid, BLOCKS)


def list_tall(m, n, comm):
    """List such calls for m x n matrices, m > n, and one right side."""
    grid, layout = pdla.ProcessGrid((comm.size,)), pdla.Layout("row")
    A, b = (pdla.random((m, columns), grid, layout, seed=2, distribution="normal") for columns in (n, 1))
    options = {"overwrite_a": True, "check_finite": False}
    ours = {
        "QR with Q, own": (A.copy, lambda X: qr(X, **options)),
        "lstsq, own": (A.copy, lambda X: lstsq(X, b, check_finite=False)),
    }
    a, y = A.gather(0), b.gather(0)
    theirs = {
        "QR with Q": (a, lambda x: linalg.qr(x, mode="economic", **options)),
        "lstsq": (a, lambda x: linalg.lstsq(x, y, lapack_driver="gelsd", **options)),
    }
    Q, R = qr(A)
    error = max(float((Q @ R - A).norm() / A.norm()), float((Q.T @ Q - pdla.eye(n, Q.grid)).norm()) / n**0.5)
    if error > 30 * np.finfo(float).eps:
        raise SystemExit(f"{by_x((m, n))}: wrong by {error:.2g}")
    return ours, add_copies(theirs)


def add_copies(theirs):
    """Copy each matrix in Fortran order before its call; None stays None."""
    return {name: (lambda x=x: x if x is None else x.copy("F"), call) for name, (x, call) in theirs.items()}


def potrf(x):
    return lapack.dpotrf(x, lower=1, overwrite_a=1, clean=0)


def check(n, P, L, B, X):
    back = (L @ L.T).redistribute(P.layout, P.grid)
    error = max(float((L @ X - B).norm() / (L.norm() * X.norm())), float((back - P).norm() / P.norm()))
    if error > 30 * np.finfo(float).eps:
        raise SystemExit(f"n = {n}: wrong by {error:.2g}")


def find_kind(name):
    """Find the name of SciPy's and ScaLAPACK's counterpart of our row."""
    return "solve" if name == "refined, own" else name.rpartition(",")[0]


def find_pair(name):
    """Find the names of the two times that a row compares: ours, and ScaLAPACK's or its place's."""
    if name in PEERS:
        return "eigh, all", f"ScaLAPACK, {name}"
    return name, "solve, own" if name == "refined, own" else f"ScaLAPACK, {find_kind(name)}"


def compute_figures(name, times):
    """Compute our milliseconds, SciPy's and its ratio, ScaLAPACK's and its ratio or None; ratios are ours over theirs."""
    own, scalapack = find_pair(name)
    own_ms, scipy_ms = (1e3 * median(times[each]) for each in (own, find_kind(name)))
    scalapack_seconds = times.get(scalapack)
    scalapack_ms = 1e3 * median(scalapack_seconds) if scalapack_seconds else None
    return own_ms, scipy_ms, own_ms / scipy_ms, scalapack_ms, own_ms / scalapack_ms if scalapack_ms else None
