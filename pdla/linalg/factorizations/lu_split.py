"""L and U of an LU factorization as matrices of their own, and the permutation."""

from __future__ import annotations

from functools import partial

import numpy as np

from pdla.comm.agreement import agreed
from pdla.cuts import Cuts
from pdla.layout import Layout, Shape
from pdla.linalg import checks
from pdla.linalg.factorizations.block_cyclic import as_layout, counted
from pdla.linalg.factorizations.blocking import limited, to
from pdla.linalg.factorizations.lu import factors
from pdla.linalg.factorizations.row_exchange import order
from pdla.linalg.products.triangle import triangle
from pdla.linalg.verify import Claim, asked, checked, lost
from pdla.matmul.checks import communicator
from pdla.matmul.images import Images, Part
from pdla.matmul.verify import check_asked
from pdla.matrix.core import DistMatrix


def lu(
    A: DistMatrix, *, overwrite_a: bool = False, check_finite: bool = True, layout: Layout | None = None,
    memory_limit: int | None = None, verify: bool | str | None = None,
) -> tuple[np.ndarray, DistMatrix, DistMatrix]:
    """Factor a matrix with row pivoting: A = L[p] U. Collective, idle ranks included.

    To solve systems, `lu_factor` is faster.

    Parameters
    ----------
    A : DistMatrix
        m x n, in any layout.
    overwrite_a : bool, optional
        Whether A may be written to, which spares a copy where it lies as it is worked on.
    check_finite : bool, optional
        Whether to look for NaN and infinity first.
    layout : Layout, optional
        Of L and U; by default A's, with boundaries (`Cuts`) cut off where L has fewer columns, or U
        fewer rows.
    memory_limit : int, optional
        Bytes of workspace a rank, at most, the copy of A that is worked on included.
    verify : bool or "keep", optional
        Whether to check the factors, as `lu_factor` does.

    Returns
    -------
    p : array
        m numbers, on every rank: row i of A is row p[i] of L U. As by scipy.linalg.lu with
        p_indices=True.
    L : DistMatrix
        m x k, k the smaller of m and n: ones on the diagonal, zeros above it.
    U : DistMatrix
        k x n, zeros below the diagonal. A singular A has a zero on it; no warning tells.

    Raises
    ------
    LinAlgError
        For NaN and infinity.
    VerificationError, ShapeError, LayoutError, GridError, PlanError, AgreementError
        For arguments that do not go together, on every rank, as all of these.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,))
    ...     A = pdla.from_global(np.array([[1, 2], [4, 4]]), grid, pdla.Layout("row"))
    ...     p, L, U = pdla.linalg.lu(A)
    ...     return p, L.gather(), U.gather()
    >>> pdla.run(2, program)[0]
    (array([1, 0]), array([[1.  , 0.  ],
           [0.25, 1.  ]]), array([[4., 4.],
           [0., 1.]]))
    """
    named = {"over": overwrite_a, "finite": check_finite, "layout": layout, "limit": memory_limit}
    said = checks.words("lu", A, verify=verify, **named)
    with agreed(communicator((A,)), said):
        check_asked(verify)
        dtype = checks.to_factor("lu", A, overwrite_a, check_finite, rectangular=True)
        overwrite_a = overwrite_a and verify != "keep"
        (m, n), k = A.shape, min(A.shape)
        wanted = [_default(A, shape) if layout is None else layout for shape in ((m, k), (k, n))]
        for shape, lying in zip(((m, k), (k, n)), wanted, strict=True):
            checks.result(A, shape, dtype, None, lying)

        def run(A: DistMatrix) -> tuple[np.ndarray, DistMatrix, DistMatrix]:
            return _checked(A, dtype, overwrite_a, *wanted)

        blocking = limited("lu", A, dtype, memory_limit, run, said=said)
    with to(blocking, memory_limit), asked(verify):
        return run(A)


def _default(A: DistMatrix, shape: Shape) -> Layout:
    """A's layout, boundaries cut off where so many rows and columns end."""
    layout, sizes = A.layout.summed, A.grid.sizes
    rows, cols = (
        tuple(cut.part(n, sizes[cut.axis], 0, end) if isinstance(cut, Cuts) else cut for cut in cuts)
        for cuts, n, end in zip((layout.rows, layout.cols), A.shape, shape, strict=True)
    )
    return Layout.trusted(rows, cols)


def _checked(
    A: DistMatrix, dtype: np.dtype, overwrite: bool, lower: Layout, upper: Layout
) -> tuple[np.ndarray, DistMatrix, DistMatrix]:
    """Collective: the permutation, L and U, checked as they are given, zeros and ones too."""
    n = A.shape[1]

    def claim(images: Images) -> Claim:
        return Claim(
            n, 2 * (n + min(A.shape)), partial(images.whole, A),
            lambda made: (partial(images.whole, made[2], part=Part(False)), partial(images.whole, made[1], part=Part(True))),
            matrices=lambda made: made[1:], zeros=lambda made: ((made[1], Part(False, "none")), (made[2], Part(True, "none"))),
            order=lambda made: np.argsort(made[0]), control=lambda made: made[0].tolist(), lost=lost("A", overwrite),
        )

    return checked(A.grid.comm, dtype, lambda: _parts(A, *factors(A, dtype, overwrite)[:2], lower, upper), claim)


def _parts(
    A: DistMatrix, X: DistMatrix, pivots: np.ndarray, lower: Layout, upper: Layout
) -> tuple[np.ndarray, DistMatrix, DistMatrix]:
    """Collective: from the factors in one matrix, X."""
    k = min(X.shape)
    L = as_layout(counted(triangle(X[:, :k], True, True)), lower, A.grid)  # before U is made: both need not lie twice
    U = as_layout(counted(triangle(X[:k, :], False)), upper, A.grid)
    return np.argsort(order(pivots, X.shape[0])), L, U
