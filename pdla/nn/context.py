"""The context of a pass: a forward pass and the backward pass after it, what is saved between them and what is under way."""

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

Write = Callable[[Any, bool], None]  # write(block, first) sets a block to a part of a gradient if first, else adds it


class PassContext:
    """One forward pass of all micro-batches and the backward pass after it.

    Each parameter is gathered once for all micro-batches, and travels while the one before it is
    used. Gradients are summed in place over the micro-batches, and after the last of them, once,
    over the ranks.

    y      the layer's output, without its elements;  sizes: the rows of each micro-batch's, on this rank and on all together
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
        self.direction: int = 1  # through the order: forward
        self.under_way: dict[Parameter, Transfer[DistMatrix]] = {}
        self.arrived: dict[Parameter, DistMatrix] = {}
        self.uses: Counter[Parameter] = Counter[Parameter]()
        self.addends: dict[Parameter, tuple[DistMatrix, int]] = {}
        self.reductions: list[tuple[Parameter, Transfer[DistMatrix], str]] = []  # and the name under which it is recorded
        self.batches: list[MicroBatch] = [MicroBatch(self, number) for number in range(scheme.shards)]

    def drop(self) -> None:
        """Receive the parameters under way, which will not be used."""
        for transfer in self.under_way.values():
            transfer.wait()
        self.under_way.clear()

    def start_backward(self) -> None:
        """End the forward pass and begin the backward one."""
        self.direction = -1
        self.uses.clear()

    # ------------------------------------------------------------------ parameters

    def prefetch(self, parameter: Parameter) -> None:
        """Begin to gather a parameter, and the next in order."""
        if parameter.axes:
            self._start_gather(parameter)
            following = self.order.index(parameter) + self.direction
            if 0 <= following < len(self.order) and self._is_needed(self.order[following]):
                self._start_gather(self.order[following])

    def _is_needed(self, parameter: Parameter) -> bool:
        return not self.uses[parameter] and (self.direction == 1 or parameter.backward)

    def _start_gather(self, parameter: Parameter) -> None:
        if parameter not in self.under_way and parameter not in self.arrived:
            with tagged(f"{parameter.name} {'forward' if self.direction == 1 else 'backward'}"):
                self.under_way[parameter] = Transfer(gather(parameter.value, parameter.gathered_layout, parameter.axes))

    def fetch(self, parameter: Parameter) -> DistMatrix:
        """The parameter in the layout in which it is used.

        It has travelled while the one before it was used, so this waits for it without giving
        others a turn.
        """
        if not parameter.axes:
            return parameter.value
        if parameter not in self.arrived:
            self.prefetch(parameter)
            self.arrived[parameter] = self.under_way.pop(parameter).wait()
        return self.arrived[parameter]

    def release(self, parameter: Parameter, batch: MicroBatch) -> None:
        """One micro-batch is done with the parameter in this direction.

        After the last one the gathered copy is dropped, unless it is kept for the backward pass.
        """
        if batch.recomputing:  # the backward pass needs it next
            return
        self.uses[parameter] += 1
        keep = self.scheme.keep and self.direction == 1 and batch.saving
        if self.uses[parameter] % self.scheme.shards == 0 and not keep:
            self.arrived.pop(parameter, None)

    # ------------------------------------------------------------------ gradients

    def forget_gradients(self) -> None:
        """Leave no gradient to step by."""
        for parameter in self.parameters:
            parameter.gradient = None

    def add_gradient(self, parameter: Parameter, partial: tuple[str, ...], write: Write) -> None:
        """Add one micro-batch's part of a gradient. After the last part the sum over the ranks along the axes `partial` begins."""
        addends, parts = self.addends.pop(parameter) if parameter in self.addends else (parameter.make_addends(partial), 0)
        write(addends.base, parts == 0)
        if parts + 1 < self.scheme.shards * parameter.layers:
            self.addends[parameter] = addends, parts + 1
            return
        self.finish_gradients()
        self.reductions.append((parameter, parameter.start_sum(addends), tag()))

    def finish_gradients(self) -> None:
        """Wait for the sums over ranks that are under way, and set the gradients to them."""
        for parameter, transfer, name in self.reductions:
            with tagged(name):
                parameter.gradient = transfer.wait()
        self.reductions.clear()


class MicroBatch:
    """A part of each rank's tokens on its way through a network: all of them, or one micro-batch.

    A layer's methods are given one beside the activation: it says which part of the whole the
    activation is, and holds what the layer saves for its backward pass.

    Parameters
    ----------
    context : PassContext
        The pass that it is part of, which makes it.
    number : int
        Which of the micro-batches it is.
    saving : bool, optional
        False: the forward pass will be repeated.
    recomputing : bool, optional
        Whether it is being repeated, in the backward pass.

    Attributes
    ----------
    training : bool
        Whether a backward pass may follow. If not, what is saved is dropped.

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
        self.several: bool = context.scheme.shards > 1  # others can compute while this one waits
        self.training, self.saving = context.training, saving and context.training
        self._saved: dict[Any, tuple[Any, ...]] = {}

    # ------------------------------------------------------------------ what a layer may ask

    def save(self, layer: Any, *values: Any) -> None:
        """Save what the layer's backward pass will need. Local.

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
        """Give what the layer has saved in the forward pass, once. Local.

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
        """Give the numbers that the rows of x's block have in the whole activation. Local.

        Those of its columns are ``x.indices[1].indices()``.

        Parameters
        ----------
        x : DistMatrix
            An activation of this micro-batch.

        Returns
        -------
        ndarray
            As many integers as the block has rows. What depends on them alone is the same in every
            scheme.
        """
        return self.find_rows(x.layout, x.shape[0])

    def add_gradient(self, parameter: Parameter, dy: DistMatrix, sums: Any) -> None:
        """Add this micro-batch's part to the gradient of a parameter (1, features). Collective.

        After the last micro-batch messages begin, if ranks differ in the tokens that they have.

        Parameters
        ----------
        parameter : Parameter
            One that `nn.feature_vector` has made, laid out as the columns of dy.
        dy : DistMatrix
            The gradient over whose tokens the sums are.
        sums : array
            (1, columns of dy's block), summed over the block's rows.
        """
        self.context.add_gradient(parameter, axes_of(dy.layout.rows), make_write(sums))

    # ------------------------------------------------------------------ what pdla's layers ask besides

    async def receive(self, transfer: Transfer[T]) -> T:
        """Wait for a transfer, and let other micro-batches compute meanwhile.

        Parameters
        ----------
        transfer : Transfer
            The one that is under way.

        Returns
        -------
        object
            What the transfer gives.
        """
        while transfer.under_way:
            if self.several:
                await TURN
            transfer.go_on()
        return transfer.result

    def list_saved(self) -> Iterable[Any]:
        """Give what the layers have saved. Local.

        Returns
        -------
        iterable of tuple
            The values of each layer.
        """
        return self._saved.values()

    def to_forward_only(self) -> MicroBatch:
        """Give the micro-batch in a forward pass of which nothing is saved. Local.

        Returns
        -------
        MicroBatch
            Of the same pass.
        """
        return MicroBatch(self.context, self.number, saving=False)

    def to_recomputation(self) -> MicroBatch:
        """Give the micro-batch in a repetition of its forward pass. Local.

        Returns
        -------
        MicroBatch
            Of the same pass.
        """
        return MicroBatch(self.context, self.number, recomputing=True)

    # ------------------------------------------------------------------ which tokens

    def find_bounds(self, rows: int, unit: int) -> tuple[int, int]:
        """Give the range of a rank's tokens that are in this micro-batch: whole units. Local.

        Parameters
        ----------
        rows : int
            How many tokens the rank has.
        unit : int
            How many of them stay together.

        Returns
        -------
        start, stop : int
            The range.
        """
        start, stop = block_bounds(-(-rows // unit), self.context.scheme.shards, self.number)
        return min(start * unit, rows), min(stop * unit, rows)

    def find_unit(self, layout: Layout, scale: Fraction = Fraction(1)) -> int:
        """Count the tokens that stay together in an activation. Local.

        Parameters
        ----------
        layout : Layout
            The activation's.
        scale : Fraction, optional
            Tokens that it has for each that came in.

        Returns
        -------
        int
            At least 1.
        """
        return max(int(self.context.sequence * scale), find_sequence(layout))

    def find_rows(self, layout: Layout, tokens: int) -> np.ndarray:
        """Give the global rows of this rank's tokens in an activation. Local.

        Parameters
        ----------
        layout : Layout
            The activation's.
        tokens : int
            How many it has in the micro-batch on all ranks: layers may have made more or fewer of
            them than the pass began with.

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
        """The micro-batch's tokens on all ranks, where the pass begins."""
        context, layout = self.context, self.context.layout
        if not self.several:
            return context.tokens
        shared = shares(context.tokens, layout.rows, context.scheme.grid.sizes, axes_of(layout.rows), {})
        spans = [self.find_bounds(len(tokens), self.find_unit(layout)) for tokens in shared]
        return sum(stop - start for start, stop in spans)


def make_write(sums: Any) -> Write:
    """What sets a block of a gradient to these sums over tokens, or adds them to it."""

    def write(block: Any, first: bool) -> None:
        if first:
            block[...] = sums
        else:
            block[...] += sums

    return write
