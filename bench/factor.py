"""Cholesky, LU and triangular systems of all ranks beside SciPy's with two threads, by turns in one run.

mpirun -n 2 python -m bench.factor [n ...]          1024, 2048 and 4096

float64. SciPy's LAPACK factors in place, in Fortran order, on rank 0 while the others sleep; ours in square blocks (LU: in block
columns), in place ("own"), and from 2-D blocks and back ("blocks"). B of the triangular systems has n columns. Checked by LAPACK's
ratios first. Prints median milliseconds of 7 turns, and the ratios of times to SciPy's.
"""

import time
from functools import partial
from statistics import median

import numpy as np
from mpi4py import MPI
from scipy.linalg import blas, lapack
from threadpoolctl import threadpool_limits

import pdla
from bench.common.given import started
from bench.common.meeting import Meeting
from bench.common.turns import in_turns, say
from pdla.bench.arguments import positive
from pdla.linalg import block_cyclic, cho_factor, cholesky, lu_factor, solve_triangular

TURNS = 7
BLOCKS = pdla.Layout("row", "col")


def quietly(meeting, work):
    """Seconds of rank 0's work, while the others sleep rather than poll."""
    taken = 0.0
    if meeting.comm.rank == 0:
        with threadpool_limits(2):
            start = time.perf_counter()
            work()
            taken = time.perf_counter() - start
        time.sleep(0.2)  # OpenBLAS's second thread polls for so long before it leaves its core
    request = meeting.comm.Ibarrier()
    while not request.Test():
        time.sleep(0.002)
    return taken


def timed(seconds, make, call):
    """Seconds of the call of what is made anew."""
    return seconds(partial(call, make()))


def grids(comm, n):
    """The matrices' grids and layouts, as pdla chooses them: for Cholesky and triangular systems, and for LU."""
    block = block_cyclic.block_size(n, comm.size)
    shape = block_cyclic.near_square(comm.size)
    square = pdla.Layout(pdla.Cyclic("row", block), pdla.Cyclic("col", block))
    return (pdla.ProcessGrid(shape), square), (pdla.ProcessGrid((1, comm.size)), square)


def of(n, grid, layout, positive):
    A = pdla.random((n, n), grid, layout, seed=1, distribution="normal")
    if not positive:
        return A
    return (A + A.T.redistribute(layout)) * 0.5 + pdla.eye(n, grid, layout) * (2 * n**0.5 + 1)


def sides(n, comm):
    """By name: what to make anew before each call, and the call; ours, and SciPy's."""
    (grid, square), (row, columns) = grids(comm, n)
    near = pdla.ProcessGrid(pdla.balanced_shape(comm.size))
    P, Q = of(n, grid, square, True), of(n, near, BLOCKS, True)
    G, H = of(n, row, columns, False), of(n, near, BLOCKS, False)
    L, B = cholesky(P), of(n, grid, pdla.Layout(pdla.Cyclic("row", square.rows[0].block), "col"), False)
    ours = {
        "Cholesky, own": (P.copy, lambda X: cho_factor(X, overwrite_a=True, check_finite=False)),
        "Cholesky, blocks": (Q.copy, lambda X: cholesky(X, check_finite=False)),
        "LU, own": (G.copy, lambda X: lu_factor(X, overwrite_a=True, check_finite=False)),
        "LU, blocks": (H.copy, lambda X: lu_factor(X, check_finite=False)[0].redistribute(BLOCKS, near)),
        "triangular, own": (B.copy, lambda X: solve_triangular(L, X, lower=True, overwrite_b=True, check_finite=False)),
    }
    p, g, b, l = (X.gather(0) for X in (P, G, B, L))
    p, g, b, l = (None if x is None else np.asfortranarray(x) for x in (p, g, b, l))
    theirs = {
        "Cholesky": (lambda: p if p is None else p.copy("F"), lambda x: lapack.dpotrf(x, lower=1, overwrite_a=1, clean=0)),
        "LU": (lambda: g if g is None else g.copy("F"), lambda x: lapack.dgetrf(x, overwrite_a=1)),
        "triangular": (lambda: b if b is None else b.copy("F"), lambda x: blas.dtrsm(1.0, l, x, lower=1, overwrite_b=1)),
    }
    check(n, comm, P, L, B, solve_triangular(L, B, lower=True), p, l)
    return ours, theirs


def check(n, comm, P, L, B, X, p, l):
    error = max(float((L @ X - B).norm() / (L.norm() * X.norm())), float((L @ L.T - P).norm() / P.norm()))
    if error > 30 * np.finfo(float).eps:
        raise SystemExit(f"n = {n}: wrong by {error:.2g}")


def main(*sizes):
    comm, meeting = MPI.COMM_WORLD, Meeting(MPI.COMM_WORLD)
    tell = say(comm)
    tell(f"float64, {comm.size} ranks, median ms of {TURNS} turns\n{'n':>6}  {'':18}{'ours':>8}{'SciPy':>8}{'ratio':>7}")
    for n in sizes or (1024, 2048, 4096):
        ours, theirs = sides(n, comm)
        turn = {name: partial(timed, meeting.seconds, *way) for name, way in ours.items()}
        turn |= {name: partial(timed, partial(quietly, meeting), *way) for name, way in theirs.items()}
        in_turns(1, turn)
        times = in_turns(TURNS, turn)
        for name in ours if comm.rank == 0 else ():  # which alone has timed theirs
            mine, scipys = (1e3 * median(times[side]) for side in (name, name.partition(",")[0]))
            tell(f"{n:6}  {name:18}{mine:8.1f}{scipys:8.1f}{mine / scipys:7.2f}", flush=True)


if __name__ == "__main__":
    started(main, positive, __doc__)
