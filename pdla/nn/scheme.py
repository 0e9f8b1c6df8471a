"""Schemes: tables of layouts that say how a linear layer is cut over a grid.

X is tokens x inputs, W inputs x outputs, Y tokens x outputs. A table has their layouts, as "axes
cutting rows | axes cutting columns", outermost first. A table also has the dimension that each axis
carries in the layer's three products:

| Y = X W, tokens x outputs, summed over inputs
| dX = dY W^T, tokens x inputs, summed over outputs
| dW = X^T dY, inputs x outputs, summed over tokens

An axis that carries tokens (t), inputs (i) or outputs (o) cuts that dimension in all three
products. The layer's messages follow from this:

* A matrix is gathered over each axis that cuts a dimension of it without carrying this dimension.
* A result is summed over the axes that carry the dimension that the result lacks. Along an axis
  that cuts the result the sum is scattered; along another axis all ranks have the sum.

Layers come in pairs, `first` and `second`. The second's X has the layout of the first's Y, and the
second's Y that of the first's X, so nothing is redistributed between them.
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
    """The layouts of a layer's matrices, and the dimension that each axis carries: "row:t col:o"."""

    carries: str
    X: str
    W: str
    Y: str

    @cached_property
    def roles(self) -> Mapping[str, str]:
        return dict(word.split(":") for word in self.carries.split())

    def swap_axes(self, one: str, other: str) -> Table:
        """Exchange two axes, in a copy of the table."""
        names = {one: other, other: one}

        def swap(text: str) -> str:
            return " ".join(":".join(names.get(name, name) for name in word.split(":")) for word in text.split())

        return Table(*map(swap, (self.carries, self.X, self.W, self.Y)))

    def restrict(self, axes: tuple[str, ...], data: tuple[str, ...]) -> Table:
        """Leave these axes alone in a copy of the table; the axes of `data` cut tokens first."""

        def keep_axes(text: str) -> str:
            return " ".join(word for word in text.split() if word == "|" or word.partition(":")[0] in axes)

        tokens = "".join(f"{axis} " for axis in data)
        carries = " ".join([keep_axes(self.carries), *(f"{axis}:t" for axis in data)])
        return Table(carries, tokens + keep_axes(self.X), keep_axes(self.W), tokens + keep_axes(self.Y))


def split_axes(spec: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split "rows | columns" into the axes that cut rows and the axes that cut columns."""
    rows, cols = spec.split("|")
    return tuple(rows.split()), tuple(cols.split())


def select_cuts(cuts: tuple[Cut, ...], axes: tuple[str, ...]) -> tuple[Cut, ...]:
    """Select the cuts along some axes."""
    return tuple(cut for cut in cuts if cut.axis in axes)


@dataclass(frozen=True)
class LinearLayouts:
    """A linear's layouts.

    | X, W, Y     at rest
    | x, w, dy    gathered, for the local products
    | y, dx, dw   addends of Y, dX and dW
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
        """The layout of the gathered dY."""
        return self.y.summed

    @cached_property
    def dx(self) -> Layout:
        return Layout(self.x.rows, self.x.cols, axes_of(self.w.cols))

    @cached_property
    def unfolded_dx(self) -> Layout:
        """The layout of dY W^T, which a convolution folds to dx."""
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
        """The axes over which dY is gathered to dy."""
        return find_gather_axes(self.Y, self.dy, self.sizes)

    @cached_property
    def y_sum_axes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The axes over which Y is summed, as `find_sum_axes` has them."""
        return find_sum_axes(self.y, self.Y, self.sizes)

    @cached_property
    def dx_sum_axes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The axes over which dX is summed, as `find_sum_axes` has them."""
        return find_sum_axes(self.dx, self.X, self.sizes)


def find_gather_axes(old: Layout, new: Layout, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Find the axes over which an all-gather changes the old layout to the new one."""
    axes = extra_axes(old, new, sizes)
    assert axes is not None, f"{old} is not {new} cut further"
    return axes


def find_sum_axes(addends: Layout, layout: Layout, sizes: Mapping[str, int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Find the axes of several ranks along which addends are summed.

    The sum is scattered along the axes of the first tuple, which cut the layout. Ranks along the
    axes of the second tuple hold copies of the sum.
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
        The scheme's axes, without idle ranks.
    keep : bool, optional
        True keeps gathered operands from forward to backward, for fewer words. False gathers them
        again, for less memory.
    shards : int, optional
        Micro-batches, parts of each rank's tokens. The messages of one travel while another
        computes.
    panel : int, optional
        Width of SUMMA's panels in Linear's three products. By default operands are gathered whole.
    _flags : mapping, optional
        Further options of a subclass, which must be True or False.

    Raises
    ------
    GridError
        If the grid lacks an axis or has an unknown one, on every rank.
    ShapeError, ArgumentError
        If shards or panel is no whole number of at least 1, on every rank.

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
        self.description = call  # the same on every rank
        with agreed(grid.comm, call):
            table_axes = {axis: None for table in (self.first, self.second) for axis in table.roles}
            missing = [axis for axis in table_axes if axis not in grid.axes and axis not in self.optional]
            unknown = [axis for axis in grid.axes if axis not in table_axes and axis != "data"]
            if (missing or unknown) and table_axes:
                required = [axis for axis in table_axes if axis not in self.optional]
                optional = [*self.optional, "data"]
                fault = f"lacks {', '.join(missing)}" if missing else f"also has {', '.join(unknown)}"
                hint = suggest(unknown[0], [*missing, *optional]) if unknown else ""
                axes = f"the axes {', '.join(required)} (optional: {', '.join(optional)})"
                raise GridError(f"{type(self).__name__} takes a grid with {axes}; {grid!r} {fault}{hint}")
            if grid.size < grid.comm.size:
                split_call = f"comm.split(range({grid.size}) if comm.rank < {grid.size} else None, 'net')"
                raise GridError(f"{type(self).__name__}: {grid!r} leaves ranks idle; make it over {split_call}")
            checks.flags(keep=keep, **(_flags or {}))
            if not is_count(shards):
                raise misfit(ShapeError, shards)(f"shards={shards}: a whole number, at least 1")
            if panel is not None and (not is_count(panel) or keep or shards > 1):
                raise ShapeError(
                    f"panel={panel}, keep={keep}, shards={shards}: panel is a whole number, at least 1; keep=False and shards=1"
                )
            if shards > 1 and any(split_axes(table.X)[0] != split_axes(table.Y)[0] for table in (self.first, self.second)):
                raise ShapeError(f"shards={shards}: {type(self).__name__} cuts tokens differently in a pair's two layers; shards=1")
        data = tuple(axis for axis in grid.axes if axis == "data" and table_axes)
        self.grid, self.keep, self.shards, self.panel = grid, keep, int(shards), None if panel is None else int(panel)
        self.first, self.second = (table.restrict(grid.axes, data) for table in (self.first, self.second))
        self._layouts: dict[tuple[Any, ...], Any] = {}  # every pass asks for the same layouts
        self._words = f"{type(self).__name__}({', '.join([f'{axis}={n}' for axis, n in grid.sizes.items()])})"

    def __repr__(self) -> str:
        return self._words

    def __deepcopy__(self, memo: object) -> Scheme:
        return self  # a copy of a layer and the original work together in one scheme

    # ------------------------------------------------------------------ layouts

    def table(self, kind: str) -> Table:
        """Give the table of a pair's first or second layer. Local.

        Parameters
        ----------
        kind : "first" or "second"
            The layer's place in its pair.

        Returns
        -------
        Table
            The layouts of the layer's matrices.

        Raises
        ------
        ShapeError
            For any other kind.
        """
        if not (isinstance(kind, str) and kind in ("first", "second")):
            raise ShapeError(f"kind={kind!r}: 'first' or 'second', a layer's place in its pair{suggest(kind, ('first', 'second'))}")
        return self.first if kind == "first" else self.second

    def _cut_tokens(self, axes: tuple[str, ...], unit: int) -> tuple[Cut, ...]:
        """Cut tokens along axes.

        Axes that cut tokens in attention do not divide a unit; other axes may. (A scheme with shards
        has no other axes: see __init__.)
        """
        attention_axes = split_axes(self.first.Y)[0]
        return tuple(cut for axis in axes for cut in Balanced(axis, unit if axis in attention_axes else 1).expand())

    def activation(self, spec: str, sequence: int = 1, unit: int = 1) -> Layout:
        """Give an activation's layout: tokens in whole sequences, features in whole units. Local.

        Parameters
        ----------
        spec : str
            "axes that cut rows | axes that cut columns".
        sequence : int, optional
            Tokens of a sequence, which cuts in attention do not divide.
        unit : int, optional
            Features of a unit, which no cut divides.

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
        """Give the layout of a first layer's input and a second layer's output. Local.

        Parameters
        ----------
        sequence : int, optional
            Tokens of a sequence, which cuts in attention do not divide.

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
            The scheme's `first` or `second`.
        sequence : int
            Tokens of a sequence, which cuts in attention do not divide.
        units : (int, int)
            Inputs, and outputs, of a unit, which no cut divides.

        Returns
        -------
        LinearLayouts
            The layouts of the three products.
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
        """Distribute a global activation in the layout of a first layer's input. Collective.

        Parameters
        ----------
        x : array_like
            (tokens, features); a sequence's tokens are consecutive.
        sequence : int, optional
            Tokens of a sequence; attention needs sequences whole on a rank.
        root : int, optional
            The rank that has x; by default every rank has it.

        Returns
        -------
        DistMatrix
            In the layout that `residual` gives.

        Raises
        ------
        ShapeError, ArgumentError
            If sequence is no whole number of at least 1, on every rank.
        """
        with agreed(self.grid.comm, f"shard(sequence={sequence})"):
            if not is_count(sequence):
                raise misfit(ShapeError, sequence)(f"sequence={sequence}: tokens of a sequence, a whole number, at least 1")
        return from_global(x, self.grid, self.residual(sequence), root)


def is_count(n: object, minimum: float = 1) -> bool:
    """Whether n is a whole number of at least `minimum`."""
    return isinstance(n, Integral) and int(n) >= minimum


@lru_cache(maxsize=256)
def find_sequence(layout: Layout) -> int:
    """Find how many tokens an activation's cuts keep together; 1 for cuts without units."""
    return max((getattr(cut, "unit", 1) for cut in layout.rows), default=1)
