"""What every layer is: parameters, a pass forward and a pass backward; and the trip that the two make together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np

from pdla.array.meta import Meta
from pdla.comm.agree import agreed
from pdla.comm.ledger import tagged
from pdla.create import from_global
from pdla.errors import LayoutError, PdlaError, ShapeError
from pdla.layout import IndexSet, Layout, block_bounds, share, shares
from pdla.matrix import DistMatrix
from pdla.nn.scheme import Scheme, sequence_of
from pdla.nn.steps import Steps, begun, finish, gathered, settled, together
from pdla.redistribute import local_shape


def seeded(seed: int, name: str) -> int:
    """A seed of its own for each name, so that layers made with one seed are not alike."""
    return int.from_bytes(blake2b(f"{seed} {name}".encode(), digest_size=8).digest())


class Parameter:
    """A matrix that is learned, and its gradient after a backward pass, in the same layout.

    used    the layout in which a layer computes with it: gathered before use, its gradient's addends summed into its own
    name    its messages are recorded as "name forward" and "name backward"
    layers  how many layers use it
    turned  whether the way back needs it, too
    """

    def __init__(self, value: DistMatrix, used: Layout | None = None, name: str = "") -> None:
        self.value, self.name, self.layers, self.turned = value, name, 1, True
        self.used = value.layout if used is None else used
        self.gradient: DistMatrix | None = None


class Trip:
    """One forward pass of all shards and the backward pass behind it: what is kept between them, and what is under way.

    Parameters come gathered, the next one's on its way while one is used, each once for all shards; gradients are summed in
    place over the shards, and over the ranks once, behind the last.
    """

    def __init__(self, layer: Layer, x: Any, number: int, training: bool) -> None:
        self.scheme, self.tokens, self.number, self.training = layer.scheme, x.shape[0], number, training
        self.sequence = layer.sequence
        self.layout = x.layout if isinstance(x, DistMatrix) else self.scheme.residual(self.sequence)
        self.order = [p for p in layer.all_parameters() if p.used != p.value.layout]
        self.place = {p: i for i, p in enumerate(self.order)}
        self.ahead = 1
        self.coming: dict[Parameter, Steps[DistMatrix]] = {}
        self.here: dict[Parameter, DistMatrix] = {}
        self.uses: dict[Parameter, int] = {}
        self.addends: dict[Parameter, tuple[DistMatrix, int]] = {}
        self.debts: list[tuple[Parameter, Steps[DistMatrix]]] = []

    def turn(self) -> None:
        """From here on backward."""
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
        return not self.uses.get(parameter) and (self.ahead == 1 or parameter.turned)

    def _begin(self, parameter: Parameter) -> None:
        if parameter not in self.coming and parameter not in self.here:
            with tagged(f"{parameter.name} {'forward' if self.ahead == 1 else 'backward'}"):
                self.coming[parameter] = begun(gathered(parameter.value, parameter.used))

    def gathered(self, parameter: Parameter) -> DistMatrix:
        """The parameter as it is used. It has been on its way since the one before it was used: nobody gives way for it."""
        if parameter not in self.place:
            return parameter.value
        self.ask(parameter)
        if parameter in self.coming:
            self.here[parameter] = finish(self.coming.pop(parameter))
        return self.here[parameter]

    def release(self, parameter: Parameter, keeping: bool) -> None:
        """One shard is done with it in this direction; the last one lets go of it, unless it is kept for the way back."""
        self.uses[parameter] = self.uses.get(parameter, 0) + 1
        keep = self.scheme.keep and self.ahead == 1 and keeping
        if self.uses[parameter] % self.scheme.shards == 0 and not keep:
            self.here.pop(parameter, None)

    # ------------------------------------------------------------------ gradients

    def add(self, parameter: Parameter, partial: tuple[str, ...], write: Callable[[Any, bool], None]) -> None:
        """One shard's part of a gradient: write(block, first) sets the block or adds to it; behind the last shard's the sums
        over ranks begin."""
        value, layout = parameter.value, Layout(parameter.used.rows, parameter.used.cols, partial)
        if parameter not in self.addends:
            block = value.xp.empty(local_shape(value.shape, layout, value.grid), value.dtype)
            self.addends[parameter] = DistMatrix(block, value.shape, value.grid, layout), 0
        addends, count = self.addends[parameter]
        write(addends.stored, count == 0)
        self.addends[parameter] = addends, count + 1
        if count + 1 == self.scheme.shards * parameter.layers:
            self.settle()
            del self.addends[parameter]
            self.debts.append((parameter, begun(settled(addends, value.layout))))

    def settle(self) -> None:
        """End the sums that have been begun."""
        for parameter, steps in self.debts:
            parameter.gradient = finish(steps)
        self.debts.clear()

    def shards(self) -> list[Shard]:
        return [Shard(self, i) for i in range(self.scheme.shards)]


class Shard:
    """A part of each rank's tokens on its trip: what its layers keep for the way back.

    keeping  False: nothing is kept, since the pass will be made again;  again: it is being made again, on the way back
    """

    def __init__(self, trip: Trip, number: int, *, keeping: bool = True, again: bool = False) -> None:
        self.trip, self.number, self.keeping, self.again = trip, number, keeping and trip.training, again
        self.kept: dict[Any, Any] = {}

    def keep(self, layer: Any, *values: Any) -> None:
        """What the layer's backward pass will want."""
        if self.keeping:
            self.kept[layer] = values

    def take(self, layer: Any) -> Any:
        return self.kept.pop(layer)

    def release(self, parameter: Parameter) -> None:
        """This shard needs the gathered parameter no more in this direction."""
        if not self.again:
            self.trip.release(parameter, self.keeping)

    def draft(self) -> Shard:
        """This shard on a pass of which nothing is kept."""
        return Shard(self.trip, self.number, keeping=False)

    def repeated(self) -> Shard:
        """This shard on the same pass once more."""
        return Shard(self.trip, self.number, again=True)

    # ------------------------------------------------------------------ which tokens

    def bounds(self, rows: int, unit: int) -> tuple[int, int]:
        """Which of a rank's tokens are this shard's: whole sequences."""
        start, stop = block_bounds(-(-rows // unit), self.trip.scheme.shards, self.number)
        return min(start * unit, rows), min(stop * unit, rows)

    def unit(self, layout: Layout, scale: Fraction = Fraction(1)) -> int:
        return max(int(self.trip.sequence * scale), sequence_of(layout))

    def rows(self, layout: Layout, tokens: int) -> np.ndarray:
        """The global rows that those of this rank's block are, in a layout, of an activation that has so many in this shard:
        layers may have put out more or fewer than the pass began with."""
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
        held = shares(trip.tokens, layout.rows, trip.scheme.grid.sizes, rows_of(layout), {})
        spans = [self.bounds(len(tokens), self.unit(layout)) for _, tokens in held]
        return sum(stop - start for start, stop in spans)


class Layer:
    """A part of a network. `forward(x)`, then `backward(dy)`, which gives dx and leaves the gradients; both collective.

    What forward is given must not be written to before backward: layers keep it where they can, not copies.

    Subclasses write `_forward(x, at)` and `_backward(dy, at)` as steps, and name their parameters and inner layers in
    attributes.

    sequence      tokens of x that must lie on one rank together;  scale: tokens of y for each of x
    takes, gives  how the scheme cuts x and y, "rows | columns" as in its tables; None: wherever x lies, and there y
    passes        forward passes made in training; what Dropout drops depends on it: set it to resume
    widths        features of x and of y; None: any, and y has as many as x
    """

    sequence = 1
    scale = Fraction(1)
    takes: str | None = None
    gives: str | None = None
    widths: tuple[int | None, int | None] = (None, None)

    def __init__(self, scheme: Scheme) -> None:
        self.scheme = scheme
        self._trip: Trip | None = None
        self._shards: list[Shard] = []
        self._left: DistMatrix | None = None
        self._sizes: list[tuple[int, int]] = []
        self.passes = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__} on {self.scheme!r}"

    # ------------------------------------------------------------------ what subclasses write

    def _forward(self, x: Any, at: Shard) -> Steps[Any]:
        raise NotImplementedError

    def _backward(self, dy: Any, at: Shard) -> Steps[Any]:
        raise NotImplementedError

    def _takes(self, x: Any) -> None:
        """Raise what is wrong with an input on this rank."""
        raise NotImplementedError

    # ------------------------------------------------------------------ parts

    def named_layers(self) -> Iterator[tuple[str, Layer]]:
        """Inner layers, with their names, in order."""
        for name, value in vars(self).items():
            if isinstance(value, Layer):
                yield name, value
            elif isinstance(value, (list, tuple)):
                yield from ((f"{name}.{i}", part) for i, part in enumerate(value) if isinstance(part, Layer))

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """All parameters, with their names, in the order in which a forward pass comes to them; one used twice comes once."""
        seen: set[Parameter] = set()
        for name, parameter in self._named(prefix):
            if parameter not in seen:
                seen.add(parameter)
                yield name, parameter

    def _named(self, prefix: str) -> Iterator[tuple[str, Parameter]]:
        for inner, layer in self.all_layers(prefix):
            yield from ((inner + name, value) for name, value in vars(layer).items() if isinstance(value, Parameter))

    def all_layers(self, prefix: str = "", seen: set[Layer] | None = None) -> Iterator[tuple[str, Layer]]:
        """This layer and all in it, each once, with the prefix of their parameters' names."""
        seen = set() if seen is None else seen
        if self not in seen:
            seen.add(self)
            yield prefix, self
            for name, layer in self.named_layers():
                yield from layer.all_layers(f"{prefix}{name}.", seen)

    def all_parameters(self) -> list[Parameter]:
        return [parameter for _, parameter in self.named_parameters()]

    def parameters(self) -> dict[str, DistMatrix]:
        """The parameters by name, each in its layout; writing to them changes the layer."""
        return {name: parameter.value for name, parameter in self.named_parameters()}

    def gradients(self) -> dict[str, DistMatrix]:
        """The gradients that the last backward pass left, by name, laid out as the parameters and the same on all copies."""
        return {name: p.gradient for name, p in self.named_parameters() if p.gradient is not None}

    def state_dict(self, root: int | None = None) -> dict[str, Any]:
        """Collective: the parameters as global arrays by name, on every rank or on `root` (None elsewhere), in an order of rows
        and columns that does not depend on the scheme: another scheme, on another grid, loads them."""
        return {name: p.value.gather(root) for name, p in self.named_parameters()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Collective: set the parameters from global arrays, which every rank has. ShapeError where names or shapes differ."""
        with agreed(self.scheme.grid.comm, f"load_state_dict of {self!r}"):
            own = self.parameters()
            if set(own) != set(state):
                lacks, has = sorted(set(own) - set(state)), sorted(set(state) - set(own))
                raise ShapeError(f"the state is not {self!r}'s: it lacks {lacks}, it has besides {has}")
            for name, value in own.items():
                if value.shape != np.shape(state[name]):
                    raise ShapeError(f"{name} is {np.shape(state[name])} in the state, {value.shape} in {self!r}")
        for value, array in ((value, state[name]) for name, value in own.items()):
            value.xp.copy(value.stored, from_global(array, value.grid, value.layout).stored)

    def _check_uses(self) -> None:
        """Raise where a parameter is used by other layers too, or by more than it knows of: its gradient would wait for theirs, or
        not for all."""
        named = list(self._named(""))
        uses = Counter(parameter for _, parameter in named)
        for name, parameter in named:
            if uses[parameter] < parameter.layers:
                raise PdlaError(
                    f"{name} of {self!r} is used by {parameter.layers} layers, of which {uses[parameter]} make this pass: "
                    "put all into one Sequential, or give training=False"
                )
            if uses[parameter] > parameter.layers:
                raise PdlaError(f"{name} of {self!r} is used by {uses[parameter]} layers; TiedHead is the layer that shares one")

    # ------------------------------------------------------------------ passes

    def forward(self, x: Any, *, training: bool = True) -> Any:
        """Collective: the layer of x. training=False: nothing is kept for a backward pass, nothing is dropped."""
        with agreed(self.scheme.grid.comm, f"forward of {self!r} on {_described(x)}, training={training}"):
            self._takes(x)
            _check_sequences(self, x)
            if training:
                self._check_uses()
        self.passes += training
        trip = Trip(self, x, self.passes, training)
        shards = trip.shards()
        parts = together(self._forward(_part(x, at), at) for at in shards)
        y = _joined(parts)
        self._trip, self._shards = (trip if training else None), shards
        self._left = DistMatrix(Meta(y.stored.shape, y.dtype), y.shape, y.grid, y.layout)  # where it lies, not its elements
        self._sizes = [(part.stored.shape[0], part.shape[0]) for part in parts]
        return y

    def kept_bytes(self) -> int:
        """Bytes that this rank keeps from the last forward pass for the backward one: x where a layer keeps it, gathered
        parameters, not those that lie as they are used."""
        own = {id(_memory(p.value.base)) for p in self.all_parameters()}
        gathered = [] if self._trip is None else list(self._trip.here.values())
        kept = [value for shard in self._shards for value in shard.kept.values()]
        found = {id(memory): memory.nbytes for memory in _arrays([*gathered, *kept])}
        return sum(size for memory, size in found.items() if memory not in own)

    def backward(self, dy: DistMatrix) -> Any:
        """Collective: the gradient with regard to x, given that with regard to y; parameters get theirs.

        PdlaError, on every rank, without a forward pass before it; LayoutError or ShapeError where dy does not lie as y.
        """
        trip, y = self._trip, self._left
        with agreed(self.scheme.grid.comm, f"backward of {self!r} on {_described(dy)}"):
            if trip is None:
                raise PdlaError(f"backward of {self!r} without a forward pass before it, in training: each serves once")
            assert y is not None
            _lies_like(dy, y, "dy", "the layer's output")
        self._trip, self._left = None, None
        trip.turn()
        dx = together(self._backward(part, at) for part, at in zip(_parted(dy, self._sizes), self._shards, strict=True))
        trip.settle()
        self._shards = []
        return _joined(dx)


def _memory(x: Any) -> Any:
    """The array whose memory x looks at."""
    return x if x.base is None else x.base


def _arrays(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _arrays(value)
        elif value is not None and not isinstance(value, (int, float)):
            yield _memory(value.base if isinstance(value, DistMatrix) else value)


def _described(x: Any) -> str:
    if isinstance(x, np.ndarray):  # token numbers, which every rank is to have alike
        return f"array {x.shape} {x.dtype} of digest {blake2b(x.tobytes(), digest_size=8).hexdigest()}"
    return x.described if isinstance(x, DistMatrix) else type(x).__name__


def like(x: DistMatrix, block: Any) -> DistMatrix:
    """Another block in x's place."""
    return DistMatrix(block, x.shape, x.grid, x.layout)


def _part(x: Any, at: Shard) -> Any:
    """A shard's rows of x, where they lie; token numbers go whole to every shard."""
    if at.trip.scheme.shards == 1 or not isinstance(x, DistMatrix):
        return x
    start, stop = at.bounds(x.stored.shape[0], at.unit(x.layout))
    return DistMatrix(x.stored[start:stop], (at.tokens, x.shape[1]), x.grid, x.layout)


def _parted(x: DistMatrix, sizes: list[tuple[int, int]]) -> Iterator[DistMatrix]:
    """The reverse of `_joined`, given the rows of each part, here and on all ranks."""
    at = 0
    for here, everywhere in sizes:
        block = x.stored if len(sizes) == 1 else x.stored[at : at + here]
        yield DistMatrix(block, (everywhere, x.shape[1]), x.grid, x.layout)
        at += here


def _joined(parts: list[Any]) -> Any:
    """The shards' rows under one another."""
    if len(parts) == 1 or parts[0] is None:
        return parts[0]
    first = parts[0]
    block = first.xp.empty((sum(p.stored.shape[0] for p in parts), first.stored.shape[1]), first.dtype)
    at = 0
    for part in parts:
        first.xp.copy(block[at : at + part.stored.shape[0]], part.stored)
        at += part.stored.shape[0]
    return DistMatrix(block, (sum(p.shape[0] for p in parts), first.shape[1]), first.grid, first.layout)


# ---------------------------------------------------------------------------------------------- checks


def _lies_like(x: Any, model: DistMatrix, name: str, what: str) -> None:
    if not isinstance(x, DistMatrix):
        raise ShapeError(f"{name} is a {type(x).__name__}, not a DistMatrix laid out as {what}, {model!r}")
    if x.shape != model.shape or x.dtype != model.dtype:
        raise ShapeError(f"{name} is {x.shape} {x.dtype}, {what} {model.shape} {model.dtype}")
    if x.grid != model.grid or x.layout != model.layout:
        raise LayoutError(f"{name} lies as {x.layout!r} on {x.grid!r}, {what} as {model.layout!r} on {model.grid!r}")
    if x.transposed or x.conjugated:
        raise LayoutError(f"{name} is a transposed or conjugated view; give its copy()")


def check_activation(layer: Layer, x: Any, features: int, dtype: np.dtype, spec: str, unit: int = 1) -> None:
    """Raise unless x is an activation of so many features that lies as a spec of the scheme's says."""
    scheme = layer.scheme
    if not isinstance(x, DistMatrix):
        raise ShapeError(f"{layer!r} takes a DistMatrix (tokens, features), not a {type(x).__name__}: scheme.shard(x) makes one")
    expected = scheme.activation(spec, max(sequence_of(x.layout), layer.sequence), unit)
    if x.shape[1] != features or x.dtype != dtype:
        raise ShapeError(f"{layer!r} takes (tokens, {features}) of {dtype}, not {x.shape} of {x.dtype}")
    if x.grid != scheme.grid:
        raise LayoutError(f"x is on {x.grid!r}, {layer!r} works on {scheme.grid!r}")
    if x.layout != expected:
        raise LayoutError(
            f"x lies as {x.layout!r}, {layer!r} takes {expected!r}: scheme.shard(x, sequence={layer.sequence}) deals out so"
        )
    if x.transposed or x.conjugated:
        raise LayoutError(f"x is a transposed or conjugated view; {layer!r} takes its copy()")


def check_sequence(kind: str, sequence: int) -> None:
    """Raise unless a sequence has a token."""
    if sequence < 1:
        raise ShapeError(f"{kind}: sequence={sequence}: tokens of a sequence, at least 1")


def _check_sequences(layer: Layer, x: Any) -> None:
    """Raise unless x has whole sequences, and cuts that keep them whole wherever a scheme's inner layers want them so."""
    if x.shape[0] % layer.sequence:
        raise ShapeError(f"{x.shape[0]} tokens are not whole sequences of {layer.sequence}, as {layer!r} wants them")
    whole = isinstance(x, DistMatrix) and layer.takes is not None
    expected = layer.scheme.activation(layer.takes, layer.sequence) if whole else None  # type: ignore[arg-type]
    if expected and any(cut.unit % want.unit for cut, want in zip(x.layout.rows, expected.rows, strict=True)):  # type: ignore[union-attr]
        raise LayoutError(
            f"x lies as {x.layout!r}, whose cuts do not keep sequences of {layer.sequence} tokens whole, as {layer!r} wants "
            f"them: scheme.shard(x, sequence={layer.sequence}) deals out so"
        )


def check_whole(layer: Layer, x: DistMatrix) -> None:
    """Raise unless each rank has whole sequences of x, in schemes too that cut sequences between the layers of a pair."""
    held = shares(x.shape[0], x.layout.rows, x.grid.sizes, rows_of(x.layout), {})
    if any(len(tokens) % layer.sequence for _, tokens in held):
        raise LayoutError(
            f"x lies as {x.layout!r}, which does not leave sequences of {layer.sequence} tokens whole, as {layer!r} wants them"
        )


def rows_of(layout: Layout) -> tuple[str, ...]:
    """The axes that cut an activation's tokens."""
    return tuple(cut.axis for cut in layout.rows)


def cols_of(layout: Layout) -> tuple[str, ...]:
    """The axes that cut an activation's features."""
    return tuple(cut.axis for cut in layout.cols)
