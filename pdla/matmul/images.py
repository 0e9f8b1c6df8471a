"""Images of vectors of 1 and -1, new ones for each call: X x, and with it |X| |x|, which bounds the rounding.

Each rank multiplies its own block, a few rows at a time, and receives a few vectors. Images of a
triangle read its own elements alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pdla.array import namespace
from pdla.comm.communicator import Communicator
from pdla.grid import ProcessGrid
from pdla.indices import IndexSet
from pdla.layout import Layout, axes_of
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import convert

VECTORS = 2
Pair = tuple[Any, Any]  # images of the x, one a column, and a column of sizes, or None in its place
Piece = tuple[Any, Any, Any]  # rows, columns and elements


class Part(NamedTuple):
    """A triangle and its diagonal: its "own" elements, their "real" parts, "one", "none", or the diagonal "alone"."""

    lower: bool
    diagonal: str = "own"

    @property
    def hermitian(self) -> bool:
        """Whether the diagonal is real."""
        return self.diagonal == "real"

    def read(self, x: np.ndarray, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """Return the elements x of these rows and columns, with 0 outside this part."""
        on_diagonal, inside = i == j, (i > j if self.lower else i < j)
        kept = inside & (self.diagonal != "alone") | on_diagonal & (self.diagonal not in ("one", "none"))
        return np.where(kept, np.where(on_diagonal, x.real, x) if self.hermitian else x, x.dtype.type(0))


@dataclass(frozen=True)
class Images:
    """The images of one call: `wide` is the dtype of sums, `seed` that of the vectors."""

    wide: np.dtype
    seed: int

    @staticmethod
    def of(comm: Communicator, wide: np.dtype) -> Images:
        """Make the images of a call: the seed is the same on every rank, and differs from the last call's."""
        comm.verified = getattr(comm, "verified", 0) + 1  # type: ignore[attr-defined]
        return Images(wide, comm.verified)  # type: ignore[attr-defined]

    @property
    def real(self) -> np.dtype:
        return find_real_dtype(self.wide)

    @property
    def eps(self) -> float:
        """The relative error of each term of a sum; of complex terms that of both parts."""
        return float(np.finfo(self.real).eps) * (2 if self.wide.kind == "c" else 1)

    def vectors(self, n: int) -> Pair:
        """Draw the vectors x of n elements, and |x|."""
        signs = np.random.default_rng([0x5EED, self.seed]).integers(0, 2, (n, VECTORS))
        return (2 * signs - 1).astype(self.wide), np.ones((n, 1), self.real)

    def multiply(self, X: DistMatrix, pair: Pair, part: Part | None = None) -> Pair:
        """Collective: multiply X, or a part of X, by x; every rank gets the whole image."""
        return to_every_rank(X, self.addends(X, pair, part))

    def multiply_reflected(self, X: DistMatrix, pair: Pair, hermitian: bool) -> Pair:
        """Collective: multiply X, of which the lower triangle is stored, by x. Each copy of X serves its own ranks."""
        totals = tuple(np.zeros((X.shape[0], cols), dtype) for cols, dtype in ((VECTORS, self.wide), (1, self.real)))
        views = (X, Part(True, "real" if hermitian else "own")), (X.H if hermitian else X.T, Part(False, "none"))
        for view, part in views if X.grid.active else ():
            for total, addends in zip(totals, self.addends(view, pair, part), strict=True):
                total[view.indices[0].indices()] += X.xp.host(addends)
        axes = (*axes_of(X.layout.rows), *axes_of(X.layout.cols), *X.layout.partial)
        return _sum_to_every_rank(X.grid, X.shape[0], axes, Layout(), (X.xp.asarray(totals[0]), X.xp.asarray(totals[1])))

    def addends(self, X: DistMatrix, pair: Pair, part: Part | None = None) -> Pair:
        """Compute this rank's addends of X x and |X| |x|, for its rows of X."""
        xp, (rows, cols) = X.xp, X.indices
        if xp.name == "meta" or not X.stored.size:
            cols = pair[0].shape[1]
            return xp.create((len(rows), cols), self.wide, _clear), xp.create((len(rows), 1), self.real, _clear)
        held = cols.indices()
        x = xp.reinterpret(xp.asarray(pair[0][held]), X.conjugated)
        ones: Any = None if pair[1] is None else xp.asarray(pair[1][held])
        image, size = multiply_pieces(xp, X.stored.shape[:1], self._pieces(X, part), x, ones)
        coords = X.grid.coords or {}
        first = all(coords[axis] == 0 for axis in X.layout.partial)  # one of several addends has the ones of the diagonal
        if part is not None and (part.diagonal == "real" or (part.diagonal == "one" and first)):
            i, j = rows.find_common(cols)
            d = xp.pick(X.stored, i, j).real.astype(self.real)[:, None] if part.diagonal == "real" else self.real.type(1)
            image[i] += d * x[j]
            size[i] += abs(d) * ones[j]
        return xp.reinterpret(image, X.conjugated), size

    def _pieces(self, X: DistMatrix, part: Part | None) -> Iterator[Piece]:
        """List the pieces of X's block that are in a part, strip by strip."""
        pieces = strips(X.xp, X.base, X.transposed, self.wide)
        if part is None:
            yield from pieces
            return
        counts = _count_before(X, part)
        for down, across, strip in pieces:
            width = strip.shape[1]
            for rows, cols, kept in _list_pieces(np.clip(counts[down] - across.start, 0, width), width, part.lower):
                piece = strip[rows, cols]
                piece = piece if kept is None else np.where(X.xp.asarray(kept), piece, piece.dtype.type(0))
                yield _shift_slice(rows, down.start), _shift_slice(cols, across.start), piece


def find_not_finite(x: Any, held: tuple[IndexSet, IndexSet], part: Part | None = None) -> tuple[Any, list[int]] | None:
    """Local: find an infinite or NaN element of a block x in this part: the element and its row and column, or None."""
    xp = namespace(x)
    if x.dtype.kind not in "fcV" or xp.is_finite(x):
        return None
    i, j = (indices.indices() for indices in held)
    for down, across, strip in strips(xp, x, False, x.dtype):
        on_host = xp.host(strip)
        wrong = ~np.isfinite(on_host if part is None else part.read(on_host, i[down, None], j[None, across]))
        if wrong.any():
            position = np.unravel_index(wrong.argmax(), wrong.shape)
            return on_host[position], [int(i[down][position[0]]), int(j[across][position[1]])]
    return None


def strips(xp: Any, base: Any, transposed: bool, wide: np.dtype) -> Iterator[Piece]:
    """Cut a block into strips of a few stored rows, in the dtype of sums. transposed: the block is that of base.T."""
    height = max(1, xp.AT_ONCE // 4 // max(1, base.shape[1]))
    whole = slice(0, base.shape[1])
    for top in range(0, base.shape[0], height):
        strip, rows = base[top : top + height].astype(wide, copy=False), slice(top, min(top + height, base.shape[0]))
        yield (whole, rows, strip.T) if transposed else (rows, whole, strip)


def multiply_pieces(xp: Any, shape: tuple[int, ...], pieces: Iterable[Piece], x: Any, ones: Any) -> Pair:
    """Multiply a matrix in pieces, or a stack of them, by x; `shape` is that of its rows.

    ones=None leaves the sizes out.
    """
    image = xp.create((*shape, x.shape[-1]), x.dtype, _clear)
    size = xp.create((*shape, 1), find_real_dtype(x.dtype), _clear)
    for down, across, block in pieces:
        image[down] += block @ x[across]
        if ones is not None and x.dtype.kind in "fc":
            size[down] += _bound_magnitudes(block) @ ones[across]
    return image, size


def _shift_slice(part: slice, by: int) -> slice:
    return slice(part.start + by, part.stop + by)


def _count_before(X: DistMatrix, part: Part) -> np.ndarray:
    """For each row, count this rank's columns before the triangle's end (lower) or start (upper)."""
    i, j = (held.indices() for held in X.indices)
    return np.searchsorted(j, i, "right" if part.lower == (part.diagonal == "own") else "left")


def _list_pieces(counts: np.ndarray, width: int, lower: bool) -> Iterator[tuple[slice, slice, np.ndarray | None]]:
    """Split a strip into the rectangles inside a triangle, and the one that it crosses with a mask of what it keeps.

    counts: for each row, the columns before the triangle's end (lower) or start; they ascend.
    """
    first, last = (int(first_row) for first_row in np.searchsorted(counts, (1, width)))
    yield (slice(last, len(counts)) if lower else slice(0, first)), slice(0, width), None
    crossed = slice(first, last)
    if ends := counts[crossed].tolist():
        lo, hi = ends[0], ends[-1]
        yield crossed, (slice(0, lo) if lower else slice(hi, width)), None
        before = np.arange(lo, hi) < counts[crossed, None]
        yield crossed, slice(lo, hi), before if lower else ~before


def find_real_dtype(dtype: np.dtype) -> np.dtype:
    """Find the dtype of its real parts."""
    return np.empty(0, dtype).real.dtype


def _clear(x: Any) -> None:
    x.fill(0)


def _bound_magnitudes(part: Any) -> Any:
    """Bound the absolute values from above: of complex elements by at most 1.42 times as much."""
    return np.abs(part) if part.dtype.kind != "c" else np.abs(part.real) + np.abs(part.imag)


def sum_over(pair: Pair, comm: Communicator) -> Pair:
    """Collective: sum both over the ranks."""
    return _split(_sum(_join(pair), comm))


def _sum(x: Any, comm: Communicator | None) -> Any:
    for half in comm.halves(x, x) if comm is not None and x.size else ():
        half.wait()
    return x


def _join(pair: Pair) -> Any:
    """Join both in one array, which travels in one message."""
    (x, size), xp = pair, namespace(pair[0])
    both = xp.empty((len(x), x.shape[1] + 1), x.dtype)
    xp.copy(both[:, :-1], x)
    both[:, -1:] = size
    return both


def _split(both: Any) -> Pair:
    return both[:, :-1], abs(both[:, -1:])


def scale(pair: Pair, factor: complex) -> Pair:
    """Compute the images by a multiple of the matrix."""
    return pair[0] * pair[0].dtype.type(factor), pair[1] * pair[1].dtype.type(abs(factor))


def add(pair: Pair, other: Pair) -> Pair:
    """Compute the images by the sum of two matrices."""
    return pair[0] + other[0], pair[1] + other[1]


def to_every_rank(X: DistMatrix, addends: Pair) -> Pair:
    """Collective: sum each rank's addends for its rows of X, and gather the whole on every rank."""
    return _sum_to_every_rank(X.grid, X.shape[0], (*axes_of(X.layout.cols), *X.layout.partial), Layout(X.layout.rows), addends)


def _sum_to_every_rank(grid: ProcessGrid, m: int, axes: tuple[str, ...], layout: Layout, addends: Pair) -> Pair:
    """Collective: sum the addends along these axes, and gather the sum, which has this layout, on every rank, idle ones too.

    A rank that has a copy keeps its own.
    """
    everyone = ProcessGrid.everyone(grid.comm)
    both = _sum(_join(addends), grid[axes] if axes else None)
    return _split(convert(DistMatrix(both, (m, both.shape[1]), grid, layout), Layout(), everyone).local)
