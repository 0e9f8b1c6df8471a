"""The transformer's parts: MLP, pre-norm layer, and layers one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np

from pdla.array.composed import widened
from pdla.cuts import Block
from pdla.errors import GridError, LayoutError, PdlaError, ShapeError, kind_of
from pdla.layout import Layout
from pdla.matrix.core import DistMatrix
from pdla.nn.activations import Dropout, GeLU
from pdla.nn.attention import SelfAttention
from pdla.nn.blocks import like
from pdla.nn.checks import check_counts, check_sequence
from pdla.nn.context import MicroBatch
from pdla.nn.layer import Layer, arguments_agreed
from pdla.nn.linear import Linear
from pdla.nn.norms import LayerNorm
from pdla.nn.scheme import Scheme, cut_over, sequence_of

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
        super().__init__(scheme)
        self.layers = list(layers) if isinstance(layers, Iterable) else layers
        with arguments_agreed("Sequential", scheme, f"{self.layers}"):
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


class MeanOverSequence(Layer):
    """The mean over each sequence's tokens, one row for each. Collective to make.

    x lies as a first layer's output.

    Parameters
    ----------
    scheme : Scheme
        Any; nothing is sent.
    sequence : int
        Tokens of a sequence.

    Raises
    ------
    ShapeError
        For a sequence that is no whole number, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Summa2D(pdla.ProcessGrid((1, 2), comm=comm))
    ...     layer = pdla.nn.MeanOverSequence(scheme, sequence=2)
    ...     x = scheme.shard([[1.0, 2.0], [3.0, 4.0]], sequence=2)
    ...     return layer.forward(x).gather().tolist()
    >>> pdla.run(2, program)[0]
    [[2.0, 3.0]]
    """

    sizes = None, (1, 1)
    units = 1, 1

    def __init__(self, scheme: Scheme, *, sequence: int) -> None:
        with arguments_agreed("MeanOverSequence", scheme, f"sequence={sequence}"):
            check_sequence("MeanOverSequence", sequence)
        super().__init__(scheme)
        self.sequence, self.scale = sequence, Fraction(1, sequence)
        self.takes = self.gives = scheme.first.Y

    def forward_local(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Give each sequence's mean. Local.

        Parameters
        ----------
        x, batch : DistMatrix, MicroBatch
            As `Layer.forward_local`'s.

        Returns
        -------
        DistMatrix
            The micro-batch's part of y.
        """
        batch.save(self, x.layout)
        held = tuple(Block(cut.axis, sequence_of(x.layout) // self.sequence) for cut in x.layout.rows)
        rows, cols = x.stored.shape
        means = widened(x.stored.reshape(rows // self.sequence, self.sequence, cols)).sum(axis=1) / self.sequence
        means = means.astype(x.dtype, copy=False)
        return DistMatrix(means, (x.shape[0] // self.sequence, x.shape[1]), x.grid, Layout(held, x.layout.cols))

    def backward_local(self, dy: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Give each token its part of the mean's gradient. Local.

        Parameters
        ----------
        dy, batch : DistMatrix, MicroBatch
            As `Layer.backward_local`'s.

        Returns
        -------
        DistMatrix
            Laid out as x.
        """
        (layout,) = batch.saved(self)
        rows, cols = dy.stored.shape
        each = dy.xp.empty((rows, self.sequence, cols), dy.dtype)
        each[...] = dy.stored.reshape(rows, 1, cols) / self.sequence
        return DistMatrix(each.reshape(rows * self.sequence, cols), (dy.shape[0] * self.sequence, dy.shape[1]), dy.grid, layout)


class MLP(Sequential):
    """Two linears with a GeLU between them. Collective to make.

    The GeLU also adds the first one's bias.

    Parameters
    ----------
    scheme : Scheme
        How it is cut.
    hidden : int
        Features of x and of y.
    inner : int, optional
        Features between the linears; 4 hidden by default.
    bias : bool, optional
        Whether the linears have one.
    seed : int, optional
        Of the weights.
    dtype : dtype-like, optional
        Of real floats.
    name : str, optional
        Begins the names of the linears.

    Raises
    ------
    ShapeError
        For numbers that are out of range, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm))
    ...     return pdla.nn.MLP(scheme, 8).forward(scheme.shard(np.ones((4, 8)))).shape
    >>> pdla.run(2, program)
    [(4, 8), (4, 8)]
    """

    layers: list[Any]

    def __init__(
        self, scheme: Scheme, hidden: int, inner: int | None = None, *, bias: bool = True, seed: int = 0,
        dtype: Any = np.float64, name: str = "mlp",
    ) -> None:
        with arguments_agreed("MLP", scheme, f"{hidden}", bias=bias):
            check_counts("MLP", hidden=hidden)
            inner = 4 * hidden if inner is None else inner
        first = Linear(scheme, hidden, inner, kind="first", bias=bias, seed=seed, dtype=dtype, name=f"{name} first")
        second = Linear(scheme, inner, hidden, kind="second", bias=bias, seed=seed, dtype=dtype, name=f"{name} second")
        super().__init__(scheme, [first, GeLU(scheme), second])

    async def forward_async(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Give second(GeLU(first(x))). Collective.

        Parameters
        ----------
        x, batch : DistMatrix, MicroBatch
            As `Layer.forward_async`'s.

        Returns
        -------
        DistMatrix
            The micro-batch's part of y.
        """
        first, gelu, second = self.layers
        x = await first.forward_async(x, batch, biased=False)
        x = gelu.biased(x, first.bias, batch)  # x, overwritten, is held by no one else
        return await second.forward_async(x, batch)

    async def backward_async(self, dy: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Give the gradient with regard to x. Collective.

        Parameters
        ----------
        dy, batch : DistMatrix, MicroBatch
            As `Layer.backward_async`'s.

        Returns
        -------
        DistMatrix
            Laid out as x.
        """
        first, gelu, second = self.layers
        inner, sums = gelu.gradient_and_sums(await second.backward_async(dy, batch), batch)
        return await first.backward_async(inner, batch, sums=sums)


class TransformerLayer(Layer):
    """x + dropped(attention(norm(x))), then the same with the MLP. Collective to make.

    Parameters
    ----------
    scheme : Scheme
        How it is cut.
    hidden : int
        Features of x and of y.
    heads : int
        Equal parts of the features.
    sequence : int
        Tokens of a sequence.
    inner : int, optional
        Features between the MLP's linears; 4 hidden by default.
    causal : bool, optional
        Whether a token sees only itself and those before it.
    dropout : float, optional
        The probability with which an element is dropped.
    bias : bool, optional
        Whether the linears have one.
    recompute : bool, optional
        Keep x alone from forward to backward, which then begins by repeating the forward pass.
    seed : int, optional
        Of weights and of dropout, which also depend on names and places.
    dtype : dtype-like, optional
        Of real floats.
    name : str, optional
        Begins the names of the layers.

    Raises
    ------
    ShapeError
        For numbers that do not fit, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm))
    ...     layer = pdla.nn.TransformerLayer(scheme, 8, 2, sequence=4, dropout=0.1)
    ...     return layer.forward(scheme.shard(np.ones((8, 8)), sequence=4)).shape
    >>> pdla.run(2, program)
    [(8, 8), (8, 8)]
    """

    numbers = ("recompute",)
    units = 1, 1

    def __init__(
        self, scheme: Scheme, hidden: int, heads: int, *, sequence: int, inner: int | None = None, causal: bool = True,
        dropout: float = 0.0, bias: bool = True, recompute: bool = False, seed: int = 0, dtype: Any = np.float64,
        name: str = "layer",
    ) -> None:
        numbers = f"{hidden}, {heads} heads, sequence={sequence}"
        with arguments_agreed("TransformerLayer", scheme, numbers, causal=causal, bias=bias, recompute=recompute):
            self.hidden, self.heads, self.sequence, self.recompute = hidden, heads, sequence, recompute
        super().__init__(scheme)
        self.takes = self.gives = scheme.first.X
        self.widths = hidden, hidden
        self.norm1 = LayerNorm(scheme, hidden, dtype=dtype, name=f"{name} norm1")
        self.attention = SelfAttention(
            scheme, hidden, heads, sequence=sequence, causal=causal, bias=bias, seed=seed, dtype=dtype, name=f"{name} attention"
        )
        self.dropout1 = Dropout(scheme, dropout, seed=seed, name=f"{name} dropout1")
        self.dtype = self.norm1.dtype
        self.norm2 = LayerNorm(scheme, hidden, dtype=dtype, name=f"{name} norm2")
        self.mlp = MLP(scheme, hidden, inner, bias=bias, seed=seed, dtype=dtype, name=f"{name} mlp")
        self.dropout2 = Dropout(scheme, dropout, seed=seed, name=f"{name} dropout2")

    def __repr__(self) -> str:
        return f"TransformerLayer({self.hidden}, {self.heads} heads) on {self.scheme!r}"

    @property
    def halves(self) -> tuple[tuple[Layer, ...], ...]:
        """The layers whose output is added to x, and those whose output is added to that."""
        return (self.norm1, self.attention, self.dropout1), (self.norm2, self.mlp, self.dropout2)

    async def forward_async(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Give x with both halves added. Collective.

        Parameters
        ----------
        x, batch : DistMatrix, MicroBatch
            As `Layer.forward_async`'s.

        Returns
        -------
        DistMatrix
            The micro-batch's part of y.
        """
        if not self.recompute:
            return await self._through(x, batch)
        batch.save(self, x)
        return await self._through(x, batch.without_saving())

    async def _through(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        for half in self.halves:
            y = x
            for layer in half:
                y = await layer.forward_async(y, batch)
            x = like(x, x.stored + y.stored)
        return x

    async def backward_async(self, dy: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Give the gradient with regard to x. Collective.

        Parameters
        ----------
        dy, batch : DistMatrix, MicroBatch
            As `Layer.backward_async`'s.

        Returns
        -------
        DistMatrix
            Laid out as x.
        """
        if self.recompute:
            (x,) = batch.saved(self)
            batch = batch.recomputation()
            await self._through(x, batch)
            batch.recomputing = False
        for half in reversed(self.halves):
            dx = dy
            for layer in reversed(half):
                dx = await layer.backward_async(dx, batch)
            dy = like(dy, dy.stored + dx.stored)
        return dy
