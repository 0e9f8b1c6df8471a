"""Layers one after the other in one pass: each takes what the one before it gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from math import lcm
from typing import Any

from pdla.errors import GridError, LayoutError, PdlaError, ShapeError, kind_of
from pdla.matrix.core import DistMatrix
from pdla.nn.context import MicroBatch
from pdla.nn.layer import Layer, agree_on_arguments
from pdla.nn.scheme import Scheme, split_axes

ANY = None, None
HANDED_ON = {  # declarations of x and y that a layer may make, and an error's words for them
    "widths": "{} features",
    "units": "features in units of {}",
    "sizes": "samples of {0[0]} x {0[1]} pixels",
}


class Sequential(Layer):
    """Layers one after the other, in one pass. Collective to make.

    Micro-batches are separate from the first layer to the last.

    Parameters
    ----------
    scheme : Scheme
        The scheme of all layers.
    layers : sequence of Layer
        In order.

    Raises
    ------
    LayoutError
        If a layer takes another layout than the one before it gives.
    ShapeError
        If a layer takes other features, units, sequences or samples than the one before it gives,
        or dtypes of parameters differ.
    GridError
        If a layer has another scheme.
    PdlaError
        If a layer is in two places. All of these are raised on every rank.

    Notes
    -----
    A layer that changes the number of tokens has an attribute `scale`, a Fraction: tokens of y for
    each token of x. A layer of images has an attribute `sizes`: (height, width) of x's samples and
    of y's. None: any, and y's samples have the size of x's.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm))
    ...     first = pdla.nn.Linear(scheme, 8, 8)
    ...     second = pdla.nn.Linear(scheme, 8, 8, kind="second")
    ...     model = pdla.nn.Sequential(scheme, [first, pdla.nn.ReLU(scheme), second])
    ...     y = model.forward(scheme.shard(np.ones((4, 8))))
    ...     return y.shape, list(model.parameters())
    >>> pdla.run(2, program)[0]
    ((4, 8), ['layers.0.weight', 'layers.0.bias', 'layers.2.weight', 'layers.2.bias'])
    """

    def __init__(self, scheme: Scheme, layers: Sequence[Layer]) -> None:
        layers = to_list(layers)
        with agree_on_arguments("Sequential", scheme, f"{layers}"):
            super().__init__(scheme)
            check_layers("Sequential", layers)
            self.layers = layers
            declare(self, layers)

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {len(self.layers)} layers on {self.scheme!r}"

    def check_input(self, x: Any) -> None:
        """Raise unless all layers take their inputs. Local; `forward` raises on all ranks.

        Parameters
        ----------
        x : object
            The argument of `forward`.

        Raises
        ------
        ShapeError, LayoutError
            If the layer does not take x.
        """
        check_first(self.layers, x)
        if isinstance(x, DistMatrix):  # a later layer may be stricter than the first
            features, _ = self.widths
            expected = x.shape[1] if features is None else features, x.dtype if self.dtype is None else self.dtype
            if expected != (x.shape[1], x.dtype):
                raise ShapeError(f"{self!r} takes (tokens, {expected[0]}) of {expected[1]}, not {x.shape} of {x.dtype}")

    async def forward_async(self, x: Any, batch: MicroBatch) -> Any:
        """Apply the layers to x, one after the other. Collective.

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
        """Compute the gradient with regard to x, layer by layer in reverse. Collective.

        Parameters
        ----------
        dy, batch : DistMatrix, MicroBatch
            As `Layer.backward_async`'s.

        Returns
        -------
        DistMatrix
            In x's layout.
        """
        for layer in reversed(self.layers):
            dy = await layer.backward_async(dy, batch)
        return dy


# ---------------------------------------------------------------------------------------------- what layers take and give together


@dataclass(frozen=True)
class Ends:
    """The inputs and outputs of a chain of layers; the fields are those of a layer's attributes."""

    takes: str | None = None
    gives: str | None = None
    widths: tuple[Any, Any] = ANY
    units: tuple[Any, Any] = ANY
    sizes: tuple[Any, Any] = ANY
    scale: Fraction = Fraction(1)
    sequence: int = 1

    def append(self, layer: Layer) -> Ends:
        """Append a layer. LayoutError or ShapeError unless it takes what the chain gives."""
        if layer.takes is not None and self.gives is not None and split_axes(layer.takes) != split_axes(self.gives):
            raise LayoutError(
                f"{layer!r} takes tokens and features cut over {layer.takes!r}; the layers before it give them cut over "
                f"{self.gives!r}: alternate linears of kind='first' and kind='second'"
            )
        pairs = {}
        for name, words in HANDED_ON.items():
            (inputs, outputs), (first, last) = getattr(layer, name, ANY), getattr(self, name)
            _check_next(layer, words, inputs, last)
            pairs[name] = inputs if first is last is None else first, last if outputs is None else outputs
        sequence, scale = lcm(self.sequence, (layer.sequence / self.scale).numerator), self.scale * _get_scale(layer)
        return Ends(self.takes or layer.takes, layer.gives or self.gives, **pairs, scale=scale, sequence=sequence)


def declare(whole: Layer, layers: Sequence[Layer]) -> None:
    """Declare for `whole`, which is a chain of these layers, what the chain takes and gives.

    PdlaError unless the layers have the scheme of `whole`, one dtype and one place each, and fit
    together.
    """
    kind = type(whole).__name__
    others = [layer for layer in layers if layer.scheme is not whole.scheme]
    if others:
        raise GridError(f"{kind} on {whole.scheme!r}: {others[0]!r} was made in another scheme")
    ((layer, count),) = Counter(layer for part in layers for layer in part.all_layers()).most_common(1)
    if count > 1:
        raise PdlaError(f"{layer!r} is in a {kind} {count} times: make a layer for each place, as each saves its own x")
    late = [layer for layer in layers[1:] if layer.gives and not layer.takes]
    if late:
        raise ShapeError(f"{late[0]!r} takes token numbers, which no layer gives: put it first in a {kind}")
    dtypes = {parameter.allocated.dtype for layer in layers for parameter in layer.all_parameters()}
    if len(dtypes) > 1:
        raise ShapeError(f"{kind} of layers of {' and '.join(sorted(d.name for d in dtypes))}: give all one dtype")
    whole.dtype = next(iter(dtypes), None)
    for name, value in vars(chain(layers)).items():
        setattr(whole, name, value)


def chain(layers: Iterable[Layer]) -> Ends:
    """Chain layers. LayoutError or ShapeError unless each takes what the layers before it give."""
    ends = reduce(Ends.append, layers, Ends())
    whole = Fraction(1)  # tokens of a sequence after the layers so far; 1 without sequences
    for layer in _flatten(layers):
        if layer.sequence > 1 and whole > 1:
            _check_next(layer, "sequences of {} tokens", layer.sequence, whole)
        whole = max(Fraction(layer.sequence), whole) * _get_scale(layer)
    return ends


def _flatten(layers: Iterable[Layer]) -> Iterator[Layer]:
    """Yield the layers, and in place of an inner Sequential its layers.

    A Sequential's own `sequence` is only a common multiple of those of its layers.
    """
    for layer in layers:
        yield from _flatten(layer.layers) if isinstance(layer, Sequential) else (layer,)


def _get_scale(layer: Layer) -> Fraction:
    return getattr(layer, "scale", Fraction(1))


def _check_next(layer: Layer, words: str, taken: Any, given: Any) -> None:
    """ShapeError unless a layer takes what the layers before it give; None is anything."""
    if None not in (taken, given) and taken != given:
        raise ShapeError(f"{layer!r} takes {words.format(taken)}; the layers before it give {words.format(given)}")


def to_list(given: Any) -> Any:
    """Convert an iterable to a list; return anything else unchanged, for the checks to refuse."""
    return list(given) if isinstance(given, Iterable) else given


def check_layers(kind: str, layers: Any) -> None:
    """PdlaError unless these are layers, in a list."""
    if not isinstance(layers, list):
        raise PdlaError(f"{kind} of {kind_of(layers)}: give a list of layers")
    if not layers:
        raise ShapeError(f"{kind} of no layers")
    for i, layer in enumerate(layers):
        if not isinstance(layer, Layer):
            raise PdlaError(f"layers[{i}] of a {kind} is {kind_of(layer)}: nn.GeLU(scheme), say, makes a layer")


def check_first(layers: Sequence[Layer], x: Any) -> None:
    """Raise unless x fits the first layer that declares a layout; earlier ones take any layout."""
    declaring = (layer for layer in layers if layer.takes or layer.gives)
    next(declaring, layers[0]).check_input(x)
