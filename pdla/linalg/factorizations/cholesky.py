"""Cholesky factors of positive definite matrices in square blocks over a grid, and systems that they solve.

Step k of the right-looking factorization: the rank that has diagonal block k factors it, L11 L11^H, and
sends the inverse of L11 along the grid column; there panel k, what lies below, is multiplied by it,
and sent along the grid rows; the rows of the panel that face a rank's columns come to it along its
grid column; then the rest of the triangle is updated. Of that block column k + 1 comes first, so
that panel k + 1 is on its way while the others are updated.

A product with an inverse errs by as many eps as the condition of L11. Where that is large, L11
itself is sent, and the panel is solved by substitution, which takes twice as long.
"""

from __future__ import annotations

from functools import partial
from math import ceil, prod
from typing import Any

import numpy as np

from pdla.comm.agreement import agreed, collective_section
from pdla.comm.pending import Pending
from pdla.comm.slots import Slots
from pdla.comm.workspace import bounded, within
from pdla.errors import LinAlgError
from pdla.layout import Layout
from pdla.linalg import checks
from pdla.linalg.factorizations import kernels
from pdla.linalg.factorizations.block_cyclic import as_layout, dimensions, on_all_ranks, working_copy
from pdla.linalg.factorizations.blocking import limited, to, where
from pdla.linalg.factorizations.layers import Layers
from pdla.linalg.factorizations.right_side import RightSide
from pdla.linalg.factorizations.triangular import in_square_blocks, regular, substituted
from pdla.linalg.products.rank_k import below
from pdla.linalg.verify import Claim, alike, asked, checked, lost, wanted
from pdla.matmul.checks import communicator
from pdla.matmul.images import Images, Part
from pdla.matmul.schedules.streams import multiply
from pdla.matmul.verify import check_asked
from pdla.matrix.core import DistMatrix

ALL = slice(None)
HEADER = 2  # numbers behind each panel: LAPACK's info and the pivot there; or 0, and 1 where L11 stands for its inverse
MAX_CONDITION = 8  # mean condition of L11 up to which panels are multiplied by its inverse; of random matrices it is 1 to 1.2


def cholesky(
    A: DistMatrix, *, lower: bool = True, overwrite_a: bool = False, check_finite: bool = True, layout: Layout | None = None,
    memory_limit: int | None = None, verify: bool | str | None = None,
) -> DistMatrix:
    """Factor a positive definite matrix: A = L L^H. Collective over A's grid, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        n x n, Hermitian and positive definite, in any layout. Only one triangle is read; the other
        may hold anything, NaN too, and so may the imaginary parts of the diagonal.
    lower : bool, optional
        Whether it is the lower one, for L; else the upper one, for U of A = U^H U.
    overwrite_a : bool, optional
        Whether A may be written to, which spares a copy where it lies as it is worked on.
    check_finite : bool, optional
        Whether to look for NaN and infinity first, in the triangle that is read.
    layout : Layout, optional
        Of the factor; by default A's.
    memory_limit : int, optional
        Bytes of workspace a rank, at most, the copy of A that is worked on included.
    verify : bool or "keep", optional
        Compare L (L^H x) with A x for two vectors of 1 and -1, and compute a wrong factor once
        more, with a warning; what was in an A that is overwritten is lost: then it is an error, or
        "keep" works on a copy. The other triangle must be zeros. By default as PDLA_VERIFY says.

    Returns
    -------
    DistMatrix
        L, or U, with zeros in the other triangle.

    Raises
    ------
    LinAlgError
        For a matrix that is not positive definite, with the order of the first leading minor that
        is not; for NaN and infinity.
    PlanError
        For a memory_limit that cannot be kept.
    VerificationError
        For a factor that `verify` found wrong, and could not compute again.
    ShapeError, LayoutError, GridError, AgreementError
        For arguments that do not go together, on every rank, as all of these.

    See Also
    --------
    cholesky_words : The words that a rank receives.

    Notes
    -----
    A is worked on in square blocks (`Cyclic` along one axis for rows, one for columns, or only one
    of these) where it lies so, or else it is brought to the grid and blocks that `plan_cholesky`
    finds cheapest, and back.

    Right-looking with lookahead: ScaLAPACK's pdpotrf (Choi et al., Sci. Prog. 5 (1996), section 4),
    panels by the diagonal block's inverse, or by substitution where that is ill-conditioned. So it
    is backward stable: L L^H differs from A by n eps abs(L) abs(L^H) or less (Higham, Accuracy and
    Stability of Numerical Algorithms (2002), theorem 10.3).

    It is 2.5-D where A lies so: rows in blocks of c b, columns in the same ones, and each of these
    along a third axis of c ranks in blocks of b, `Layout(Cyclic("row", c * b), (Cyclic("col", c *
    b), Cyclic("depth", b)))`. Each of the c layers works on every c-th panel. A rank has room for c
    times as many words then, and with c = 4 receives about half as many.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,))
    ...     A = pdla.from_global(np.array([[4., 2], [2, 10]]), grid, pdla.Layout("row"))
    ...     return pdla.linalg.cholesky(A).gather()
    >>> pdla.run(2, program)[0]
    array([[2., 0.],
           [1., 3.]])
    """
    named = {"lower": lower, "over": overwrite_a, "finite": check_finite, "layout": layout, "limit": memory_limit}
    said = checks.words("cholesky", A, verify=verify, **named)
    with agreed(communicator((A,)), said):
        check_asked(verify)
        dtype = checks.to_factor("cholesky", A, overwrite_a, check_finite, assume_a="pos", lower=lower)
        checks.result(A, A.shape, dtype, None, layout)
        overwrite_a = overwrite_a and verify != "keep"

        def run(A: DistMatrix) -> DistMatrix:
            return _factor(A, dtype, lower, overwrite_a, layout or A.layout.summed)

        blocking = limited("cholesky", A, dtype, memory_limit, run, said=said)
    with to(blocking, memory_limit), asked(verify):
        return run(A)


def cho_factor(
    A: DistMatrix, *, lower: bool = True, overwrite_a: bool = False, check_finite: bool = True, memory_limit: int | None = None,
    verify: bool | str | None = None,
) -> tuple[DistMatrix, bool]:
    """Factor a positive definite matrix for `cho_solve`. Collective, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        n x n, Hermitian and positive definite, in any layout. Only one triangle is read.
    lower : bool, optional
        Whether it is the lower one.
    overwrite_a : bool, optional
        Whether A may be written to.
    check_finite : bool, optional
        Whether to look for NaN and infinity first, in the triangle that is read.
    memory_limit : int, optional
        Bytes of workspace a rank, at most, the copy of A that is worked on included.
    verify : bool or "keep", optional
        Whether to check the factor, as `cholesky` does.

    Returns
    -------
    C : DistMatrix
        The factor of `cholesky`, left in square blocks, so that `cho_solve` moves no factor.
    lower : bool
        As given.

    Raises
    ------
    LinAlgError, PlanError, VerificationError, ShapeError, AgreementError
        As by `cholesky`, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     A = 4 * pdla.eye(3, pdla.ProcessGrid((2,)), pdla.Layout("row"))
    ...     C, lower = pdla.linalg.cho_factor(A)
    ...     return C.trace(), lower
    >>> pdla.run(2, program)[0]
    (np.float64(6.0), True)
    """
    said = checks.words("cho_factor", A, lower=lower, over=overwrite_a, finite=check_finite, limit=memory_limit, verify=verify)
    with agreed(communicator((A,)), said):
        check_asked(verify)
        dtype = checks.to_factor("cho_factor", A, overwrite_a, check_finite, assume_a="pos", lower=lower)
        overwrite_a = overwrite_a and verify != "keep"
        run = partial(_factor, dtype=dtype, lower=lower, overwrite=overwrite_a)
        blocking = limited("cholesky", A, dtype, memory_limit, run, said=said)
    with to(blocking, memory_limit), asked(verify):
        return run(A), lower


def _factor(A: DistMatrix, dtype: np.dtype, lower: bool, overwrite: bool, layout: Layout | None = None) -> DistMatrix:
    """Collective: L, or U, in this layout; None: in square blocks."""
    if lower:
        return factored(A, dtype, overwrite, layout)
    return factored(A.H, dtype, overwrite, layout if layout is None else layout.T).H


def cho_solve(
    c_and_lower: tuple[DistMatrix, bool], B: Any, *, overwrite_b: bool = False, check_finite: bool = True,
    layout: Layout | None = None, verify: bool | str | None = None,
) -> Any:
    """Solve A X = B by A's Cholesky factor. Collective over its grid, idle ranks included.

    Parameters
    ----------
    c_and_lower : tuple of DistMatrix and bool
        As `cho_factor` gives it.
    B : DistMatrix or array
        n x m, or a vector of n numbers; see `solve_triangular`.
    overwrite_b : bool, optional
        Whether a matrix B may be written to, which spares a copy where it lies as it is worked on.
    check_finite : bool, optional
        Whether to look for NaN and infinity first, in the triangle that is read.
    layout : Layout, optional
        Of X; by default B's.
    verify : bool or "keep", optional
        Whether to check X, as by `solve`.

    Returns
    -------
    DistMatrix or array
        X, as B is.

    Raises
    ------
    LinAlgError, VerificationError, ShapeError, LayoutError, GridError, AgreementError
        As by `solve_triangular`, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     A = 4 * pdla.eye(3, pdla.ProcessGrid((2,)), pdla.Layout("row"))
    ...     return pdla.linalg.cho_solve(pdla.linalg.cho_factor(A), np.array([4., 8, 12]))
    >>> pdla.run(2, program)[0]
    array([1., 2., 3.])
    """
    C, lower = c_and_lower if isinstance(c_and_lower, (tuple, list)) and len(c_and_lower) == 2 else (c_and_lower, None)
    said = checks.words("cho_solve", C, B, lower=lower, over=overwrite_b, finite=check_finite, layout=layout, verify=verify)
    with agreed(communicator((C, B), "c_and_lower"), said):
        check_asked(verify)
        checks.flags(lower=lower, overwrite_b=overwrite_b, check_finite=check_finite)
        checks.square("cho_solve", C)
        side = RightSide.of("cho_solve", C, B, layout, overwrite_b and verify != "keep")
        if check_finite:
            checks.finite(C, side.B, part=Part(lower))
    regular(C)
    with asked(verify):
        return solved_by(C if lower else C.H, side)


def solved_by(L: DistMatrix, side: RightSide) -> Any:
    """Collective: X of L L^H X = B, as its right-hand side wants it. L's diagonal has no zero."""

    def solve(side: RightSide) -> DistMatrix:
        with collective_section(L.grid.comm, "a solution by a Cholesky factor"), within(bounded()):
            T = in_square_blocks(L, side.dtype)
            Y = substituted(T, side, True, False)
            X = substituted(T.H, RightSide(Y, None, side.dtype, True), False, False)
        return side.placed(X)

    claim = side.claim((L, Part(True)), (L.H, Part(False)), solve=solve)
    return side.back(checked(L.grid.comm, side.dtype, lambda: solve(side), claim))


def factored(A: DistMatrix, dtype: np.dtype, overwrite: bool = False, layout: Layout | None = None) -> DistMatrix:
    """Collective: L of A's lower triangle; LinAlgError, on every rank, where there is none.

    layout: in which it is given, by default in square blocks.
    """

    def compute() -> DistMatrix:
        L = _factored(A, dtype, overwrite)
        return L if layout is None else as_layout(L, layout, A.grid)

    def claim(images: Images) -> Claim:
        return Claim(
            A.shape[0], 4 * A.shape[0], lambda x: images.reflected(A, x, True),
            lambda L: (partial(images.whole, L.H, part=Part(False)), partial(images.whole, L, part=Part(True))),
            zeros=lambda L: ((L, Part(False, "none")),), lost=lost("A", overwrite),
        )

    return checked(A.grid.comm, dtype, compute, claim)


def _factored(A: DistMatrix, dtype: np.dtype, overwrite: bool) -> DistMatrix:
    with collective_section(A.grid.comm, "a Cholesky factorization"), within(bounded()):
        L = working_copy(A, *where("cholesky", A, A.shape[1], dtype), dtype, overwrite)
        steps = Cholesky(L)
        order, pivot = alike(A.grid.comm, on_all_ranks(L.grid, steps.run() if L.grid.active else np.zeros(HEADER)))
    if order:
        raise LinAlgError(f"the leading minor of order {order:.0f} is not positive definite (pivot {pivot:.3g})")
    return L


class Cholesky:
    """One rank's work: L in place of the lower triangle of A, in blocks."""

    def __init__(self, L: DistMatrix) -> None:
        self.xp, (self.rows, self.cols) = L.xp, dimensions(L)
        self.layers = Layers.of(L, self.rows, self.cols)
        self.a = L.stored if self.layers is None else self.layers.a
        (height, width), block = self.a.shape, self.cols.block
        self.along = Slots(self.cols.comm, self.xp, height * block + HEADER, self.a.dtype)  # panels, of the grid row
        self.down = Slots(self.rows.comm, self.xp, (width + block) * block + HEADER, self.a.dtype)  # rows of panels, and a corner
        ends = [self.cols.begins(k + 1) for k in self.rows.mine]
        self.counts = np.repeat(np.array(ends, np.int64), [self.rows.width(k) for k in self.rows.mine])

    def run(self) -> np.ndarray:
        """The order of the first leading minor that is not positive definite, and its pivot; zeros."""
        with self.along, self.down:
            header = self._steps() if self.layers is None else self._layered(self.layers)
        if not header[0]:
            self._clear()
        return header if self.layers is None else self.layers.end(header)

    def _steps(self) -> np.ndarray:
        header, last = np.zeros(HEADER), self.cols.count - 1
        coming, turned = self._panel(0, self._corner(0)) if last >= 0 else (None, None)
        for k in range(last + 1):
            told, left = self._split(coming.wait(), k)  # type: ignore[union-attr]
            header = header if header[0] else told
            right = self._transposed(k)
            # What the next panel needs comes first: the rest is on its way while this is factored.
            (turned or self._transpose(left, right, k, range(k + 1, k + 2))).wait()
            if (header[0] and not wanted()) or k == last:  # a header that erred must not part the ranks of a checked call
                break
            corner = self._next_corner(left, right, k)
            rest = self._transpose(left, right, k, range(k + 2, last + 1)) if turned is None else None
            self._update_next(left, right, k)
            coming, turned = self._panel(k + 1, corner)
            if rest is not None:
                rest.wait()
            self._update_rest(left, right, k, k + 2)
            self.along.release()
            self.down.release()
        return header

    def _layered(self, layers: Layers) -> np.ndarray:
        """The same of this layer's panels.

        What columns in the same block need of a panel, for other layers, goes to their ranks before
        the rest of it; the layer's other columns are updated last.
        """
        header, count = np.zeros(HEADER), self.cols.count
        for k in layers.steps:
            if k >= count:
                break
            if self.cols.here == self.cols.owner(k):
                header = layers.summed(self._addend(k), k, header)
            coming, _ = self._panel(k, self._corner(k, header))
            layers.sent()
            near = range(k + 1, min((k // layers.count + 1) * layers.count, self.cols.count))
            if self.cols.here == self.cols.owner(k):
                i, j = self.rows.begins(k + 1), self.cols.begins(k)
                left, header = self.a[i:, j : j + self.cols.width(k)], self._header(self.column)
                self._transpose(left, self._transposed(k), k, near).wait()
                self._lend(layers, left, k, near, header)
            header, left = self._split(coming.wait(), k)
            count = layers.until(count, header)
            self._transpose(left, self._transposed(k), k, range(near.stop, self.cols.count)).wait()
            self._lend(layers, left, k, range(near.stop, min(k + layers.count, count)), header)
            self._update_rest(left, self._transposed(k), k, k + layers.count)
            self.along.release()
            self.down.release()
        layers.sent()
        return header

    def _lend(self, layers: Layers, left: Any, k: int, blocks: range, header: np.ndarray) -> None:
        """Update block columns by panel k, and give them to the layers that wait for them."""
        for later in range(blocks.start, layers.until(blocks.stop, header)):
            if self.cols.here == self.cols.owner(later):
                i, j, w = self.rows.begins(later), self.cols.begins(later), self.cols.width(later)
                right = self._transposed(k)[j - self.cols.begins(k + 1) :][:w]
                multiply(self.xp, left[i - self.rows.begins(k + 1) :], right.T, self.a[i:, j : j + w], -1, 1)
                layers.give(self._addend(later), later, header)

    def _addend(self, k: int) -> Any:
        """Of a layer to panel k."""
        j = self.cols.begins(k)
        return self.a[self.rows.begins(k) :, j : j + self.cols.width(k)]

    def _panel(self, k: int, coming: Pending | None) -> tuple[Pending, Pending | None]:
        """Solve for block column k, and start sending it along the grid rows: this rank's rows below block k, then the header.

        Gives this, and on ranks that have it what faces their columns, on its way, too. coming: the
        corner.
        """
        i, j, w, owner = self.rows.begins(k + 1), self.cols.begins(k), self.cols.width(k), self.cols.owner(k)
        size = (len(self.a) - i) * w
        panel = self.along.take(size + HEADER, coming is not None)
        if coming is None:
            return self.along.bcast(panel, {owner: (ALL,)}), None
        under, x, corner = self.a[i:, j : j + w], panel[:size].reshape(-1, w), coming.wait()
        self.xp.copy(panel[size:], corner[-HEADER:])
        if x.size:
            self._solve(corner[:-HEADER].reshape(w, w), under, x, bool(self._header(corner)[1]))
        coming = self.along.bcast(panel, {owner: (ALL,)})
        turned = self._transpose(x, self._transposed(k), k) if self.cols.comm is None else None
        self.xp.copy(under, x)
        return coming, turned

    def _solve(self, corner: Any, a: Any, x: Any, substitute: bool) -> None:
        """Write a L11^-H to x, corner being L11 to substitute by, or its inverse."""
        if substitute:
            self.xp.copy(x, a)
            kernels.trsm(self.xp, corner, x.T, True, conjugate=True)
            return
        inverse, half = self.xp.reinterpret(corner, True), len(corner) // 2
        for cols in (slice(half), slice(half, len(corner))):  # the inverse is a triangle: a quarter of it need not be multiplied
            multiply(self.xp, a[:, : cols.stop], inverse[cols, : cols.stop].T, x[:, cols], 1, 0)

    def _corner(self, k: int, before: Any = (0, 0)) -> Pending | None:
        """Factor diagonal block k, and send along the grid column the header and, where anything lies below, L11^-1 or L11.

        before: that of an earlier panel, which stands if it is not 0.
        """
        w, owner, more = self.cols.width(k), self.rows.owner(k), k + 1 < self.cols.count
        self.column = self.down.take((self.a.shape[1] - self.cols.begins(k + 1) + w) * w + HEADER, True)
        if self.cols.here != self.cols.owner(k):
            return None
        corner = self.column[-(w * w * more + HEADER) :]
        if self.rows.here == owner:
            i, j = self.rows.begins(k), self.cols.begins(k)
            block = self.a[i : i + w, j : j + w]
            info, number = kernels.potrf(self.xp, block)
            if more:
                inverse = corner[:-HEADER].reshape(w, w)
                self.xp.copy(inverse, block)
                if not info and not kernels.trtri(self.xp, inverse) <= MAX_CONDITION:
                    number = 1
                    self.xp.copy(inverse, block)
            header = before if before[0] else [k * self.cols.block + info if info else 0, number]
            self.xp.copy(corner[-HEADER:], self.xp.asarray(np.array(header, self.a.dtype)))
        return self.down.bcast(corner, {owner: (ALL,)})

    def _split(self, panel: Any, k: int) -> tuple[np.ndarray, Any]:
        return self._header(panel), panel[:-HEADER].reshape(-1, self.cols.width(k))

    def _header(self, message: Any) -> np.ndarray:
        return self.xp.host_or(message[-HEADER:], np.zeros(HEADER)).real.astype(float)

    def _transposed(self, k: int) -> Any:
        w = self.cols.width(k)
        return self.column[: (self.a.shape[1] - self.cols.begins(k + 1)) * w].reshape(-1, w)

    def _transpose(self, left: Any, right: Any, k: int, blocks: range | None = None) -> Pending:
        """The conjugated rows of panel k that face this rank's columns after block k, or some, from the ranks that have them."""
        i, j = self.rows.begins(k + 1), self.cols.begins(k + 1)
        parts: dict[int, list[slice]] = {}
        for block in self.cols.after(k):
            if blocks is not None and block not in blocks:
                continue
            at, size = self.cols.begins(block) - j, self.cols.width(block)
            some = parts.setdefault(self.rows.owner(block), [])
            start = some.pop().start if some and some[-1].stop == at else at  # what is in one piece need not be packed
            some.append(slice(start, at + size))
            if self.rows.here == self.rows.owner(block):
                first = self.rows.begins(block) - i
                self.xp.copy(right[at : at + size], left[first : first + size], True)
        return self.down.bcast(right, parts)

    def _next_corner(self, left: Any, right: Any, k: int) -> Pending | None:
        """Update diagonal block k + 1, factor it, and start sending it."""
        i, j, w = self.rows.begins(k + 1), self.cols.begins(k + 1), self.cols.width(k + 1)
        if self.cols.here == self.cols.owner(k + 1):
            top = self.rows.begins(k + 2) - i
            multiply(self.xp, left[:top], right[:w].T, self.a[i : i + top, j : j + w], -1, 1)
        return self._corner(k + 1)

    def _update_next(self, left: Any, right: Any, k: int) -> None:
        """Block column k + 1 below the diagonal."""
        i, j, w = self.rows.begins(k + 2), self.cols.begins(k + 1), self.cols.width(k + 1)
        if self.cols.here == self.cols.owner(k + 1):
            multiply(self.xp, left[i - self.rows.begins(k + 1) :], right[:w].T, self.a[i:, j : j + w], -1, 1)

    def _update_rest(self, left: Any, right: Any, k: int, first: int) -> None:
        """The block columns from number `first` on, as far as each row reaches."""
        i, j = self.rows.begins(first), self.cols.begins(first)
        left, right = left[i - self.rows.begins(k + 1) :], right[j - self.cols.begins(k + 1) :]
        below(self.xp, left, right, self.a[i:, j:], self.counts[i:] - j, -1, beta=1, leaf=self.rows.block)

    def _clear(self) -> None:
        """Write zeros above the diagonal; in the blocks on it they are already."""
        for k in self.rows.mine:
            i = self.rows.begins(k)
            self.xp.scale(self.a[i : i + self.rows.width(k), self.cols.begins(k + 1) :], 0)


def cholesky_words(n: int, grid: tuple[int, ...], block: int) -> float:
    """Words that a rank receives, in the mean, for a Cholesky factor on a pr x pc grid.

    Parameters
    ----------
    n : int
        Rows and columns.
    grid : tuple of int
        pr and pc, and c where there are c layers of pr x pc ranks.
    block : int
        Columns of a panel: of square blocks the rows, where there is one layer.

    Returns
    -------
    float
        Exact where blocks divide n.

    Raises
    ------
    ShapeError
        For a negative size, and a grid or a block of none.

    Notes
    -----
    With P = pr pc and K = n / block: ((pr + pc - 2) (n^2 - n block) / 2 + (pr - 1) block^2 (K - 1))
    / P + 2 K (1 - 1/P), of which the leading term is n^2 / 2 (1/pr + 1/pc - 2/P). Over c layers of
    pr x pc = P / c ranks n^2 / 2 P (pr + pc + c - 3): panels, and addends of the other layers.

    Examples
    --------
    >>> pdla.linalg.cholesky_words(1024, (2, 2), 64)
    261144.0
    """
    checks.formula(grid, (2, 3), block, n=n)
    pr, pc, *depth = grid
    layer, c, steps = pr * pc, prod(depth), n / block
    panels = (pr + pc - 2) * (n * n - n * block) / 2 + (pr - 1) * block**2 * (steps - 1) + HEADER * steps * (layer - 1)
    given = (min(k, c - 1) * ((n - k * block) * block + HEADER * pr) for k in range(ceil(steps)))
    addends = sum(given) + HEADER * layer * (c - 1) if c > 1 else 0
    return (panels + addends) / (layer * c)
