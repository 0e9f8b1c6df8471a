"""What it costs to check a product: matmul(verify=True) beside matmul, by turns.

mpirun -n 4 python -m bench.verify [n] [turns]        n = 2048, 7 turns of each

Prints the median seconds of each over the turns, by the slowest rank, the ratio of the medians, and the words that a rank receives
for the check, in columns of n.
"""

from statistics import median

from mpi4py import MPI

import pdla
from bench.common.given import started
from bench.common.meeting import Meeting
from pdla.bench.arguments import positive


def main(n=2048, turns=7):
    meeting, grid = Meeting(MPI.COMM_WORLD), pdla.ProcessGrid(pdla.balanced_shape(MPI.COMM_WORLD.size))
    A, B = (pdla.random((n, n), grid, pdla.Layout("row", "col"), seed=seed) for seed in (1, 2))
    C = pdla.zeros((n, n), grid, pdla.Layout("row", "col"))
    sides = {verify: lambda verify=verify: pdla.matmul(A, B, out=C, verify=verify) for verify in (False, True)}
    taken, words = {verify: [] for verify in sides}, {}
    for verify, multiply in sides.items():
        with pdla.record() as ledger:
            multiply()
        words[verify] = ledger.bytes_received / A.dtype.itemsize
    for _ in range(turns):
        for verify, multiply in sides.items():
            taken[verify].append(meeting.seconds(multiply, 1))
    plain, checked = (median(taken[verify]) for verify in (False, True))
    if grid.comm.rank == 0:
        more = (words[True] - words[False]) / n
        print(f"n = {n}: {plain:.3f} s, checked {checked:.3f} s: {checked / plain:.3f} times; {more:.1f} n words")


if __name__ == "__main__":
    started(main, positive, __doc__)
