"""ProcessGrid: named axes over a communicator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from math import isqrt, prod
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from pdla.comm import as_communicator
from pdla.comm.agreement import agreed, raise_everywhere, remember_ranks, to_text
from pdla.comm.cache import find_or_make
from pdla.comm.communicator import Communicator
from pdla.errors import ArgumentError, GridError, LayoutError, kind_of, suggest
from pdla.indices import unique
from pdla.layout import Layout, usual_order

NAMES = ("row", "col", "depth")
SHOWN, LAYERS = 24, 8  # ranks along an axis, and layers, in a picture of the grid
FAMILIES = 128  # the most sub-communicators that one communicator keeps for reuse; MPICH has some 2000 in a process
Order = str | Sequence[Any] | np.ndarray | None


def balanced_shape(ranks: int, ndim: int = 2) -> tuple[int, ...]:
    """Find the most nearly square shape of a grid of exactly so many ranks. Not collective.

    Parameters
    ----------
    ranks : int
        Ranks of the grid.
    ndim : int, optional
        Axes.

    Returns
    -------
    tuple of int
        Ranks along each axis, the largest last.

    Raises
    ------
    GridError
        For less than one rank or axis.

    Examples
    --------
    >>> pdla.balanced_shape(12), pdla.balanced_shape(7), pdla.balanced_shape(8, 3)
    ((3, 4), (1, 7), (2, 2, 2))
    """
    if ranks < 1 or ndim < 1:
        raise GridError(f"balanced_shape({ranks}, {ndim}): at least one rank and one axis")
    if ndim == 1:
        return (ranks,)
    root = round(ranks ** (1 / ndim)) if ndim > 2 else isqrt(ranks)
    first = next(p for p in range(max(root, 1), 0, -1) if ranks % p == 0)
    return (first, *balanced_shape(ranks // first, ndim - 1))


def tiled_order(shape: Sequence[int], tile: Sequence[int]) -> tuple[int, ...]:
    """Order ranks so that consecutive ones fill tiles of the grid, a tile a node.

    Not collective.

    Parameters
    ----------
    shape : sequence of int
        Shape of the grid.
    tile : sequence of int
        Shape of each tile; its sides divide those of the grid.

    Returns
    -------
    tuple of int
        The rank at each place, in C order: `order` of `ProcessGrid`.

    Raises
    ------
    GridError
        If tiles do not divide the grid.

    Examples
    --------
    >>> pdla.tiled_order((2, 4), (2, 2))
    (0, 1, 4, 5, 2, 3, 6, 7)
    """
    if len(shape) != len(tile) or any(t < 1 or n % t for n, t in zip(shape, tile, strict=False)):
        raise GridError(f"tiles {tuple(tile)} do not divide the grid {tuple(shape)}")
    split = [size for n, t in zip(shape, tile, strict=True) for size in (n // t, t)]
    outer, inner = range(0, 2 * len(shape), 2), range(1, 2 * len(shape), 2)
    by_tile = np.arange(prod(shape)).reshape([split[i] for i in (*outer, *inner)])
    back = np.argsort([*outer, *inner])
    return tuple(by_tile.transpose(back).ravel().tolist())


def usual_place(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Find the coordinates of a rank in the usual order."""
    place = [0] * len(shape)
    for axis in (*reversed(range(len(shape[:2]))), *range(2, len(shape))):  # fastest first
        rank, place[axis] = divmod(rank, shape[axis])
    return tuple(place)


def _ranks(shape: tuple[int, ...], order: Order) -> np.ndarray:
    """Convert a user's order to an array of the rank at each coordinate."""
    size = prod(shape)
    if order is None:
        return usual_order(shape)
    if isinstance(order, str):
        if order not in ("C", "F"):
            like = suggest(order, "CF")
            raise GridError(f"order={order!r}: give 'C' (last axis fastest), 'F' (first axis fastest) or the ranks{like}")
        return np.arange(size).reshape(shape, order="F" if order == "F" else "C")
    try:
        ranks = np.array(list(order))
    except (TypeError, ValueError):  # no sequence; rows of different lengths
        ranks = np.empty(0)
    ranks = ranks.ravel() if ranks.shape == shape else ranks
    if ranks.dtype.kind not in "iu" or ranks.shape != (size,) or len(set(ranks.tolist())) != size or ranks.min() < 0:
        raise GridError(f"order={order!r} must name {size} different ranks, one for each place of the grid {shape}")
    return ranks.astype(np.int64).reshape(shape)


def _to_shape(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, (tuple, list, np.ndarray)) or not all(isinstance(n, (int, np.integer)) for n in shape):
        raise ArgumentError(f"shape={shape!r}: give the ranks along each axis, as ProcessGrid((2, 3))")
    return tuple(map(int, shape))


def check_grid(call: str, grid: Any) -> None:
    """GridError unless `grid` is one."""
    if not isinstance(grid, ProcessGrid):
        raise _no_grid(call, grid)


def _no_grid(call: str, grid: Any) -> GridError:
    named = "a layout goes to layout=, a dtype to dtype=" if isinstance(grid, (Layout, type, np.dtype, str)) else ""
    named = named or (f"rows and columns are one tuple, as ({grid}, {grid})" if isinstance(grid, (int, np.integer)) else "")
    return GridError(f"{call}: grid={grid!r} is {kind_of(grid)}: give a pdla.ProcessGrid{named and f'; {named}'}")


def communicator_of(call: str, grid: Any) -> Communicator:
    """The grid's communicator. GridError, on every rank that this one knows, unless `grid` is one."""
    return grid.comm if isinstance(grid, ProcessGrid) else raise_everywhere(_no_grid(call, grid))


def find_communicator(operands: Iterable[Any]) -> Communicator | None:
    """Find the operands' communicator on which other ranks most likely are, if an operand is wrong; None if there is none.

    The communicator of most operands or, of several such, the largest.
    """
    comms: list[Communicator] = []
    for X in operands:  # fast: every product calls this
        if isinstance(grid := getattr(X, "grid", None), ProcessGrid):
            comms.append(grid.comm)
    if not comms or comms.count(comms[0]) == len(comms):
        return comms[0] if comms else None
    identities = [comm.identity for comm in comms]
    return max(comms, key=lambda comm: (identities.count(comm.identity), comm.size))


def check_same_communicator(here: ProcessGrid, there: ProcessGrid, name: str, first: str = "A") -> None:
    """GridError if two grids are over different communicators. first, name: of their matrices, for the error."""
    if here.comm is not there.comm and here.comm.identity != there.comm.identity:
        raise GridError(
            f"{first} and {name} are on different communicators, of {here.comm.size} and {there.comm.size} ranks: make both grids "
            "from the very same one (duplicates differ)"
        )


def place(call: str, grid: Any, layout: Any) -> tuple[ProcessGrid, Any]:
    """The grid and layout of a new matrix: for None the default grid, and its default layout.

    GridError, on every rank that this one knows, for anything but a grid. Collective where
    `ProcessGrid.default` is.
    """
    grid = ProcessGrid.default() if grid is None else grid
    communicator_of(call, grid)
    return grid, grid.default_layout if layout is None else layout


def check_layout(call: str, layout: Any, grid: ProcessGrid | None = None) -> None:
    """LayoutError unless `layout` is one. grid: has no default layout, if `layout` is None."""
    if layout is None and grid is not None:
        raise LayoutError(f"{call}: {grid!r} has no default layout: give a pdla.Layout, as Layout('row', 'col')")
    if not isinstance(layout, Layout):
        raise LayoutError(f"{call}: layout={layout!r} is {kind_of(layout)}: give a pdla.Layout, as Layout('row', 'col')")


class ProcessGrid:
    """Ranks arranged along one to four named axes.

    ``grid["col"]`` is the communicator of the ranks that differ only in col: of one grid row.
    Collective over `comm`. Idle ranks, which have no place in the grid, hold empty blocks.

    Parameters
    ----------
    shape : int or sequence of int
        Ranks along each axis; their product may leave ranks of `comm` idle.
    axes : sequence of str, optional
        Names; ``("row", "col", "depth")[:ndim]`` by default. Four axes must be named.
    comm : Communicator or mpi4py.MPI.Comm, optional
        The world by default.
    order : {"C", "F"} or sequence of int, optional
        The rank at each place, in C order or shaped like the grid; "C": the last axis varies
        fastest, "F": the first one does. By default rank = col + pc row + pr pc depth, on pr x pc x
        depth.

    Attributes
    ----------
    shape : tuple of int
        Ranks along each axis.
    axes : tuple of str
        Their names.
    sizes : mapping of str to int
        Ranks along each axis, by its name.
    comm : Communicator
        The communicator under the grid.
    ranks : numpy.ndarray
        The rank at each place, of the grid's shape; read-only.
    coords : mapping of str to int, or None
        The coordinates of this rank; None on an idle rank.
    closed : bool
        Whether `close` has been called. A closed grid has no communicators, and matrices on it
        cannot be multiplied: GridError.

    Raises
    ------
    GridError
        For a grid that does not fit its communicator, on every rank.
    AgreementError
        If ranks ask for different grids.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2, 2))
    ...     return dict(grid.coords), grid["col"].size
    >>> pdla.run(4, program)[1]
    ({'row': 0, 'col': 1}, 2)
    """

    closed: bool
    shape: tuple[int] | tuple[int, ...]
    axes: tuple[str, ...]
    ranks: np.ndarray

    def __init__(
        self, shape: int | Sequence[int], axes: Sequence[str] | None = None, comm: Any = None, order: Order = None
    ) -> None:
        self.comm: Communicator = as_communicator(comm)
        placed = order.tolist() if isinstance(order, np.ndarray) else order  # NumPy abbreviates the repr of a long array
        with agreed(self.comm, f"ProcessGrid({to_text(shape)}, axes={axes!r}, order={to_text(placed)})"):
            self.shape = (int(shape),) if isinstance(shape, (int, np.integer)) else _to_shape(shape)
            self.axes = self._name_axes(axes)
            self._check_size()
            self.ranks = _ranks(self.shape, order)
            if self.ranks.size and self.ranks.max() >= self.comm.size:
                raise GridError(f"order={order!r} names rank {self.ranks.max()}; there are {self.comm.size}")
        self._place()
        _family(self.comm).enter(self)

    @classmethod
    def trust(
        cls, shape: tuple[int, ...], comm: Communicator, ranks: Sequence[int] | np.ndarray | None, axes: tuple[str, ...] = NAMES
    ) -> ProcessGrid:
        """Make a grid without checks or messages.

        Every rank must make the same grid, and the caller must not write to `ranks`.

        Parameters
        ----------
        shape : tuple of int
            Ranks along each axis.
        comm : Communicator
            The communicator under the grid.
        ranks : sequence of int or None
            The rank at each place; None: in the usual order.
        axes : tuple of str, optional
            Names; the first ones are used.

        Returns
        -------
        ProcessGrid
            The grid.
        """
        grid = cls.__new__(cls)
        grid.comm, grid.shape, grid.axes = comm, tuple(shape), axes[: len(shape)]
        if ranks is None:
            grid.ranks, grid.order_digest = np.ascontiguousarray(usual_order(grid.shape)), b""
        else:
            grid.ranks = np.asarray(ranks, np.int64).reshape(shape)
        grid._place()
        return grid

    @staticmethod
    def everyone(comm: Communicator) -> ProcessGrid:
        """Give the grid of all ranks of a communicator along one axis. Local, as `trust`.

        Parameters
        ----------
        comm : Communicator
            The communicator under the grid.

        Returns
        -------
        ProcessGrid
            The same one at each call.
        """
        return find_or_make(comm, ProcessGrid.everyone, lambda: ProcessGrid.trust((comm.size,), comm, None))

    @staticmethod
    def default(comm: Any = None) -> ProcessGrid:
        """Give the default grid of new matrices.

        All ranks, in `balanced_shape`. Local, but for the first `world` under MPI.

        Parameters
        ----------
        comm : Communicator or mpi4py.MPI.Comm, optional
            The world by default.

        Returns
        -------
        ProcessGrid
            The same one at each call, until it is closed, or its communicator is.

        Raises
        ------
        GridError
            For what is no communicator, on this rank.
        NoMPIError
            For None, where there is no MPI and no world of `run`.

        Examples
        --------
        >>> pdla.run(6, lambda comm: pdla.ProcessGrid.default())[0]
        ProcessGrid(row=2, col=3)
        """
        return _family(as_communicator(comm)).default()

    def with_comm(self, comm: Communicator) -> ProcessGrid:
        """Make the same grid over another communicator of as many ranks. Local.

        Parameters
        ----------
        comm : Communicator
            The communicator under the new grid.

        Returns
        -------
        ProcessGrid
            Of the same shape, axes and order.
        """
        made = ProcessGrid.trust(self.shape, comm, self.ranks, self.axes)
        made.order_digest = self.order_digest
        return made

    def _place(self) -> None:
        self.ranks.setflags(write=False)
        self.sizes: Mapping[str, int] = MappingProxyType(dict(zip(self.axes, self.shape, strict=True)))
        here = self.coords_of(self.comm.rank)
        self.coords: Mapping[str, int] | None = None if here is None else MappingProxyType(here)
        self.closed, self._listed = False, False

    def _name_axes(self, axes: Sequence[str] | None) -> tuple[str, ...]:
        if not 1 <= len(self.shape) <= 4:
            raise GridError(f"a grid has one to four axes, not {len(self.shape)}: shape {self.shape}")
        if axes is None and len(self.shape) == 4:
            raise GridError(f"name the axes of a grid of four: ProcessGrid({self.shape}, axes=(...))")
        if axes is not None and not isinstance(axes, (str, tuple, list)):
            raise GridError(f"axes is {kind_of(axes)}, not names; a communicator is given as comm=")
        names = NAMES[: len(self.shape)] if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
        if len(names) != len(self.shape) or len(set(names)) != len(names):
            raise GridError(f"axes={axes!r} must be {len(self.shape)} different names for the shape {self.shape}")
        if not all(isinstance(name, str) and name.isidentifier() for name in names):
            raise GridError(f"axes={axes!r}: a name is a word of letters, digits and _")
        return names

    def _check_size(self) -> None:
        if min(self.shape) < 1:
            raise GridError(f"a grid of shape {self.shape} has no ranks: every axis needs at least one")
        if self.size > self.comm.size:
            would = f"{balanced_shape(self.comm.size, len(self.shape))} would fit"
            if self.comm.size == 1:
                would = f"start as many: mpirun -n {self.size} ... of the MPI that the program uses, or pdla.run({self.size}, ...)"
            raise GridError(f"a grid of shape {self.shape} needs {self.size} ranks, the communicator has {self.comm.size}; {would}")

    # ------------------------------------------------------------------ what it is

    @property
    def size(self) -> int:
        """Ranks in the grid; comm.size - size more are idle."""
        return prod(self.shape)

    @property
    def active(self) -> bool:
        """Whether this rank has a place in the grid."""
        return self.coords is not None

    @cached_property
    def default_layout(self) -> Layout | None:
        """The default layout of matrices; None for more than two axes.

        Rows are cut along the first axis, columns along the second.
        """
        return Layout(*self.axes) if len(self.axes) <= 2 else None

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The rank at each place, in C order of the places."""
        return tuple(self.ranks.ravel().tolist())

    @cached_property
    def order_digest(self) -> bytes:
        """A digest of `ranks`, of which there may be a million; empty for the usual order.

        Two grids of one shape have equal digests if they have equal `ranks`.
        """
        if np.array_equal(self.ranks, usual_order(self.shape)):
            return b""
        return blake2b(self.ranks.tobytes(), digest_size=16).digest()

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return (self.comm.identity, self.shape, self.axes, self.order_digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcessGrid) and (self is other or self._key == other._key)

    @cached_property
    def _hash(self) -> int:
        return hash((self.shape, self.axes))

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        words, idle = [f"{axis}={n}" for axis, n in self.sizes.items()], self.comm.size - self.size
        if self.order_digest:
            first = ", ".join(map(str, self.ranks.ravel()[:8]))
            rest = f", ..., digest {self.order_digest.hex()[:8]}" if self.size > 8 else ""  # of all: different grids differ
            words.append(f"order=[{first}{rest}]")
        return f"ProcessGrid({', '.join(words)}" + (f"; {idle} idle)" if idle else ")")

    def _repr_html_(self) -> str:
        """A picture of the rank at each place, for each coordinate of the axes after the second."""
        from pdla import show

        first, *others = np.ndindex(*self.shape[2:])
        seen = [first, *others[: LAYERS - 1]]
        places = self.ranks.reshape(1, -1) if len(self.shape) == 1 else self.ranks
        rows, cols = ([show.Span(i, i + 1, i) for i in range(min(n, SHOWN))] for n in places.shape[:2])
        drawn = [
            show.element("div", ", ".join(f"{axis} {at}" for axis, at in zip(self.axes[2:], layer, strict=True)))
            + show.owners(places.shape[:2], rows, cols, lambda i, j: [int(places[i, j, *layer])], " ", self.comm.rank).svg  # noqa: B023
            for layer in seen
        ]
        left = [f"and {1 + len(others) - len(seen)} more layers"] if len(seen) <= len(others) else []
        return show.heading(repr(self)) + show.set_in_row(*drawn, *left)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a ProcessGrid cannot be pickled: it holds communicators; send its shape and make it there")

    def __copy__(self) -> ProcessGrid:
        return self  # a value, as a number is

    def __deepcopy__(self, memo: object) -> ProcessGrid:
        return self

    def rank_of(self, coords: Mapping[str, int]) -> int:
        """Give the rank at a place. Local.

        Parameters
        ----------
        coords : mapping of str to int
            One coordinate for each axis.

        Returns
        -------
        int
            A rank of `comm`.
        """
        return int(self.ranks[tuple(coords[axis] for axis in self.axes)])

    def coords_of(self, rank: int) -> dict[str, int] | None:
        """Give the place of a rank. Local.

        Parameters
        ----------
        rank : int
            A rank of `comm`.

        Returns
        -------
        dict of str to int, or None
            Its coordinate along each axis; None where it is idle.
        """
        place = usual_place(self.shape, rank) if 0 <= rank < self.size else None
        if place is None or self.ranks[place] != rank:  # a search of perhaps a million ranks, unless in the usual order
            flat = self.ranks.ravel() == rank
            first = int(flat.argmax())
            if not flat[first]:
                return None
            place = tuple(map(int, np.unravel_index(first, self.shape)))
        return dict(zip(self.axes, place, strict=True))

    def holders(self, coords: Mapping[str, int]) -> np.ndarray:
        """Give the ranks at some coordinates. Local.

        Parameters
        ----------
        coords : mapping of str to int
            Coordinates along some axes; all ranks along the others are included.

        Returns
        -------
        numpy.ndarray of int
            Ranks of `comm`, ascending.
        """
        return unique(self.ranks[tuple([coords.get(axis, slice(None)) for axis in self.axes])])

    # ------------------------------------------------------------------ its communicators

    def __getitem__(self, axes: str | tuple[str, ...]) -> Communicator | None:
        """Give the communicator along one axis or several.

        Collective over `comm`, idle ranks included. Ask for the communicator at each use: it may be
        closed after 128 others have been used, unless a grid is over it.

        Parameters
        ----------
        axes : str or tuple of str
            Names of axes.

        Returns
        -------
        Communicator or None
            Its ranks in C order of their coordinates along `axes`; None on idle ranks.

        Raises
        ------
        GridError
            On this rank, for an axis that the grid does not have or that is named twice, and after
            `close`.
        """
        names = tuple(axes) if isinstance(axes, (tuple, list)) else (axes,)
        for axis in names:
            if axis not in self.axes:
                raise GridError(f"{self!r} has no axis {axis!r}{suggest(axis, self.axes)}")
        if len(set(names)) < len(names):
            raise GridError(f"{self!r}[{axes!r}]: an axis is named twice")
        if self.closed:
            raise GridError(f"{self!r} is closed")
        return _family(self.comm).get(self, names)

    def group(self, names: tuple[str, ...]) -> list[int] | None:
        """Give the ranks that differ from this one only along some axes. Local.

        Parameters
        ----------
        names : tuple of str
            The axes.

        Returns
        -------
        list of int, or None
            Ranks of `comm`, in C order of `names`; None on an idle rank.
        """
        if self.coords is None:
            return None
        place = tuple(slice(None) if axis in names else self.coords[axis] for axis in self.axes)
        free = [axis for axis in self.axes if axis in names]
        return self.ranks[place].transpose([free.index(axis) for axis in names]).ravel().tolist()

    def close(self) -> None:
        """Close the grid's communicators, unless an equal grid is open.

        Collective. The end of a with-block closes them, too.
        """
        if self._listed and not self.closed:
            _family(self.comm).leave(self)
        self.closed = True

    def __enter__(self) -> ProcessGrid:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Families:
    """A communicator's default grid, and its sub-communicators, which all its ranks make together and keep for reuse.

    An MPI has some two thousand communicators, and ranks collect garbage at different times.
    Therefore the garbage collector closes none. If there are too many, all ranks close the least
    recently used one, at the same request, and make it again when its grid needs it.
    """

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.kept: dict[tuple[Any, ...], Communicator | None] = {}
        self.open: Counter[tuple[Any, ...]] = Counter()
        self._default: ProcessGrid | None = None
        comm.ending.append(self._end)

    def default(self) -> ProcessGrid:
        if self._default is None or self._default.closed:
            self._default = ProcessGrid.trust(balanced_shape(self.comm.size), self.comm, None)
            self.enter(self._default)
        return self._default

    def enter(self, grid: ProcessGrid) -> None:
        """Register a user's open grid."""
        remember_ranks(self.comm)
        grid._listed = True
        self.open[grid._key] += 1

    def leave(self, grid: ProcessGrid) -> None:
        self.open[grid._key] -= 1
        if not self.open[grid._key]:
            del self.open[grid._key]
            for key in [key for key in self.kept if key[0] == grid._key]:
                self._drop(key)

    def get(self, grid: ProcessGrid, names: tuple[str, ...]) -> Communicator | None:
        key = (grid._key, names)
        if key in self.kept:
            made = self.kept.pop(key)
        else:
            while len(self.kept) >= FAMILIES:
                self._drop(next(iter(self.kept)))
            made = self.comm.split(grid.group(names), ",".join(names))
            if made is not None:
                made.above = self.comm
        self.kept[key] = made
        return made

    def _end(self) -> None:
        """Close the rest: the default grid, and the communicators of grids that products made, or that no user has closed."""
        if self._default is not None:
            self._default.closed = True
        for key in [*self.kept]:
            self._drop(key)

    def _drop(self, key: tuple[Any, ...]) -> None:
        """Close a communicator and forget it; only forget it if a user's grid over it is open."""
        comm = self.kept.pop(key)
        if comm is not None and not _family(comm).open:
            comm.close()


def _family(comm: Communicator) -> Families:
    """A communicator's Families, kept as its attribute for as long as it lives."""
    if not hasattr(comm, "_families"):
        comm._families = Families(comm)  # type: ignore[attr-defined]
    return comm._families  # type: ignore[attr-defined]
