"""A stack of matrices, and its products.

The batch is cut along one axis of the grid, in balanced blocks, or not cut. The ranks that hold one
part of the batch are a layer, a grid of the other axes. A layout cuts each matrix over its layer. A
product runs one plan for each matrix, and sends no messages between layers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pdla import checks
from pdla.array.dtypes import promote
from pdla.comm.agreement import agree, agreed, collective_section, raise_everywhere
from pdla.cuts import block_bounds
from pdla.errors import GridError, LayoutError, ShapeError, kind_of, suggest
from pdla.grid import ProcessGrid, check_layout, check_same_communicator, find_communicator, place
from pdla.layout import Layout
from pdla.matmul import plan_matmul
from pdla.matmul.api import default_layout
from pdla.matrix.core import DistMatrix
from pdla.matrix.create import check_array, digest_array
from pdla.matrix.redistribute import local_shape, start_move

UNDER_WAY = 16  # the most matrices of a stack whose messages are under way at once


class Stack:
    """A batch of m x n matrices over a grid, each cut as a layout says.

    Make one with `stack`. ``S @ S`` is `batched_matmul`, and collective.

    Parameters
    ----------
    blocks : sequence of array
        Blocks on this rank of its layer's matrices, as stored: transposes if `transposed`.
    shape : tuple of three int
        (batch, m, n).
    grid : ProcessGrid
        The stack's grid.
    layout : Layout
        Each matrix's, over the axes other than `axis`.
    axis : str or None
        The grid's axis that cuts the batch; None: the batch is not cut.
    dtype : dtype
        Of the elements.
    transposed : bool, optional
        Whether blocks are stored by columns.
    conjugated : bool, optional
        Whether the stack is a conjugate view.

    Examples
    --------
    >>> def program(comm):
    ...     S = pdla.stack(np.ones((4, 2, 3)), pdla.ProcessGrid((2,)), pdla.Layout(), "row")
    ...     return S.indices, (S @ S.T).shape
    >>> pdla.run(2, program)
    [(range(0, 2), (4, 2, 2)), (range(2, 4), (4, 2, 2))]
    """

    shape: tuple[int, int, int]
    grid: ProcessGrid
    layout: Layout
    axis: str | None
    dtype: np.dtype
    transposed: bool
    conjugated: bool

    __array_ufunc__ = None  # NumPy's arrays leave operators to this class

    def __init__(
        self, blocks: Sequence[Any], shape: tuple[int, int, int], grid: ProcessGrid, layout: Layout, axis: str | None,
        dtype: np.dtype, transposed: bool = False, conjugated: bool = False,
    ) -> None:
        self.blocks: tuple[Any, ...] = tuple(blocks)  # as stored: transposes if `transposed`
        self.shape, self.grid, self.layout, self.axis, self.dtype = shape, grid, layout, axis, dtype
        self.transposed, self.conjugated = transposed, conjugated

    def __array__(self, *args: Any, **named: Any) -> Any:
        raise TypeError("a Stack is cut over many ranks: S.gather() is the whole as an array")

    def __array_function__(self, function: Any, *args: Any) -> Any:
        self.__array__()  # raises, as for a DistMatrix

    def __eq__(self, other: object) -> Any:
        raise TypeError("stacks are compared by what they hold: S.gather() == R.gather()")

    __hash__: Callable[[Any], int] = object.__hash__  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise TypeError("a Stack is neither true nor false: ask for S is not None, or S.shape[0] > 0")

    def __repr__(self) -> str:
        return f"Stack({self.description})"

    @property
    def description(self) -> str:
        """The stack in words, the same on every rank."""
        cut = f"cut along {self.axis!r}" if self.axis else "not cut"
        storage = ", by columns" * self.transposed + ", conjugated" * (self.conjugated and self.dtype.kind == "c")
        return f"{' x '.join(map(str, self.shape))}, {self.dtype}, batch {cut}, {self.layout!r} on {self.grid!r}{storage}"

    @property
    def indices(self) -> range:
        """The numbers in the batch of the matrices of this rank's layer.

        An idle rank is in no layer, and has none; but all, with empty blocks, if the batch is not
        cut.
        """
        if self.axis is None:
            return range(self.shape[0])
        if self.grid.coords is None:
            return range(0)
        return range(*block_bounds(self.shape[0], self.grid.sizes[self.axis], self.grid.coords[self.axis]))

    def _cast(self, dtype: np.dtype) -> Stack:
        """Local: convert to this dtype."""
        blocks = [x.astype(dtype, copy=False) for x in self.blocks]
        return Stack(blocks, self.shape, self.grid, self.layout, self.axis, dtype, self.transposed, self.conjugated)

    def _like(self, **changes: Any) -> Stack:
        kept = {name: getattr(self, name) for name in ("shape", "layout", "transposed", "conjugated")}
        return Stack(self.blocks, grid=self.grid, axis=self.axis, dtype=self.dtype, **{**kept, **changes})

    @property
    def T(self) -> Stack:
        """Each matrix transposed, a view."""
        batch, m, n = self.shape
        return self._like(shape=(batch, n, m), layout=self.layout.T, transposed=not self.transposed)

    @property
    def H(self) -> Stack:
        """Each matrix conjugated and transposed, a view."""
        return self.T.conj()

    def conj(self) -> Stack:
        """Conjugate each matrix.

        Returns
        -------
        Stack
            A view.
        """
        return self._like(conjugated=not self.conjugated)

    def matrices(self) -> list[DistMatrix]:
        """Return the matrices of this rank's layer. Collective over the grid's communicator.

        Call it again for each use: the grid may close the layer's communicator, ``grid[axes]``.

        Returns
        -------
        list of DistMatrix
            On the layer's grid and communicator; none on a rank in no layer.
        """
        layer = find_layer(self.grid, self.axis)
        if layer is None:
            return []
        return [DistMatrix(x, self.shape[1:], layer, self.layout, self.transposed, self.conjugated) for x in self.blocks]

    def __matmul__(self, other: Any) -> Stack:
        return batched_matmul(self, other)

    def gather(self) -> Any:
        """Gather the whole stack on every rank.

        Collective over the grid's communicator, idle ranks and layers without matrices included.

        Returns
        -------
        array
            Of `shape`.

        Raises
        ------
        GridError
            For a closed grid, if the batch is cut, on every rank.
        """
        comm = self.grid.comm
        with agreed(comm, f"gather {self.description}"):
            _check_open(self.grid, self.axis)
        with collective_section(comm, "a stack's gathering"):
            array = comm.xp.empty(self.shape, self.dtype)
            for number, X in zip(self.indices, self.matrices(), strict=True):
                comm.xp.copy(array[number], X.gather())
            self._share(array)
        return array

    def redistribute(self, grid: ProcessGrid | None = None, layout: Layout | None = None, axis: str | None = None) -> Stack:
        """Redistribute the stack, also to another grid. Collective, idle ranks included.

        Parameters
        ----------
        grid : ProcessGrid, optional
            Over the same communicator; by default the stack's.
        layout : Layout, optional
            Each matrix's, over the axes other than `axis`; by default the stack's if it fits, else
            the grid's `default_layout`.
        axis : str, optional
            The grid's axis that cuts the batch; by default none.

        Returns
        -------
        Stack
            In memory of its own.

        Raises
        ------
        LayoutError, GridError, AgreementError
            For arguments that do not fit each other, on every rank.

        Examples
        --------
        >>> def program(comm):
        ...     S = pdla.stack(np.ones((4, 6, 6)))
        ...     return S.redistribute(pdla.ProcessGrid((2,)), pdla.Layout(), "row").indices
        >>> pdla.run(2, program)
        [range(0, 2), range(2, 4)]
        """
        grid = self.grid if grid is None else grid
        comm = self.grid.comm
        with agreed(comm, f"redistribute {self.description} to {grid!r}, {layout!r}, axis={axis!r}"):
            check_same_communicator(self.grid, grid, "grid")
            if layout is None:
                others = tuple(name for name in grid.axes if name != axis)
                layout = self.layout if {*self.layout.axes} <= {*others} else Layout(*others[:2])
            check_layout("redistribute", layout, grid)
            _check_layout(layout, self.shape[1:], grid, axis)
            _check_open(self.grid, self.axis)
        return self._move(grid, layout, axis)

    def _move(self, grid: ProcessGrid, layout: Layout, axis: str | None) -> Stack:
        """Collective, unchecked: redistribute the stack."""
        xp, batch, places = self.grid.comm.xp, self.shape[0], ((self.grid, self.axis), (grid, axis))
        source_layers, target_layers = (_find_layers(*place, batch) for place in places)
        share = -(-batch // max(layered_grid.sizes[cut_axis] if cut_axis else 1 for layered_grid, cut_axis in places))
        blocks: dict[int, Any] = {}
        under_way: deque[Callable[[], None]] = deque()
        with collective_section(self.grid.comm, "a redistribution"):
            # one matrix of each layer in turn, so that all layers send, or receive, at once
            for number in (number for first in range(share) for number in range(first, batch, share)):
                is_own = number in self.indices
                block = self.blocks[number - self.indices.start] if is_own else xp.empty((0, 0), self.dtype)
                X = DistMatrix(block, self.shape[1:], source_layers[number], self.layout, self.transposed, self.conjugated)
                blocks[number] = xp.empty(local_shape(X.shape, layout, target_layers[number]), self.dtype)
                under_way.append(start_move(X, layout, target_layers[number], blocks[number]))
                if len(under_way) > UNDER_WAY:
                    under_way.popleft()()
            for end in under_way:
                end()
        moved = Stack((), self.shape, grid, layout, axis, self.dtype)
        moved.blocks = tuple(blocks[number] for number in moved.indices)
        return moved

    def _share(self, array: Any) -> None:
        """Collective: complete the array of the whole batch, in which each rank has its layer's matrices, on every rank."""
        comm = self.grid.comm
        parts = {lead: array[lo:hi] for lead, lo, hi in self._list_layers() if array[lo:hi].size}
        members = self._find_members(comm.rank)
        others = [rank for rank in range(comm.size) if rank not in members]
        sends = dict.fromkeys(others, parts[comm.rank]) if comm.rank in parts else {}
        recvs = {lead: part for lead, part in parts.items() if lead not in members}
        comm.alltoall(sends, recvs).wait()

    def _list_layers(self) -> list[tuple[int, int, int]]:
        """For each layer: its first rank, the number of its first matrix, the number after its last."""
        origin = dict.fromkeys(self.grid.axes, 0)
        if self.axis is None:
            return [(self.grid.rank_of(origin), 0, self.shape[0])]
        count = self.grid.sizes[self.axis]
        return [(self.grid.rank_of(origin | {self.axis: i}), *block_bounds(self.shape[0], count, i)) for i in range(count)]

    def _find_members(self, rank: int) -> list[int]:
        """The ranks of the layer that a rank is in."""
        if self.axis is None:
            return list(range(self.grid.comm.size))
        coords = self.grid.coords_of(rank)
        return [] if coords is None else self.grid.holders({self.axis: coords[self.axis]}).tolist()


def find_layer(grid: ProcessGrid, axis: str | None) -> ProcessGrid | None:
    """Collective: find this rank's layer, the grid of all axes but `axis`, at one coordinate along it; None on idle ranks.

    If `axis` is None, the batch is not cut: the grid itself, with its idle ranks.
    """
    if axis is None:
        return grid
    axes = tuple(name for name in grid.axes if name != axis)
    comm = grid[axes]
    if comm is None:
        return None
    shape = tuple(grid.sizes[name] for name in axes)
    return ProcessGrid.trust(shape or (1,), comm, list(range(comm.size)), axes or ("layer",))


def _find_layers(grid: ProcessGrid, axis: str | None, batch: int) -> list[ProcessGrid]:
    """Local: each matrix's layer, as a grid over the whole communicator, with all other ranks idle."""
    if axis is None:
        return [grid] * batch
    axes, at = tuple(name for name in grid.axes if name != axis), grid.axes.index(axis)
    shape = tuple(grid.sizes[name] for name in axes) or (1,)
    layers = [ProcessGrid.trust(shape, grid.comm, ranks.ravel(), axes or ("layer",)) for ranks in np.moveaxis(grid.ranks, at, 0)]
    bounds = [block_bounds(batch, len(layers), i) for i in range(len(layers))]
    return [layer for layer, (lo, hi) in zip(layers, bounds, strict=True) for _ in range(lo, hi)]


def stack(array: Any, grid: ProcessGrid | None = None, layout: Layout | None = None, axis: str | None = None) -> Stack:
    """Distribute a three-dimensional array, equal on every rank. Collective, idle ranks included.

    Parameters
    ----------
    array : array
        (batch, m, n).
    grid : ProcessGrid, optional
        The stack's grid; by default `ProcessGrid.default`.
    layout : Layout, optional
        Each matrix's, over the axes other than `axis`; by default the grid's `default_layout`.
    axis : str, optional
        The grid's axis that cuts the batch; the first layers may hold one matrix more. By default
        every rank holds its block of every matrix.

    Returns
    -------
    Stack
        In memory of its own.

    Raises
    ------
    ShapeError, LayoutError, GridError, AgreementError
        For arguments that do not fit each other, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     whole = np.arange(8).reshape(2, 2, 2)
    ...     return pdla.stack(whole, pdla.ProcessGrid((2,)), pdla.Layout(), "row").blocks[0]
    >>> pdla.run(2, program)[1]
    array([[4, 5],
           [6, 7]])
    """
    grid, layout = place("stack", grid, layout)
    comm = grid.comm
    with agreed(comm, f"stack on {grid!r}, {layout!r}, axis={axis!r}"):
        global_array = check_array("stack", comm, array)
        if global_array.ndim != 3:
            raise ShapeError(f"stack: an array (batch, m, n) has three dimensions, not shape {global_array.shape}")
        check_layout("stack", layout, grid)
        _check_layout(layout, global_array.shape[1:], grid, axis)
    agree(comm, f"stack of shape {global_array.shape}, {global_array.dtype}{digest_array(global_array)}")
    empty = Stack((), global_array.shape, grid, layout, axis, global_array.dtype)
    layer = find_layer(grid, axis)
    if layer is None:
        return empty
    rows, cols = (index_set.indices() for index_set in layout.indices(global_array.shape[1:], layer.sizes, layer.coords))
    blocks = [comm.xp.take(global_array[number], rows, cols) for number in empty.indices]
    return Stack(blocks, global_array.shape, grid, layout, axis, global_array.dtype)


def _check_layout(layout: Any, shape: tuple[int, int], grid: ProcessGrid, axis: str | None) -> None:
    if axis is not None and axis not in grid.axes:
        raise GridError(f"axis={axis!r}: {grid!r} has no such axis to cut the batch along{suggest(axis, grid.axes)}")
    if not isinstance(layout, Layout) or layout.partial:
        raise LayoutError(f"layout={layout!r}: a Layout without partial sums")
    if axis in layout.axes:
        raise LayoutError(f"{layout!r} names the axis {axis!r}, which cuts the batch")
    layout.check(shape, grid.sizes)
    _check_open(grid, axis)


def _check_open(grid: ProcessGrid, axis: str | None) -> None:
    """GridError if the batch is cut and the grid is closed: layers have communicators of their own."""
    if axis is not None:
        checks.open_grids((grid,))


def batched_matmul(A: Stack, B: Stack, *, layout: Layout | None = None, algorithm: str = "auto") -> Stack:
    """Multiply two stacks, matrix by matrix. Collective, idle ranks included.

    Parameters
    ----------
    A, B : Stack
        batch x m x k and batch x k x n, on one grid and cut along the same axis.
    layout : Layout, optional
        Each product's; by default as for `matmul`.
    algorithm : str, optional
        As for `matmul`; one plan for all matrices of a layer.

    Returns
    -------
    Stack
        The products A[i] B[i].

    Raises
    ------
    ShapeError, LayoutError, GridError, PlanError, AgreementError
        As by `matmul`, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     S = pdla.stack(np.ones((2, 2, 2)), pdla.ProcessGrid((2,)), pdla.Layout(), "row")
    ...     return pdla.batched_matmul(S, S).gather()[1]
    >>> pdla.run(2, program)[0]
    array([[2., 2.],
           [2., 2.]])
    """
    comm = find_communicator((A, B)) or raise_everywhere(_make_error(A, "A"))
    call = "; ".join(S.description if isinstance(S, Stack) else repr(S) for S in (A, B))
    with agreed(comm, f"batched_matmul({call}; {layout!r}; {algorithm!r})"):
        _check(_check_stack(A, "A"), _check_stack(B, "B"))
        result_layout = default_layout(A.layout, B.layout) if layout is None else layout
        shape = (*A.shape[:2], B.shape[2])
        _check_layout(result_layout, shape[1:], A.grid, A.axis)
        dtype = promote(A.dtype, B.dtype)
    pairs = list(zip(A.matrices(), B.matrices(), strict=True))
    with agreed(comm, "batched_matmul: its plan"):
        plan = plan_matmul(*pairs[0], layout=result_layout, algorithm=algorithm) if pairs else None
    products = [plan(X, Y).stored for X, Y in pairs] if plan else []
    return Stack(products, shape, A.grid, result_layout, A.axis, dtype)


def _check_stack(S: Any, name: str) -> Stack:
    """Return S; ShapeError if S is no Stack."""
    if not isinstance(S, Stack):
        raise _make_error(S, name)
    return S


def _make_error(S: Any, name: str) -> ShapeError:
    return ShapeError(f"{name} is {kind_of(S)}, not a Stack: make one with pdla.stack")


def _check(A: Stack, B: Stack) -> None:
    check_same_communicator(A.grid, B.grid, "B")
    if A.grid != B.grid or A.axis != B.axis:
        raise GridError(f"A is {A.description}, B is {B.description}: the grid and the axis that cuts the batch must be the same")
    if A.shape[0] != B.shape[0] or A.shape[2] != B.shape[1]:
        raise ShapeError(f"A is {A.shape}, B is {B.shape}: batches must be equal, and A's columns B's rows")
