"""The class of all layers: what a layer declares, and how it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import wraps
from typing import Any

import numpy as np

from pdla import checks
from pdla.comm.agreement import agreed, raise_everywhere
from pdla.errors import GridError, PdlaError
from pdla.nn.passes import Runner, to_python
from pdla.nn.scheme import Scheme


class Layer(Runner):
    """A part of a network: `forward(x)`, then `backward(dy)` for dx and the gradients.

    Both are collective. To make a layer is local, unless its class says so.

    Do not write to x or to the parameters between forward and backward. Layers keep x and the
    parameters themselves; only where the scheme gathers them does a layer keep a copy.

    A layer of your own that sends nothing overrides `forward_local` and `backward_local`. A layer
    made of other layers overrides `forward_async` and `backward_async`. The attributes below, of
    the class or of the layer, declare what it takes and gives. Parameters and inner layers are
    attributes, too; inner layers may also be in lists that are attributes. `Sequential` describes
    two more attributes, for layers that change the number of tokens.

    Parameters
    ----------
    scheme : Scheme
        How activations and weights are cut, and on which grid.

    Attributes
    ----------
    takes, gives : str or None
        How the scheme cuts x and y, "rows | columns" as in its tables: `scheme.first.X`, say. None:
        x has any layout, and y the same one.
    widths : (int or None, int or None)
        Features of x and of y. None: any, and y has as many as x.
    units : (int or None, int or None)
        Features of x, and of y, that cuts keep together; None: any.
    sequence : int
        Tokens of x that a rank must hold together.
    dtype : numpy.dtype or None
        The dtype of x. None: that of the parameters, and any without parameters.
    numbers : tuple of str
        Names of numbers and flags, such as Dropout's probability, that may be set between passes,
        to the same on all ranks.
    passes : int
        Forward passes made in training. Dropout's masks depend on it: set it when you resume
        training.
    place : str
        The layer's place in the layers that hold it, "layers.1.mlp.". Its first weights and
        Dropout's masks depend on it.
    drawn : bool
        Whether its weights have been drawn, so that its place no longer changes.

    Raises
    ------
    PdlaError
        If a class that overrides `forward` or `backward` is made, on this rank. The error names the
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
    takes: str | None = None
    gives: str | None = None
    widths: tuple[int | None, int | None] = (None, None)
    units: tuple[int | None, int | None] = (None, None)
    dtype: np.dtype | None = None
    numbers: tuple[str, ...] = ()

    def __init_subclass__(cls, **named: Any) -> None:
        """Wrap __init__: convert its numbers to Python's, and give inner layers their places.

        Products of NumPy's short integers would overflow and its short floats round, and NumPy has
        no root of a fraction.
        """
        super().__init_subclass__(**named)
        if "__init__" in vars(cls):
            cls.__init__ = _prepare(cls.__init__)  # type: ignore[method-assign]

    def __init__(self, scheme: Scheme) -> None:
        if not isinstance(scheme, Scheme):
            raise _refuse_scheme(type(self).__name__, scheme)
        self.scheme = scheme
        self.passes = 0
        self.drawn = False
        self._forget()

    def __deepcopy__(self, memo: dict[int, Any]) -> Layer:
        """Copy the layer with its parameters and gradients, but not its scheme or a pass under way.

        Local. A copy may hold averages of the weights.
        """
        copy = memo[id(self)] = type(self).__new__(type(self))
        vars(copy).update(vars(self))
        copy._forget()
        vars(copy).update({name: deepcopy(value, memo) for name, value in vars(copy).items()})
        copy.drawn = self.drawn  # the copy of a parameter reads its elements, which draws them in self
        return copy

    def __repr__(self) -> str:
        return f"{type(self).__name__} on {self.scheme!r}"

    def _repr_html_(self) -> str:
        from pdla.nn.picture import picture

        return picture(self)


def _refuse_scheme(kind: str, scheme: Any) -> GridError:
    return GridError(f"{kind}({scheme!r}, ...): give a scheme, as nn.Megatron1D(grid) or nn.Cube3D(grid)")


def _prepare(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap the constructor `init` as `Layer.__init_subclass__` says."""

    @wraps(init)
    def init_and_place(*args: Any, **named: Any) -> None:
        init(*map(to_python, args), **{name: to_python(value) for name, value in named.items()})
        layer: Layer = args[0]
        if "scheme" not in vars(layer):
            raise PdlaError(f"{type(layer).__name__}.__init__ does not call super().__init__(scheme)")
        layer._place_layers()  # lists that were empty when they became attributes may have layers now

    return init_and_place


@contextmanager
def agree_on_arguments(kind: str, scheme: Scheme, numbers: str, **flags: bool) -> Iterator[None]:
    """Collective: a with-block for the checks of a layer's arguments.

    An error on one rank, or a difference between ranks, is an error on all. `numbers` has the
    arguments in words; flags must be True or False.
    """
    if not isinstance(scheme, Scheme):
        raise_everywhere(_refuse_scheme(kind, scheme))
    call = ", ".join([numbers, *(f"{name}={value}" for name, value in flags.items())])
    with agreed(scheme.grid.comm, f"{kind}({call}) in {scheme.description}"):
        checks.flags(**flags)
        yield
