"""Passes: a layer agrees with other ranks on a call, then runs a coroutine for each micro-batch."""

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
OVERRIDDEN = {  # methods that a subclass must not override, and what to do instead
    "forward": "override forward_local(x, batch), or async forward_async(x, batch) to await other layers",
    "backward": "override backward_local(dy, batch), or async backward_async(dy, batch) to await other layers",
}


class Runner(Node):
    """Runs the passes of a layer by what it declares. `Layer` describes the attributes."""

    sequence: int
    takes: str | None
    widths: tuple[int | None, int | None]
    units: tuple[int | None, int | None]
    dtype: np.dtype | None
    passes: int

    def __init_subclass__(cls, **named: Any) -> None:
        """Refuse a class that overrides `forward` or `backward`, or confuses plain and async ones."""
        super().__init_subclass__(**named)
        for method, advice in OVERRIDDEN.items():
            if method in vars(cls):
                raise PdlaError(f"{cls.__name__}.{method} starts a pass on all ranks: {advice}")
            for name, coroutine in ((f"{method}_local", False), (f"{method}_async", True)):
                if name in vars(cls) and iscoroutinefunction(vars(cls)[name]) != coroutine:
                    raise PdlaError(f"{cls.__name__}.{name} is {'no' if coroutine else 'an'} async def: {advice}")

    def _forget(self) -> None:
        """Drop the last pass, which can then not be taken backward."""
        self._context: PassContext | None = None

    # ------------------------------------------------------------------ what subclasses override

    def forward_local(self, x: Any, batch: MicroBatch) -> Any:
        """Compute y, in a layer that sends nothing. Local; called by `forward`.

        Parameters
        ----------
        x : DistMatrix
            A micro-batch's activation, with block `x.local`; do not write to it.
        batch : MicroBatch
            Knows the global rows of x, and saves what `backward_local` needs.

        Returns
        -------
        DistMatrix
            y; `nn.like(x, block)` makes one.

        Raises
        ------
        PdlaError
            If a layer overrides neither this nor `forward_async`.
        """
        raise PdlaError(f"{self!r} has no pass forward: {OVERRIDDEN['forward']}")

    def backward_local(self, dy: Any, batch: MicroBatch) -> Any:
        """Compute the gradient with regard to x, in a layer that sends nothing. Local.

        Called by `backward`.

        Parameters
        ----------
        dy : DistMatrix
            The gradient with regard to y, in y's layout; do not write to it.
        batch : MicroBatch
            The argument of `forward_local`; `batch.add_gradient` takes the gradients of parameters.

        Returns
        -------
        DistMatrix
            In x's layout.

        Raises
        ------
        PdlaError
            If a layer overrides neither this nor `backward_async`.
        """
        raise PdlaError(f"{self!r} has no pass backward: {OVERRIDDEN['backward']}")

    async def forward_async(self, x: Any, batch: MicroBatch) -> Any:
        """Compute y, in a layer that is made of others. Collective; called by `forward`.

        Await the inner layers: ``await inner.forward_async(x, batch)``.

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
        """Compute the gradient with regard to x, in a layer that is made of others. Collective.

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
            In x's layout.
        """
        return self.backward_local(dy, batch)

    def check_input(self, x: Any) -> None:
        """Raise unless x is what the layer declares. Local; `forward` raises on all ranks.

        Parameters
        ----------
        x : object
            The argument of `forward`.

        Raises
        ------
        ShapeError, LayoutError
            If the layer does not take x.
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
            (tokens, features), in the layout that `takes` names; for Embedding, token numbers.
        training : bool, optional
            False keeps nothing for a backward pass, and drops nothing out.

        Returns
        -------
        DistMatrix
            y.

        Raises
        ------
        ShapeError, LayoutError
            If the layer does not take x, on every rank.
        AgreementError
            If `passes`, or a number of an inner layer (`numbers`), differs between ranks.
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
        self._forget()  # after an error in this pass, no earlier pass can be taken backward
        parameters = list(dict.fromkeys([parameter for _, parameter in named]))
        context = PassContext(self.scheme, self.sequence, x, self.passes, training, parameters)
        comm = self.scheme.grid.comm
        with collective_section(comm, "a forward pass"), check_products(comm) if config.settings.verify else UNCHECKED:
            x = to_row_major(x)
            try:
                parts = run_in_turn([self.forward_async(take_part(x, batch), batch) for batch in context.batches])
            except LayoutError:  # on every rank: a layer does not take the output layout of the layer before it
                context.drop()
                raise
            y = join_parts(parts)
        if training:
            self._context = context
            context.y = DistMatrix(Meta(y.stored.shape, y.dtype), y.shape, y.grid, y.layout)
            context.sizes = [(part.stored.shape[0], part.shape[0]) for part in parts]
        return y

    def backward(self, dy: DistMatrix) -> Any:
        """Compute the gradients with regard to x and to all parameters. Collective.

        Parameters
        ----------
        dy : DistMatrix
            The gradient with regard to y, in y's layout.

        Returns
        -------
        DistMatrix or None
            The gradient with regard to x, in x's layout; None for Embedding.

        Raises
        ------
        PdlaError
            Without a forward pass before it, on every rank.
        ShapeError, LayoutError
            If dy has not y's layout, on every rank.
        VerificationError
            With PDLA_VERIFY=1, for a product that is wrong twice, on every rank. Parameters then
            have no gradients.
        """
        context = self._context
        with agreed(self.scheme.grid.comm, f"backward of {self.description} on {describe(dy)}"):
            if context is None:
                raise PdlaError(f"backward of {self!r} without a forward pass in training before it: each serves one backward")
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
            context.forget_gradients()  # an optimizer must not step by an unfinished gradient
            raise
        return join_parts(dx)

    def kept_bytes(self) -> int:
        """Count the bytes that this rank keeps from forward to backward. Local.

        Returns
        -------
        int
            The bytes of saved activations and gathered parameters, without the parameters' own
            blocks.
        """
        context = self._context
        if context is None:
            return 0
        parameter_memory = {id(_find_memory(p.value.base)) for p in self.all_parameters()}
        saved = [values for batch in context.batches for values in batch.list_saved()]
        sizes = {id(memory): memory.nbytes for memory in _find_arrays([*context.arrived.values(), *saved])}
        return sum(size for memory, size in sizes.items() if memory not in parameter_memory)

    def _check_uses(self, named: list[tuple[str, Parameter]]) -> None:
        """PdlaError unless exactly `parameter.layers` layers use each parameter in this pass.

        Its gradient is complete once so many layers have added to it.
        """
        uses = Counter([parameter for _, parameter in named])
        for name, parameter in named:
            if uses[parameter] < parameter.layers:
                raise PdlaError(
                    f"{name} of {self!r} is used by {parameter.layers} layers, of which {uses[parameter]} are in this pass: "
                    "put all into one Sequential, or give training=False; "
                    "an unused TiedHead counts, too: make the Embedding again without it"
                )
            if uses[parameter] > parameter.layers:
                raise PdlaError(f"{name} of {self!r} is used by {uses[parameter]} layers; only TiedHead shares a parameter")


def _describe_numbers(layers: Iterable[Any]) -> str:
    """Describe layers by their numbers, equal layers once, and add a digest of the numbers and places of all."""
    descriptions: dict[str, None] = {}
    digested: list[str] = []
    for layer in layers:
        if layer.numbers:
            numbers = ", ".join([f"{name}={to_python(getattr(layer, name))!r}" for name in layer.numbers])
            description = f"{type(layer).__name__}({numbers})"
            descriptions[description] = None
            digested.append(description)
        digested.append(layer.place)
    digest = blake2b(" ".join(digested).encode(), digest_size=8).hexdigest()
    return "".join(f", {description}" for description in [*descriptions, f"digest {digest}"])


def _find_memory(x: Any) -> Any:
    """Find the array that owns x's memory."""
    return x if x.base is None else x.base


def _find_arrays(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _find_arrays(value)
        elif isinstance(value, DistMatrix):
            yield _find_memory(value.base)
        elif hasattr(value, "nbytes"):  # numbers and layouts have none
            yield _find_memory(value)


def describe(x: Any) -> str:
    """Describe an argument in words that differ between ranks if the argument does."""
    if isinstance(x, np.ndarray):  # token numbers, which must be the same on every rank
        return f"array {x.shape} {x.dtype} of digest {blake2b(x.tobytes(), digest_size=8).hexdigest()}"
    return x.description if isinstance(x, DistMatrix) else type(x).__name__


def to_python(x: Any) -> Any:
    """Convert a NumPy number to Python's; return anything else unchanged."""
    if isinstance(x, Real) and not isinstance(x, Integral):
        return float(x)
    return int(x) if isinstance(x, np.integer) else x
