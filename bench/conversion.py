"""What it costs when matrices lie as ScaLAPACK's: products from and to block-cyclic layouts beside pdla's native ones.

mpirun -n 4 python -m bench.conversion [n] [repeats] [block]        n = 4096, 9 repeats, blocks of 128 on the near-square grid

Each through a plan, conversions included, the repeats alternating; 2-D blocks for comparison. Prints the median and the least
seconds, the median over the native one, and the workspace a rank.
"""

from statistics import median

from mpi4py import MPI

import pdla
from bench.common.given import say, started
from bench.common.meeting import Meeting
from bench.common.product import Product
from bench.common.turns import checked, seconds
from bench.sides.ours import BLOCKS, flat_grid, operands, side
from pdla.bench.arguments import positive


def main(n=4096, repeats=9, width=128):
    comm, meeting = MPI.COMM_WORLD, Meeting(MPI.COMM_WORLD)
    product = Product(n, n, n, "float64")
    cyclic = (pdla.Layout(pdla.Cyclic("row", width), pdla.Cyclic("col", width)),) * 3
    own, *best = pdla.native_layouts(n, n, n, comm=comm)
    where = {
        "native": (own, best),
        f"block-cyclic {width}": (flat_grid(comm), cyclic),
        "2-D blocks": (flat_grid(comm), BLOCKS),
    }
    sides = {name: side(*operands(product, grid, layouts)) for name, (grid, layouts) in where.items()}
    checked(meeting, product, sides)
    works, tell = {name: one.multiply for name, one in sides.items()}, say(comm)
    seconds(meeting, 1, works)
    times = seconds(meeting, repeats, works)
    tell(f"n = {n}, float64, {comm.size} ranks, {repeats} repeats; all exact on integers")
    tell(f"{'':18}{'median s':>10}{'least s':>10}{'of native':>11}{'workspace MiB':>15}")
    for name, taken in times.items():
        ratio, space = median(taken) / median(times["native"]), sides[name].workspace / 2**20
        tell(f"{name:18}{median(taken):10.4f}{min(taken):10.4f}{ratio:11.2f}{space:15.1f}  {sides[name].about}")


if __name__ == "__main__":
    started(main, positive, __doc__)
