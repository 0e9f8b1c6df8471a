"""Schemes: how a linear layer is cut over a grid, as tables of layouts. Everything else about a layer follows from them.

A table says where X (tokens x inputs), W (inputs x outputs) and Y (tokens x outputs) lie, "axes
cutting rows | axes cutting columns", outermost first, and what each axis carries in the layer's
three products

    Y = X W          tokens x outputs, summed over inputs
    dX = dY W^T      tokens x inputs,  summed over outputs
    dW = X^T dY      inputs x outputs, summed over tokens

An axis that carries tokens (t), inputs (i) or outputs (o) cuts that dimension in all three. So each
matrix is gathered over those axes that cut a dimension of it at rest without carrying that
dimension, and each result is summed over the axes that carry the dimension that it lacks: scattered
where the result is cut along such an axis, else the same on all ranks along it.

Layers come in pairs, `first` and `second`: what the first puts out the second takes in, and the
second puts out what the first takes in, so that nothing is redistributed between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from numbers import Integral
from typing import Any

from pdla import checks
from pdla.comm.agreement import agreed, raise_everywhere
from pdla.cuts import Balanced, Cut
from pdla.errors import GridError, ShapeError, kind_of, misfit, suggest
from pdla.grid import ProcessGrid
from pdla.layout import Layout, axes_of, extra_axes
from pdla.matrix.core import DistMatrix
from pdla.matrix.create import from_global


@dataclass(frozen=True)
class Table:
    """Where a layer's matrices lie, and what the axes carry: "row:t col:o"."""

    carries: str
    X: str
    W: str
    Y: str

    @cached_property
    def roles(self) -> Mapping[str, str]:
        return dict(word.split(":") for word in self.carries.split())

    def swap_axes(self, one: str, other: str) -> Table:
        """The same with two axes in each other's place."""
        names = {one: other, other: one}

        def swap(text: str) -> str:
            return " ".join(":".join(names.get(part, part) for part in word.split(":")) for word in text.split())

        return Table(*map(swap, (self.carries, self.X, self.W, self.Y)))

    def restrict(self, axes: tuple[str, ...], data: tuple[str, ...]) -> Table:
        """The table on a grid that has these axes alone; tokens are cut along those of `data` first."""

        def keep_axes(text: str) -> str:
            return " ".join(word for word in text.split() if word == "|" or word.partition(":")[0] in axes)

        tokens = "".join(f"{axis} " for axis in data)
        carries = " ".join([keep_axes(self.carries), *(f"{axis}:t" for axis in data)])
        return Table(carries, tokens + keep_axes(self.X), keep_axes(self.W), tokens + keep_axes(self.Y))


def split_axes(spec: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The axes that cut rows, and those that cut columns, of "rows | columns"."""
    rows, cols = spec.split("|")
    return tuple(rows.split()), tuple(cols.split())


def select_cuts(cuts: tuple[Cut, ...], axes: tuple[str, ...]) -> tuple[Cut, ...]:
    """The cuts along some axes."""
    return tuple(cut for cut in cuts if cut.axis in axes)


@dataclass(frozen=True)
class LinearLayouts:
    """A linear's layouts: at rest, as gathered, and of addends.

    X, W and Y at rest; x and w as gathered for the local products; y, dx and dw: the addends of Y,
    dX and dW, before they are summed.
    """

    X: Layout
    W: Layout
    Y: Layout
    x: Layout
    w: Layout
    y: Layout
    sizes: Mapping[str, int]  # of the grid's axes

    @cached_property
    def dy(self) -> Layout:
        """The gathered dY's."""
        return self.y.summed

    @cached_property
    def dx(self) -> Layout:
        return Layout(self.x.rows, self.x.cols, axes_of(self.w.cols))

    @cached_property
    def unfolded_dx(self) -> Layout:
        """Of dY W^T, before a convolution's is folded."""
        return Layout(self.y.rows, self.w.rows, self.dx.partial)

    @cached_property
    def dw(self) -> Layout:
        return Layout(self.w.rows, self.w.cols, axes_of(self.x.rows))

    @cached_property
    def x_gather_axes(self) -> tuple[str, ...]:
        """The axes over which X is gathered to x."""
        return find_gather_axes(self.X, self.x, self.sizes)

    @cached_property
    def dy_gather_axes(self) -> tuple[str, ...]:
        """Those over which dY is."""
        return find_gather_axes(self.Y, self.dy, self.sizes)

    @cached_property
    def y_sum_axes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The axes over which Y is summed: scattered, and alike."""
        return find_sum_axes(self.y, self.Y, self.sizes)

    @cached_property
    def dx_sum_axes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Those over which dX is."""
        return find_sum_axes(self.dx, self.X, self.sizes)


def find_gather_axes(old: Layout, new: Layout, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The axes over which an all-gather brings a matrix from a layout to one that is not cut along them."""
    axes = extra_axes(old, new, sizes)
    assert axes is not None, f"{old} is not {new} cut further"
    return axes


def find_sum_axes(addends: Layout, layout: Layout, sizes: Mapping[str, int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The axes of several ranks along which addends are summed: scattered, and alike.

    The sum is scattered along those along which the layout cuts it; along the others it is alike on
    all ranks.
    """
    partial = [axis for axis in addends.partial if sizes[axis] > 1]
    scattered = tuple(axis for axis in layout.axes if axis in partial)
    return scattered, tuple(axis for axis in partial if axis not in scattered)


class Scheme:
    """A grid, the tables of the first and the second layer of a pair, and how passes are run.

    Each scheme names the axes of its grid, which may have one more, "data": along it tokens are cut
    first, and weights are copied. Collective over the grid's communicator.

    Parameters
    ----------
    grid : ProcessGrid
        Of the scheme's axes, without idle ranks.
    keep : bool, optional
        Gathered operands are kept from forward to backward (True), or gathered again (False): fewer
        words, or memory.
    shards : int, optional
        Micro-batches: parts of each rank's tokens, worked on in turn, so that the messages of one
        travel while another computes.
    panel : int, optional
        Linear's three products go by SUMMA, in panels of so many indices; by default operands are
        gathered whole.
    _flags : mapping, optional
        Further options of a subclass, which must be True or False as `keep`.

    Raises
    ------
    GridError
        For a grid that lacks an axis or has one too many, on every rank.
    ShapeError, ArgumentError
        For shards and panels that are no whole numbers of at least 1, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Summa2D(pdla.ProcessGrid((2, 1), comm=comm), shards=2)
    ...     x = scheme.shard(np.ones((8, 6)))
    ...     return isinstance(scheme, pdla.nn.Scheme), x.local.shape
    >>> pdla.run(2, program)[0]
    (True, (4, 6))
    """

    first: Table
    second: Table
    optional: tuple[str, ...] = ()
    grid: ProcessGrid
    keep: bool
    shards: int
    panel: int | None

    def __init__(
        self, grid: ProcessGrid, *, keep: bool = True, shards: int = 1, panel: int | None = None,
        _flags: Mapping[str, bool] | None = None,
    ) -> None:
        if not isinstance(grid, ProcessGrid):
            raise_everywhere(GridError(f"{type(self).__name__} takes a ProcessGrid, not {kind_of(grid)}"))
        call = f"{type(self).__name__}({grid!r}, keep={keep}, shards={shards}, panel={panel}) by {self.first}, {self.second}"
        self.description = call  # in words that are the same on every rank
        with agreed(grid.comm, call):
            named = {axis: None for table in (self.first, self.second) for axis in table.roles}
            missing = [axis for axis in named if axis not in grid.axes and axis not in self.optional]
            unknown = [axis for axis in grid.axes if axis not in named and axis != "data"]
            if (missing or unknown) and named:
                required = [axis for axis in named if axis not in self.optional]
                optional = [*self.optional, "data"]
                fault = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unknown)} besides"
                hint = suggest(unknown[0], [*missing, *optional]) if unknown else ""
                axes = f"the axes {', '.join(required)} (optional: {', '.join(optional)})"
                raise GridError(f"{type(self).__name__} takes a grid with {axes}; {grid!r} {fault}{hint}")
            if grid.size < grid.comm.size:
                smaller = f"comm.split(range({grid.size}) if comm.rank < {grid.size} else None, 'net')"
                raise GridError(f"{type(self).__name__}: {grid!r} leaves ranks idle; make it over {smaller}")
            checks.flags(keep=keep, **(_flags or {}))
            if not is_count(shards):
                raise misfit(ShapeError, shards)(f"shards={shards}: a whole number, at least 1")
            if panel is not None and (not is_count(panel) or keep or shards > 1):
                raise ShapeError(
                    f"panel={panel}, keep={keep}, shards={shards}: panels of a whole number, at least 1, not kept, of one shard"
                )
            if shards > 1 and any(split_axes(table.X)[0] != split_axes(table.Y)[0] for table in (self.first, self.second)):
                raise ShapeError(f"shards={shards}: {type(self).__name__} cuts tokens otherwise in every second layer; shards=1")
        data = tuple(axis for axis in grid.axes if axis == "data" and named)
        self.grid, self.keep, self.shards, self.panel = grid, keep, int(shards), None if panel is None else int(panel)
        self.first, self.second = (table.restrict(grid.axes, data) for table in (self.first, self.second))
        self._layouts: dict[tuple[Any, ...], Any] = {}  # kept, as every pass asks for the same ones
        self._words = f"{type(self).__name__}({', '.join([f'{axis}={n}' for axis, n in grid.sizes.items()])})"

    def __repr__(self) -> str:
        return self._words

    def __deepcopy__(self, memo: object) -> Scheme:
        return self  # so that a copy of a layer fits beside the original

    # ------------------------------------------------------------------ layouts

    def table(self, kind: str) -> Table:
        """Give the table of a pair's first or second layer. Local.

        Parameters
        ----------
        kind : "first" or "second"
            Which of them.

        Returns
        -------
        Table
            Where the layer's matrices lie.

        Raises
        ------
        ShapeError
            For any other kind.
        """
        if not (isinstance(kind, str) and kind in ("first", "second")):
            raise ShapeError(f"kind={kind!r}: 'first' or 'second', a layer's place in its pair{suggest(kind, ('first', 'second'))}")
        return self.first if kind == "first" else self.second

    def _cut_tokens(self, axes: tuple[str, ...], unit: int) -> tuple[Cut, ...]:
        """Cuts of tokens along axes.

        Into whole units along those that cut tokens in attention, along others anywhere. (With
        shards to divide there are no others: see __init__.)
        """
        whole = split_axes(self.first.Y)[0]
        return tuple(cut for axis in axes for cut in Balanced(axis, unit if axis in whole else 1).expand())

    def activation(self, spec: str, sequence: int = 1, unit: int = 1) -> Layout:
        """Give an activation's layout: tokens in whole sequences, features in whole units. Local.

        Parameters
        ----------
        spec : str
            "axes that cut rows | axes that cut columns".
        sequence : int, optional
            Tokens that stay together.
        unit : int, optional
            Features that do.

        Returns
        -------
        Layout
            On the scheme's grid.
        """
        key = spec, sequence, unit
        if key not in self._layouts:
            rows, cols = split_axes(spec)
            cut = tuple(cut for axis in cols for cut in Balanced(axis, unit).expand())
            self._layouts[key] = Layout(self._cut_tokens(rows, sequence), cut)
        return self._layouts[key]

    def residual(self, sequence: int = 1) -> Layout:
        """Give the layout of what a first layer takes in and a second puts out. Local.

        Parameters
        ----------
        sequence : int, optional
            Tokens that stay together.

        Returns
        -------
        Layout
            On the scheme's grid.
        """
        return self.activation(self.first.X, sequence)

    def linear(self, table: Table, sequence: int, units: tuple[int, int]) -> LinearLayouts:
        """Give a linear's layouts. Local.

        Parameters
        ----------
        table : Table
            Of its place in its pair.
        sequence : int
            Tokens that stay together.
        units : (int, int)
            Inputs, and outputs, that do.

        Returns
        -------
        LinearLayouts
            Of the three products.
        """
        key = table, sequence, units
        if key not in self._layouts:
            self._layouts[key] = self._lay_out_linear(*key)
        return self._layouts[key]

    def _lay_out_linear(self, table: Table, sequence: int, units: tuple[int, int]) -> LinearLayouts:
        carried = {role: tuple(axis for axis, r in table.roles.items() if r == role) for role in "tio"}
        X, Y = self.activation(table.X, sequence, units[0]), self.activation(table.Y, sequence, units[1])
        rows, cols = split_axes(table.W)
        W = Layout(*(tuple(c for a in axes for c in Balanced(a, u).expand()) for axes, u in zip((rows, cols), units, strict=True)))
        t, i, o = select_cuts(X.rows, carried["t"]), select_cuts(X.cols, carried["i"]), select_cuts(W.cols, carried["o"])
        w, y = Layout(select_cuts(W.rows, carried["i"]), o), Layout(t, o, carried["i"])
        return LinearLayouts(X, W, Y, Layout(t, i), w, y, self.grid.sizes)

    # ------------------------------------------------------------------ activations

    def shard(self, x: object, *, sequence: int = 1, root: int | None = None) -> DistMatrix:
        """Deal out a global activation as the first layer of a pair takes it. Collective.

        Parameters
        ----------
        x : array_like
            (tokens, features); a sequence's tokens come one after the other.
        sequence : int, optional
            Tokens of a sequence, which attention wants whole.
        root : int, optional
            The rank that has x; by default every rank has it.

        Returns
        -------
        DistMatrix
            Laid out as `residual` says.

        Raises
        ------
        ShapeError, ArgumentError
            For a sequence that is no whole number of at least 1, on every rank.
        """
        with agreed(self.grid.comm, f"shard(sequence={sequence})"):
            if not is_count(sequence):
                raise misfit(ShapeError, sequence)(f"sequence={sequence}: tokens of a sequence, a whole number, at least 1")
        return from_global(x, self.grid, self.residual(sequence), root)


def is_count(n: object, least: float = 1) -> bool:
    """Whether n is a whole number of at least `least`."""
    return isinstance(n, Integral) and int(n) >= least


@lru_cache(maxsize=256)
def find_sequence(layout: Layout) -> int:
    """The tokens of a sequence that an activation's cuts keep whole; 1 where they are not cut into units."""
    return max((getattr(cut, "unit", 1) for cut in layout.rows), default=1)
