"""C = alpha A A^T + beta C and C = alpha A A^H + beta C, one triangle: half the multiplications, half the sums.

1. Each rank fetches its row blocks of A, in its part of k, as difference_cover.py says. Ranks of one
   node read A in place instead, and each multiplies one strip of the triangle (strips.py). If C's
   layout balances the work well, C is stationary.

2. Each rank multiplies its tiles: one on the diagonal, halved repeatedly (`multiply_below`), and its
   share of those below the diagonal.

3. The c ranks with the same tiles sum their parts of k: each receives the sums of every c-th row.

4. The triangle alone is redistributed to C's layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import Any

import numpy as np

from pdla.array.composed import sum_dtype
from pdla.checks import communicator, describe_call, flags, matrix, scalars, written_to
from pdla.comm import workspace
from pdla.comm.agreement import agreed, collective_section
from pdla.comm.cache import find_or_make
from pdla.comm.ledger import buffer, held, note_read, timed
from pdla.errors import ShapeError
from pdla.layout import Layout
from pdla.linalg import checks
from pdla.linalg.products.rank_k_plan import RankKPlan
from pdla.linalg.products.symmetrize import make_real, symmetrize
from pdla.linalg.products.trapezoid import Trapezoid, pack, unpack
from pdla.linalg.verify import Claim, run_and_check
from pdla.matmul.api import default_layout
from pdla.matmul.images import Images, Pair, Part, add, scale
from pdla.matmul.schedules.streams import multiply
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import local_shape, sum_partials

LEAF = 128  # rows of a square on the diagonal that is not halved: its upper triangle costs less than more products
ALL = slice(None)


def syrk(
    A: DistMatrix, *, alpha: complex = 1, beta: complex = 0, out: DistMatrix | None = None, lower: bool = True,
    layout: Layout | None = None, mirror: bool = False,
) -> DistMatrix:
    """Compute one triangle of C = alpha A A^T + beta C. Collective, idle ranks included.

    A is never written to.

    Parameters
    ----------
    A : DistMatrix
        n x k, in any layout and dtype; for A^T A give A.T (nothing moves).
    alpha : number, optional
        Factor of the product.
    beta : number, optional
        Factor of `out`, whose elements are not read if beta is 0.
    out : DistMatrix, optional
        The matrix C to fill: n x n, of A's dtype in native byte order. It shares no memory with A,
        and its other triangle is not written.
    lower : bool, optional
        Whether the lower triangle is read and written, with the diagonal; else the upper one.
    layout : Layout, optional
        A new C's; by default that of ``A @ A.T``. Copies of C are equal bit by bit.
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

    See Also
    --------
    syrk_words : The words that a rank receives.

    Notes
    -----
    Workspace of a rank: its row blocks of A and their messages, about twice the blocks' size. Then
    its tiles, n^2 / 2 v words or, if k alone is cut, n^2, and their messages, for copies of C, too.
    Ranks of one node read A in place, with n k / P words instead of the row blocks. If A is in
    common memory (``A.shared()``), these need no words.

    Algorithm: pdla.linalg.products.difference_cover.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,))
    ...     A = pdla.from_global(np.array([[1, 2], [3, 4]]), grid, pdla.Layout("row"))
    ...     return pdla.syrk(A).gather()
    >>> pdla.run(2, program)[0]
    array([[ 5,  0],
           [11, 25]])
    """
    return _update("syrk", A, alpha, beta, out, lower, layout, mirror)


def herk(
    A: DistMatrix, *, alpha: float = 1, beta: float = 0, out: DistMatrix | None = None, lower: bool = True,
    layout: Layout | None = None, mirror: bool = False,
) -> DistMatrix:
    """Compute one triangle of C = alpha A A^H + beta C. Collective, idle ranks included.

    For real matrices it is `syrk`.

    Parameters
    ----------
    A : DistMatrix
        n x k; see `syrk`, also for the other arguments.
    alpha : float, optional
        Factor of the product, real.
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
        As by `syrk`, and for a complex alpha or beta, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,))
    ...     A = pdla.from_global(np.array([[1], [2j]]), grid, pdla.Layout("row"))
    ...     return pdla.herk(A, mirror=True).gather()
    >>> pdla.run(2, program)[0]
    array([[1.+0.j, 0.-2.j],
           [0.+2.j, 4.+0.j]])
    """
    return _update("herk", A, alpha, beta, out, lower, layout, mirror)


def _update(
    name: str, A: DistMatrix, alpha: complex, beta: complex, out: DistMatrix | None, lower: bool, layout: Layout | None,
    mirror: bool,
) -> DistMatrix:
    with agreed(communicator((A, out)), describe_call(name, A, alpha, beta, out, lower=lower, layout=layout, mirror=mirror)):
        hermitian = matrix(A).dtype.kind == "c" and name == "herk"
        shape = (A.shape[0], A.shape[0])
        dtype = A.dtype.newbyteorder("=")
        checks.check_result(A, shape, dtype, out, layout)
        written_to(out, A)
        flags(lower=lower, mirror=mirror)
        scalars(dtype, alpha, beta, out)
        if hermitian and any(isinstance(factor, (complex, np.complexfloating)) for factor in (alpha, beta)):
            raise ShapeError(f"herk: alpha={alpha} and beta={beta} must be real for a Hermitian result; syrk takes complex ones")
    with collective_section(A.grid.comm, name):
        A = A if A.dtype == dtype else A.astype(dtype)
        C = out if out is not None else _allocate(A, shape, layout or default_layout(A.layout, A.layout.T))
        A = sum_partials(A, A.layout.summed) if A.layout.partial else A
    # The upper triangle of C is the lower one of C^T = conj(A) A^T.
    X, Y = (A, C) if lower else (A.conj() if hermitian else A, C.T)
    compute_triangle(X, Y, alpha, 0 if out is None else beta, hermitian, mirror, new=out is None)
    return C


def make_zeros(A: DistMatrix, shape: tuple[int, int], layout: Layout, dtype: np.dtype | None = None) -> DistMatrix:
    """Local: a zero matrix with A's kind of arrays, on A's grid, by default of A's dtype."""
    zeros = _allocate(A, shape, layout, dtype)
    A.xp.scale(zeros.stored, 0)
    return zeros


def _allocate(A: DistMatrix, shape: tuple[int, int], layout: Layout, dtype: np.dtype | None = None) -> DistMatrix:
    """Local: as `make_zeros`, without setting elements."""
    return DistMatrix(A.xp.empty(local_shape(shape, layout, A.grid), dtype or A.dtype), shape, A.grid, layout)


# ---------------------------------------------------------------------------------------------- the four steps


def compute_triangle(
    A: DistMatrix, C: DistMatrix, alpha: complex, beta: complex, hermitian: bool, mirror: bool = False, new: bool = False
) -> None:
    """Collective: compute the lower triangle of C = alpha A A^T + beta C, or with A^H if `hermitian`; A has no partial sums.

    mirror  whether to fill the upper triangle, too
    new     whether C is new: then a wrong triangle can be computed again, and without `mirror` the upper one is zero
    """
    comm, (n, k) = A.grid.comm, A.shape

    def compute() -> DistMatrix:
        with collective_section(comm, "a triangle's product"):
            if new:
                C.xp.scale(C.stored, 0)
            _compute(A, C, alpha, beta, hermitian)
            if mirror:
                symmetrize(C, hermitian)
        return C

    def claim(images: Images) -> Claim:
        def compute_image(vector: Pair) -> Pair:
            image = scale(images.multiply(A, images.multiply(A.H if hermitian else A.T, vector)), alpha)
            return add(image, scale(images.multiply_reflected(C, vector, hermitian), beta)) if beta != 0 else image

        image = partial(images.multiply, C) if mirror else partial(images.multiply_reflected, C, hermitian=hermitian)
        return Claim(
            n, 4 * (n + k), compute_image, lambda C: (image,),
            zeros=lambda C: ((C, Part(False, "none")),) if new and not mirror else (),
            lost="" if new else "the old elements of out are lost",
        )

    run_and_check(comm, A.dtype, compute, claim)


def _compute(A: DistMatrix, C: DistMatrix, alpha: complex, beta: complex, hermitian: bool) -> None:
    """Collective: compute the lower triangle, unchecked."""
    if hermitian and beta != 0:
        make_real(C.stored, *C.indices)
    comm, in_place = A.grid.comm, _reads_in_place(A)
    key = "rank k", A.grid, A.shape, A.layout, C.layout, in_place
    plan: RankKPlan = find_or_make(comm, key, lambda: RankKPlan.of(A, C, in_place))
    plan.delivery.run(A.xp, comm, _sum_tiles(A, plan, _compute_tiles(A, plan, alpha, hermitian)), C.stored, beta)


def _reads_in_place(A: DistMatrix) -> bool:
    """Whether all ranks read A in place: they are on one node, and A fits their shared memory."""
    comm = A.grid.comm
    fits = A.common is not None or prod(A.shape) * A.dtype.itemsize <= comm.shared_limit
    return fits and comm.size > 1 and comm.shared_buffer() is not None


def _compute_tiles(A: DistMatrix, plan: RankKPlan, alpha: complex, hermitian: bool) -> list[Any]:
    """Collective: compute this rank's tiles, for its part of k. Frees the fetched rows of A."""
    if not plan.in_place:
        return _multiply_tiles(A, plan, _fetch(A, plan), alpha, hermitian)
    with _share_all(A) as shared:
        if plan.fetch.recvs:
            note_read(A.grid.comm.axis, plan.fetch.words * A.dtype.itemsize, len(plan.fetch.recvs))
        return _multiply_tiles(A, plan, shared, alpha, hermitian)


@contextmanager
def _share_all(A: DistMatrix) -> Iterator[Any]:
    """Collective: share all of A, as stored (not conjugated): in A's common memory, or in a copy on the shared buffer."""
    comm, shared_buffer, xp = A.grid.comm, A.grid.comm.shared_buffer(), A.xp
    assert shared_buffer is not None
    shape = A.shape[::-1] if A.transposed else A.shape
    size = 0 if A.common is not None else prod(shape) * A.dtype.itemsize
    with held(size // comm.size):
        memory = shared_buffer.open(size)
        stored = xp.view_at(memory, 0, shape, A.dtype) if A.common is None else A.common
        shared = stored.T if A.transposed else stored
        if A.common is None and A.first:
            xp.put(shared, *(index_set.selection for index_set in A.indices), A.stored)
        try:
            shared_buffer.seal()
            yield shared
        finally:
            if A.common is None:
                shared_buffer.leave()
            else:
                shared_buffer.finish()
    shared_buffer.trim(workspace.KEPT)


def _fetch(A: DistMatrix, plan: RankKPlan) -> Any:
    """Collective: fetch this rank's row blocks of A, as stored. A rank that holds all of them uses these in place.

    A stationary C needs contiguous blocks, as fetched ones are: otherwise copies of C, each computed
    by its own rank, would differ by rounding.
    """
    own = None if plan.own is None else A.xp.take(A.stored, *plan.own)
    in_place = own is not None and (not plan.stationary or A.xp.is_contiguous(own))
    a = own if in_place else buffer(A.xp, plan.shape, A.dtype)
    plan.fetch.run(A.xp, A.grid.comm, [A.stored], a, own=not in_place)
    return a


def _multiply_tiles(A: DistMatrix, plan: RankKPlan, a: Any, alpha: complex, hermitian: bool) -> list[Any]:
    """Local: multiply this rank's tiles. a: its rows of A, as stored (not conjugated)."""
    xp, products = A.xp, []
    for tile in plan.tiles:
        x = buffer(xp, (len(tile.block.rows), len(tile.block.cols)), sum_dtype(a.dtype))
        left = xp.reinterpret(xp.take(a, tile.rows, ALL), A.conjugated)
        right = xp.reinterpret(xp.take(a, tile.cols, ALL), A.conjugated != hermitian)
        if tile.diagonal is None or hermitian or not xp.can_square(left, x[:, tile.diagonal :]):
            multiply_below(xp, left, right, x, tile.counts, alpha)
        else:
            _square(xp, left, x[:, tile.diagonal :], alpha)
            multiply(xp, left, right[: tile.diagonal].T, x[:, : tile.diagonal], alpha, 0)
        if hermitian:
            make_real(x, tile.block.rows, tile.block.cols)
        products.append(x)
    return products


def _square(xp: Any, a: Any, x: Any, alpha: complex) -> None:
    """Set x's lower triangle to alpha a a^T, by BLAS's syrk, and record it in the ledger."""
    n, k = a.shape
    with timed("gemm", flops=(4 if x.dtype.kind == "c" else 1) * n * (n + 1) * k):
        xp.square(a, x, alpha)


def multiply_below(
    xp: Any, a: Any, b: Any, x: Any, counts: np.ndarray, alpha: complex, done: int = 0, beta: complex = 0, leaf: int = LEAF
) -> None:
    """Set x = alpha a b^T + beta x, in columns done ... counts[i] - 1 of row i; counts ascend.

    First the columns that all rows have are multiplied, then the rest for each half of the rows
    separately, down to `leaf` rows.
    """
    if not len(counts) or counts[-1] <= done:
        return
    common, last = int(counts[0]), int(counts[-1])
    if common == last or len(counts) <= leaf:
        multiply(xp, a, b[done:last].T, x[:, done:last], alpha, beta)
        return
    if common - done >= LEAF:
        multiply(xp, a, b[done:common].T, x[:, done:common], alpha, beta)
        done = common
    h = -(-len(counts) // leaf) // 2 * leaf
    multiply_below(xp, a[:h], b, x[:h], counts[:h], alpha, done, beta, leaf)
    multiply_below(xp, a[h:], b, x[h:], counts[h:], alpha, done, beta, leaf)


def _sum_tiles(A: DistMatrix, plan: RankKPlan, tiles: list[Any]) -> list[Any]:
    """Collective: sum the tiles over the c parts of k; this rank receives every c-th row of each tile."""
    layers = plan.layers["col"] if plan.layers else None
    if not layers or not plan.turns:
        return tiles
    l, c = layers.rank, layers.size
    turns = [[(x[t::c], trapezoid) for x, trapezoid in zip(tiles, turn, strict=True)] for t, turn in enumerate(plan.turns)]
    parts = [_pack_sums(A.xp, turn, sum_dtype(A.dtype)) for turn in turns]
    rest = layers.reduce_scatter(parts, parts[l]).wait()
    for x, trapezoid in turns[l]:
        rest = unpack(A.xp, rest, x, trapezoid)
    return [x for x, _ in turns[l]]


def _pack_sums(xp: Any, parts: list[tuple[Any, Trapezoid]], dtype: Any) -> Any:
    flat = buffer(xp, (sum(trapezoid.size for _, trapezoid in parts),), dtype)
    pack(xp, parts, flat)
    return flat
