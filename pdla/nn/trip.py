"""A trip: one forward pass and the backward pass after it, what is kept between them and what is under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from copy import deepcopy
from fractions import Fraction
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from pdla.array.composed import summing
from pdla.comm.ledger import tag
from pdla.cuts import block_bounds
from pdla.errors import LayoutError
from pdla.indices import IndexSet
from pdla.layout import Layout, axes_of, share, shares
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import local_shape
from pdla.nn.activation import check_whole
from pdla.nn.scheme import sequence_of
from pdla.nn.steps import Steps, begun, finish, gathered, settled

if TYPE_CHECKING:
    from pdla.nn.layer import Layer


def seeded(seed: int, name: str) -> int:
    """A seed of its own for each name, which begins with the layer's place: layers made with one seed are not alike."""
    return int.from_bytes(blake2b(f"{seed} {name}".encode(), digest_size=8).digest())


class Parameter:
    """A matrix that is learned, and its gradient after a backward pass, in the same layout.

    used    the layout in which layers compute with it: it is gathered to this one, and its gradient is summed from this to its own
    made    the value as it was made: what is to be drawn may not be there yet
    name    its messages are recorded as "name forward" and "name backward"
    layers  how many layers use it
    turned  whether the backward pass needs it, too
    draw    what writes its first numbers, once somebody asks for them: by then the layer has been put into its place
    """

    def __init__(
        self, value: DistMatrix, used: Layout | None = None, name: str = "", draw: Callable[[], None] | None = None
    ) -> None:
        self.made, self.name, self.layers, self.turned, self._draw = value, name, 1, True, draw
        self.used = value.layout if used is None else used
        self.gradient: DistMatrix | None = None

    @property
    def value(self) -> DistMatrix:
        if self._draw is not None:
            self._draw()
            self._draw = None
        return self.made

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        made = memo[id(self)] = Parameter(self.value.copy(), self.used, self.name)
        made.layers, made.turned, made.gradient = self.layers, self.turned, deepcopy(self.gradient, memo)
        return made


class Trip:
    """One forward pass of all shards and the backward pass after it: what is kept between them, and what is under way.

    Each parameter is gathered once for all shards, and travels while the one before it is used. Gradients are summed in place over
    the shards, and after the last of them, once, over the ranks.
    """

    def __init__(self, layer: Layer, x: Any, number: int, training: bool, parameters: Iterable[Parameter]) -> None:
        self.scheme, self.tokens, self.number, self.training = layer.scheme, x.shape[0], number, training
        self.sequence = layer.sequence
        self.layout = x.layout if isinstance(x, DistMatrix) else self.scheme.residual(self.sequence)
        self.order = [p for p in parameters if p.used != p.value.layout]
        self.place = {p: i for i, p in enumerate(self.order)}
        self.ahead = 1
        self.coming: dict[Parameter, Steps[DistMatrix]] = {}
        self.here: dict[Parameter, DistMatrix] = {}
        self.uses = Counter[Parameter]()
        self.addends: dict[Parameter, tuple[DistMatrix, int]] = {}
        self.debts: list[tuple[Parameter, Steps[DistMatrix]]] = []

    def drop(self) -> None:
        """Receive the parameters under way, which will not be used."""
        for steps in self.coming.values():
            finish(steps)
        self.coming.clear()

    def turn(self) -> None:
        """End the forward pass and begin the backward one."""
        self.ahead = -1
        self.uses.clear()

    # ------------------------------------------------------------------ parameters

    def ask(self, parameter: Parameter) -> None:
        """Begin to gather a parameter, and the next in order."""
        if parameter in self.place:
            self._begin(parameter)
            after = self.place[parameter] + self.ahead
            if 0 <= after < len(self.order) and self._wanted(self.order[after]):
                self._begin(self.order[after])

    def _wanted(self, parameter: Parameter) -> bool:
        return not self.uses[parameter] and (self.ahead == 1 or parameter.turned)

    def _begin(self, parameter: Parameter) -> None:
        if parameter not in self.coming and parameter not in self.here:
            name = f"{parameter.name} {'forward' if self.ahead == 1 else 'backward'}"
            self.coming[parameter] = begun(gathered(parameter.value, parameter.used), name)

    def gathered(self, parameter: Parameter) -> DistMatrix:
        """The parameter in the layout in which it is used. It has travelled while the one before it was used, so this waits for it
        without yielding."""
        if parameter not in self.place:
            return parameter.value
        self.ask(parameter)
        if parameter in self.coming:
            self.here[parameter] = finish(self.coming.pop(parameter))
        return self.here[parameter]

    def release(self, parameter: Parameter, keeping: bool) -> None:
        """One shard is done with the parameter in this direction. After the last one the gathered copy is dropped, unless it is
        kept for the backward pass."""
        self.uses[parameter] += 1
        keep = self.scheme.keep and self.ahead == 1 and keeping
        if self.uses[parameter] % self.scheme.shards == 0 and not keep:
            self.here.pop(parameter, None)

    # ------------------------------------------------------------------ gradients

    def add(self, parameter: Parameter, partial: tuple[str, ...], write: Callable[[Any, bool], None]) -> None:
        """Add one shard's part of a gradient: write(block, first) sets the block if first, else adds to it. After the last part the
        sum over the ranks along the axes `partial` begins."""
        value, layout = parameter.value, Layout(parameter.used.rows, parameter.used.cols, partial)
        if parameter not in self.addends:
            block = value.xp.empty(local_shape(value.shape, layout, value.grid), summing(value.dtype))
            self.addends[parameter] = DistMatrix(block, value.shape, value.grid, layout), 0
        addends, count = self.addends[parameter]
        write(addends.stored, count == 0)
        self.addends[parameter] = addends, count + 1
        if count + 1 == self.scheme.shards * parameter.layers:
            self.settle()
            del self.addends[parameter]
            self.debts.append((parameter, begun(settled(addends, value.layout, value.dtype), tag())))

    def settle(self) -> None:
        """Wait for the sums over ranks that are under way, and set the gradients to them."""
        for parameter, steps in self.debts:
            parameter.gradient = finish(steps)
        self.debts.clear()

    def shards(self) -> list[Shard]:
        return [Shard(self, i) for i in range(self.scheme.shards)]


class Shard:
    """A part of each rank's tokens on its trip: what the layers keep of it for the backward pass.

    keeping  False: nothing is kept, since the forward pass will be repeated;  again: it is being repeated, in the backward pass
    """

    def __init__(self, trip: Trip, number: int, *, keeping: bool = True, again: bool = False) -> None:
        self.trip, self.number, self.keeping, self.again = trip, number, keeping and trip.training, again
        self.kept: dict[Any, Any] = {}

    def keep(self, layer: Any, *values: Any) -> None:
        """Keep what the layer's backward pass will need."""
        if self.keeping:
            self.kept[layer] = values

    def take(self, layer: Any) -> Any:
        return self.kept.pop(layer)

    def release(self, parameter: Parameter) -> None:
        """This shard no longer needs the gathered parameter in this direction."""
        if not self.again:
            self.trip.release(parameter, self.keeping)

    def check_whole(self, layer: Layer, x: DistMatrix, given: Layout | None = None) -> None:
        """LayoutError, on every rank, unless each holds whole samples of x, which layers before this one have made, and makes of
        them its part of y, where the layout of y is given."""
        try:
            check_whole(layer, x, given)
        except LayoutError:
            self.trip.drop()
            raise

    def draft(self) -> Shard:
        """This shard in a forward pass of which nothing is kept."""
        return Shard(self.trip, self.number, keeping=False)

    def repeated(self) -> Shard:
        """This shard in a repetition of its forward pass."""
        return Shard(self.trip, self.number, again=True)

    # ------------------------------------------------------------------ which tokens

    def bounds(self, rows: int, unit: int) -> tuple[int, int]:
        """The range of a rank's tokens, of `rows`, that are this shard's: whole units."""
        start, stop = block_bounds(-(-rows // unit), self.trip.scheme.shards, self.number)
        return min(start * unit, rows), min(stop * unit, rows)

    def unit(self, layout: Layout, scale: Fraction = Fraction(1)) -> int:
        return max(int(self.trip.sequence * scale), sequence_of(layout))

    def rows(self, layout: Layout, tokens: int) -> np.ndarray:
        """The global rows of this rank's tokens of the shard, in an activation of this layout that has `tokens` in the shard on all
        ranks: layers may have made more or fewer of them than the pass began with."""
        grid, scale = self.trip.scheme.grid, Fraction(tokens, max(self.tokens, 1))
        assert grid.coords is not None
        held = share(int(self.trip.tokens * scale), layout.rows, grid.sizes, grid.coords)
        return held.select(IndexSet.interval(*self.bounds(len(held), self.unit(layout, scale)))).indices()

    @cached_property
    def tokens(self) -> int:
        """The shard's tokens on all ranks, where the pass begins."""
        trip, layout = self.trip, self.trip.layout
        if trip.scheme.shards == 1:
            return trip.tokens
        held = shares(trip.tokens, layout.rows, trip.scheme.grid.sizes, axes_of(layout.rows), {})
        spans = [self.bounds(len(tokens), self.unit(layout)) for tokens in held]
        return sum(stop - start for start, stop in spans)
