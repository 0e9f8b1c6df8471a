"""What it costs to check a product, a Cholesky factor, and LU factors: with verify=True beside without, by turns.

mpirun -n 4 python -m bench.verify [n] [turns]        n = 2048, 7 turns of each

Prints the median seconds of each over the turns, by the slowest rank, the ratio of the medians, and the words that rank 0
receives for the check, in columns of n, in how many messages.
"""

from functools import partial
from statistics import median

import numpy as np
from mpi4py import MPI

import pdla
from bench.common.given import started
from bench.common.meeting import Meeting
from pdla.bench.arguments import positive


def main(n=2048, turns=7):
    meeting, grid = Meeting(MPI.COMM_WORLD), pdla.ProcessGrid(pdla.balanced_shape(MPI.COMM_WORLD.size))
    A, B = (pdla.random((n, n), grid, pdla.Layout("row", "col"), seed=seed) for seed in (1, 2))
    C = pdla.zeros((n, n), grid, pdla.Layout("row", "col"))
    shown(meeting, n, turns, "product", partial(pdla.matmul, A, B, out=C))
    shown(meeting, n, turns, "lu_factor", partial(pdla.linalg.lu_factor, A))
    pdla.fill_diagonal(A, n)  # of which one triangle is read: positive definite
    shown(meeting, n, turns, "cholesky", partial(pdla.linalg.cholesky, A))


def shown(meeting, n, turns, name, function):
    sides = {verify: partial(function, verify=verify) for verify in (False, True)}
    taken, received = {verify: [] for verify in sides}, {}
    for verify, run in sides.items():
        with pdla.record() as ledger:
            run()
        received[verify] = np.array([ledger.bytes_received / 8 / n, ledger.messages])
    for _ in range(turns):
        for verify, run in sides.items():
            taken[verify].append(meeting.seconds(run, 1))
    plain, checked = (median(taken[verify]) for verify in (False, True))
    if MPI.COMM_WORLD.rank == 0:
        words, messages = received[True] - received[False]
        said = f"{plain:.3f} s, checked {checked:.3f} s: {checked / plain:.3f} times; {words:.1f} n words, {messages:.0f} messages"
        print(f"{name}, n = {n}: {said}", flush=True)


if __name__ == "__main__":
    started(main, positive, __doc__)
