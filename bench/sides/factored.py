"""pdla's factorizations and eigenvectors, in place in its own layouts, as bench/sides/pdfactor.py with a FILE.

mpirun -n 4 python -m bench.sides.factored n n "Cholesky;LU" FILE
"""

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
from mpi4py import MPI

import pdla
from bench.cases.factorizations import draw
from bench.common.meeting import Meeting, count_received
from pdla.linalg import cho_factor, eigh, lu_factor, plan_eigh, qr
from pdla.linalg.panels.blocks import cut_in_blocks
from pdla.linalg.plan.price import sort_by_price
from pdla.linalg.plan.routine import Task
from pdla.linalg.routines import CHOLESKY, LU, QR, TRIDIAGONAL
from pdla.model.machine import Machine

TURNS = 3
ROUTINES = {
    "Cholesky": (CHOLESKY, cho_factor), "LU": (LU, lu_factor), "QR": (QR, partial(qr, mode="raw")), "eigh": (TRIDIAGONAL, eigh),
}


def main(n, names, file):
    comm, meeting, figures = MPI.COMM_WORLD, Meeting(MPI.COMM_WORLD), {}
    for name in names.split(";"):
        routine, factor = ROUTINES[name]
        shape, block = sort_by_price(Task(routine, n, n, np.dtype(float), Machine.choose()), comm.size)[0]
        A, turns = draw(n, pdla.ProcessGrid(shape), cut_in_blocks(shape, block), routine in (CHOLESKY, TRIDIAGONAL)), []
        for _ in range(TURNS):
            X, before = A.copy(), count_received()
            seconds = meeting.seconds(partial(factor, X, overwrite_a=True, check_finite=False))
            turns.append((1e3 * seconds, comm.allreduce(count_received() - before) / comm.size))
        if routine is TRIDIAGONAL:  # redistributes A
            shape, block = plan_eigh(A, overwrite_a=True, check_finite=False).blocking
        figures[name] = (*min(turns), f"{shape[0]} x {shape[1]}, {block}")
    if comm.rank == 0:
        Path(file).write_text(json.dumps(figures))
    meeting.barrier()


if __name__ == "__main__":
    main(int(sys.argv[2]), *sys.argv[3:])
