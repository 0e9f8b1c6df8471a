"""Boxes beside each other, each with matrices in its own layouts: whether the one that the choice takes is the fastest.

mpirun -n 16 python bench/boxes.py 4096x4096x4096 float64 5x3x1:summa 4x4x1:summa 4x4x1:shared        the choice comes first

Products alternate, a tenth of a second of each at a time, after each has been right on integers. Prints workspace a rank, and the
median and the least milliseconds of 7 turns.
"""

import sys
from statistics import median

from mpi4py import MPI
from sides.meeting import Meeting
from sides.ours import make, operands, side
from sides.product import Product, fill_at_random, fill_with_integers, right

import pdla
from pdla.matmul import box

TURNS, TURN = 7, 0.1  # TURN in seconds


def told(comm, product, spec):
    """Collective: the product by a box and a schedule: 4x4x1:shared."""
    sides, _, schedule = spec.partition(":")
    shape = tuple(map(int, sides.split("x")))
    table = next(table for table in box.tables(shape) if table.schedule == schedule)
    grid = pdla.ProcessGrid(shape, axes=table.axes, comm=comm)
    return side(*operands(product, grid, (table.A, table.B, table.C)), algorithm="3d", box=shape, schedule=schedule)


def main(shape, dtype="float64", *specs):
    comm, meeting = MPI.COMM_WORLD, Meeting(MPI.COMM_WORLD)
    product = Product(*map(int, shape.split("x")), dtype)
    sides = [make(comm, product, "native"), *(told(comm, product, spec) for spec in specs)]
    for one in sides:
        fill_with_integers(one)
        if meeting.largest([float(not right(one, product))])[0]:
            raise SystemExit(f"{one.about}: the product of integers is wrong")
        fill_at_random(one, comm.rank)
    calls = [max(1, round(TURN / meeting.seconds(one.multiply))) for one in sides]
    times = [[meeting.seconds(one.multiply, count) for one, count in zip(sides, calls, strict=True)] for _ in range(TURNS)]
    for one, taken in zip(sides, zip(*times, strict=True), strict=True):
        if comm.rank == 0:
            about = f"{comm.size} ranks, {shape} {dtype}, {one.about}"
            print(f"{about:90} workspace {one.workspace:10}, median {1e3 * median(taken):.4g} ms, least {1e3 * min(taken):.4g}")


if __name__ == "__main__":
    main(*sys.argv[1:])
