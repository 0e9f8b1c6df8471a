"""The context of a pass, forward and backward: its transfers, and the values saved in between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from pdla.comm.ledger import tag, tagged
from pdla.cuts import block_bounds
from pdla.indices import IndexSet
from pdla.layout import Layout, axes_of, share, shares
from pdla.matrix.core import DistMatrix
from pdla.nn.coroutines import TURN
from pdla.nn.parameter import Parameter
from pdla.nn.scheme import Scheme, find_sequence
from pdla.nn.transfers import T, Transfer, gather

Write = Callable[[Any, bool], None]  # write(block, first) sets a block to a part of a gradient if first, else adds the part


class PassContext:
    """One forward pass of all micro-batches and the backward pass after it.

    Each parameter is gathered once for all micro-batches, while the one before it is used.
    Gradients are summed in place over the micro-batches, and after the last one once over the
    ranks.

    | y       the layer's output, without its elements
    | sizes   the rows of each micro-batch's output, on this rank and on all together
    """

    y: DistMatrix
    sizes: Sequence[tuple[int, int]]
    scheme: Scheme
    sequence: int
    tokens: Any
    number: int
    training: bool
    parameters: Sequence[Parameter]
    order: list[Parameter]

    def __init__(
        self, scheme: Scheme, sequence: int, x: Any, number: int, training: bool, parameters: Sequence[Parameter]
    ) -> None:
        self.scheme, self.sequence, self.tokens, self.number, self.training = scheme, sequence, x.shape[0], number, training
        self.layout: Layout = x.layout if isinstance(x, DistMatrix) else scheme.residual(sequence)
        self.parameters, self.order = parameters, [p for p in parameters if p.axes]
        self.direction: int = 1  # of the pass through `order`: 1 forward, -1 backward
        self.under_way: dict[Parameter, Transfer[DistMatrix]] = {}
        self.arrived: dict[Parameter, DistMatrix] = {}
        self.uses: Counter[Parameter] = Counter[Parameter]()
        self.addends: dict[Parameter, tuple[DistMatrix, int]] = {}
        self.reductions: list[tuple[Parameter, Transfer[DistMatrix], str]] = []  # with the sum's name in the ledger
        self.batches: list[MicroBatch] = [MicroBatch(self, number) for number in range(scheme.shards)]

    def drop(self) -> None:
        """Receive the parameters under way after an error, unused."""
        for transfer in self.under_way.values():
            transfer.wait()
        self.under_way.clear()

    def start_backward(self) -> None:
        """End the forward pass and start the backward pass."""
        self.direction = -1
        self.uses.clear()

    # ------------------------------------------------------------------ parameters

    def prefetch(self, parameter: Parameter) -> None:
        """Start to gather a parameter, and the next in order."""
        if parameter.axes:
            self._start_gather(parameter)
            position = self.order.index(parameter) + self.direction
            if 0 <= position < len(self.order) and self._is_needed(self.order[position]):
                self._start_gather(self.order[position])

    def _is_needed(self, parameter: Parameter) -> bool:
        return not self.uses[parameter] and (self.direction == 1 or parameter.backward)

    def _start_gather(self, parameter: Parameter) -> None:
        if parameter not in self.under_way and parameter not in self.arrived:
            with tagged(f"{parameter.name} {'forward' if self.direction == 1 else 'backward'}"):
                self.under_way[parameter] = Transfer(gather(parameter.value, parameter.gathered_layout, parameter.axes))

    def fetch(self, parameter: Parameter) -> DistMatrix:
        """Collective: return a parameter in the layout in which layers use it.

        The parameter has travelled while the one before it was used, so `fetch` waits for it
        without giving other micro-batches a turn.
        """
        if not parameter.axes:
            return parameter.value
        if parameter not in self.arrived:
            self.prefetch(parameter)
            self.arrived[parameter] = self.under_way.pop(parameter).wait()
        return self.arrived[parameter]

    def release(self, parameter: Parameter, batch: MicroBatch) -> None:
        """Note that a micro-batch no longer needs the parameter in this direction.

        After the last micro-batch, drop the gathered copy, unless the backward pass keeps it.
        """
        if batch.recomputing:  # the backward pass needs the parameter next
            return
        self.uses[parameter] += 1
        keep = self.scheme.keep and self.direction == 1 and batch.saving
        if self.uses[parameter] % self.scheme.shards == 0 and not keep:
            self.arrived.pop(parameter, None)

    # ------------------------------------------------------------------ gradients

    def forget_gradients(self) -> None:
        """Drop all gradients."""
        for parameter in self.parameters:
            parameter.gradient = None

    def add_gradient(self, parameter: Parameter, partial: tuple[str, ...], write: Write) -> None:
        """Add one micro-batch's part of a gradient. After the last part, start the sum over ranks.

        `partial` has the axes along which ranks sum.
        """
        count = self.scheme.shards * parameter.layers
        addends, parts = self.addends.pop(parameter) if parameter in self.addends else (parameter.make_addends(partial, count), 0)
        write(addends.base, parts == 0)
        if parts + 1 < count:
            self.addends[parameter] = addends, parts + 1
            return
        self.finish_gradients()
        self.reductions.append((parameter, parameter.start_sum(addends), tag()))

    def finish_gradients(self) -> None:
        """Wait for the sums over ranks that are under way, and store them as gradients."""
        for parameter, transfer, name in self.reductions:
            with tagged(name):
                parameter.gradient = transfer.wait()
        self.reductions.clear()


class MicroBatch:
    """A part of each rank's tokens on its way through a network: all of them, or one micro-batch.

    A layer's methods get one beside the activation. The micro-batch knows which part of the whole
    the activation is, and holds the values that the layer saves for its backward pass.

    Parameters
    ----------
    context : PassContext
        The pass that makes it.
    number : int
        Its number among the micro-batches, from 0.
    saving : bool, optional
        False for a forward pass that will be repeated.
    recomputing : bool, optional
        True for the repetition, in the backward pass.

    Attributes
    ----------
    training : bool
        Whether a backward pass may follow. If not, `save` saves nothing.

    Examples
    --------
    A layer that adds to each token its number, whatever the grid and the number of micro-batches:

    >>> class Numbered(pdla.nn.Layer):
    ...     def forward_local(self, x, batch):
    ...         return pdla.nn.like(x, x.local + batch.rows(x)[:, None])
    >>> def program(comm):
    ...     scheme = pdla.nn.Summa2D(pdla.ProcessGrid((2, 1), comm=comm), shards=2)
    ...     y = Numbered(scheme).forward(scheme.shard(np.zeros((6, 1))))
    ...     return y.gather().ravel().tolist()
    >>> pdla.run(2, program)[0]
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    """

    context: PassContext
    number: int
    recomputing: bool
    training: bool
    saving: bool

    def __init__(self, context: PassContext, number: int, *, saving: bool = True, recomputing: bool = False) -> None:
        self.context, self.number, self.recomputing = context, number, recomputing
        self.several: bool = context.scheme.shards > 1  # other micro-batches can compute while this one waits
        self.training, self.saving = context.training, saving and context.training
        self._saved: dict[Any, tuple[Any, ...]] = {}

    # ------------------------------------------------------------------ for users' own layers

    def save(self, layer: Any, *values: Any) -> None:
        """Save values that the layer's backward pass will need. Local.

        Parameters
        ----------
        layer : Layer
            The layer itself.
        *values
            Arrays, matrices, or anything else; the bytes of arrays count in `Layer.kept_bytes`.
        """
        if self.saving:
            self._saved[layer] = values

    def saved(self, layer: Any) -> tuple[Any, ...]:
        """Return the values that the layer saved in the forward pass, once. Local.

        Parameters
        ----------
        layer : Layer
            The layer itself.

        Returns
        -------
        tuple
            The values, in their order.
        """
        return self._saved.pop(layer)

    def rows(self, x: DistMatrix) -> np.ndarray:
        """Give the global row numbers of x's block. Local.

        The global columns are ``x.indices[1].indices()``.

        Parameters
        ----------
        x : DistMatrix
            An activation of this micro-batch.

        Returns
        -------
        ndarray
            As many integers as the block has rows. Values computed from these numbers alone are the
            same in every scheme.
        """
        return self.find_rows(x.layout, x.shape[0])

    def add_gradient(self, parameter: Parameter, dy: DistMatrix, sums: Any) -> None:
        """Add this micro-batch's part to the gradient of a parameter (1, features). Collective.

        After the last micro-batch, the sum over ranks with different tokens starts.

        Parameters
        ----------
        parameter : Parameter
            Made by `nn.feature_vector`, cut as the columns of dy.
        dy : DistMatrix
            The gradient with regard to the layer's output; the sums are over its tokens.
        sums : array
            (1, columns of dy's block), summed over the block's rows.
        """
        self.context.add_gradient(parameter, axes_of(dy.layout.rows), make_write(sums))

    # ------------------------------------------------------------------ for pdla's layers

    async def receive(self, transfer: Transfer[T]) -> T:
        """Wait for a transfer, and let other micro-batches compute meanwhile.

        Parameters
        ----------
        transfer : Transfer
            Under way.

        Returns
        -------
        object
            The transfer's result.
        """
        while transfer.under_way:
            if self.several:
                await TURN
            transfer.go_on()
        return transfer.result

    def list_saved(self) -> Iterable[Any]:
        """List the values that layers have saved. Local.

        Returns
        -------
        iterable of tuple
            The values of each layer.
        """
        return self._saved.values()

    def to_forward_only(self) -> MicroBatch:
        """Make a copy that saves nothing, for a forward pass that will be repeated. Local.

        Returns
        -------
        MicroBatch
            In the same pass.
        """
        return MicroBatch(self.context, self.number, saving=False)

    def to_recomputation(self) -> MicroBatch:
        """Make a copy for the repetition of the forward pass. Local.

        Returns
        -------
        MicroBatch
            In the same pass.
        """
        return MicroBatch(self.context, self.number, recomputing=True)

    # ------------------------------------------------------------------ which tokens

    def find_bounds(self, rows: int, unit: int) -> tuple[int, int]:
        """Find the range of a rank's tokens in this micro-batch, in whole units. Local.

        Parameters
        ----------
        rows : int
            Tokens of the rank.
        unit : int
            Tokens of a unit.

        Returns
        -------
        start, stop : int
            The range.
        """
        start, stop = block_bounds(-(-rows // unit), self.context.scheme.shards, self.number)
        return min(start * unit, rows), min(stop * unit, rows)

    def find_unit(self, layout: Layout, scale: Fraction = Fraction(1)) -> int:
        """Find how many tokens of an activation form a unit, which micro-batches keep whole. Local.

        Parameters
        ----------
        layout : Layout
            The activation's.
        scale : Fraction, optional
            Tokens of the activation for each token of the pass's input.

        Returns
        -------
        int
            At least 1.
        """
        return max(int(self.context.sequence * scale), find_sequence(layout))

    def find_rows(self, layout: Layout, tokens: int) -> np.ndarray:
        """Find the global rows of this rank's tokens in an activation. Local.

        Parameters
        ----------
        layout : Layout
            The activation's.
        tokens : int
            The activation's tokens in this micro-batch on all ranks. Layers may change the number
            of tokens.

        Returns
        -------
        ndarray
            As many integers as this rank has tokens.
        """
        grid, scale = self.context.scheme.grid, Fraction(tokens, max(self.tokens, 1))
        assert grid.coords is not None
        indices = share(int(self.context.tokens * scale), layout.rows, grid.sizes, grid.coords)
        return indices.select(IndexSet.interval(*self.find_bounds(len(indices), self.find_unit(layout, scale)))).indices()

    @cached_property
    def tokens(self) -> int:
        """The micro-batch's tokens on all ranks, in the input of the pass."""
        context, layout = self.context, self.context.layout
        if not self.several:
            return context.tokens
        shared = shares(context.tokens, layout.rows, context.scheme.grid.sizes, axes_of(layout.rows), {})
        spans = [self.find_bounds(len(tokens), self.find_unit(layout)) for tokens in shared]
        return sum(stop - start for start, stop in spans)


def make_write(sums: Any) -> Write:
    """Make the function that sets a block of a gradient to these sums over tokens, or adds them."""

    def write(block: Any, first: bool) -> None:
        if first:
            block[...] = sums
        else:
            block[...] += sums

    return write
