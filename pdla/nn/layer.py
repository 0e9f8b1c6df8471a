"""What every layer is: parameters, a pass forward and a pass backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from fractions import Fraction
from functools import wraps
from hashlib import blake2b
from inspect import iscoroutinefunction
from numbers import Integral, Real
from typing import Any

import numpy as np

from pdla import config
from pdla.array.dtypes import as_saved
from pdla.array.meta import Meta
from pdla.comm.agreement import agreed, collective_section, raise_everywhere
from pdla.errors import GridError, LayoutError, PdlaError, ShapeError, kind_of
from pdla.linalg import checks
from pdla.matrix.core import DistMatrix
from pdla.matrix.create import from_global
from pdla.matrix.redistribute import check_root
from pdla.nn.blocks import joined, part_of, parted, row_major
from pdla.nn.checks import check_activation, check_anywhere, check_gradient, check_reals, check_sequences
from pdla.nn.context import MicroBatch, PassContext
from pdla.nn.coroutines import in_turn
from pdla.nn.parameter import Parameter
from pdla.nn.products import checked_products
from pdla.nn.scheme import Scheme

UNCHECKED = nullcontext()
OVERRIDDEN = {  # what a subclass must not override, and what it overrides instead
    "forward": "override forward_local(x, batch), or async forward_async(x, batch) to await other layers",
    "backward": "override backward_local(dy, batch), or async backward_async(dy, batch) to await other layers",
}


class Layer:
    """A part of a network: `forward(x)`, then `backward(dy)` for dx and the gradients.

    Both are collective; to make one is not, unless the layer says so.

    Do not write to x or to the parameters between forward and backward: where they can, layers keep
    these themselves rather than copies, and it depends on the scheme which of them are gathered
    copies.

    A layer of your own that sends nothing overrides `forward_local` and `backward_local`; one that
    is made of other layers overrides `forward_async` and `backward_async`. What it declares is in
    the attributes below, of the class or of the layer; parameters and inner layers are attributes,
    too, or in lists that are.

    Parameters
    ----------
    scheme : Scheme
        How activations and weights are cut, and on which grid.

    Attributes
    ----------
    takes, gives : str or None
        How the scheme cuts x and y, "rows | columns" as in its tables: `scheme.first.X`, say. None:
        x may lie anywhere, and y lies there, too.
    widths : (int or None, int or None)
        Features of x and of y. None: any, and y has as many as x.
    units : (int or None, int or None)
        Features of x, and of y, that cuts keep together; None: any.
    sequence : int
        Tokens of x that must lie on one rank together.
    scale : Fraction
        Tokens of y for each of x.
    sizes : ((int, int) or None, (int, int) or None)
        Height and width of x's samples, and of y's. None: any, and y has those of x.
    dtype : numpy.dtype or None
        Of x. None: that of the parameters, and any without parameters.
    numbers : tuple of str
        Names of numbers and flags that may be set between passes, on all ranks alike, as Dropout's
        probability.
    passes : int
        Forward passes made in training. What Dropout drops depends on it: set it when you resume
        training.
    place : str
        Where it is in the layers that hold it, "layers.1.mlp.": its weights begin, and Dropout
        drops, by it.
    drawn : bool
        Whether its weights have been drawn, so that its place is settled.

    Raises
    ------
    PdlaError
        When a class is made that overrides `forward` or `backward`, on this rank: it says which
        method to override instead.

    Examples
    --------
    >>> class Square(pdla.nn.Layer):
    ...     def forward_local(self, x, batch):
    ...         batch.save(self, x.local)
    ...         return pdla.nn.like(x, x.local**2)
    ...     def backward_local(self, dy, batch):
    ...         (x,) = batch.saved(self)
    ...         return pdla.nn.like(dy, 2 * x * dy.local)
    >>> def program(comm):
    ...     layer = Square(pdla.nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm)))
    ...     y = layer.forward(layer.scheme.shard(np.full((4, 2), 3.0)))
    ...     return layer.backward(y).gather()[0].tolist()
    >>> pdla.run(2, program)
    [[54.0, 54.0], [54.0, 54.0]]
    """

    sequence = 1
    scale = Fraction(1)
    takes: str | None = None
    gives: str | None = None
    widths: tuple[int | None, int | None] = (None, None)
    units: tuple[int | None, int | None] = (None, None)
    sizes: tuple[tuple[int, int] | None, tuple[int, int] | None] = (None, None)
    dtype: np.dtype | None = None
    numbers: tuple[str, ...] = ()
    place = ""

    def __init_subclass__(cls, **named: Any) -> None:
        """Refuse what must not be overridden, and prepare __init__.

        Numbers among its arguments become Python's: products of NumPy's short integers overflow,
        its short floats round, and of a fraction NumPy has no root. And the layers that it has made
        are put into their places.
        """
        super().__init_subclass__(**named)
        for way, instead in OVERRIDDEN.items():
            if way in vars(cls):
                raise PdlaError(f"{cls.__name__}.{way} begins a pass on all ranks: {instead}")
            for name, coroutine in ((f"{way}_local", False), (f"{way}_async", True)):
                if name in vars(cls) and iscoroutinefunction(vars(cls)[name]) != coroutine:
                    raise PdlaError(f"{cls.__name__}.{name} is {'no' if coroutine else 'an'} async def: {instead}")
        if "__init__" in vars(cls):
            cls.__init__ = _with_plain_numbers(cls.__init__)  # type: ignore[method-assign]

    def __init__(self, scheme: Scheme) -> None:
        check_scheme(type(self).__name__, scheme)
        self.scheme = scheme
        self.passes = 0
        self.drawn = False
        self._forget()

    def _forget(self) -> None:
        """Keep nothing of any pass, which can then not be taken backward."""
        self._context: PassContext | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Layer:
        """A layer of its own in the same scheme, with parameters and gradients of its own.

        Not collective. So one for averages of the weights is made. A pass under way stays with the
        original.
        """
        made = memo[id(self)] = type(self).__new__(type(self))
        vars(made).update(vars(self))
        made._forget()
        vars(made).update({name: deepcopy(value, memo) for name, value in vars(made).items()})
        made.drawn = self.drawn  # by now: there is nothing to copy before
        return made

    def __repr__(self) -> str:
        return f"{type(self).__name__} on {self.scheme!r}"

    @property
    def described(self) -> str:
        """The layer, and how its scheme runs a pass, in words that are the same on every rank."""
        return f"{self!r}, {self.scheme.described}"

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

    # ------------------------------------------------------------------ parts

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if isinstance(value, (Layer, list, tuple)):
            self._place_layers()

    def _place_layers(self) -> None:
        """Give the layers in this one, and all in them, their places in it; those that have one here keep it."""
        held = vars(self).setdefault("_held", set())
        for name, layer in list(self.named_layers()):
            if layer not in held:
                held.add(layer)
                for inner in layer.all_layers():
                    inner.place = inner.place if inner.drawn else f"{name}.{inner.place}"

    def named_layers(self) -> Iterator[tuple[str, Layer]]:
        """Give the inner layers, with their names, in order. Local.

        Yields
        ------
        tuple of str and Layer
            One after the other.
        """
        for name, value in vars(self).items():
            if isinstance(value, Layer):
                yield name, value
            elif isinstance(value, (list, tuple)):
                for i, part in enumerate(value):
                    if isinstance(part, Layer):
                        yield f"{name}.{i}", part

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Give all parameters, with their names, in the order in which a pass uses them. Local.

        Parameters
        ----------
        prefix : str, optional
            Begins the names.

        Yields
        ------
        tuple of str and Parameter
            One after the other; one that is used twice comes once.
        """
        seen: set[Parameter] = set()
        for name, parameter in _named(self.all_layers(prefix)):
            if parameter not in seen:
                seen.add(parameter)
                yield name, parameter

    def all_layers(self, prefix: str = "", found: dict[Layer, str] | None = None) -> dict[Layer, str]:
        """Give this layer and all layers in it, in order. Local.

        Parameters
        ----------
        prefix : str, optional
            Begins the names.
        found : dict, optional
            Those so far.

        Returns
        -------
        dict
            To each layer the prefix of its parameters' names.
        """
        found = {} if found is None else found
        if self not in found:
            found[self] = prefix
            for name, layer in self.named_layers():
                layer.all_layers(f"{prefix}{name}.", found)
        return found

    def all_parameters(self) -> list[Parameter]:
        """Give the parameters of this layer and of all in it. Local.

        Returns
        -------
        list of Parameter
            In the order of `named_parameters`.
        """
        return [parameter for _, parameter in self.named_parameters()]

    def parameters(self) -> dict[str, DistMatrix]:
        """Give the parameters by name. Local.

        Returns
        -------
        dict of DistMatrix
            Each in its layout; writing to them changes the layer.
        """
        return {name: parameter.value for name, parameter in self.named_parameters()}

    def gradients(self) -> dict[str, DistMatrix]:
        """Give the gradients that the last backward pass left, by name. Local.

        Returns
        -------
        dict of DistMatrix
            Laid out as the parameters and the same on all copies.
        """
        return {name: p.gradient for name, p in self.named_parameters() if p.gradient is not None}

    def state_dict(self, root: int | None = None) -> dict[str, Any]:
        """Gather the parameters as global arrays by name. Collective.

        Parameters
        ----------
        root : int, optional
            The rank that gets them; by default every rank does.

        Returns
        -------
        dict of array
            None for each elsewhere. The order of rows and columns does not depend on the scheme:
            another scheme, on another grid, loads them.
        """
        comm = self.scheme.grid.comm
        with agreed(comm, f"state_dict of {self.described} to root={root}"):  # also where there are no parameters to gather
            check_root(comm, root)
        return {name: p.value.gather(root) for name, p in self.named_parameters()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the parameters from global arrays. Collective.

        Parameters
        ----------
        state : mapping of str to array
            Of real numbers, which every rank has; in bfloat16 also as `numpy.load` gives them, of
            dtype ``|V2``.

        Raises
        ------
        ShapeError
            Where names or shapes differ, on every rank; an error leaves the layer as it was.
        """
        with agreed(self.scheme.grid.comm, f"load_state_dict of {self.described}"):
            own = self.parameters()
            check_state(state, {name: value.shape for name, value in own.items()}, repr(self))
        blocks = [from_global(as_saved(state[name]), value.grid, value.layout).stored for name, value in own.items()]
        for value, block in zip(own.values(), blocks, strict=True):
            value.xp.copy(value.stored, block.astype(value.dtype, copy=False))  # explicitly: to NumPy bfloat16 is of another kind

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
        named = list(_named(layers))
        call = f"forward of {self.described} on {described(x)}{_told(layers)}, training={training}, passes={self.passes}"
        with agreed(self.scheme.grid.comm, call):
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
        with collective_section(comm, "a forward pass"), checked_products(comm) if config.settings.verify else UNCHECKED:
            x = row_major(x)
            try:
                parts = in_turn([self.forward_async(part_of(x, batch), batch) for batch in context.batches])
            except LayoutError:  # on every rank: what layers have made lies as a later one does not take it
                context.drop()
                raise
            y = joined(parts)
        if training:
            self._context = context
            context.y = DistMatrix(Meta(y.stored.shape, y.dtype), y.shape, y.grid, y.layout)
            context.sizes = [(part.stored.shape[0], part.shape[0]) for part in parts]
        return y

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
        own = {id(_memory(p.value.base)) for p in self.all_parameters()}
        saved = [values for batch in context.batches for values in batch.all_saved()]
        found = {id(memory): memory.nbytes for memory in _arrays([*context.arrived.values(), *saved])}
        return sum(size for memory, size in found.items() if memory not in own)

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
        with agreed(self.scheme.grid.comm, f"backward of {self.described} on {described(dy)}"):
            if context is None:
                raise PdlaError(f"backward of {self!r} without a forward pass before it, in training: each serves once")
            check_gradient(dy, context.y)
        self._forget()
        context.forget_gradients()
        context.turn()
        try:
            comm = self.scheme.grid.comm
            with collective_section(comm, "a backward pass"), checked_products(comm) if config.settings.verify else UNCHECKED:
                parts = zip(parted(row_major(dy), context.sizes), context.batches, strict=True)
                dx = in_turn([self.backward_async(part, batch) for part, batch in parts])
                context.finish_gradients()
        except BaseException:
            context.forget_gradients()  # so that there is none to step by
            raise
        return joined(dx)


def _named(layers: Mapping[Layer, str]) -> Iterator[tuple[str, Parameter]]:
    """The parameters of these layers, with their names; one that several layers use comes several times."""
    for layer, prefix in layers.items():
        for name, value in vars(layer).items():
            if isinstance(value, Parameter):
                yield prefix + name, value


def _told(layers: Iterable[Layer]) -> str:
    """Words for the numbers of these layers, each once; and a digest that tells which layer has which, and its place."""
    words: dict[str, None] = {}
    whole: list[str] = []
    for layer in layers:
        if layer.numbers:
            numbers = ", ".join([f"{name}={_plain(getattr(layer, name))!r}" for name in layer.numbers])
            told = f"{type(layer).__name__}({numbers})"
            words[told] = None
            whole.append(told)
        whole.append(layer.place)
    return "".join(f", {each}" for each in [*words, f"digest {blake2b(' '.join(whole).encode(), digest_size=8).hexdigest()}"])


def check_scheme(kind: str, scheme: Any) -> None:
    """GridError unless a layer of this kind has been given a Scheme."""
    if not isinstance(scheme, Scheme):
        raise _no_scheme(kind, scheme)


def _no_scheme(kind: str, scheme: Any) -> GridError:
    return GridError(f"{kind}({scheme!r}, ...): give a scheme, as nn.Megatron1D(grid) or nn.Cube3D(grid)")


def _with_plain_numbers(init: Callable[..., None]) -> Callable[..., None]:
    @wraps(init)
    def with_plain_numbers(*given: Any, **named: Any) -> None:
        init(*map(_plain, given), **{name: _plain(value) for name, value in named.items()})
        layer: Layer = given[0]
        if "scheme" not in vars(layer):
            raise PdlaError(f"{type(layer).__name__}.__init__ does not call super().__init__(scheme)")
        layer._place_layers()  # those in lists that were empty when they became attributes

    return with_plain_numbers


def _plain(x: Any) -> Any:
    if isinstance(x, Real) and not isinstance(x, Integral):
        return float(x)
    return int(x) if isinstance(x, np.integer) else x


@contextmanager
def arguments_agreed(kind: str, scheme: Scheme, numbers: str, **flags: bool) -> Iterator[None]:
    """Collective: encloses the checks of a layer's arguments.

    An error on one rank, or a difference between ranks, is an error on all. `numbers`: the
    arguments in words; flags must be True or False.
    """
    if not isinstance(scheme, Scheme):
        raise_everywhere(_no_scheme(kind, scheme))
    told = ", ".join([numbers, *(f"{name}={value}" for name, value in flags.items())])
    with agreed(scheme.grid.comm, f"{kind}({told}) in {scheme.described}"):
        checks.flags(**flags)
        yield


def check_state(state: Any, shapes: Mapping[str, tuple[int, ...]], whose: str) -> None:
    """ShapeError unless a state has arrays of real numbers of these names and shapes, and nothing besides."""
    if not isinstance(state, Mapping):
        raise ShapeError(f"a state of {whose} is a dict of arrays by name, which every rank has, not {kind_of(state)}")
    if set(shapes) != set(state):
        lacks, has = sorted(set(shapes) - set(state)), sorted(set(state) - set(shapes), key=str)
        raise ShapeError(f"the state is not {whose}'s: it lacks {lacks}, and has {has} besides")
    for name, shape in shapes.items():
        given = as_saved(state[name])  # once: a file's is read
        if shape != np.shape(given):
            raise ShapeError(f"{name} is {np.shape(given)} in the state, {shape} in {whose}")
        dtype = getattr(given, "dtype", None)
        check_reals(f"{name} in the state", dtype if isinstance(dtype, np.dtype) else np.asarray(given).dtype)


def _memory(x: Any) -> Any:
    """The array whose memory x looks at."""
    return x if x.base is None else x.base


def _arrays(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _arrays(value)
        elif isinstance(value, DistMatrix):
            yield _memory(value.base)
        elif hasattr(value, "nbytes"):  # no number and no layout
            yield _memory(value)


def described(x: Any) -> str:
    """Words for an argument, equal on two ranks where the argument is."""
    if isinstance(x, np.ndarray):  # token numbers, which every rank is to have alike
        return f"array {x.shape} {x.dtype} of digest {blake2b(x.tobytes(), digest_size=8).hexdigest()}"
    return x.described if isinstance(x, DistMatrix) else type(x).__name__
