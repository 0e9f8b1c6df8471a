"""Passes: a layer agrees with the other ranks on a call, and then runs a coroutine for each micro-batch, forward or backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from hashlib import blake2b
from inspect import iscoroutinefunction
from numbers import Integral, Real
from typing import Any

import numpy as np

from pdla import checks, config
from pdla.array.meta import Meta
from pdla.comm.agreement import agreed, collective_section
from pdla.errors import LayoutError, PdlaError
from pdla.matrix.core import DistMatrix
from pdla.nn.blocks import join_parts, split_parts, take_part, to_row_major
from pdla.nn.checks import check_activation, check_anywhere, check_gradient, check_sequences
from pdla.nn.context import MicroBatch, PassContext
from pdla.nn.coroutines import run_in_turn
from pdla.nn.parameter import Parameter
from pdla.nn.products import check_products
from pdla.nn.tree import Node, name_parameters

UNCHECKED = nullcontext()
OVERRIDDEN = {  # what a subclass must not override, and what it overrides instead
    "forward": "override forward_local(x, batch), or async forward_async(x, batch) to await other layers",
    "backward": "override backward_local(dy, batch), or async backward_async(dy, batch) to await other layers",
}


class Runner(Node):
    """What runs passes, by what a layer declares and overrides: every layer is one. `Layer` describes attributes."""

    sequence: int
    takes: str | None
    widths: tuple[int | None, int | None]
    units: tuple[int | None, int | None]
    dtype: np.dtype | None
    passes: int

    def __init_subclass__(cls, **named: Any) -> None:
        """Refuse what must not be overridden."""
        super().__init_subclass__(**named)
        for way, instead in OVERRIDDEN.items():
            if way in vars(cls):
                raise PdlaError(f"{cls.__name__}.{way} begins a pass on all ranks: {instead}")
            for name, coroutine in ((f"{way}_local", False), (f"{way}_async", True)):
                if name in vars(cls) and iscoroutinefunction(vars(cls)[name]) != coroutine:
                    raise PdlaError(f"{cls.__name__}.{name} is {'no' if coroutine else 'an'} async def: {instead}")

    def _forget(self) -> None:
        """Keep nothing of any pass, which can then not be taken backward."""
        self._context: PassContext | None = None

    # ------------------------------------------------------------------ what subclasses override

    def forward_local(self, x: Any, batch: MicroBatch) -> Any:
        """Give y, of a layer that sends nothing. Local; called by `forward`.

        Parameters
        ----------
        x : DistMatrix
            A micro-batch's activation, whose block is `x.local`; not to be written to.
        batch : MicroBatch
            Says which rows they are, and saves what `backward_local` needs.

        Returns
        -------
        DistMatrix
            `nn.like(x, block)` makes one.

        Raises
        ------
        PdlaError
            Where a layer overrides neither this nor `forward_async`.
        """
        raise PdlaError(f"{self!r} has no pass forward: {OVERRIDDEN['forward']}")

    def backward_local(self, dy: Any, batch: MicroBatch) -> Any:
        """Give the gradient with regard to x, of a layer that sends nothing. Local.

        Called by `backward`.

        Parameters
        ----------
        dy : DistMatrix
            The gradient with regard to y, laid out as y; not to be written to.
        batch : MicroBatch
            The one that `forward_local` was given; `batch.add_gradient` takes what parameters
            learn.

        Returns
        -------
        DistMatrix
            Laid out as x.

        Raises
        ------
        PdlaError
            Where a layer overrides neither this nor `backward_async`.
        """
        raise PdlaError(f"{self!r} has no pass backward: {OVERRIDDEN['backward']}")

    async def forward_async(self, x: Any, batch: MicroBatch) -> Any:
        """Give y, of a layer that is made of others. Collective; called by `forward`.

        It awaits theirs: ``await inner.forward_async(x, batch)``.

        Parameters
        ----------
        x : DistMatrix
            As `forward_local`'s.
        batch : MicroBatch
            As `forward_local`'s.

        Returns
        -------
        DistMatrix
            The micro-batch's part of y.
        """
        return self.forward_local(x, batch)

    async def backward_async(self, dy: Any, batch: MicroBatch) -> Any:
        """Give the gradient with regard to x, of a layer that is made of others. Collective.

        Called by `backward`.

        Parameters
        ----------
        dy : DistMatrix
            As `backward_local`'s.
        batch : MicroBatch
            As `backward_local`'s.

        Returns
        -------
        DistMatrix
            Laid out as x.
        """
        return self.backward_local(dy, batch)

    def check_input(self, x: Any) -> None:
        """Raise unless the layer takes x: by default, what it declares. Local: all ranks are told.

        Parameters
        ----------
        x : object
            What `forward` was given.

        Raises
        ------
        ShapeError, LayoutError
            Where the layer does not take it.
        """
        if self.takes is None:
            check_anywhere(self, x)
        else:
            check_activation(self, x, self.dtype or next((p.allocated.dtype for p in self.all_parameters()), None))

    # ------------------------------------------------------------------ passes

    def forward(self, x: Any, *, training: bool = True) -> Any:
        """Apply the layer to x. Collective.

        Parameters
        ----------
        x : DistMatrix
            (tokens, features), laid out as `takes` says; of Embedding token numbers.
        training : bool, optional
            False: nothing is kept for a backward pass, nothing is dropped out.

        Returns
        -------
        DistMatrix
            y.

        Raises
        ------
        ShapeError, LayoutError
            For an x that the layer does not take, on every rank.
        AgreementError
            Where `passes`, or a number of a layer in it (`numbers`), differs between ranks.
        VerificationError
            With PDLA_VERIFY=1, for a product that is wrong twice, on every rank.
        """
        layers = self.all_layers()
        named = list(name_parameters(layers))
        state = f"{_describe_numbers(layers)}, training={training}, passes={self.passes}"
        with agreed(self.scheme.grid.comm, f"forward of {self.description} on {describe(x)}{state}"):
            checks.flags(training=training)
            self.check_input(x)
            check_sequences(self, x)
            if training:
                self._check_uses(named)
        self.passes += bool(training)
        self._forget()  # after an error in this pass, no earlier one can be taken backward
        parameters = list(dict.fromkeys([parameter for _, parameter in named]))
        context = PassContext(self.scheme, self.sequence, x, self.passes, training, parameters)
        comm = self.scheme.grid.comm
        with collective_section(comm, "a forward pass"), check_products(comm) if config.settings.verify else UNCHECKED:
            x = to_row_major(x)
            try:
                parts = run_in_turn([self.forward_async(take_part(x, batch), batch) for batch in context.batches])
            except LayoutError:  # on every rank: what layers have made lies as a later one does not take it
                context.drop()
                raise
            y = join_parts(parts)
        if training:
            self._context = context
            context.y = DistMatrix(Meta(y.stored.shape, y.dtype), y.shape, y.grid, y.layout)
            context.sizes = [(part.stored.shape[0], part.shape[0]) for part in parts]
        return y

    def backward(self, dy: DistMatrix) -> Any:
        """Give the gradient with regard to x, given that with regard to y. Collective.

        Parameters get theirs.

        Parameters
        ----------
        dy : DistMatrix
            Laid out as y.

        Returns
        -------
        DistMatrix or None
            Laid out as x; None of Embedding.

        Raises
        ------
        PdlaError
            Without a forward pass before it, on every rank.
        ShapeError, LayoutError
            Where dy does not lie as y, on every rank.
        VerificationError
            With PDLA_VERIFY=1, for a product that is wrong twice, on every rank; no gradients are
            left.
        """
        context = self._context
        with agreed(self.scheme.grid.comm, f"backward of {self.description} on {describe(dy)}"):
            if context is None:
                raise PdlaError(f"backward of {self!r} without a forward pass before it, in training: each serves once")
            check_gradient(dy, context.y)
        self._forget()
        context.forget_gradients()
        context.start_backward()
        try:
            comm = self.scheme.grid.comm
            with collective_section(comm, "a backward pass"), check_products(comm) if config.settings.verify else UNCHECKED:
                parts = zip(split_parts(to_row_major(dy), context.sizes), context.batches, strict=True)
                dx = run_in_turn([self.backward_async(part, batch) for part, batch in parts])
                context.finish_gradients()
        except BaseException:
            context.forget_gradients()  # so that there is none to step by
            raise
        return join_parts(dx)

    def kept_bytes(self) -> int:
        """Count the bytes that this rank keeps from forward to backward. Local.

        Returns
        -------
        int
            Of x where a layer keeps it, and of gathered parameters, but of no parameter that is
            used where it lies.
        """
        context = self._context
        if context is None:
            return 0
        own = {id(_find_memory(p.value.base)) for p in self.all_parameters()}
        saved = [values for batch in context.batches for values in batch.list_saved()]
        found = {id(memory): memory.nbytes for memory in _find_arrays([*context.arrived.values(), *saved])}
        return sum(size for memory, size in found.items() if memory not in own)

    def _check_uses(self, named: list[tuple[str, Parameter]]) -> None:
        """PdlaError unless the layers here that use a parameter are as many as its `layers`.

        Else its gradient would wait for layers that make no pass, or not for all that do.
        """
        uses = Counter([parameter for _, parameter in named])
        for name, parameter in named:
            if uses[parameter] < parameter.layers:
                raise PdlaError(
                    f"{name} of {self!r} is used by {parameter.layers} layers, of which {uses[parameter]} make this pass: "
                    "put all into one Sequential, or give training=False; "
                    "a TiedHead that is not used counts, too: then make the Embedding anew"
                )
            if uses[parameter] > parameter.layers:
                raise PdlaError(f"{name} of {self!r} is used by {uses[parameter]} layers; TiedHead is the layer that shares one")


def _describe_numbers(layers: Iterable[Any]) -> str:
    """Words for the numbers of these layers, each once; and a digest that tells which layer has which, and its place."""
    words: dict[str, None] = {}
    whole: list[str] = []
    for layer in layers:
        if layer.numbers:
            numbers = ", ".join([f"{name}={to_python(getattr(layer, name))!r}" for name in layer.numbers])
            word = f"{type(layer).__name__}({numbers})"
            words[word] = None
            whole.append(word)
        whole.append(layer.place)
    return "".join(f", {word}" for word in [*words, f"digest {blake2b(' '.join(whole).encode(), digest_size=8).hexdigest()}"])


def _find_memory(x: Any) -> Any:
    """The array whose memory x looks at."""
    return x if x.base is None else x.base


def _find_arrays(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _find_arrays(value)
        elif isinstance(value, DistMatrix):
            yield _find_memory(value.base)
        elif hasattr(value, "nbytes"):  # no number and no layout
            yield _find_memory(value)


def describe(x: Any) -> str:
    """Words for an argument, equal on two ranks where the argument is."""
    if isinstance(x, np.ndarray):  # token numbers, which every rank is to have alike
        return f"array {x.shape} {x.dtype} of digest {blake2b(x.tobytes(), digest_size=8).hexdigest()}"
    return x.described if isinstance(x, DistMatrix) else type(x).__name__


def to_python(x: Any) -> Any:
    """A NumPy number as Python's; anything else as it is."""
    if isinstance(x, Real) and not isinstance(x, Integral):
        return float(x)
    return int(x) if isinstance(x, np.integer) else x
