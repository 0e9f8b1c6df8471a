"""Triangular systems T X = B, T in square blocks over a grid, in place in B.

Many columns: T's panels travel along the grid rows, the next one while this one is used, and the
solved blocks of X along the grid columns (right-looking). Few columns: T stays, addends of B's
blocks are summed along the grid rows instead. A transpose is a view, whose grid rows are T's grid
columns.
"""

from __future__ import annotations

from collections import deque
from math import prod
from typing import Any

import numpy as np

from pdla.comm.agreement import agreed, collective_section
from pdla.comm.pending import Pending, done
from pdla.comm.slots import Slots
from pdla.comm.workspace import bounded, within
from pdla.cuts import Block
from pdla.errors import LinAlgError, ShapeError
from pdla.layout import Layout, axes_of, effective
from pdla.linalg import checks
from pdla.linalg.factorizations import kernels
from pdla.linalg.factorizations.block_cyclic import diagonal, dimensions, square_blocks, working_copy
from pdla.linalg.factorizations.blocking import where
from pdla.linalg.factorizations.price import FEW
from pdla.linalg.factorizations.right_side import RightSide
from pdla.linalg.products.rank_k import below
from pdla.linalg.verify import alike, asked, checked
from pdla.matmul.checks import communicator, one_of, scalars
from pdla.matmul.images import Part
from pdla.matmul.schedules.streams import multiply
from pdla.matmul.verify import check_asked
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import summed

ALL = slice(None)


def solve_triangular(
    A: DistMatrix, B: Any, *, lower: bool, unit_diagonal: bool = False, overwrite_b: bool = False, check_finite: bool = True,
    layout: Layout | None = None, verify: bool | str | None = None,
) -> Any:
    """Solve A X = B, A triangular. Collective over A's grid, idle ranks included.

    A is never written to.

    Parameters
    ----------
    A : DistMatrix
        n x n, in any layout; only one triangle is read, the other may hold anything, NaN too. For
        A^T or A^H give A.T or A.H, views, whose other triangle it is.
    B : DistMatrix or array
        n x m on A's communicator, in any layout; or a NumPy vector of n numbers, equal on all
        ranks.
    lower : bool
        Whether it is the lower triangle; else the upper one.
    unit_diagonal : bool, optional
        Whether to take the diagonal to be ones; it is not read then.
    overwrite_b : bool, optional
        Whether a matrix B may be written to, which spares a copy where it lies as it is worked on:
        its rows cut as A's are.
    check_finite : bool, optional
        Whether to look for NaN and infinity first, in B and in what is read of A.
    layout : Layout, optional
        Of X; by default B's.
    verify : bool or "keep", optional
        Whether to check X, as by `solve`.

    Returns
    -------
    DistMatrix or array
        X, n x m, as B is; a vector on every rank.

    Raises
    ------
    LinAlgError
        For a zero on the diagonal; for NaN and infinity.
    VerificationError
        For an X that `verify` found wrong, and could not compute again.
    ShapeError, LayoutError, GridError, AgreementError
        For arguments that do not go together, on every rank, as all of these.

    Notes
    -----
    In square blocks (`Cyclic` along one axis for rows, one for columns, or only one of these) A is
    worked on where it lies, else it is brought to such a layout. On a pr x pc grid a rank receives
    about n^2 / 2 pr (1 - 1/pc) + n m / pc (1 - 1/pr) words for many columns, n m (1 + 1/pc) for up
    to 32.

    Right-looking substitution: Golub and Van Loan, Matrix Computations, 3.1.3. X is the solution of
    a system whose A differs by n eps abs(A) or less, element by element (Higham, Accuracy and
    Stability of Numerical Algorithms (2002), theorem 8.5).

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,))
    ...     A = pdla.from_global(np.array([[2., 0], [1, 3]]), grid, pdla.Layout("row"))
    ...     return pdla.linalg.solve_triangular(A, np.array([2., 7]), lower=True)
    >>> pdla.run(2, program)[0]
    array([1., 2.])
    """
    named = {"lower": lower, "unit": unit_diagonal, "over": overwrite_b, "finite": check_finite, "layout": layout}
    with agreed(communicator((A, B)), checks.words("solve_triangular", A, B, verify=verify, **named)):
        check_asked(verify)
        checks.flags(lower=lower, unit_diagonal=unit_diagonal, overwrite_b=overwrite_b, check_finite=check_finite)
        checks.square("solve_triangular", A)
        side = RightSide.of("solve_triangular", A, B, layout, overwrite_b and verify != "keep")
        if check_finite:
            checks.finite(A, side.B, part=Part(lower, "one" if unit_diagonal else "own"))
    if not unit_diagonal:
        regular(A)
    with asked(verify):
        return solved(A, side, lower, unit_diagonal)


def trsm(
    A: DistMatrix, B: DistMatrix, *, lower: bool, side: str = "left", unit_diagonal: bool = False, alpha: complex = 1,
    overwrite_b: bool = False, layout: Layout | None = None, verify: bool | str | None = None,
) -> DistMatrix:
    """Solve A X = alpha B or X A = alpha B, A triangular. Collective, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        n x n; see `solve_triangular`. NaN is not looked for.
    B : DistMatrix
        n x m (left) or m x n (right).
    lower : bool
        Whether A's lower triangle is read; else the upper one.
    side : "left" or "right", optional
        "left": A X = alpha B; "right": X A = alpha B.
    unit_diagonal : bool, optional
        Whether to take the diagonal to be ones.
    alpha : number, optional
        Factor of B.
    overwrite_b : bool, optional
        Whether B may be written to; see `solve_triangular`.
    layout : Layout, optional
        Of X; by default B's.
    verify : bool or "keep", optional
        Whether to check X, as by `solve`.

    Returns
    -------
    DistMatrix
        X.

    Raises
    ------
    LinAlgError, VerificationError, ShapeError, LayoutError, GridError, AgreementError
        As by `solve_triangular`, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     grid, layout = pdla.ProcessGrid((2,)), pdla.Layout("row")
    ...     A = pdla.from_global(np.array([[2., 0], [1, 4]]), grid, layout)
    ...     return pdla.linalg.trsm(A, pdla.eye(2, grid, layout), lower=True, side="right").gather()
    >>> pdla.run(2, program)[0]
    array([[ 0.5  ,  0.   ],
           [-0.125,  0.25 ]])
    """
    named = {"lower": lower, "side": side, "unit": unit_diagonal, "over": overwrite_b, "layout": layout, "verify": verify}
    with agreed(communicator((A, B)), checks.words("trsm", A, B, alpha, **named)):
        check_asked(verify)
        checks.flags(lower=lower, unit_diagonal=unit_diagonal, overwrite_b=overwrite_b)
        checks.square("trsm", A)
        if not one_of(side, ("left", "right")):
            raise ShapeError(f"trsm: side={side!r}: 'left' for A X = alpha B, 'right' for X A = alpha B")
        right = side == "right"
        if not isinstance(B, DistMatrix):
            raise ShapeError(f"trsm: B={B!r}: a DistMatrix; solve_triangular takes vectors, too")
        turned = layout.T if right and isinstance(layout, Layout) else layout
        over = RightSide.of("trsm", A.T if right else A, B.T if right else B, turned, overwrite_b and verify != "keep")
        scalars(over.dtype, alpha, 0, B)
    if not unit_diagonal:
        regular(A)
    with asked(verify):
        X = solved(A.T if right else A, over, lower != right, unit_diagonal, alpha)
    return X.T if right else X


def solved(A: DistMatrix, side: RightSide, lower: bool, unit: bool, alpha: complex = 1) -> Any:
    """Collective: X of A X = alpha B, as its right-hand side wants it. A's diagonal has no zero, or is not read."""

    def solve(side: RightSide, alpha: complex = 1) -> DistMatrix:
        with collective_section(A.grid.comm, "a triangular system"), within(bounded()):
            X = substituted(in_square_blocks(A, side.dtype, side.shape[1]), side, lower, unit, alpha)
        return side.placed(X)

    claim = side.claim((A, Part(lower, "one" if unit else "own")), solve=solve, alpha=alpha)
    return side.back(checked(A.grid.comm, side.dtype, lambda: solve(side, alpha), claim))


def in_square_blocks(A: DistMatrix, dtype: np.dtype, cols: int | None = None) -> DistMatrix:
    """Collective: A itself, if it lies in square blocks and is of this dtype, or a copy.

    cols: of the right-hand sides, by default as many as A's
    """
    if square_blocks(A) and A.dtype == dtype:
        return A
    return working_copy(A, *where("triangular", A, A.shape[0] if cols is None else cols, dtype), dtype)


def substituted(T: DistMatrix, side: RightSide, lower: bool, unit: bool, alpha: complex = 1) -> DistMatrix:
    """Collective: X of T X = alpha B, T in square blocks, with no zero on its diagonal."""
    X = side.working_copy(lying(T, side), T.grid)
    X.xp.scale(X.stored, alpha)
    steps = Substitution(T, X, lower, unit)
    if not _few(side):
        steps.many()
        return X
    steps.few()
    columns = axes_of(effective(T.layout.cols, T.grid.sizes))
    return X._like(X.base, layout=Layout.trusted(X.layout.rows, (), columns)) if columns else X


def lying(T: DistMatrix, side: RightSide) -> Layout:
    """How B lies as it is worked on: few columns on all ranks of a grid row, which add up what they have of X."""
    return Layout.trusted(T.layout.rows, () if _few(side) else tuple(map(Block, axes_of(effective(T.layout.cols, T.grid.sizes)))))


def _few(side: RightSide) -> bool:
    return side.shape[1] <= FEW


def regular(T: DistMatrix) -> float:
    """Collective: the least over the largest absolute value of T's diagonal, 1 without data, NaN if that is infinite.

    LinAlgError, on every rank, where it has a zero.
    """
    comm, n = T.grid.comm, T.shape[0]
    with collective_section(comm, "a diagonal"):
        T = summed(T, T.layout.summed) if T.layout.partial else T
        numbers, elements = diagonal(T)
        with np.errstate(over="ignore"):
            sizes = np.abs(elements.astype(complex))
        mine = np.array([-numbers[sizes == 0].min(initial=n), -sizes.min(initial=np.inf), sizes.max(initial=0)], float)
        told = comm.xp.asarray(mine)
        for half in comm.halves(told.copy(), told, "maximum"):
            half.wait()
    first, least, largest = np.abs(alike(comm, comm.xp.host_or(told, np.array([n, 1, 1])))).tolist()
    if first < n:
        raise LinAlgError(f"the triangular matrix is singular: element ({int(first)}, {int(first)}) of its diagonal is 0")
    return (least / largest if 0 < largest < np.inf else np.nan) if n else 1.0  # 0 of a message that erred


class Substitution:
    """One rank's work: T X = B, in place in X's block, which begins as B."""

    def __init__(self, T: DistMatrix, X: DistMatrix, lower: bool, unit: bool) -> None:
        self.xp, self.t, self.x = T.xp, T.stored, X.stored
        self.conjugated, self.lower, self.unit = T.conjugated, lower, unit
        self.counts: np.ndarray | None = None  # of how many columns each row is worked out: see many
        self.rows, self.cols = dimensions(T)
        steps = range(self.rows.count if T.grid.active else 0)
        self.steps = steps if lower else steps[::-1]
        block = self.cols.block
        self.along = Slots(self.cols.comm, self.xp, len(self.t) * block, self.t.dtype)  # panels of T, of the grid row
        self.down = Slots(self.rows.comm, self.xp, self.x.shape[1] * block, self.x.dtype)  # blocks of X, of the grid column

    def _span(self, k: int) -> slice:
        """Where this rank has the rows of block k."""
        return slice(self.rows.begins(k), self.rows.begins(k + 1))

    def _rest(self, k: int) -> slice:
        """Its rows that block k is still to be taken from."""
        return slice(self.rows.begins(k + 1), None) if self.lower else slice(0, self.rows.begins(k))

    def _reach(self, k: int) -> slice:
        """Both: the rows of panel k."""
        return slice(self.rows.begins(k), None) if self.lower else slice(0, self.rows.begins(k + 1))

    def _within(self, rows: slice, k: int) -> slice:
        """Rows as positions in panel k."""
        start = self._reach(k).start
        return slice(rows.start - start, None if rows.stop is None else rows.stop - start)

    def many(self, filled: list[int] | None = None) -> None:
        """filled: at each block, of how many of this rank's first columns X is worked out; None: of all.

        It ascends, so that of an upper triangle the rows before a block are worked out in fewer columns.
        """
        if not self.steps:
            return
        reach = [slice(None if filled is None else filled[k]) for k in range(len(self.steps))]
        if filled is not None and not self.lower:
            widths = [self.rows.width(k) for k in self.rows.mine]
            self.counts = np.repeat(filled[self.rows.here :: self.rows.parts], widths)
        with self.along, self.down:
            panels = deque(self._panel(k) for k in self.steps[:2])
            panel = panels.popleft().wait()
            coming = self._solved(panel, self.steps[0], reach[self.steps[0]])
            for k, following in zip(self.steps, [*self.steps[1:], None], strict=True):
                block, here, cols = coming.wait(), panel, reach[k]
                if following is not None:
                    self._take(here, k, self._span(following), block, cols)
                    panel = panels.popleft().wait()
                    coming = self._solved(panel, following, reach[following])
                    panels += [self._panel(later) for later in self.steps[self.steps.index(following) + 1 :][:1]]
                    self._take(here, k, self._rest(following), block, cols)
                self.along.release()
                self.down.release()

    def _take(self, panel: Any, k: int, rows: slice, block: Any, cols: slice) -> None:
        """Subtract panel k's part of these rows times block k of X."""
        part = panel[self._within(rows, k)]
        if self.counts is None:
            multiply(self.xp, part, block, self.x[rows, cols], -1, 1)
        else:
            below(self.xp, part, block.T, self.x[rows], self.counts[rows], -1, beta=1, leaf=self.rows.block)

    def _panel(self, k: int) -> Pending:
        """Block column k of T, this rank's rows of the triangle, on its way."""
        reach, at = self._reach(k), self.cols.begins(k)
        width, owner = self.cols.width(k), self.cols.owner(k)
        if self.cols.comm is None:
            return done(self.xp.reinterpret(self.t[reach, at : at + width], self.conjugated))
        height = len(range(*reach.indices(len(self.t))))
        panel = self.along.take(height * width, self.cols.here == owner).reshape(height, width)
        if self.cols.here == owner:
            self.xp.copy(panel, self.t[reach, at : at + width], self.conjugated)
        return self.along.bcast(panel, {owner: (ALL,)})

    def _solved(self, panel: Any, k: int, cols: slice = ALL) -> Pending:
        """Block k of X, of these columns, by panel k, on its way to all ranks of the grid column."""
        owner, x = self.rows.owner(k), self.x[self._span(k), cols]
        if self.rows.here == owner:
            kernels.trsm(self.xp, panel[self._within(self._span(k), k)], x, self.lower, self.unit)
        if self.rows.comm is None:
            return done(x)
        shape = self.rows.width(k), x.shape[1]
        block = self.down.take(prod(shape), self.rows.here == owner).reshape(*shape)
        if self.rows.here == owner:
            self.xp.copy(block, x)
        return self.down.bcast(block, {owner: (ALL,)})

    def few(self) -> None:
        """Of each block k the addends are summed on the rank that solves it, and X is left on these ranks.

        The first rank of a grid row begins with B, the others with 0.
        """
        if self.cols.here:
            self.xp.scale(self.x, 0)
        with self.down:
            for k in self.steps:
                self._sum(k)
                if self.cols.here == self.cols.owner(k):
                    at = self.cols.begins(k)
                    panel = self.xp.reinterpret(self.t[self._reach(k), at : at + self.cols.width(k)], self.conjugated)
                    self._take(panel, k, self._rest(k), self._solved(panel, k).wait(), ALL)
                    self.down.release()

    def _sum(self, k: int) -> None:
        """Sum the addends of block k on the rank that has its diagonal; the others then have 0 there."""
        owner, x = self.cols.owner(k), self.x[self._span(k)]
        if self.cols.comm is None or self.rows.here != self.rows.owner(k) or not x.size:
            return
        self.cols.comm.reduce(x, owner).wait()
        if self.cols.here != owner:
            self.xp.scale(x, 0)
