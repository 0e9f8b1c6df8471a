"""What sharing a node's memory earns by time: each with it and without it, by turns.

mpirun -n 4 python -m bench.ablation_node [turns]        7 turns

Without it messages are sent. Prints median milliseconds, and without it over with it.
"""

from functools import partial
from statistics import median
from unittest.mock import patch

from mpi4py import MPI

import pdla
from bench.common.given import say, started
from bench.common.meeting import Meeting
from bench.common.turns import seconds
from pdla.bench.arguments import positive
from pdla.linalg.panels.blocks import in_blocks, near_square
from pdla.matrix import redistribute

BLOCKS = pdla.Layout("row", "col")


def product(n, comm):
    A, B, C = (pdla.random((n, n), pdla.ProcessGrid(near_square(comm.size), comm=comm), BLOCKS, seed=seed) for seed in range(3))
    return partial(pdla.matmul, A, B, out=C)


def conversion(n, comm):
    A = pdla.random((n, n), pdla.ProcessGrid(near_square(comm.size), comm=comm), BLOCKS)
    return partial(A.redistribute, in_blocks(near_square(comm.size), 128))


def factor(function, n, comm):
    shape = near_square(comm.size)
    A = pdla.random((n, n), pdla.ProcessGrid(shape, comm=comm), in_blocks(shape, 128))
    pdla.fill_diagonal(A, n)
    return partial(function, A)


def no_sharing(comm):
    return patch.object(comm, "shared_limit", 0)


def no_conversion(_):
    return patch.object(redistribute, "SHOWN", float("inf"))


def no_slots(comm):
    return patch.object(type(comm), "publishes", False)  # the communicators of a row and a column, too


ROWS = (  # what is left out, the work, calls in succession, and how it is left out on a communicator
    ("products in shared memory, n = 256", partial(product, 256), 20, no_sharing),
    ("products in shared memory, n = 1024", partial(product, 1024), 2, no_sharing),
    ("products in shared memory, n = 4096", partial(product, 4096), 1, no_sharing),
    ("conversions in shared memory, n = 2048", partial(conversion, 2048), 2, no_conversion),
    ("Cholesky's panels in shared slots, n = 2048", partial(factor, pdla.linalg.cholesky, 2048), 1, no_slots),
    ("LU's panels in shared slots, n = 2048", partial(factor, pdla.linalg.lu_factor, 2048), 1, no_slots),
)


def without(comm, make, left_out):
    """The work on a communicator of its own, on which something is left out."""
    own = comm.split(range(comm.size), "without")
    work = make(own)

    def run():
        with left_out(own):
            work()

    return run


def main(turns=7):
    comm, meeting = pdla.world(), Meeting(MPI.COMM_WORLD)
    tell = say(comm)
    tell(f"{comm.size} ranks, {turns} turns\n{'':46}{'with, ms':>10}{'without':>10}{'ratio':>8}")
    for what, make, count, left_out in ROWS:
        works = {"with": make(comm), "without": without(comm, make, left_out)}
        seconds(meeting, 1, works, count)
        taken = {side: 1e3 * median(each) for side, each in seconds(meeting, turns, works, count).items()}
        tell(f"{what:46}{taken['with']:10.3f}{taken['without']:10.3f}{taken['without'] / taken['with']:8.2f}", flush=True)


if __name__ == "__main__":
    started(main, positive, __doc__)
