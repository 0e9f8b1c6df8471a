"""Fits beside scikit-learn's."""

import numpy as np

import pdla
from bench.common.case import case
from bench.common.clock import run_alone, time_median
from pdla import linalg
from pdla.bench.arguments import positive

ROWS = pdla.Layout("row")


@case("way:<24 | seconds:10.3f | from scikit-learn's:20.1e")
def ridge(comm, rows: positive = 200_000, columns: positive = 512, alpha: float = 10.0):
    """Ridge regression of made data, by Cholesky and by QR, beside scikit-learn's (on rank 0 alone).

    mpirun -n 2 python -m bench ridge

    The last column is the largest difference of coefficients, over the largest coefficient.
    """
    from sklearn.linear_model import Ridge

    grid = pdla.ProcessGrid((comm.size,), comm=comm)
    A = pdla.random((rows, columns), grid, ROWS, distribution="normal")
    y = pdla.matvec(A, np.sin(np.arange(columns))) + np.cos(np.arange(rows))

    def by_cholesky():
        gram = pdla.syrk(A.T, layout=pdla.Layout()) + pdla.eye(columns, grid, pdla.Layout()) * alpha
        return linalg.solve(gram, pdla.matvec(A.T, y), assume_a="pos")

    def by_qr():
        stacked = pdla.vstack([A, pdla.eye(columns, grid, ROWS) * alpha**0.5])
        return linalg.lstsq(stacked, np.concatenate([y, np.zeros(columns)]))[0]

    whole = A.gather(root=0)
    peer, seconds = run_alone(comm, lambda: Ridge(alpha=alpha, fit_intercept=False, solver="cholesky").fit(whole, y).coef_)
    yield "scikit-learn", seconds, 0.0
    for name, way in (("Cholesky", by_cholesky), ("QR", by_qr)):
        coefficients, seconds = time_median(comm, way)
        yield name, seconds, float(abs(coefficients - peer).max() / abs(peer).max())


# ---------------------------------------------------------------------------------------------- principal components


@case("data:<6 | way:<33 | seconds:10.3f | variances:12.1e | components:12.1e")
def pca(comm, rows: positive = 200_000, columns: positive = 512, leading: positive = 8):
    """Principal components of scikit-learn's digits, and of made data, beside scikit-learn's PCA (on rank 0 alone).

    mpirun -n 2 python -m bench pca

    The made data are `leading` waves of falling size, mixed at random, and noise. The last columns
    are the largest differences from scikit-learn's results. Those of explained variances are over the
    largest variance, those of components, up to their signs, over the largest element.
    """
    from sklearn.datasets import load_digits
    from sklearn.decomposition import PCA

    grid = pdla.ProcessGrid((comm.size,), comm=comm)
    digits = pdla.from_global(load_digits(return_X_y=True)[0], grid, ROWS)
    for data, A, solver in (("digits", digits, "full"), ("made", make_waves(grid, rows, columns, leading), "covariance_eigh")):
        whole = A.gather(root=0)
        peer, seconds = run_alone(comm, lambda: PCA(leading, svd_solver=solver).fit(whole))  # noqa: B023
        yield data, f"scikit-learn, {solver}", seconds, 0.0, 0.0
        (variances, components), seconds = time_median(comm, lambda: find_components(A, leading))  # noqa: B023
        components *= np.sign((components * peer.components_).sum(axis=1, keepdims=True))
        yield data, "pdla", seconds, *(
            float(abs(found - expected).max() / abs(expected).max())
            for found, expected in ((variances, peer.explained_variance_), (components, peer.components_))
        )


def make_waves(grid, rows, columns, count):
    """Collective: rows are random sums of so many waves, each shorter and lower, and noise between 0 and 1."""
    mixed = pdla.random((rows, count), grid, ROWS, seed=1, distribution="normal")
    shapes = pdla.from_function(
        lambda i, j: 4 * 0.8**i * np.cos(np.pi * (i + 1) * (j + 0.5) / columns), (count, columns), grid, pdla.Layout()
    )
    return pdla.random((rows, columns), grid, ROWS, seed=2) + mixed @ shapes


def find_components(A, count):
    """Collective: the largest eigenvalues of the covariance of A's columns, and their eigenvectors as rows."""
    m, n = A.shape
    centred = A.copy()
    centred.local[...] -= A.mean(axis=0)  # rows are whole
    covariance = pdla.syrk(centred.T, alpha=1 / (m - 1), layout=pdla.Layout())
    w, V = linalg.eigh(covariance, subset_by_index=(n - count, n - 1))
    return w[::-1], V.gather().T[::-1]
