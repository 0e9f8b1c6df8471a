"""Products with a triangle: copy it to a matrix with zeros in the other one, and multiply by matmul's algorithms.

The copy sends no messages.
"""

from __future__ import annotations

from pdla.array.dtypes import promote
from pdla.checks import SIDES, communicator, describe_call, flags, one_of, same_grid, scalars
from pdla.comm.agreement import agreed, collective_section
from pdla.errors import PlanError, ShapeError, suggest
from pdla.layout import Layout
from pdla.linalg import checks
from pdla.matmul import matmul
from pdla.matmul.api import default_layout
from pdla.matrix.core import DistMatrix
from pdla.matrix.diagonals import fill_diagonal
from pdla.matrix.redistribute import sum_partials
from pdla.matrix.triangles import tril, triu


def trmm(
    A: DistMatrix, B: DistMatrix, *, lower: bool, side: str = "left", unit_diagonal: bool = False, alpha: complex = 1,
    layout: Layout | None = None,
) -> DistMatrix:
    """Multiply by a triangular matrix: alpha A B or alpha B A. Collective, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        n x n, in any layout and dtype; only one triangle is read. For A^T or A^H give A.T or A.H:
        views, with the triangles exchanged.
    B : DistMatrix
        n x m (left) or m x n (right), on A's grid, never written to.
    lower : bool
        Whether A's lower triangle is read; else the upper one.
    side : "left" or "right", optional
        "left": alpha A B; "right": alpha B A.
    unit_diagonal : bool, optional
        Whether the diagonal counts as ones, and is not read.
    alpha : number, optional
        Factor of the product.
    layout : Layout, optional
        The product's; by default as for `matmul`.

    Returns
    -------
    DistMatrix
        The product, as B is.

    Raises
    ------
    ShapeError, LayoutError, GridError, AgreementError
        For arguments that do not go together, on every rank.

    See Also
    --------
    trsm : The reverse.

    Notes
    -----
    `matmul` multiplies a copy of the triangle with zeros beside it. These are 2 n^2 m operations,
    twice as many as BLAS's trmm, and the words of that product.

    Examples
    --------
    >>> def program(comm):
    ...     grid, layout = pdla.ProcessGrid((2,)), pdla.Layout("row")
    ...     A = pdla.from_global(np.array([[2, np.nan], [1, 4]]), grid, layout)
    ...     return pdla.linalg.trmm(A, pdla.eye(2, grid, layout), lower=True).gather()
    >>> pdla.run(2, program)[0]
    array([[2., 0.],
           [1., 4.]])
    """
    call = describe_call("trmm", A, B, alpha, lower=lower, side=side, unit=unit_diagonal, layout=layout)
    with agreed(communicator((A, B)), call):
        flags(lower=lower, unit_diagonal=unit_diagonal)
        checks.check_square("trmm", A)
        if not one_of(side, SIDES):
            raise PlanError(f"trmm: side={side!r}: 'left' for A B, 'right' for B A{suggest(side, SIDES)}")
        same_grid(A, B, "B")
        if B.shape[side == "right"] != A.shape[0]:
            raise ShapeError(f"trmm: A is {A.shape[0]} x {A.shape[1]}, B {B.shape[0]} x {B.shape[1]}: the inner sizes differ")
        checks.check_result(B, B.shape, B.dtype, None, layout)
        scalars(promote(A.dtype, B.dtype), alpha, 0, None)
    T = triangle(A, lower, unit_diagonal)
    first, second = (T, B) if side == "left" else (B, T)
    return matmul(first, second, alpha=alpha, layout=layout or default_layout(first.layout, second.layout))


def triangle(A: DistMatrix, lower: bool, unit: bool = False) -> DistMatrix:
    """Collective: copy a triangle of A with the diagonal, m x n. unit: set the diagonal to ones."""
    with collective_section(A.grid.comm, "a triangle's copy"):
        A = sum_partials(A, A.layout.summed) if A.layout.partial else A
    copy = tril(A) if lower else triu(A)
    if unit:
        fill_diagonal(copy, 1)
    return copy
