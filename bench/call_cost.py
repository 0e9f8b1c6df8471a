"""What a planned product costs beside the same product written by hand: 2-D blocks so small that the time is that of the calls.

mpirun -n 4 python -m bench.call_cost [n] [turns]        n = 64, 200 turns of 20 calls for each side, alternating

By hand: A's blocks are gathered along grid rows, B's along grid columns, into buffers made before; then numpy.matmul into C.
Prints the median and the least microseconds of a call over the turns, by the slowest rank, and the ratio of the medians; then the
same for `A @ B`, in turns of its own: it finds its plan, asks whether all ranks make this call, and makes a new matrix.
"""

from statistics import median

import numpy as np
from mpi4py import MPI

from bench.common.given import say, started
from bench.common.meeting import Meeting
from bench.common.product import Product, Side, block, interval, near_square
from bench.common.turns import checked, seconds
from bench.sides.ours import BLOCKS, flat_grid, operands, side
from pdla.bench.arguments import positive

CALLS = 20  # in a turn: without a barrier between them, as in a program's loop


def by_hand(comm, product):
    pr, pc = near_square(comm.size)
    i, j = divmod(comm.rank, pc)
    in_row, in_column = comm.Split(i, j), comm.Split(j, i)
    rows, cols = interval(product.m, pr, i), interval(product.n, pc, j)
    a = block(rows, interval(product.k, pc, j), product.dtype)
    b = block(interval(product.k, pr, i), cols, product.dtype)
    parts, right_panel = np.empty((pc, *a.array.shape)), np.empty((product.k, len(cols)))
    left_panel, c = np.empty((len(rows), product.k)), np.empty((len(rows), len(cols)))
    in_order, as_they_come = left_panel.reshape(len(rows), pc, -1), parts.transpose(1, 0, 2)

    def multiply():
        in_row.Allgather(a.array, parts)
        in_column.Allgather(b.array, right_panel)
        np.copyto(in_order, as_they_come)
        return np.matmul(left_panel, right_panel, out=c)

    return Side(a, b, (rows, cols), multiply)


def main(n=64, turns=200):
    comm, meeting = MPI.COMM_WORLD, Meeting(MPI.COMM_WORLD)
    product = Product(n, n, n, "float64")
    A, B, C = operands(product, flat_grid(comm), BLOCKS)
    hand, planned = by_hand(comm, product), side(A, B, C)
    tell = say(comm)
    checked(meeting, product, {"by hand": hand, "pdla": planned})
    tell(f"{n} x {n} float64 on {comm.size} ranks, {turns} turns of {CALLS} calls, both exact on integers")
    tell(planned.about)
    for name, multiply in (("pdla", planned.multiply), ("A @ B", lambda: A @ B)):
        times = seconds(meeting, turns, {"by hand": hand.multiply, name: multiply}, CALLS)
        for each, taken in times.items():
            tell(f"{each:8} median {1e6 * median(taken):8.1f} us a call, least {1e6 * min(taken):8.1f}")
        tell(f"{name} over by hand: {median(times[name]) / median(times['by hand']):.2f}")


if __name__ == "__main__":
    started(main, positive, __doc__)
