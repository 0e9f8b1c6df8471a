"""DistMatrix: a matrix cut over a process grid."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from numbers import Number
from typing import Any, ClassVar

import numpy as np

from pdla.array import namespace
from pdla.array.dtypes import (
    check_numbers,
    has,
    has_fractions,
    is_number,
    largest,
    numeric,
    promoted,
    sum_alike,
)
from pdla.comm.agreement import agreed
from pdla.errors import LayoutError, ShapeError, kind_of
from pdla.grid import ProcessGrid, one_communicator
from pdla.indices import IndexSet
from pdla.layout import Layout, Shape


class DistMatrix:
    """A matrix of `shape` cut over `grid` as `layout` says; this rank holds the block `local`.

    Make one with pdla.from_global, from_local, from_function, zeros, ones, eye, random or load. `A.T`, `A.H` and `A.conj()`
    move and copy nothing. Operators give new matrices; in-place ones, as `A *= 2`, write to A's memory. Elementwise operators are
    local, and both matrices must have the same grid and layout; dtypes promote as NumPy's do, and as those of A @ B. A number too
    large for the dtype is an OverflowError, for floats, too; infinity and NaN are taken.
    `A @ B`, redistribute, gather, norm, trace, sum and check_copies are collective over the grid's communicator, idle ranks
    included.
    """

    __array_ufunc__ = None  # NumPy's arrays leave the operators to us
    multiply: ClassVar[Callable[..., DistMatrix]]  # A @ B: set by pdla.matmul, a room above this one

    base: Any  # as stored: the transpose of the local block where `transposed`
    common: Any  # the whole matrix, stored as `base` is, in memory that all ranks see; None: there is no such memory
    # The worst on any rank, so that plans on all ranks foretell what is packed: `base` has 0: no gaps; 1: gaps between its rows;
    # 2: gaps within rows, too.
    gaps: int
    shape: Shape
    grid: ProcessGrid
    layout: Layout
    transposed: bool
    conjugated: bool
    xp: Any

    def __init__(
        self,
        base: Any,
        shape: Shape,
        grid: ProcessGrid,
        layout: Layout,
        transposed: bool = False,
        conjugated: bool = False,
        gaps: int = 0,
        common: Any = None,
    ) -> None:
        vars(self).update(
            base=base, common=common, gaps=gaps, shape=shape, grid=grid, layout=layout, transposed=transposed,
            conjugated=conjugated and base.dtype.kind == "c", xp=namespace(base),
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "local" and value is self.local:
            return  # A.local += 1 has written to the block, and gives it back
        raise AttributeError(
            f"A.{name} = ...: a matrix stays what it is; A.local[...] = x and A[:, :] = B write to its memory, "
            "A.redistribute(layout) and A.astype(dtype) make another"
        )

    # ------------------------------------------------------------------ what it is

    @property
    def dtype(self) -> np.dtype:
        """The same on every rank."""
        return self.base.dtype

    @cached_property
    def stored(self) -> Any:
        """The local block as it is in memory: that of a conjugate view is not conjugated yet."""
        return self.base.T if self.transposed else self.base

    @property
    def local(self) -> Any:
        """This rank's block; writing to it writes to the matrix, except where the matrix is a conjugate view."""
        return self.xp.reinterpret(self.stored, self.conjugated)

    @property
    def indices(self) -> tuple[IndexSet, IndexSet]:
        """The global rows and columns of the local block; empty on an idle rank."""
        return self.layout.indices(self.shape, self.grid.sizes, self.grid.coords)

    @property
    def first(self) -> bool:
        """Whether this rank is the first of those that hold copies of its block, or addends of it; False on an idle rank."""
        coords = self.grid.coords
        return coords is not None and not any(at for axis, at in coords.items() if axis not in self.layout.axes)

    def __repr__(self) -> str:
        return f"DistMatrix({self.described}, local {' x '.join(map(str, self.stored.shape))})"

    @cached_property
    def described(self) -> str:
        """A description of the matrix that is the same on every rank."""
        shared = ", shared" * (self.common is not None)
        gaps = ("", ", with gaps", ", with gaps in rows")[self.gaps]
        lying = ", by columns" * self.transposed + ", conjugated" * self.conjugated + gaps + shared
        return f"{self.shape[0]} x {self.shape[1]}, {self.dtype}, {self.layout!r} on {self.grid!r}{lying}"

    def __reduce__(self):
        raise TypeError("a DistMatrix cannot be pickled: it is cut over many ranks; send A.gather() or A.local")

    def __copy__(self) -> DistMatrix:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> DistMatrix:
        return self.copy()

    def __array__(self, *args: Any, **named: Any) -> Any:
        raise TypeError("a DistMatrix is cut over many ranks: A.gather() is the whole as an array, A.local this rank's block")

    def __array_function__(self, function: Any, *args: Any) -> Any:
        self.__array__()  # some of NumPy's functions take that error for an answer: array_equal(A, A) would be False

    def __bool__(self) -> bool:
        raise TypeError("a DistMatrix is neither true nor false: ask for A is not None, or A.norm() > 0")

    def __eq__(self, other: object) -> Any:
        raise TypeError("matrices are compared by what they hold: A.gather() == B.gather(), or (A - B).norm() == 0")

    __hash__ = object.__hash__

    def _like(self, base: Any, **changes: Any) -> DistMatrix:
        kept = {"shape": self.shape, "grid": self.grid, "layout": self.layout, "transposed": self.transposed}
        same = {"gaps": self.gaps, "common": self.common} if base is self.base else {}
        return DistMatrix(base, **{**kept, "conjugated": self.conjugated, **same, **changes})

    # ------------------------------------------------------------------ views

    @property
    def T(self) -> DistMatrix:
        """The transpose, a view."""
        return self._like(self.base, shape=self.shape[::-1], layout=self.layout.T, transposed=not self.transposed)

    @property
    def H(self) -> DistMatrix:
        """The conjugate transpose, a view."""
        return self.T.conj()

    def conj(self) -> DistMatrix:
        """The complex conjugate, a view; a real matrix is its own."""
        return self._like(self.base, conjugated=not self.conjugated)

    def __getitem__(self, key: Any) -> DistMatrix:
        """A[i:j, k:l]: those rows and columns, a view: what is written to it is written to A. Local; nothing moves.

        Slices are NumPy's, without a step. Raises ShapeError for any other index, LayoutError for a part of a dimension that is
        cut along several axes.
        """
        rows, cols = (_ends(self, name, part) for name, part in zip(("rows", "columns"), _two(self, key), strict=True))
        layout = self.layout.part(self.shape, self.grid.sizes, rows, cols)
        mine = (held.overlay(IndexSet.interval(*ends))[0] for held, ends in zip(self.indices, (rows, cols), strict=True))
        stored = self.xp.take(self.stored, *mine)
        shape = (rows[1] - rows[0], cols[1] - cols[0])
        along = int(not self.transposed)  # elements are adjacent in memory along this dimension: all of it has no new gaps
        gaps = self.gaps if shape[along] == self.shape[along] else max(self.gaps, 1)
        part = [slice(*ends) for ends in ((cols, rows) if self.transposed else (rows, cols))]
        common = None if self.common is None else self.common[part[0], part[1]]
        return self._like(stored.T if self.transposed else stored, shape=shape, layout=layout, gaps=gaps, common=common)

    def __setitem__(self, key: Any, value: Any) -> None:
        """A[i:j, k:l] = a number, or a matrix of that part's shape, grid and layout. Local."""
        part = self[key]
        if isinstance(value, DistMatrix):
            part._match(value, "assignment")
            value._keep_addends(self.dtype)
            part._write(value.local)
            return
        if not is_number(value):
            raise ShapeError(f"A[i:j, k:l] = {kind_of(value)}: give a number or a DistMatrix, or write to its .local")
        if self.layout.partial:
            raise LayoutError(f"A[i:j, k:l] = {value} in {self.described}: redistribute A to a layout without partial sums first")
        if not has(self.dtype, value):
            raise LayoutError(f"A[i:j, k:l] = {value} in {self.described}: {self.dtype} cannot represent it; cast A first")
        part._write(self.xp.filled(part.stored.shape, self.dtype, lambda x: x.fill(value)))

    def _write(self, block: Any) -> None:
        """Write a block of the shape of `local` to this matrix's memory. TypeError where NumPy would not cast it in place."""
        if not np.can_cast(block.dtype, self.dtype, "same_kind"):
            raise TypeError(
                f"{block.dtype} into {self.described}: {self.dtype} cannot take it by NumPy's rule same_kind; make a new matrix, "
                "as A = A * x does, or cast one by astype"
            )
        self.xp.copy(self.stored, block, self.conjugated)

    # ------------------------------------------------------------------ elementwise, local

    def copy(self) -> DistMatrix:
        """A new matrix with the same elements and layout."""
        return self.astype(self.dtype)

    def astype(self, dtype: Any) -> DistMatrix:
        """A new matrix of another dtype. Raises ShapeError for a dtype that is not one of numbers, or of which CuPy has no arrays;
        LayoutError for partial sums whose addends may add up to something else in it (floats cut off to integers, integers of
        another width)."""
        dtype = np.dtype(dtype)
        check_numbers("astype", dtype, self.xp)
        self._keep_addends(dtype)
        made = self.xp.empty(self.stored.shape, dtype)
        self.xp.copy(made, self.local.astype(dtype, copy=False))
        return self._new(made)

    def _keep_addends(self, dtype: np.dtype) -> None:
        if self.layout.partial and not sum_alike(self.dtype, dtype):
            raise LayoutError(f"{self.dtype} to {dtype} of partial sums {self.layout!r}: redistribute to sum them first")

    def _elementwise(
        self, other: Any, operation: Callable[..., Any], adds: bool = False, in_place: bool = False
    ) -> DistMatrix:
        """adds: whether it is a sum or a difference. Of partial sums these are made with a matrix, addend by addend; products and
        quotients with a number. in_place: written to this matrix's memory, where its views and the caller of from_local see it."""
        operands = [self]
        if isinstance(other, DistMatrix):
            self._match(other, operation.__name__)
            promoted(self.dtype, other.dtype)  # ml_dtypes' operators take pairs that have no common dtype, and give a wider one
            operands, other, by_addend = [self, other], other.local, adds
        elif isinstance(other, (Number, np.generic)):
            if not isinstance(other, (int, float, complex)) and not numeric(np.asarray(other).dtype):
                raise ShapeError(f"{operation.__name__} of {self.dtype} and {other!r}, {kind_of(other)}: give a float")
            self._takes(other, operation)
            by_addend = not adds
        else:
            return _foreign(other)
        if self.layout.partial and not by_addend:
            raise LayoutError(f"{operation.__name__} on partial sums {self.layout!r}: redistribute to sum them first")
        mine = self.local
        kind = operation(mine[:0], other[:0] if len(operands) > 1 else other).dtype
        for X in operands:
            X._keep_addends(kind)
        if not in_place:
            return self._new(operation(mine, other))
        if kind != self.dtype or self.conjugated or self.xp.name == "meta":
            self._write(operation(mine, other))
        else:
            operation(mine, other, out=mine)  # there may be no room for another block
        return self

    def _takes(self, number: Any, operation: Callable[..., Any]) -> None:
        """OverflowError, as NumPy's for integers, where a float is too large: NumPy would make infinity of it, and NaN of zeros."""
        if type(number) in (int, float) and abs(number) <= largest(self.dtype):
            return
        with np.errstate(all="ignore"):
            kind = operation(np.empty(0, self.dtype), number).dtype
        if has_fractions(kind) and not has(kind, number):
            raise OverflowError(f"{operation.__name__} of {self.dtype} and {number}: more than {kind} has; cast the matrix first")

    def _new(self, block: Any) -> DistMatrix:
        """A matrix like this one, of a new block, which is made C-contiguous: NumPy's results from a transpose are stored by
        columns, and would be packed for every message."""
        base = block
        if not self.xp.contiguous(block):
            base = self.xp.empty(block.shape, block.dtype)
            self.xp.copy(base, block)
        return self._like(base, transposed=False, conjugated=False)

    def _match(self, other: DistMatrix, operation: str) -> None:
        if self.shape != other.shape:
            raise ShapeError(f"{operation} of shapes {self.shape} and {other.shape}")
        if self.grid != other.grid or not self.lies_as(other.layout):
            one_communicator(self.grid, other.grid, "B", f"{operation} of A and B: A")
            raise LayoutError(
                f"{operation} of {self.layout!r} on {self.grid!r} and {other.layout!r} on {other.grid!r}: "
                "redistribute one to the other's layout first"
            )

    def lies_as(self, layout: Layout) -> bool:
        """Whether every rank would hold the same rows and columns, or addends of them, in `layout`, however that is written."""
        mine = self.layout
        return mine == layout or (set(mine.partial) == set(layout.partial) and mine.same_cuts(layout, self.shape, self.grid.sizes))

    def __add__(self, other: Any) -> DistMatrix:
        return self._elementwise(other, np.add, adds=True)

    def __sub__(self, other: Any) -> DistMatrix:
        return self._elementwise(other, np.subtract, adds=True)

    def __mul__(self, other: Any) -> DistMatrix:
        return self._elementwise(other, np.multiply)

    def __truediv__(self, other: Any) -> DistMatrix:
        return self._elementwise(other, np.true_divide)

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: Any) -> DistMatrix:
        return self._elementwise(other, subtracted, adds=True)

    def __neg__(self) -> DistMatrix:
        made = np.negative(self.local)
        self._keep_addends(made.dtype)
        return self._new(made)

    def __matmul__(self, other: Any) -> DistMatrix:
        return self.multiply(other) if isinstance(other, DistMatrix) else self._refused(other)

    def __rmatmul__(self, other: Any) -> DistMatrix:
        return self._refused(other)

    def _refused(self, other: Any) -> Any:
        """Collective, as a product is: on other ranks the factor may be a matrix. What `_foreign` gives, or raises."""
        with agreed(self.grid.comm, f"a DistMatrix @ {kind_of(other)}, or the other way round"):
            refused = _foreign(other)
        return refused

    def __iadd__(self, other: Any) -> DistMatrix:
        return self._elementwise(other, np.add, adds=True, in_place=True)

    def __isub__(self, other: Any) -> DistMatrix:
        return self._elementwise(other, np.subtract, adds=True, in_place=True)

    def __imul__(self, other: Any) -> DistMatrix:
        return self._elementwise(other, np.multiply, in_place=True)

    def __itruediv__(self, other: Any) -> DistMatrix:
        return self._elementwise(other, np.true_divide, in_place=True)

    # ------------------------------------------------------------------ collective

    def redistribute(self, layout: Layout, grid: ProcessGrid | None = None) -> DistMatrix:
        """Collective: the same matrix in another layout, on this grid or another one over the same communicator."""
        from pdla.matrix.redistribute import redistribute

        return redistribute(self, layout, grid)

    def shared(self) -> DistMatrix:
        """Collective: a copy in memory that the ranks of a node share, where each of them sees the whole matrix (docs/shared.md).

        Products on that node read it where it lies, and copy nothing. So change it only while no other rank is in a product with
        it: such a product begins when all ranks have called it, and ends when all have read.
        Raises LayoutError, on every rank, unless each element lies on one rank and each block is one part of the matrix: no
        copies, no partial sums, nothing cyclic; PdlaError where there is not enough memory. Where the ranks run on several
        nodes or on GPUs, or with PDLA_SHARED=0, it is an ordinary copy.
        """
        from pdla.matrix.sharing import shared

        return shared(self)

    def gather(self, root: int | None = None) -> Any:
        """Collective: the whole matrix as an array, on every rank of the communicator or on `root` (None elsewhere)."""
        from pdla.matrix.redistribute import gather

        return gather(self, root)

    def norm(self) -> float:
        """Collective: the Frobenius norm, the same on every rank; copies count once.

        Elements whose squares would overflow or underflow are scaled first.
        """
        from pdla.matrix.reductions import norm

        return norm(self)

    def trace(self) -> Any:
        """Collective: the sum of the diagonal, in the dtype of np.trace, the same on every rank; copies count once; 16-bit floats
        are rounded once, at the end.

        Raises ShapeError where the matrix is not square.
        """
        from pdla.matrix.reductions import trace

        return trace(self)

    def sum(self) -> Any:
        """Collective: the sum of all elements, in the dtype of np.sum, the same on every rank; copies count once; 16-bit floats are
        rounded once, at the end.

        (A * B).sum() is the trace of A^T B, without the product; (A.conj() * B).sum() that of A^H B.
        """
        from pdla.matrix.reductions import total

        return total(self)

    def check_copies(self) -> bool:
        """Collective: whether all ranks that should hold the same block do, bit for bit (NaNs, too). True in a dry run."""
        from pdla.matrix.reductions import check_copies

        return check_copies(self)


def subtracted(x: Any, y: Any) -> Any:
    """y - x, in the dtype of both: -x alone would wrap around where x is unsigned."""
    return np.subtract(y, x)


def _foreign(other: Any) -> Any:
    """NotImplemented, for an operand that is neither a matrix nor a number; for an array, a TypeError that says what would work."""
    if getattr(other, "shape", None) == ():
        raise TypeError(f"a DistMatrix and {kind_of(other)} of no dimensions: A * x.item() multiplies by the number in it")
    if hasattr(other, "__array__") or isinstance(other, (list, tuple)):
        raise TypeError(
            f"a DistMatrix and {kind_of(other)}: pdla.matvec(A, x) multiplies by a vector; of a whole matrix make a "
            "DistMatrix with pdla.from_global(X, A.grid, layout)"
        )
    return NotImplemented


def _two(X: DistMatrix, key: Any) -> tuple[Any, Any]:
    if isinstance(key, tuple) and len(key) == 2:
        return key
    raise ShapeError(f"A[{key!r}] of a matrix of shape {X.shape}: give rows and columns, as A[i:j, k:l]")


def _ends(X: DistMatrix, name: str, part: Any) -> tuple[int, int]:
    """[start, stop) of a slice of the rows or the columns."""
    if not isinstance(part, slice) or part.step not in (None, 1):
        raise ShapeError(f"{name} {part!r} of a matrix of shape {X.shape}: give a slice without a step, as A[i:j, k:l]")
    start, stop, _ = part.indices(X.shape[name == "columns"])
    return start, max(start, stop)
