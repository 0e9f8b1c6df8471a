"""Messages of more than 2^31 bytes: an int8 matrix of 2^31 + 10 elements moves from rank 0 to rank 1, and back.

mpirun -n 2 python -m bench.large_counts        (needs 9 GiB)
"""

import numpy as np

import pdla
from bench.common.given import started


def main():
    pdla.abort_on_exception()
    comm = pdla.world()
    if comm.size < 2:
        raise SystemExit("large_counts.py: a matrix moves from rank 0 to rank 1: mpirun -n 2 python -m bench.large_counts")
    grid = pdla.ProcessGrid((comm.size,))
    rows, cols = 2, 2**30 + 5
    n = rows * cols
    first, second = ((0, *[rows] * comm.size), (0, 0, *[rows] * (comm.size - 1)))
    block = np.resize(np.arange(101, dtype=np.int8), (rows if comm.rank == 0 else 0, cols))
    A = pdla.from_local(block, (rows, cols), grid, pdla.Layout(pdla.Cuts("row", first)))
    with pdla.record() as ledger:
        B = A.redistribute(pdla.Layout(pdla.Cuts("row", second)))
        back = B.redistribute(A.layout)
    same = bool(np.array_equal(A.local, back.local))
    received = comm.share((ledger.bytes_received, same))
    if comm.rank == 0:
        print(f"{n} int8 elements ({n - 2**31} more than 2^31): bytes received by rank {received}")
        print("equal on every rank" if all(ok for _, ok in received) and received[1][0] == n else "WRONG")


if __name__ == "__main__":
    started(main, str, __doc__)
