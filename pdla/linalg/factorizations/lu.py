"""LU with row pivoting, P A = L U, and systems that it solves.

Step k: the grid column that has block column k factors it, and sends it with its pivots along the
grid rows; rows right of it are exchanged along the grid columns; the grid row that has block k
solves for U's rows, and sends them along the grid columns; what lies below is updated, block column
k + 1 first, so that panel k + 1 is on its way while the others are updated. Rows of L are exchanged
at the end, each once.

In block columns over a row of ranks a panel lies on one rank, and its pivots are LAPACK's, on any
number of ranks. Where it is cut over several, they are those of a tournament.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from pdla.comm.agreement import agreed, collective_section
from pdla.comm.ledger import buffer
from pdla.comm.pending import Pending
from pdla.comm.slots import Slots
from pdla.comm.workspace import bounded, within
from pdla.errors import LinAlgError, ShapeError
from pdla.layout import Layout
from pdla.linalg import checks
from pdla.linalg.factorizations import kernels
from pdla.linalg.factorizations.block_cyclic import Dimension, counted, dimensions, on_all_ranks, working_copy
from pdla.linalg.factorizations.blocking import limited, to, where
from pdla.linalg.factorizations.layers import Layers
from pdla.linalg.factorizations.lu_layers import LayeredLU
from pdla.linalg.factorizations.right_side import RightSide
from pdla.linalg.factorizations.row_exchange import RowExchange, as_of_random, moves, order, pivots_of, possible
from pdla.linalg.factorizations.tournament import corner, rows_of_l
from pdla.linalg.factorizations.triangular import in_square_blocks, lying, regular, substituted
from pdla.linalg.products.symmetrize import reflect
from pdla.linalg.verify import Claim, alike, asked, checked, lost, wanted
from pdla.matmul.checks import communicator
from pdla.matmul.images import Images, Pair, Part
from pdla.matmul.schedules.streams import multiply
from pdla.matmul.verify import check_asked
from pdla.matrix.core import DistMatrix

ALL = slice(None)
OVERWRITTEN = ", or U overflows: without overwrite_a a smaller multiple of A is factored then"
SMALLER = 2.0**-32  # by how much A is scaled where U overflows: more than U's elements are larger than A's, but for contrived A
STRIPS = 8  # of right-hand sides, whose rows are exchanged one strip after another


def lu_factor(
    A: DistMatrix, *, overwrite_a: bool = False, check_finite: bool = True, memory_limit: int | None = None,
    verify: bool | str | None = None,
) -> tuple[DistMatrix, np.ndarray]:
    """Factor a matrix with row pivoting: P A = L U. Collective over A's grid, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        m x n, in any layout.
    overwrite_a : bool, optional
        Whether A may be written to, which spares a copy where it lies as it is worked on.
    check_finite : bool, optional
        Whether to look for NaN and infinity first.
    memory_limit : int, optional
        Bytes of workspace a rank, at most, the copy of A that is worked on included.
    verify : bool or "keep", optional
        Compare L (U x) with P A x, as `cholesky` does for its factor. An element of L that errs by
        d is missed with probability 1/4 at most, where d times the largest element of its row of U
        is more than twice what rounding may change in that row of P A. By default as PDLA_VERIFY
        says.

    Returns
    -------
    LU : DistMatrix
        L below the diagonal, whose ones are not stored, and U above it, in square blocks.
    pivots : array
        For i below min(m, n) the row pivots[i] with which row i was exchanged: NumPy's, on every
        rank.

    Raises
    ------
    LinAlgError
        For NaN and infinity.
    VerificationError
        For factors that `verify` found wrong, and could not compute again.
    ShapeError, PlanError, AgreementError
        For what is no matrix, or of a dtype that LAPACK has not, and for a memory_limit that cannot
        be kept, on every rank, as all of these.

    See Also
    --------
    lu_words : The words that a rank receives.

    Notes
    -----
    A is worked on in square blocks (`Cyclic` along one axis for rows, one for columns, or only one
    of these) where it lies so; else it is brought to the grid and blocks that `plan_lu` finds
    cheapest. A singular U is warned of, as by SciPy, and one that overflows.

    Where one rank has a panel, pivots are those of partial pivoting, LAPACK's; else of a
    tournament, and depend on the grid.

    L U differs from P A by n eps abs(L) abs(U) or less (Higham, Accuracy and Stability of Numerical
    Algorithms (2002), theorem 9.3).

    Right-looking with lookahead, as HPL (Petitet et al., netlib.org/benchmark/hpl); tournaments:
    Grigori, Demmel, Xiang, SIAM J. Matrix Anal. Appl. 32 (2011).

    It is 2.5-D where A lies in layers, `Layout(Cyclic("row", c * b), (Cyclic("col", c * b),
    Cyclic("depth", b)))`, as `cholesky` is: by tournaments, with pivot rows that are not exchanged
    but masked. Kwasniewski et al.: SC 2021.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,))
    ...     A = pdla.from_global(np.array([[1, 2], [4, 4]]), grid, pdla.Layout("row"))
    ...     LU, pivots = pdla.linalg.lu_factor(A)
    ...     return LU.gather(), pivots
    >>> pdla.run(2, program)[0]
    (array([[4.  , 4.  ],
           [0.25, 1.  ]]), array([1, 1]))
    """
    said = checks.words("lu_factor", A, over=overwrite_a, finite=check_finite, limit=memory_limit, verify=verify)
    with agreed(communicator((A,)), said):
        check_asked(verify)
        dtype = checks.to_factor("lu_factor", A, overwrite_a, check_finite, rectangular=True)
        overwrite_a = overwrite_a and verify != "keep"
        run = partial(factored, dtype=dtype, overwrite=overwrite_a)
        blocking = limited("lu", A, dtype, memory_limit, run, said=said)
    with to(blocking, memory_limit), asked(verify):
        X, pivots, fault = run(A)
    if fault:
        warnings.warn(f"lu_factor: {_told(fault)}", RuntimeWarning, stacklevel=2)
    return X, pivots


def lu_solve(
    lu_and_piv: tuple[DistMatrix, np.ndarray], B: Any, *, overwrite_b: bool = False, check_finite: bool = True,
    layout: Layout | None = None, verify: bool | str | None = None,
) -> Any:
    """Solve A X = B by A's LU factors. Collective over their grid, idle ranks included.

    Parameters
    ----------
    lu_and_piv : tuple of DistMatrix and array
        As `lu_factor` gives it.
    B : DistMatrix or array
        n x m, or a vector of n numbers; see `solve_triangular`.
    overwrite_b : bool, optional
        Whether a matrix B may be written to, which spares a copy where it lies as it is worked on.
    check_finite : bool, optional
        Whether to look for NaN and infinity first.
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
    LinAlgError
        Where U is singular; for NaN and infinity.
    VerificationError, ShapeError, LayoutError, GridError, AgreementError
        As by `solve_triangular`, on every rank, as all of these.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,))
    ...     A = pdla.from_global(np.array([[1, 2], [4, 4]]), grid, pdla.Layout("row"))
    ...     return pdla.linalg.lu_solve(pdla.linalg.lu_factor(A), np.array([5., 12]))
    >>> pdla.run(2, program)[0]
    array([1., 2.])
    """
    X, pivots = lu_and_piv if isinstance(lu_and_piv, (tuple, list)) and len(lu_and_piv) == 2 else (lu_and_piv, None)
    said = checks.words("lu_solve", X, pivots, B, over=overwrite_b, finite=check_finite, layout=layout, verify=verify)
    with agreed(communicator((X, B), "lu_and_piv"), said):
        check_asked(verify)
        checks.flags(overwrite_b=overwrite_b, check_finite=check_finite)
        checks.square("lu_solve", X)
        _pivots(X, pivots)
        side = RightSide.of("lu_solve", X, B, layout, overwrite_b and verify != "keep")
        if check_finite:
            checks.finite(X, side.B)
    regular(X)
    with asked(verify):
        return solved_by_lu(X, np.asarray(pivots), side)


def _pivots(X: DistMatrix, pivots: Any) -> None:
    n = X.shape[0]
    kept = isinstance(pivots, np.ndarray) and pivots.dtype.kind in "iu" and pivots.shape == (n,)
    if not kept or not (0 <= pivots.min(initial=0) <= pivots.max(initial=0) < max(1, n)):
        raise ShapeError(f"lu_solve: pivots={pivots!r}: {n} numbers of rows, as lu_factor gives them")


def _told(fault: int) -> str:
    i = abs(fault) - 1
    return f"element ({i}, {i}) of U is {'0' if fault > 0 else 'not finite'}"


def solved_by_lu(X: DistMatrix, pivots: np.ndarray, side: RightSide, alpha: float = 1) -> Any:
    """Collective: X of L U X = alpha P B, as its right-hand side wants it. U's diagonal has no zero."""
    rows = order(pivots, X.shape[0])

    def solve(side: RightSide) -> DistMatrix:
        with collective_section(X.grid.comm, "a solution by LU"), within(bounded()):
            T = in_square_blocks(X, side.dtype)
            Y = RightSide(_exchanged(T, rows, side), None, side.dtype, True)
            Y = RightSide(substituted(T, Y, True, True, alpha), None, side.dtype, True)
            Z = substituted(T, Y, False, False)
        return side.placed(Z)

    claim = side.claim((X, Part(True, "one")), (X, Part(False)), solve=solve, alpha=alpha, order=rows)
    return side.back(checked(X.grid.comm, side.dtype, lambda: solve(side), claim))


def _exchanged(X: DistMatrix, rows: np.ndarray, side: RightSide) -> DistMatrix:
    """Collective: B with its rows in this order, lying as X's factors take it.

    Some columns at a time: all rows may go, and what is on its way takes memory.
    """
    Y = side.working_copy(lying(X, side), X.grid)
    if X.grid.active:
        down, count = dimensions(X)[0], Y.stored.shape[1]
        exchange, width = RowExchange.to_order(down, np.arange(len(rows)), rows), max(down.block, -(-count // STRIPS))
        for first in range(0, count, width):
            exchange.run(Y.xp, Y.stored[:, first : first + width])
    return Y


def regular_factors(
    A: DistMatrix, dtype: np.dtype, overwrite: bool, part: Part | None
) -> tuple[DistMatrix, np.ndarray, float]:
    """Collective: L and U of a power of 2 times A in one matrix, the pivots, and this power: mostly 1.

    LinAlgError, on every rank, for a singular A. part: see factored
    """
    X, pivots, fault, power = scaled_factors(A, dtype, overwrite, part)
    if fault > 0:
        raise LinAlgError(f"the matrix is singular: {_told(fault)}")
    if fault:
        raise LinAlgError(f"{_told(fault)}: A has NaN or infinity{OVERWRITTEN if overwrite else ''}")
    return X, pivots, power


def scaled_factors(
    A: DistMatrix, dtype: np.dtype, overwrite: bool, part: Part | None = None
) -> tuple[DistMatrix, np.ndarray, int, float]:
    """Collective: `factored` of A, or of a power of 2 times A, and this power.

    It is 1 unless elements of U leave the range, of an A that is still there.
    """
    X, pivots, fault = factored(A, dtype, overwrite, part)
    if fault >= 0 or overwrite:
        return X, pivots, fault, 1
    del X  # lest A's copies be three
    return *factored(counted(A * SMALLER), dtype, True, part), SMALLER


def factored(
    A: DistMatrix, dtype: np.dtype, overwrite: bool, part: Part | None = None
) -> tuple[DistMatrix, np.ndarray, int]:
    """Collective: L and U in one matrix, the pivots, and the first fault of U's diagonal: see lapack.fault.

    part: the triangle of A that says what is in the other one; with a real diagonal A is Hermitian.
    None: all of A is read.
    """
    (m, n), k = A.shape, min(A.shape)

    def claim(images: Images) -> Claim:
        return Claim(
            n, 2 * (n + k), partial(image, images, A, part),
            lambda made: tuple(
                partial(images.whole, T, part=part)
                for T, part in ((made[0][:k, :], Part(False)), (made[0][:, :k], Part(True, "one")))
            ),
            matrices=lambda made: made[:1], order=lambda made: order(made[1], m), lost=lost("A", overwrite),
            control=lambda made: (made[1].tolist(), made[2]),
        )

    return checked(A.grid.comm, dtype, lambda: factors(A, dtype, overwrite, part), claim)


def image(images: Images, A: DistMatrix, part: Part | None, x: Pair) -> Pair:
    """Collective: A x, of an A of which this part is read, and the rest reflected; None: all of A is read."""
    if part is None:
        return images.whole(A, x)
    view = A if part.lower else A.H if part.hermitian else A.T
    return images.reflected(view, x, part.hermitian)


def factors(A: DistMatrix, dtype: np.dtype, overwrite: bool, part: Part | None = None) -> tuple[DistMatrix, np.ndarray, int]:
    """Collective: the same, not checked."""
    # Elements of U that leave the range are a fault, which the header tells.
    silent = np.errstate(over="ignore", invalid="ignore")
    with collective_section(A.grid.comm, "an LU factorization"), within(bounded()), silent:
        X = working_copy(A, *where("lu", A, A.shape[1], dtype), dtype, overwrite)
        if part is not None:
            reflect(X, part.lower, part.hermitian)
        layers = Layers.of(X, *dimensions(X))
        steps = LU(X) if layers is None else LayeredLU(X, layers)
        numbers = on_all_ranks(X.grid, steps.run() if X.grid.active else np.zeros(1 + min(A.shape)))
    return X, numbers[1:].astype(np.int64), int(numbers[0])


class LU:
    """One rank's work: L and U in place of its blocks of A."""

    def __init__(self, X: DistMatrix) -> None:
        self.xp, self.a = X.xp, X.stored
        self.rows, self.cols = dimensions(X)
        self.order, self.numbers = min(X.shape), X.indices[0].indices()
        block = self.cols.block
        self.count = -(-self.order // block)
        self.along = Slots(self.cols.comm, self.xp, (len(self.a) + 1) * block + 1, self.a.dtype)  # panels, of the grid row

    def run(self) -> np.ndarray:
        """The first fault (see lapack.fault), and the pivots."""
        with self.along:
            return self._steps()

    def _steps(self) -> np.ndarray:
        numbers, moved = np.zeros(1 + self.order), []
        coming = self._panel(0) if self.count else None
        for k in range(self.count):
            header, panel = self._split(coming.wait(), k)  # type: ignore[union-attr]
            header = self._agreed(header, k)
            i, w = k * self.cols.block, self._width(k)
            numbers[0], numbers[1 + i : 1 + i + w] = numbers[0] or header[0], header[1:]
            moved.append(self._moves(header, k))
            exchange, after = RowExchange(self.rows, *moved[k]), self._after(self.cols, k)
            ahead = after + self.cols.width(k + 1) if self.cols.here == self.cols.owner(k + 1) and k + 1 < self.count else after
            exchange.run(self.xp, self.a[:, after:ahead])
            self._update(panel, k, slice(after, ahead))
            coming = self._panel(k + 1) if k + 1 < self.count else None
            exchange.run(self.xp, self.a[:, ahead:])
            self._update(panel, k, slice(ahead, None))
            self.along.release()
        self._exchange_left(moved)
        return numbers

    def _exchange_left(self, moved: list[tuple[np.ndarray, np.ndarray]]) -> None:
        """Move the rows of L's block columns, each once for all exchanges of the panels after it."""
        rows = np.arange(self.rows.n)
        was = rows.copy()  # of block column k: which row, as panel k left them, becomes row i
        for k in reversed(range(self.count)):
            if self.cols.here == self.cols.owner(k):
                i, j, w = (k + 1) * self.cols.block, self.cols.begins(k), self._width(k)
                RowExchange.to_order(self.rows, rows[i:], was[i:]).run(self.xp, self.a[:, j : j + w])
            step = rows.copy()
            step[moved[k][0]] = moved[k][1]
            was = step[was]

    def _width(self, k: int) -> int:
        """The columns of panel k: of a matrix with fewer rows than columns the last may be narrower than its block."""
        return min(self.cols.block, self.order - k * self.cols.block)

    def _after(self, dimension: Dimension, k: int) -> int:
        """Where this rank's rows, or columns, after panel k begin."""
        return dimension.begins(k) + (self._width(k) if dimension.here == dimension.owner(k) else 0)

    def _panel(self, k: int) -> Pending:
        """Factor block column k, and start sending it along the grid rows: this rank's rows by columns, then the header."""
        i, j, w, owner = self.rows.begins(k), self.cols.begins(k), self._width(k), self.cols.owner(k)
        panel = self.along.take((len(self.a) - i) * w + 1 + w, self.cols.here == owner)
        if self.cols.here != owner:
            return self.along.bcast(panel, {owner: (ALL,)})
        block = panel[: -1 - w].reshape(w, len(self.a) - i).T
        factor = self._alone if self.rows.comm is None else self._together
        self.xp.copy(panel[-1 - w :], factor(block, self.a[:, j : j + w], k))
        coming = self.along.bcast(panel, {owner: (ALL,)})
        self.xp.copy(self.a[i:, j : j + w], block)
        return coming

    def _alone(self, block: Any, x: Any, k: int) -> Any:
        """Factor block column k, x, which this rank has whole, in `block`. Gives the header."""
        i = k * self.cols.block
        self.xp.copy(block, x[i:])
        pivots, fault = kernels.getrf(self.xp, block, x[i:])
        return self._header(i + pivots, fault, i)

    def _together(self, block: Any, x: Any, k: int) -> Any:
        """Collective along the grid column: the same of a block column that is cut, by a tournament."""
        w, i, first = x.shape[1], self.rows.begins(k), k * self.cols.block
        heights = np.bincount(self.rows.owners(np.arange(first, self.rows.n)), minlength=self.rows.parts).tolist()
        won, factors = corner(self.xp, self.rows, self.rows.owner(k), x[i:], self.numbers[i:], heights)
        told = self._agreed(self._host(won, lambda: self._drawn(k)), k)
        pivots = pivots_of(told[1:], first)
        RowExchange(self.rows, *moves(pivots, first)).run(self.xp, x)
        after = self._after(self.rows, k) - i
        self.xp.copy(block[after:], x[i + after :])
        if after:
            self.xp.copy(block[:w], factors)
        rows_of_l(self.xp, factors, block[after:])
        return self._header(pivots, told[0], first)

    def _agreed(self, header: np.ndarray, k: int) -> np.ndarray:
        """Collective along the grid column: the header, which its ranks act on together, of numbers that can be."""
        if not wanted():
            return header.astype(np.int64)
        header = alike(self.rows.comm, header, self.rows.owner(k))
        first, n = k * self.cols.block, self.rows.n
        return np.array([*possible(header[:1], -self.order, self.order + 1), *possible(header[1:], first, n)], np.int64)

    def _header(self, pivots: np.ndarray, fault: int, first: int) -> Any:
        return self.xp.asarray(np.array([fault + np.sign(fault) * first, *pivots], self.a.dtype))

    def _host(self, header: Any, unknown: Callable[[], np.ndarray]) -> np.ndarray:
        """The header; of arrays without data what else tells rows."""
        told = self.xp.host_or(header, None)
        return np.array([0.0, *unknown()]) if told is None else told.real.astype(float)

    def _drawn(self, k: int) -> np.ndarray:
        """Pivot rows of panel k as of random elements."""
        left = np.arange(k * self.cols.block, self.rows.n)
        sign = -1 if self.rows.here == self.rows.owner(k) else 1
        return as_of_random(left, self.rows.owners(left), self._width(k), self.rows.here, sign)

    def _split(self, panel: Any, k: int) -> tuple[np.ndarray, Any]:
        """The header, and the panel."""
        w, first = self._width(k), k * self.cols.block
        header = self._host(panel[-1 - w :], lambda: pivots_of(self._drawn(k), first))
        return header, panel[: -1 - w].reshape(w, len(self.a) - self.rows.begins(k)).T

    def _moves(self, header: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        return moves(header[1:].astype(np.int64), k * self.cols.block)

    def _update(self, panel: Any, k: int, cols: slice) -> None:
        """Solve for U's part of some columns after the panel, and update what lies below it."""
        x, w, i = self.a[:, cols], panel.shape[1], self.rows.begins(k)
        if not x.shape[1]:
            return
        if self.rows.here == self.rows.owner(k):
            top = x[i : i + w]
            kernels.trsm(self.xp, panel[:w], top, True, True)
        else:
            top = buffer(self.xp, (w, x.shape[1]), x.dtype)
        if k * self.cols.block + w < self.rows.n:
            top = self.rows.bcast(top, self.rows.owner(k)).wait()
        after = self._after(self.rows, k)
        multiply(self.xp, panel[after - i :], top, x[after:], -1, 1)


def lu_words(m: int, n: int, grid: tuple[int, ...], block: int) -> float:
    """Words that a rank receives, in the mean, for LU of an m x n matrix on a pr x pc grid.

    Parameters
    ----------
    m, n : int
        Rows and columns.
    grid : tuple of int
        pr and pc, and c where there are c layers of pr x pc ranks.
    block : int
        Columns of a panel: of square blocks the rows, where there is one layer.

    Returns
    -------
    float
        Exact for pr = 1, where blocks divide m and n; else which rows are exchanged depends on
        A: as many as of random matrices.

    Raises
    ------
    ShapeError
        For a negative size, and a grid or a block of none.

    Notes
    -----
    Of an n x n matrix about n^2 / 2 (1/pr + 1/pc - 2/P) for panels of L and rows of U, and
    3/2 n^2 / P (1 - 1/pr) for exchanges of rows, P = pr pc. Over c layers of pr x pc = P / c ranks
    about n^2 / 2 P (pr + pc - 2 + 2 (c - 1) + (c - 1) / c + 1 - 1/pr): panels and rows of U, other
    layers' addends to both, rows of U for other layers, and rows of L that are brought to their
    places.

    Examples
    --------
    >>> pdla.linalg.lu_words(1024, 1024, (1, 4), 64)
    418572.0
    """
    checks.formula(grid, (2, 3), block, m=m, n=n)
    pr, pc, *depth = grid
    c = prod(depth)
    i = np.arange(0, min(m, n), block)
    w, blocks = np.minimum(block, min(m, n) - i), -(-(m - i) // (block * c))
    met = (np.minimum(pr, blocks) - 1) * w * (1 + w) + (pr - 1) * (1 + w + w * w)  # by the rows of a tournament, and its result
    right, others = n - i - w, 1 - -(-blocks // pr) / blocks  # the share of the rows left that are not on the rank of the pivots
    met = met if pr > 1 else 0 * met
    if c > 1:
        panels = (pc - 1) * ((m - i) * w + pr * (1 + w + w * w)) + (pr - 1) * w * right
        addends = np.minimum(np.arange(len(i)), c - 1) * (m - i) * w + (c - 1) * w * right
        told, dealt = pr * pc * (c - 1) * (1 + w), w * right * (c - 1) / c
        return float((panels + met + addends + told + dealt + w * (m - i) * others).sum() / (pr * pc * c))
    panels = (pc - 1) * ((m - i) * w + pr * (1 + w)) + (pr - 1) * w * np.where(m > i + w, right, 0)
    left, last = m - i - w, -(-(m - i - w) // block)
    moved = (min(m, n) - i - w) * (2 - (min(m, n) - i - w) / np.maximum(left, 1))  # rows of L, at the end
    exchanged = 2 * (n - i) * w * others + w * moved * (1 - -(-last // pr) / np.maximum(last, 1))
    return float((panels + met + exchanged).sum() / (pr * pc))
