"""C = alpha A B^T + alpha B A^T + beta C and its Hermitian form, one triangle.

The second addend is the first one transposed. One product W = alpha A B^T, by matmul's algorithms,
thus takes as many operations as the two triangles. The other triangle of W, transposed, is added to
this one: n^2 / 2 P words a rank.
"""

from __future__ import annotations

import numpy as np

from pdla.array.dtypes import promote
from pdla.checks import communicator, describe_call, flags, matrix, same_grid, scalars, written_to
from pdla.comm.agreement import agreed, collective_section
from pdla.errors import ShapeError
from pdla.layout import Layout
from pdla.linalg import checks
from pdla.linalg.products.rank_k import make_zeros
from pdla.linalg.products.symmetrize import make_real, symmetrize
from pdla.linalg.products.trapezoid import Block, find_triangle
from pdla.matmul import matmul
from pdla.matmul.api import default_layout
from pdla.matrix.core import DistMatrix


def syr2k(
    A: DistMatrix, B: DistMatrix, *, alpha: complex = 1, beta: complex = 0, out: DistMatrix | None = None, lower: bool = True,
    layout: Layout | None = None, mirror: bool = False,
) -> DistMatrix:
    """Compute one triangle of C = alpha A B^T + alpha B A^T + beta C. Collective, idle ranks included.

    A and B are never written to.

    Parameters
    ----------
    A, B : DistMatrix
        n x k, on one grid, in any layouts and dtypes; for A^T B + B^T A give A.T and B.T (nothing
        moves).
    alpha : number, optional
        Factor of the products.
    beta : number, optional
        Factor of `out`, whose elements are not read if beta is 0.
    out : DistMatrix, optional
        The matrix C to fill: n x n, of the product's dtype, sharing no memory with A and B. The
        other triangle is not written.
    lower : bool, optional
        Whether the lower triangle is read and written, with the diagonal; else the upper one.
    layout : Layout, optional
        A new C's; by default that of ``A @ B.T``.
    mirror : bool, optional
        Whether to fill the other triangle too, from this one: one more round, n^2 / 2 P words a
        rank in balanced layouts.

    Returns
    -------
    DistMatrix
        `out`, or a new C, whose other triangle is zero without `mirror`.

    Raises
    ------
    ShapeError, LayoutError, GridError, AgreementError
        For arguments that do not fit each other, on every rank.

    Notes
    -----
    One product W = alpha A B^T in C's layout: 2 n^2 k operations. Its other triangle is added,
    transposed: n^2 / 2 P words a rank more than the product's.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,))
    ...     A = pdla.from_global(np.array([[1], [2]]), grid, pdla.Layout("row"))
    ...     return pdla.linalg.syr2k(A, 3 * A).gather()
    >>> pdla.run(2, program)[0]
    array([[ 6,  0],
           [12, 24]])
    """
    return _update("syr2k", A, B, alpha, beta, out, lower, layout, mirror)


def her2k(
    A: DistMatrix, B: DistMatrix, *, alpha: complex = 1, beta: float = 0, out: DistMatrix | None = None, lower: bool = True,
    layout: Layout | None = None, mirror: bool = False,
) -> DistMatrix:
    """Compute one triangle of C = alpha A B^H + conj(alpha) B A^H + beta C.

    Collective, idle ranks included. For real matrices it is `syr2k`.

    Parameters
    ----------
    A, B : DistMatrix
        n x k; see `syr2k`, also for the other arguments.
    alpha : number, optional
        Factor of the first product.
    beta : float, optional
        Factor of `out`, real.
    out : DistMatrix, optional
        The matrix C to fill.
    lower : bool, optional
        Whether the lower triangle is computed; else the upper one.
    layout : Layout, optional
        A new C's.
    mirror : bool, optional
        Whether to fill the other triangle too.

    Returns
    -------
    DistMatrix
        C. Its diagonal is real, exactly; imaginary parts in `out` are not read.

    Raises
    ------
    ShapeError, LayoutError, GridError, AgreementError
        As by `syr2k`, and for a complex beta, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,))
    ...     A = pdla.from_global(np.array([[1], [2j]]), grid, pdla.Layout("row"))
    ...     return pdla.linalg.her2k(A, A, mirror=True).gather()
    >>> pdla.run(2, program)[0]
    array([[2.+0.j, 0.-4.j],
           [0.+4.j, 8.+0.j]])
    """
    return _update("her2k", A, B, alpha, beta, out, lower, layout, mirror)


def _update(
    name: str, A: DistMatrix, B: DistMatrix, alpha: complex, beta: complex, out: DistMatrix | None, lower: bool,
    layout: Layout | None, mirror: bool,
) -> DistMatrix:
    named = {"lower": lower, "layout": layout, "mirror": mirror}
    with agreed(communicator((A, B, out)), describe_call(name, A, B, alpha, beta, out, **named)):
        same_grid(matrix(A), B, "B")
        if A.shape != B.shape:
            raise ShapeError(f"{name}: A is {A.shape[0]} x {A.shape[1]}, B {B.shape[0]} x {B.shape[1]}: the shapes must be equal")
        dtype = promote(A.dtype, B.dtype).newbyteorder("=")
        hermitian, shape = dtype.kind == "c" and name == "her2k", (A.shape[0], A.shape[0])
        checks.check_result(A, shape, dtype, out, layout)
        written_to(out, A, B)
        flags(lower=lower, mirror=mirror)
        scalars(dtype, alpha, beta, out)
        if hermitian and isinstance(beta, (complex, np.complexfloating)):
            raise ShapeError(f"her2k: beta={beta} must be real for a Hermitian result; syr2k takes complex ones")
    if layout is None:
        layout = default_layout(A.layout, B.layout.T) if out is None else out.layout
    W = matmul(A, B.H if hermitian else B.T, alpha=alpha, layout=layout)
    with collective_section(A.grid.comm, name):
        C = make_zeros(W, shape, layout) if out is None else out
        _add(*((W, C) if lower else (W.T, C.T)), beta, hermitian)
        if mirror:
            symmetrize(C if lower else C.T, hermitian)
    return C


def _add(W: DistMatrix, C: DistMatrix, beta: complex, hermitian: bool) -> None:
    """Collective: compute the lower triangle of C = W + W^T + beta C, or with W^H; W is overwritten."""
    symmetrize(W.T, hermitian, 1)
    diagonal = C.indices[0].find_common(C.indices[1])
    xp, doubled = C.xp, C.xp.pick(W.stored, *diagonal)
    xp.combine(doubled, 1, xp.reinterpret(doubled, hermitian))
    xp.place(W.stored, *diagonal, doubled)
    if hermitian and beta != 0:
        make_real(C.stored, *C.indices)
    for piece in find_triangle(Block(*C.indices)).pieces():
        piece.write(xp, C.stored, beta, piece.read(xp, W.stored))
