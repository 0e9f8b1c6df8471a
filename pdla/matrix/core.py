"""DistMatrix: a matrix cut over a process grid."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from numbers import Number
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar, overload

import numpy as np

from pdla import signposts
from pdla.array import namespace
from pdla.array.dtypes import (
    can_cast_addends,
    check_numbers,
    find_largest,
    has,
    has_fractions,
    is_number,
    is_numeric,
    promote,
)
from pdla.comm.agreement import agree, agreed
from pdla.errors import LayoutError, ShapeError, kind_of
from pdla.grid import ProcessGrid, check_same_communicator
from pdla.indices import IndexSet
from pdla.layout import Layout, Shape, draw_html
from pdla.matrix.keys import Origin, in_words, parse_key


class DistMatrix:
    """A matrix cut over a grid as a layout says; this rank holds the block `local`.

    Make one with `from_global`, `from_local`, `from_function`, `zeros`, `ones`, `eye`, `random` or
    `load`. Operators give new matrices; in-place ones, as ``A *= 2``, write to A's memory. Dtypes
    promote as NumPy's do. ``A @ B`` is `matmul`, and collective.

    Elementwise operators are local for a number, and for two matrices of the same grid and layout.
    Otherwise they are collective, and redistribute the right matrix to the left one's layout. A
    rank receives at most as many elements as its block of the left one has, and addends of partial
    sums besides.

    Parameters
    ----------
    base : array
        The local block as stored: its transpose where `transposed`.
    shape : tuple of int
        Rows and columns of the whole matrix.
    grid : ProcessGrid
        The grid of its ranks.
    layout : Layout
        How it is cut.
    transposed : bool, optional
        Whether blocks are stored by columns.
    conjugated : bool, optional
        Whether it is a conjugate view.
    gaps : int, optional
        The worst gaps of `base` on any rank: 0: none; 1: between its rows; 2: within rows, too.
    common : array, optional
        The whole matrix, stored as `base` is, in memory that all ranks see.
    origin : Origin, optional
        The matrix of which it is a part, for error texts.

    Raises
    ------
    OverflowError
        By an operator, for a number too large for the dtype; infinity and NaN are taken.
    ShapeError, GridError, LayoutError
        By an operator, on this rank, for matrices of different shapes, over different
        communicators, or of partial sums in different layouts.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.ones((4, 6), pdla.ProcessGrid((2, 2)), pdla.Layout("row", "col"))
    ...     return A.local.shape, (A @ A.T).shape, ((A + 2 * A) / 3).norm()
    >>> pdla.run(4, program)[0]
    ((2, 3), (4, 4), 4.898979485566356)
    """

    __array_ufunc__ = None  # NumPy's arrays leave the operators to us
    multiply: ClassVar[Callable[..., DistMatrix]]  # A @ B: set by pdla.matmul, a package above this one

    base: Any  # as stored: the transpose of the local block where `transposed`
    common: Any  # the whole matrix, stored as `base` is, in memory that all ranks see; None: there is no such memory
    # The worst gaps of any rank's `base`: 0: none; 1: between rows; 2: within rows, too. All ranks have
    # the same value, so that their plans predict the same packing.
    gaps: int
    shape: Shape
    grid: ProcessGrid
    layout: Layout
    transposed: bool
    conjugated: bool
    origin: Origin | None  # of a part A[i:j, k:l]: errors name A and these indices, not the part's cuts
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
        origin: Origin | None = None,
    ) -> None:
        vars(self).update(
            base=base, common=common, gaps=gaps, shape=shape, grid=grid, layout=layout, transposed=transposed,
            conjugated=conjugated and base.dtype.kind == "c", origin=origin, xp=namespace(base),
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "local" and value is self.local:
            return  # A.local += 1 has written to the block, and assigns it again
        raise AttributeError(
            f"A.{name} = ...: a matrix has no attributes to set; A.local[...] = x and A[:, :] = B write to its memory, "
            "A.redistribute(layout) and A.astype(dtype) make another"
        )

    # ------------------------------------------------------------------ what it is

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the elements, the same on every rank."""
        return self.base.dtype

    @property
    def ndim(self) -> int:
        """2: a matrix has rows and columns."""
        return 2

    @property
    def size(self) -> int:
        """How many elements the whole matrix has."""
        return self.shape[0] * self.shape[1]

    @cached_property
    def stored(self) -> Any:
        """The local block as stored in memory: not conjugated, even for a conjugate view."""
        return self.base.T if self.transposed else self.base

    @property
    def local(self) -> np.ndarray:
        """The block of this rank, 2-D. Writing to it writes to the matrix, but for a conjugate view."""
        return self.xp.reinterpret(self.stored, self.conjugated)

    @property
    def indices(self) -> tuple[IndexSet, IndexSet]:
        """The global rows and columns of the local block, index sets; empty on an idle rank."""
        return self.layout.indices(self.shape, self.grid.sizes, self.grid.coords)

    @property
    def first(self) -> bool:
        """Whether this rank is the first that holds a copy, or an addend, of its block.

        False on an idle rank.
        """
        coords = self.grid.coords
        return coords is not None and not any(at for axis, at in coords.items() if axis not in self.layout.axes)

    def __repr__(self) -> str:
        return f"DistMatrix({self.description}, local {' x '.join(map(str, self.stored.shape))})"

    def _repr_html_(self) -> str:
        """The description, and a drawing of the layout. Local, and without a look at elements."""
        from pdla import show

        return show.heading(repr(self)) + draw_html(self.layout, self.shape, self.grid)

    @cached_property
    def description(self) -> str:
        """A description of the matrix that is the same on every rank."""
        shared = ", shared" * (self.common is not None)
        gaps = ("", ", with gaps", ", with gaps in rows")[self.gaps]
        storage = ", by columns" * self.transposed + ", conjugated" * self.conjugated + gaps + shared
        part, layout = ("", self.layout) if self.origin is None else (f", {self.origin}", self.origin.layout)
        return f"{self.shape[0]} x {self.shape[1]}, {self.dtype}{part}, {layout!r} on {self.grid!r}{storage}"

    if not TYPE_CHECKING:  # type checkers would let any name pass

        def __getattr__(self, name: str) -> Any:
            if hasattr(DistMatrix, name):
                return object.__getattribute__(self, name)  # raises the AttributeError of a property
            public = [known for known in (*vars(DistMatrix), *DistMatrix.__annotations__) if not known.startswith("_")]
            raise signposts.make_error("a DistMatrix", name, public, called=True)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a DistMatrix cannot be pickled: it is cut over many ranks; send A.gather() or A.local")

    def __copy__(self) -> DistMatrix:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> DistMatrix:
        return self.copy()

    def __array__(self, *args: Any, **named: Any) -> Any:
        raise TypeError("a DistMatrix is cut over many ranks: A.gather() is the whole as an array, A.local this rank's block")

    __dlpack__: Callable[..., Any] = __array__
    __dlpack_device__: Callable[..., Any] = __array__

    def __array_function__(self, function: Any, *args: Any) -> Any:
        self.__array__()  # some of NumPy's functions take that error for an answer: array_equal(A, A) would be False

    def __bool__(self) -> bool:
        raise TypeError("a DistMatrix is neither true nor false: ask for A is not None, or A.norm() > 0")

    def __eq__(self, other: object) -> Any:
        raise TypeError("matrices are compared by what they hold: A.gather() == B.gather(), or (A - B).norm() == 0")

    if not TYPE_CHECKING:  # which refuse these themselves

        def __lt__(self, other: object) -> Any:
            raise TypeError("a DistMatrix is not compared: A.local > x compares this rank's block, A.gather() > x the whole")

        __le__ = __gt__ = __ge__ = __lt__

        def __len__(self) -> int:
            raise TypeError("a DistMatrix has no len(): A.shape[0] is the number of its rows, A.size that of its elements")

        def __float__(self) -> float:
            raise TypeError("a DistMatrix is no number: A[0, 0] is its first element; A.sum(), A.norm() and A.trace() are numbers")

        __int__ = __complex__ = __float__

    __hash__: Callable[[Any], int] = object.__hash__  # type: ignore[assignment]

    def _like(self, base: Any, **changes: Any) -> DistMatrix:
        fields = {"shape": self.shape, "grid": self.grid, "layout": self.layout, "transposed": self.transposed}
        of_base = {"gaps": self.gaps, "common": self.common} if base is self.base else {}
        return DistMatrix(base, **{**fields, "conjugated": self.conjugated, **of_base, **changes})

    # ------------------------------------------------------------------ views

    @property
    def T(self) -> DistMatrix:
        """The transpose, a view."""
        origin = None if self.origin is None else self.origin.T
        fields = {"shape": self.shape[::-1], "layout": self.layout.T, "transposed": not self.transposed}
        return self._like(self.base, origin=origin, **fields)

    @property
    def H(self) -> DistMatrix:
        """The conjugate transpose, a view."""
        return self.T.conj()

    def conj(self) -> DistMatrix:
        """Conjugate the matrix, as a view. Local.

        Returns
        -------
        DistMatrix
            The complex conjugate; of a real matrix itself.
        """
        return self._like(self.base, conjugated=not self.conjugated, origin=self.origin)

    @property
    def real(self) -> DistMatrix:
        """The real parts, a view; of a real matrix itself."""
        return self._like(self.base.real, conjugated=False, gaps=2, origin=self.origin) if self.dtype.kind == "c" else self

    @property
    def imag(self) -> DistMatrix:
        """The imaginary parts, a view; of a conjugate view, and of a real matrix, a new matrix."""
        if self.dtype.kind != "c":
            return self._new(self.xp.create(self.stored.shape, self.dtype, lambda x: x.fill(0)))
        return -self.conj().imag if self.conjugated else self._like(self.base.imag, gaps=2, origin=self.origin)

    def __getitem__(self, key: Any) -> Any:
        """Take a part: by slices a view, a matrix; by numbers an element, a row or a column.

        Slices are local: nothing moves, and writing to ``A[i:j, k:l]`` writes to A. Numbers are
        collective over the grid's communicator: every rank gets the number ``A[i, j]``, or the
        vector ``A[i]`` or ``A[:, j]``. Negative numbers and ends of slices count from the end.

        Parameters
        ----------
        key : int, slice, or tuple of two of them
            Rows and columns; all columns, where only rows are given. Steps are 1 or more.

        Returns
        -------
        DistMatrix, number or numpy.ndarray
            For slices the part, whose elements are on the same ranks. For numbers a number of A's
            dtype, or a vector in memory of its own.

        Raises
        ------
        IndexError
            For a number outside the matrix, on every rank.
        ShapeError
            For any other index, on this rank.
        LayoutError
            For a number, if A has partial sums, on every rank. On this rank for a slice of a
            dimension that is cut along several axes; slices [:j] of cyclic cuts are allowed. On
            this rank for steps that do not divide the length of cyclic blocks.

        Examples
        --------
        >>> def program(comm):
        ...     A = pdla.eye(4)
        ...     A[1:3, 1:3] = 5
        ...     return A[:3, :2].gather(), A[::2, :].gather(), A[2], A[-1, -1]
        >>> for part in pdla.run(4, program)[0]:
        ...     print(part)
        [[1. 0.]
         [0. 5.]
         [0. 5.]]
        [[1. 0. 0. 0.]
         [0. 5. 5. 0.]]
        [0. 5. 5. 0.]
        1.0
        """
        try:
            rows, cols = parse_key(key, self.shape)
        except IndexError as error:  # a number is collective, so the other ranks come to this agreement
            agree(self.grid.comm, f"A[{in_words(key)}] of A={self.description}", error)
            raise
        if isinstance(rows, int) or isinstance(cols, int):
            from pdla.matrix.elements import gather_elements

            return gather_elements(self, (rows, cols))
        return self._part(rows, cols)

    def _part(self, rows: range, cols: range) -> DistMatrix:
        layout = self.layout.part(self.shape, self.grid.sizes, rows, cols)
        stored = self.xp.take(self.stored, *(held.positions(part) for held, part in zip(self.indices, (rows, cols), strict=True)))
        outer, inner = (cols, rows) if self.transposed else (rows, cols)  # elements along `inner` are adjacent in memory
        gaps, common = self.gaps, None
        if outer.step > 1 or len(inner) < self.shape[not self.transposed]:
            gaps = max(gaps, 1 if inner.step == 1 else 2)
        if self.common is not None and outer.step == inner.step == 1:
            common = self.common[outer.start : outer.stop, inner.start : inner.stop]
        base = stored.T if self.transposed else stored
        shape, origin = (len(rows), len(cols)), self.origin
        if shape != self.shape:
            origin = (origin or Origin(self.shape, self.layout, *map(range, self.shape))).part(rows, cols)
        return self._like(base, shape=shape, layout=layout, gaps=gaps, common=common, origin=origin)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write to a part, as ``A[i:j, k:l] = B`` or ``A[i, j] = 5``.

        Local for a number, and for a matrix in the part's layout. Collective for a matrix in
        another layout, which is redistributed, as by an operator.

        Parameters
        ----------
        key : int, slice, or tuple of two of them
            Rows and columns, as of `__getitem__`. All ranks give the same.
        value : number or DistMatrix
            A matrix has that part's shape; one row, or one column, where the key has a number.

        Raises
        ------
        IndexError
            For a number outside the matrix. All errors here are raised on this rank.
        ShapeError
            For another index or value.
        LayoutError
            For a part that `__getitem__` refuses, a number that A's dtype does not have, and
            partial sums.
        GridError
            For a matrix over another communicator.
        TypeError
            For a dtype that NumPy would not cast to A's in place.
        """
        part = self._part(*(range(i, i + 1) if isinstance(i, int) else i for i in parse_key(key, self.shape)))
        if isinstance(value, DistMatrix):
            value = part._match_layout(value, "assignment")
            value._check_addends(self.dtype)
            part._write(value.local)
            return
        if not is_number(value):
            raise ShapeError(f"A[i:j, k:l] = {kind_of(value)}: give a number or a DistMatrix, or write to its .local")
        if self.layout.partial:
            raise LayoutError(f"A[i:j, k:l] = {value} in {self.description}: redistribute A to a layout without partial sums first")
        if not has(self.dtype, value):
            raise LayoutError(f"A[i:j, k:l] = {value} in {self.description}: {self.dtype} cannot represent it; cast A first")
        part._write(self.xp.create(part.stored.shape, self.dtype, lambda x: x.fill(value)))

    def _write(self, block: Any) -> None:
        """Write a block of the shape of `local` to this matrix's memory. TypeError where NumPy would not cast it in place."""
        if not np.can_cast(block.dtype, self.dtype, "same_kind"):
            raise TypeError(
                f"{block.dtype} into {self.description}: {self.dtype} cannot take it by NumPy's rule same_kind; make a new matrix, "
                "as A = A * x does, or cast one by astype"
            )
        self.xp.copy(self.stored, block, self.conjugated)

    # ------------------------------------------------------------------ elementwise

    def copy(self) -> DistMatrix:
        """Copy the matrix. Local.

        Returns
        -------
        DistMatrix
            With the same elements and layout, in memory of its own.
        """
        return self.astype(self.dtype)

    def astype(self, dtype: Any) -> DistMatrix:
        """Copy the matrix to another dtype. Local.

        Parameters
        ----------
        dtype : dtype
            Of the copy.

        Returns
        -------
        DistMatrix
            In the same layout.

        Raises
        ------
        ShapeError
            For a dtype that is not one of numbers, or of which CuPy has no arrays.
        LayoutError
            For partial sums whose sum the cast could change: floats cut off to integers, integers
            of another width.
        """
        dtype = np.dtype(dtype)
        check_numbers("astype", dtype, self.xp)
        self._check_addends(dtype)
        copy = self.xp.empty(self.stored.shape, dtype)
        direct = np.can_cast(self.dtype, dtype, "same_kind")  # else copies refuse it
        self.xp.copy(copy, self.local if direct else self.local.astype(dtype))
        return self._new(copy)

    def _check_addends(self, dtype: np.dtype) -> None:
        if self.layout.partial and not can_cast_addends(self.dtype, dtype):
            raise LayoutError(f"{self.dtype} to {dtype} of partial sums {self.layout!r}: redistribute to sum them first")

    def _elementwise(self, other: Any, operation: Callable[..., Any], in_place: bool = False) -> DistMatrix:
        """Apply an operation with a number or a matrix, element by element. Collective where `_match_layout` is.

        Partial sums of two matrices are added or subtracted addend by addend. Partial sums are
        multiplied or divided by a number. in_place: write to this matrix's memory, which its views
        and the caller of from_local see.
        """
        operands = [self]
        if isinstance(other, DistMatrix):
            promote(self.dtype, other.dtype)  # ml_dtypes' operators also take pairs of no common dtype, and return a wider one
            other = self._match_layout(other, operation.__name__)
            operands, other, by_addend = [self, other], other.local, operation in ADDING
        elif isinstance(other, (Number, np.generic)):
            if not isinstance(other, (int, float, complex)) and not is_numeric(np.asarray(other).dtype):
                raise ShapeError(f"{operation.__name__} of {self.dtype} and {other!r}, {kind_of(other)}: give a float")
            self._check_range(other, operation)
            by_addend = operation in SCALING
        else:
            return _refuse_foreign(other)
        if self.layout.partial and not by_addend:
            raise LayoutError(f"{operation.__name__} on partial sums {self.layout!r}: redistribute to sum them first")
        block = self.local
        dtype = operation(block[:0], other[:0] if len(operands) > 1 else other).dtype
        for X in operands:
            X._check_addends(dtype)
        if not in_place:
            return self._new(operation(block, other))
        if dtype != self.dtype or self.conjugated or self.xp.name == "meta":
            self._write(operation(block, other))
        else:
            operation(block, other, out=block)  # there may be no room for another block
        return self

    def _check_range(self, number: Any, operation: Callable[..., Any]) -> None:
        """Raise OverflowError for a number that is too large for a dtype of floats, as NumPy does for integers.

        NumPy would make it infinity, and its product with zeros NaN.
        """
        if type(number) in (int, float) and abs(number) <= find_largest(self.dtype):
            return
        with np.errstate(all="ignore"):
            dtype = operation(np.empty(0, self.dtype), number).dtype
        if has_fractions(dtype) and not has(dtype, number):
            raise OverflowError(f"{operation.__name__} of {self.dtype} and {number}: more than {dtype} has; cast the matrix first")

    def _new(self, block: Any) -> DistMatrix:
        """Make a matrix like this one of a new block, which becomes C-contiguous.

        NumPy stores results from a transpose by columns; every message would pack them.
        """
        base = block
        if not self.xp.is_contiguous(block):
            base = self.xp.empty(block.shape, block.dtype)
            self.xp.copy(base, block)
        return self._like(base, transposed=False, conjugated=False)

    def _match_layout(self, other: DistMatrix, operation: str) -> DistMatrix:
        """Return the other matrix in this one's layout: itself, if it has that layout; else, collectively, redistributed."""
        if self.shape != other.shape:
            raise ShapeError(f"{operation} of shapes {self.shape} and {other.shape}")
        if self.grid == other.grid and self.matches_layout(other.layout):
            return other
        check_same_communicator(self.grid, other.grid, "B", f"{operation} of A and B: A")
        if self.layout.partial:
            raise LayoutError(
                f"{operation} of A={self.description} and B={other.description}: A has partial sums, B has another layout: "
                "redistribute A to a layout without them first"
            )
        from pdla.matrix.redistribute import convert

        agree(self.grid.comm, f"{operation} of {self.description} and {other.description}")
        return convert(other, self.layout, self.grid)

    def matches_layout(self, layout: Layout) -> bool:
        """Tell whether ranks hold the same in another layout, however it is written. Local.

        Parameters
        ----------
        layout : Layout
            The other layout.

        Returns
        -------
        bool
            Whether every rank holds the same rows and columns, or addends of them.
        """
        own = self.layout
        return own == layout or (set(own.partial) == set(layout.partial) and own.same_cuts(layout, self.shape, self.grid.sizes))

    def __add__(self, other: Any) -> DistMatrix:
        return self._elementwise(other, np.add)

    def __sub__(self, other: Any) -> DistMatrix:
        return self._elementwise(other, np.subtract)

    def __mul__(self, other: Any) -> DistMatrix:
        return self._elementwise(other, np.multiply)

    def __truediv__(self, other: Any) -> DistMatrix:
        return self._elementwise(other, np.true_divide)

    def __pow__(self, other: Any) -> DistMatrix:
        return self._elementwise(other, power)

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: Any) -> DistMatrix:
        return self._elementwise(other, reverse_subtract)

    def __rtruediv__(self, other: Any) -> DistMatrix:
        return self._elementwise(other, reverse_divide)

    def __rpow__(self, other: Any) -> DistMatrix:
        return self._elementwise(other, reverse_power)

    def __abs__(self) -> DistMatrix:
        if self.layout.partial:
            raise LayoutError(f"abs of partial sums {self.layout!r}: redistribute to sum them first")
        return self._new(np.absolute(self.local))

    def __neg__(self) -> DistMatrix:
        block = np.negative(self.local)
        self._check_addends(block.dtype)
        return self._new(block)

    def __matmul__(self, other: Any) -> DistMatrix:
        return self.multiply(other) if isinstance(other, DistMatrix) else self._refuse_factor(other)

    def __rmatmul__(self, other: Any) -> DistMatrix:
        return self._refuse_factor(other)

    def _refuse_factor(self, other: Any) -> Any:
        """Collective, as a product: on other ranks the factor may be a matrix. Return or raise as `_refuse_foreign`."""
        with agreed(self.grid.comm, f"a DistMatrix @ {kind_of(other)}, or the other way round"):
            refused = _refuse_foreign(other)
        return refused

    def __iadd__(self, other: Any) -> DistMatrix:
        return self._elementwise(other, np.add, in_place=True)

    def __isub__(self, other: Any) -> DistMatrix:
        return self._elementwise(other, np.subtract, in_place=True)

    def __imul__(self, other: Any) -> DistMatrix:
        return self._elementwise(other, np.multiply, in_place=True)

    def __itruediv__(self, other: Any) -> DistMatrix:
        return self._elementwise(other, np.true_divide, in_place=True)

    def __ipow__(self, other: Any) -> DistMatrix:
        return self._elementwise(other, power, in_place=True)

    # ------------------------------------------------------------------ collective

    def redistribute(self, layout: Layout, grid: ProcessGrid | None = None) -> DistMatrix:
        """Redistribute the matrix to another layout. Collective over the grid's communicator.

        Parameters
        ----------
        layout : Layout
            Layout of the new matrix. Partial sums are added up, unless it has the same ones.
        grid : ProcessGrid, optional
            Another grid over the same communicator.

        Returns
        -------
        DistMatrix
            The same elements, in memory of its own.

        Raises
        ------
        LayoutError
            For a layout that does not fit, and for partial sums that A has not, on every rank.
        GridError
            For a grid over another communicator, on every rank.

        Examples
        --------
        >>> def program(comm):
        ...     A = pdla.ones((4, 6), pdla.ProcessGrid((2, 2)), pdla.Layout("row", "col"))
        ...     return A.redistribute(pdla.Layout(cols="row")).local.shape
        >>> pdla.run(4, program)[0]
        (4, 3)
        """
        from pdla.matrix.redistribute import redistribute

        return redistribute(self, layout, grid)

    def shared(self) -> DistMatrix:
        """Copy the matrix to memory in which each rank of a node sees all of it. Collective.

        Products on that node read this memory directly, and copy nothing. A product starts when all
        ranks have called it, and ends when all have read. Change the matrix only while no other
        rank is in a product with it.

        Returns
        -------
        DistMatrix
            An ordinary copy where the ranks run on several nodes or on GPUs, or with PDLA_SHARED=0.

        Raises
        ------
        LayoutError
            For copies, partial sums and cyclic cuts, on every rank: one rank alone must hold each
            element, and each block must be one contiguous part.
        PdlaError
            If there is not enough memory, on every rank.
        """
        from pdla.matrix.sharing import copy_to_shared

        return copy_to_shared(self)

    @overload
    def gather(self, root: None = None) -> np.ndarray: ...
    @overload
    def gather(self, root: int) -> np.ndarray | Any: ...  # None on the other ranks, which no checker can tell apart
    def gather(self, root: int | None = None) -> Any:
        """Gather the whole matrix. Collective over the grid's communicator.

        Parameters
        ----------
        root : int, optional
            The rank that gets it; every rank by default.

        Returns
        -------
        array or None
            The matrix, 2-D; None on ranks other than `root`.

        Raises
        ------
        GridError
            For a root that is no rank, on every rank.
        """
        from pdla.matrix.redistribute import gather

        return gather(self, root)

    def norm(self) -> float:
        """Compute the Frobenius norm. Collective over the grid's communicator.

        Elements whose squares would overflow or underflow are scaled first. Copies count once.

        Returns
        -------
        float
            The same on every rank.

        Raises
        ------
        LayoutError
            For partial sums, on every rank.
        """
        from pdla.matrix.reductions import norm

        return norm(self)

    def trace(self) -> Any:
        """Add up the diagonal. Collective over the grid's communicator.

        Copies count once; 16-bit floats are rounded once, at the end.

        Returns
        -------
        number
            In the dtype of np.trace, the same on every rank.

        Raises
        ------
        ShapeError
            If the matrix is not square, on every rank.
        LayoutError
            For partial sums, on every rank.
        """
        from pdla.matrix.reductions import trace

        return trace(self)

    def diagonal(self, offset: int = 0) -> np.ndarray:
        """Gather a diagonal. Collective over the grid's communicator.

        Parameters
        ----------
        offset : int, optional
            How far above the main diagonal; below it where negative.

        Returns
        -------
        numpy.ndarray
            Its elements, on every rank, in memory of their own.

        Raises
        ------
        ArgumentError
            For an offset that is no integer, on every rank.
        LayoutError
            For partial sums, on every rank.
        """
        from pdla.matrix.diagonals import diagonal

        return diagonal(self, offset)

    @overload
    def sum(self, axis: None = None) -> Any: ...
    @overload
    def sum(self, axis: int) -> np.ndarray: ...
    def sum(self, axis: int | None = None) -> Any:
        """Add up all elements, or those of each row or column. Collective over the communicator.

        Copies count once; 16-bit floats are rounded once, at the end.

        Parameters
        ----------
        axis : int, optional
            0: a sum for each column; 1: for each row; by default one number.

        Returns
        -------
        number or numpy.ndarray
            In the dtype of np.sum, the same on every rank.

        Raises
        ------
        ShapeError
            For an axis that a matrix does not have, on every rank.
        LayoutError
            For partial sums, on every rank.

        Notes
        -----
        ``(A * B).sum()`` is the trace of A^T B, without the product; ``(A.conj() * B).sum()`` that
        of A^H B.
        """
        from pdla.matrix.statistics import total

        return total(self, axis)

    @overload
    def mean(self, axis: None = None) -> Any: ...
    @overload
    def mean(self, axis: int) -> np.ndarray: ...
    def mean(self, axis: int | None = None) -> Any:
        """Average all elements, or those of each row or column. Collective over the communicator.

        Copies count once; 16-bit floats are rounded once, at the end.

        Parameters
        ----------
        axis : int, optional
            0: a mean for each column; 1: for each row; by default one number.

        Returns
        -------
        number or numpy.ndarray
            In the dtype of np.mean, the same on every rank; NaN of no elements.

        Raises
        ------
        ShapeError
            For an axis that a matrix does not have, on every rank.
        LayoutError
            For partial sums, on every rank.
        """
        from pdla.matrix.statistics import mean

        return mean(self, axis)

    @overload
    def max(self, axis: None = None) -> Any: ...
    @overload
    def max(self, axis: int) -> np.ndarray: ...
    def max(self, axis: int | None = None) -> Any:
        """Find the largest element, or that of each row or column. Collective over the communicator.

        Parameters
        ----------
        axis : int, optional
            0: the largest of each column; 1: of each row; by default of all.

        Returns
        -------
        number or numpy.ndarray
            In the matrix's dtype, the same on every rank; NaN where there is one.

        Raises
        ------
        ShapeError
            For an axis that a matrix does not have, for no elements, and for complex ones, which
            have no order; on every rank.
        LayoutError
            For partial sums, on every rank.
        """
        from pdla.matrix.statistics import find_extreme

        return find_extreme(self, "max", axis)

    @overload
    def min(self, axis: None = None) -> Any: ...
    @overload
    def min(self, axis: int) -> np.ndarray: ...
    def min(self, axis: int | None = None) -> Any:
        """Find the least element, or that of each row or column. Collective over the communicator.

        Parameters
        ----------
        axis : int, optional
            0: the least of each column; 1: of each row; by default of all.

        Returns
        -------
        number or numpy.ndarray
            In the matrix's dtype, the same on every rank; NaN where there is one.

        Raises
        ------
        ShapeError
            For an axis that a matrix does not have, for no elements, and for complex ones, which
            have no order; on every rank.
        LayoutError
            For partial sums, on every rank.
        """
        from pdla.matrix.statistics import find_extreme

        return find_extreme(self, "min", axis)

    def check_copies(self) -> bool:
        """Compare the copies of each block. Collective over the grid's communicator.

        Returns
        -------
        bool
            Whether all copies of each block are equal bit for bit (NaNs, too). True in a dry run.
        """
        from pdla.matrix.reductions import check_copies

        return check_copies(self)


def reverse_subtract(x: Any, y: Any) -> Any:
    """`y - x`, in the dtype of both: -x would wrap around for unsigned x."""
    return np.subtract(y, x)


def reverse_divide(x: Any, y: Any) -> Any:
    return np.true_divide(y, x)


def power(x: Any, y: Any, out: Any = None) -> Any:
    """`x ** y` by the operator, which has faster ways to square and to take roots than np.power.

    The dtype is NumPy's: other array modules make longer integers of booleans.
    """
    if out is None:
        dtype = (np.empty(0, x.dtype) ** (np.empty(0, y.dtype) if getattr(y, "shape", ()) else y)).dtype
        return (x**y).astype(dtype, copy=False)
    out **= y
    return out


def reverse_power(x: Any, y: Any) -> Any:
    return y**x


MatrixOrVector = TypeVar("MatrixOrVector", DistMatrix, np.ndarray)  # a result is what an argument is: a vector on every rank

# Operations that act on each addend of partial sums: with another matrix, and with a number.
ADDING: set[Any] = {np.add, np.subtract, reverse_subtract}
SCALING: set[Any] = {np.multiply, np.true_divide}


def _refuse_foreign(other: Any) -> Any:
    """Return NotImplemented for an operand that is neither matrix nor number; for an array raise a TypeError with advice."""
    if getattr(other, "shape", None) == ():
        raise TypeError(f"a DistMatrix and {kind_of(other)} of no dimensions: A * x.item() multiplies by the number in it")
    if hasattr(other, "__array__") or isinstance(other, (list, tuple)):
        raise TypeError(
            f"a DistMatrix and {kind_of(other)}: pdla.matvec(A, x) multiplies by a vector; of a whole matrix make a "
            "DistMatrix with pdla.from_global(X, A.grid, layout)"
        )
    return NotImplemented
