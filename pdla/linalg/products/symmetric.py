"""Products with a matrix of which one triangle is stored.

First the other triangle is filled in a copy: n^2 / 2 P words a rank if blocks are balanced. Then
the copy is multiplied by matmul's algorithms, which send about sqrt(P) times as many words.
"""

from __future__ import annotations

from pdla.checks import SIDES, communicator, describe_call, flags, matrix, one_of, same_grid
from pdla.comm.agreement import agreed, collective_section
from pdla.errors import PlanError, ShapeError, suggest
from pdla.layout import Layout
from pdla.linalg.products.symmetrize import reflect
from pdla.matmul import matmul
from pdla.matmul.api import default_layout
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import sum_partials


def symm(
    A: DistMatrix, B: DistMatrix, *, side: str = "left", lower: bool = True, alpha: complex = 1, beta: complex = 0,
    out: DistMatrix | None = None, layout: Layout | str | None = None, algorithm: str = "auto",
) -> DistMatrix:
    """Multiply by a symmetric matrix, read from one triangle. Collective, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        n x n, symmetric, in any layout. Only one triangle is read, with the diagonal; the other may
        hold anything, NaN too.
    B : DistMatrix
        n x m (left) or m x n (right), on A's grid.
    side : "left" or "right", optional
        "left": C = alpha A B + beta C; "right": C = alpha B A + beta C.
    lower : bool, optional
        Whether the lower triangle of A is read; else the upper one.
    alpha, beta : number, optional
        As for `matmul`.
    out : DistMatrix, optional
        The matrix C to fill, as for `matmul`.
    layout : Layout or "native", optional
        C's, as for `matmul`.
    algorithm : str, optional
        As for `matmul`.

    Returns
    -------
    DistMatrix
        `out`, or a new C.

    Raises
    ------
    ShapeError, LayoutError, GridError, PlanError, AgreementError
        As by `matmul`, on every rank.

    Notes
    -----
    First the other triangle is filled in a copy: n^2 / 2 P words a rank if blocks are balanced.
    Then `matmul` multiplies the copy.

    Examples
    --------
    >>> def program(comm):
    ...     grid, layout = pdla.ProcessGrid((2,)), pdla.Layout("row")
    ...     A = pdla.from_global(np.array([[1, np.nan], [2, 3]]), grid, layout)
    ...     return pdla.symm(A, pdla.eye(2, grid, layout)).gather()
    >>> pdla.run(2, program)[0]
    array([[1., 2.],
           [2., 3.]])
    """
    return _product("symm", A, B, side, lower, alpha, beta, out, layout, algorithm)


def hemm(
    A: DistMatrix, B: DistMatrix, *, side: str = "left", lower: bool = True, alpha: complex = 1, beta: complex = 0,
    out: DistMatrix | None = None, layout: Layout | str | None = None, algorithm: str = "auto",
) -> DistMatrix:
    """Multiply by a Hermitian matrix, read from one triangle. Collective, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        n x n, Hermitian: the imaginary parts of its diagonal are not read. See `symm`, also for the
        other arguments.
    B : DistMatrix
        n x m (left) or m x n (right).
    side : "left" or "right", optional
        "left": C = alpha A B + beta C; "right": C = alpha B A + beta C.
    lower : bool, optional
        Whether the lower triangle of A is read; else the upper one.
    alpha, beta : number, optional
        Factors of the product and of `out`.
    out : DistMatrix, optional
        The matrix C to fill.
    layout : Layout or "native", optional
        C's.
    algorithm : str, optional
        As for `matmul`.

    Returns
    -------
    DistMatrix
        `out`, or a new C.

    Raises
    ------
    ShapeError, LayoutError, GridError, PlanError, AgreementError
        As by `matmul`, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     grid, layout = pdla.ProcessGrid((2,)), pdla.Layout("row")
    ...     A = pdla.from_global(np.array([[1, 0], [2j, 3]]), grid, layout)
    ...     return pdla.hemm(A, pdla.eye(2, grid, layout)).gather()
    >>> pdla.run(2, program)[0]
    array([[1.+0.j, 0.-2.j],
           [0.+2.j, 3.+0.j]])
    """
    return _product("hemm", A, B, side, lower, alpha, beta, out, layout, algorithm)


def _product(
    name: str, A: DistMatrix, B: DistMatrix, side: str, lower: bool, alpha: complex, beta: complex, out: DistMatrix | None,
    layout: Layout | str | None, algorithm: str,
) -> DistMatrix:
    with agreed(communicator((A, B, out)), describe_call(name, A, B, side=side, lower=lower)):
        if matrix(A).shape[0] != A.shape[1]:
            raise ShapeError(f"{name}: A is {A.shape[0]} x {A.shape[1]}, it must be square")
        if not one_of(side, SIDES):
            raise PlanError(f"{name}: side={side!r}: 'left' for A B, 'right' for B A{suggest(side, SIDES)}")
        same_grid(A, B, "B")
        flags(lower=lower)
        if isinstance(out, DistMatrix) and out.base.size and A.xp.overlap(out.base, A.base):  # matmul sees only the copy of A
            raise ShapeError("out shares memory with A, which is never written to")
    if layout is None and out is None:
        layout = default_layout(A.layout, B.layout) if side == "left" else default_layout(B.layout, A.layout)
    whole = copy_mirrored(A, lower, name == "hemm")
    first, second = (whole, B) if side == "left" else (B, whole)
    return matmul(first, second, alpha=alpha, beta=beta, out=out, layout=layout, algorithm=algorithm)


def copy_mirrored(A: DistMatrix, lower: bool, hermitian: bool) -> DistMatrix:
    """Collective: copy A, with both triangles from one."""
    with collective_section(A.grid.comm, "a triangle's reflection"):
        A = sum_partials(A, A.layout.summed) if A.layout.partial else A
        copy = A.copy()
        reflect(copy, lower, hermitian)
    return copy
