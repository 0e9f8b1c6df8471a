"""Products on different boxes, timed side by side: whether the box that pdla chooses is the fastest.

mpirun -n 16 python -m bench.boxes 4096x4096x4096 float64 5x3x1:summa 4x4x1:summa 4x4x1:shared
mpirun -n 16 python -m bench.boxes --blocks 65536x256x256 float64 16x1x1:shared gather

pdla's choice comes first. Each box has matrices in its own layouts. With --blocks, A, B and C are 2-D blocks on the near-square
grid for all of them, and a schedule without a box runs on whatever grid is cheapest. Each product is checked on integers; then
they take turns of a tenth of a second. Prints workspace a rank, and the median and least milliseconds of 7 turns.
"""

import argparse
import sys
from functools import partial
from statistics import median

from mpi4py import MPI

import pdla
from bench.common.given import parser, say
from bench.common.meeting import Meeting
from bench.common.product import Product
from bench.common.turns import checked, in_turns
from bench.sides.ours import BLOCKS, flat_grid, make, operands, side
from pdla.bench.arguments import sizes
from pdla.errors import PdlaError
from pdla.matmul.algorithms import box

TURNS, TURN = 7, 0.1  # TURN in seconds


def of_box(comm, product, spec, blocks):
    """Collective: the side of a box and a schedule, such as 4x4x1:shared, or, from blocks, of a schedule alone."""
    sides, _, schedule = spec.rpartition(":")
    shape = tuple(map(int, sides.split("x"))) if sides else None
    way = {"algorithm": "3d", "box": shape, "schedule": schedule} if shape else {"schedule": schedule}
    if blocks:
        return side(*operands(product, flat_grid(comm), BLOCKS), **way)
    tables = {table.schedule: table for table in box.tables(shape or (1, 1, 1))}
    if shape is None or schedule not in tables:
        raise ValueError(f"{spec!r}: a box and a schedule, such as 2x2x1:summa, of {', '.join(tables)}")
    table = tables[schedule]
    grid = pdla.ProcessGrid(shape, axes=table.axes, comm=comm)
    return side(*operands(product, grid, table.layouts), **way)


def main():
    told = parser(__doc__)
    told.add_argument("product", help="m x n x k, such as 4096x4096x128")
    told.add_argument("dtype", nargs="?", default="float64", help="default float64")
    told.add_argument("boxes", nargs="*", help="boxes to compare with pdla's choice, such as 2x2x1:summa")
    told.add_argument("--blocks", action="store_true", help="A, B and C in 2-D blocks, whatever the box")
    given = told.parse_args()
    comm, meeting = MPI.COMM_WORLD, Meeting(MPI.COMM_WORLD)
    try:
        m, n, k = sizes(given.product)
        product = Product(m, n, k, given.dtype)
        sides = [make(comm, product, "blocks" if given.blocks else "native")]
        sides += [of_box(comm, product, spec, given.blocks) for spec in given.boxes]
    except (argparse.ArgumentTypeError, PdlaError, TypeError, ValueError) as error:  # every rank's alike
        return f"{' '.join(sys.argv[1:])}: {error}" if comm.rank == 0 else 1
    checked(meeting, product, {one.about: one for one in sides})
    calls = [max(1, round(TURN / meeting.seconds(one.multiply))) for one in sides]
    times = in_turns(TURNS, {i: partial(meeting.seconds, sides[i].multiply, count) for i, count in enumerate(calls)})
    for i, taken in times.items():
        about = f"{comm.size} ranks, {given.product} {given.dtype}, {sides[i].about}"
        figures = f"median {1e3 * median(taken):.4g} ms, least {1e3 * min(taken):.4g}"
        say(comm)(f"{about:90} workspace {sides[i].workspace:10}, {figures}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
