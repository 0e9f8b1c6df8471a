"""The time of syrk and symm beside that of the full products, in turns: what half the work gains.

mpirun -n 4 python -m bench.level3 [repeats]        9 repeats

C = A A^T in 2-D blocks on the near-square grid, float64: by matmul; by syrk; by syrk of an A in memory that all ranks see. Then S B
of a symmetric S: by matmul of all of S, and by symm, which mirrors a triangle first. Prints median milliseconds, and the ratios of
the second and third to the first, and of the last to the fourth.
"""

from statistics import median

import numpy as np
from mpi4py import MPI

import pdla
from bench.common.given import say, started
from bench.common.meeting import Meeting
from bench.common.turns import seconds
from bench.sides.ours import flat_grid
from pdla.bench.arguments import positive

SHAPES = ((512, 512), (1024, 1024), (2048, 2048), (2048, 256), (512, 8192))
BLOCKS = pdla.Layout("row", "col")


def products(n, k, grid):
    """The calls by name, after a check on integers."""
    A, B = (pdla.random((n, k), grid, BLOCKS, distribution="integers", low=-4, high=5, seed=seed) for seed in (0, 1))
    S, C, D = A.shared(), pdla.zeros((n, n), grid, BLOCKS), pdla.zeros((n, k), grid, BLOCKS)
    symmetric = pdla.syrk(A, layout=BLOCKS, mirror=True)
    if not np.array_equal(np.tril((A @ A.T).gather()), np.tril(symmetric.gather())):
        raise SystemExit(f"n = {n}, k = {k}: syrk of integers is wrong")
    if not np.array_equal(pdla.symm(symmetric, B).gather(), (symmetric @ B).gather()):
        raise SystemExit(f"n = {n}, k = {k}: symm of integers is wrong")
    return {
        "A A^T": lambda: pdla.matmul(A, A.T, out=C),
        "syrk": lambda: pdla.syrk(A, out=C),
        "all see A": lambda: pdla.syrk(S, out=C),
        "S B": lambda: pdla.matmul(symmetric, B, out=D),
        "symm": lambda: pdla.symm(symmetric, B, out=D),
    }


def main(repeats=9):
    comm, meeting = MPI.COMM_WORLD, Meeting(MPI.COMM_WORLD)
    grid = flat_grid(comm)
    tell = say(comm)
    tell(f"float64, {comm.size} ranks, {repeats} repeats; all exact on integers")
    tell(f"{'n':>6}{'k':>6}{'A A^T':>10}{'syrk':>10}{'all see A':>10}{'S B':>10}{'symm':>10}{'over A A^T, S B':>20}")
    for n, k in SHAPES:
        calls = products(n, k, grid)
        seconds(meeting, 1, calls)  # the first call of each makes its plan
        whole, half, seen, product, symmetric = (1e3 * median(taken) for taken in seconds(meeting, repeats, calls).values())
        ratios = f"{half / whole:8.2f}{seen / whole:6.2f}{symmetric / product:6.2f}"
        tell(f"{n:6}{k:6}{whole:10.3g}{half:10.3g}{seen:10.3g}{product:10.3g}{symmetric:10.3g}{ratios}")


if __name__ == "__main__":
    started(main, positive, __doc__)
