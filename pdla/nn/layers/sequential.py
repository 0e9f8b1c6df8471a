"""Layers one after the other, which make one pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from math import lcm
from typing import Any

from pdla.errors import GridError, LayoutError, PdlaError, ShapeError, kind_of
from pdla.matrix.core import DistMatrix
from pdla.nn.context import MicroBatch
from pdla.nn.layer import Layer, arguments_agreed
from pdla.nn.scheme import Scheme, cut_over

HANDED_ON = {  # what a layer declares of x and of y, and the words for it in an error
    "widths": "{} features",
    "units": "features in units of {}",
    "sizes": "samples of {0[0]} x {0[1]} pixels",
}


class Sequential(Layer):
    """Layers one after the other, which make one pass. Collective to make.

    Micro-batches stay apart from first to last.

    Parameters
    ----------
    scheme : Scheme
        Of all layers.
    layers : sequence of Layer
        In order.

    Raises
    ------
    LayoutError
        Where a layer takes another layout than the one before it gives.
    ShapeError
        Where it takes other features, units of them, sequences or samples, or where dtypes of
        parameters differ.
    GridError
        For layers of another scheme.
    PdlaError
        For a layer in two places. All of these are raised on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm))
    ...     first = pdla.nn.Linear(scheme, 8, 8)
    ...     second = pdla.nn.Linear(scheme, 8, 8, kind="second")
    ...     model = pdla.nn.Sequential(scheme, [first, pdla.nn.ReLU(scheme), second])
    ...     return model.forward(scheme.shard(np.ones((4, 8)))).shape, list(model.parameters())
    >>> pdla.run(2, program)[0]
    ((4, 8), ['layers.0.weight', 'layers.0.bias', 'layers.2.weight', 'layers.2.bias'])
    """

    def __init__(self, scheme: Scheme, layers: Sequence[Layer]) -> None:
        layers = list(layers) if isinstance(layers, Iterable) else layers
        with arguments_agreed("Sequential", scheme, f"{layers}"):
            super().__init__(scheme)
            self.layers = layers
            self._check_layers()
            self.takes = next((layer.takes for layer in self.layers if layer.takes), None)
            self.gives, self.units, self.scale, self.sequence = None, (None, None), Fraction(1), 1
            for layer in self.layers:
                self._follow(layer)
            self._check_sequences()

    def _check_layers(self) -> None:
        if not isinstance(self.layers, list):
            raise PdlaError(f"Sequential of {kind_of(self.layers)}: give a list of layers")
        if not self.layers:
            raise ShapeError("Sequential of no layers")
        for i, layer in enumerate(self.layers):
            if not isinstance(layer, Layer):
                raise PdlaError(f"layers[{i}] of a Sequential is {kind_of(layer)}: nn.GeLU(scheme), say, makes a layer")
        others = [layer for layer in self.layers if layer.scheme is not self.scheme]
        if others:
            raise GridError(f"Sequential on {self.scheme!r}: {others[0]!r} was made in another scheme")
        places = Counter(layer for part in self.layers for layer in part.all_layers())
        (layer, count), *_ = places.most_common(1)
        if count > 1:
            raise PdlaError(f"{layer!r} comes {count} times in a Sequential: make a layer for each place, as each keeps its own x")
        late = [layer for layer in self.layers[1:] if layer.gives and not layer.takes]
        if late:
            raise ShapeError(f"{late[0]!r} takes token numbers, which no layer gives: it comes first in a Sequential")
        dtypes = {parameter.allocated.dtype for parameter in self.all_parameters()}
        if len(dtypes) > 1:
            raise ShapeError(f"Sequential of layers of {' and '.join(sorted(d.name for d in dtypes))}: give all one dtype")
        self.dtype = next(iter(dtypes), None)

    def _follow(self, layer: Layer) -> None:
        """Take one more layer into account in what goes into and comes out of the whole."""
        if layer.takes is not None and self.gives is not None and cut_over(layer.takes) != cut_over(self.gives):
            raise LayoutError(
                f"{layer!r} takes tokens and features cut over {layer.takes!r}; the layers before it give them cut over "
                f"{self.gives!r}: linears take turns as kind='first' and kind='second'"
            )
        for name, words in HANDED_ON.items():
            (inputs, outputs), (first, last) = getattr(layer, name), getattr(self, name)
            _check_next(layer, words, inputs, last)
            setattr(self, name, (inputs if first is last is None else first, last if outputs is None else outputs))
        self.gives = layer.gives or self.gives
        self.sequence = lcm(self.sequence, (layer.sequence / self.scale).numerator)
        self.scale *= layer.scale

    def _check_sequences(self) -> None:
        whole = Fraction(1)  # tokens of a sequence after the layers so far; 1: none of them has sequences
        for layer in self._flat():
            if layer.sequence > 1 and whole > 1:
                _check_next(layer, "sequences of {} tokens", layer.sequence, whole)
            whole = max(Fraction(layer.sequence), whole) * layer.scale

    def _flat(self) -> Iterator[Layer]:
        """The layers, with those of an inner Sequential in its place, whose own `sequence` is but a common multiple of theirs."""
        for layer in self.layers:
            yield from layer._flat() if isinstance(layer, Sequential) else (layer,)

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {len(self.layers)} layers on {self.scheme!r}"

    def check_input(self, x: Any) -> None:
        """Raise unless all layers take what they would be given. Local: all ranks are told.

        Parameters
        ----------
        x : object
            What `forward` was given.

        Raises
        ------
        ShapeError, LayoutError
            Where the layer does not take it.
        """
        telling = (layer for layer in self.layers if layer.takes or layer.gives)  # others leave x where it lies
        next(telling, self.layers[0]).check_input(x)
        if isinstance(x, DistMatrix):  # what the first layer leaves open, later ones may not
            features, _ = self.widths
            wanted = x.shape[1] if features is None else features, x.dtype if self.dtype is None else self.dtype
            if wanted != (x.shape[1], x.dtype):
                raise ShapeError(f"{self!r} takes (tokens, {wanted[0]}) of {wanted[1]}, not {x.shape} of {x.dtype}")

    async def forward_async(self, x: Any, batch: MicroBatch) -> Any:
        """Give what the layers make of x, one after the other. Collective.

        Parameters
        ----------
        x, batch : DistMatrix, MicroBatch
            As `Layer.forward_async`'s.

        Returns
        -------
        DistMatrix
            The micro-batch's part of y.
        """
        for layer in self.layers:
            x = await layer.forward_async(x, batch)
        return x

    async def backward_async(self, dy: Any, batch: MicroBatch) -> Any:
        """Give the gradient with regard to x, layers in reverse. Collective.

        Parameters
        ----------
        dy, batch : DistMatrix, MicroBatch
            As `Layer.backward_async`'s.

        Returns
        -------
        DistMatrix
            Laid out as x.
        """
        for layer in reversed(self.layers):
            dy = await layer.backward_async(dy, batch)
        return dy


def _check_next(layer: Layer, words: str, wanted: Any, given: Any) -> None:
    """ShapeError unless a layer takes what the layers before it give; None: anything."""
    if None not in (wanted, given) and wanted != given:
        raise ShapeError(f"{layer!r} takes {words.format(wanted)}; the layers before it give {words.format(given)}")
