"""Fits beside scikit-learn's and SciPy's."""

import time
from statistics import median

import numpy as np

import pdla
from bench.common.case import case
from pdla import linalg
from pdla.bench.arguments import positive


@case("way:<24 | seconds:10.3f | from scikit-learn's:20.1e")
def ridge(comm, rows: positive = 200_000, columns: positive = 512, alpha: float = 10.0):
    """Ridge regression of made data, by Cholesky and by QR, beside scikit-learn's (on rank 0 alone).

    mpirun -n 2 python -m bench ridge

    The last column is the largest difference of coefficients, over the largest coefficient.
    """
    from sklearn.linear_model import Ridge

    grid = pdla.ProcessGrid((comm.size,), comm=comm)
    A = pdla.random((rows, columns), grid, pdla.Layout("row"), distribution="normal")
    y = pdla.matvec(A, np.sin(np.arange(columns))) + np.cos(np.arange(rows))

    def by_cholesky():
        gram = pdla.syrk(A.T, layout=pdla.Layout()) + pdla.eye(columns, grid, pdla.Layout()) * alpha
        return linalg.solve(gram, pdla.matvec(A.T, y), assume_a="pos")

    def by_qr():
        stacked = pdla.vstack([A, pdla.eye(columns, grid, pdla.Layout("row")) * alpha**0.5])
        return linalg.lstsq(stacked, np.concatenate([y, np.zeros(columns)]))[0]

    whole = A.gather(root=0)
    peer = None
    if comm.rank == 0:
        start = time.perf_counter()
        peer = Ridge(alpha=alpha, fit_intercept=False, solver="cholesky").fit(whole, y).coef_
        yield "scikit-learn", time.perf_counter() - start, 0.0
    peer = comm.share(peer)[0]
    for name, way in (("Cholesky", by_cholesky), ("QR", by_qr)):
        found, times = None, []
        for _ in range(3):
            comm.barrier()
            start = time.perf_counter()
            found = way()
            times.append(max(comm.share(time.perf_counter() - start)))
        if comm.rank == 0:
            yield name, median(times), float(abs(found - peer).max() / abs(peer).max())
