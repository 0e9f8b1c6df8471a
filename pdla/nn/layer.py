"""What every layer declares, and how one is made."""

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

    Both are collective; to make one is not, unless the layer says so.

    Do not write to x or to the parameters between forward and backward: where they can, layers keep
    these themselves rather than copies, and it depends on the scheme which of them are gathered
    copies.

    A layer of your own that sends nothing overrides `forward_local` and `backward_local`; one that
    is made of other layers overrides `forward_async` and `backward_async`. What it declares is in
    the attributes below, of the class or of the layer; parameters and inner layers are attributes,
    too, the layers also in lists that are. `Sequential` has words for two attributes more, of
    layers that change the number of tokens.

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
    takes: str | None = None
    gives: str | None = None
    widths: tuple[int | None, int | None] = (None, None)
    units: tuple[int | None, int | None] = (None, None)
    dtype: np.dtype | None = None
    numbers: tuple[str, ...] = ()

    def __init_subclass__(cls, **named: Any) -> None:
        """Prepare __init__: numbers among its arguments become Python's, and layers that it has made are put into their places.

        Products of NumPy's short integers overflow, its short floats round, and of a fraction NumPy
        has no root.
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
        """A layer of its own in the same scheme, with parameters and gradients of its own.

        Not collective. So one for averages of the weights is made. A pass under way stays with the
        original.
        """
        copy = memo[id(self)] = type(self).__new__(type(self))
        vars(copy).update(vars(self))
        copy._forget()
        vars(copy).update({name: deepcopy(value, memo) for name, value in vars(copy).items()})
        copy.drawn = self.drawn  # by now: there is nothing to copy before
        return copy

    def __repr__(self) -> str:
        return f"{type(self).__name__} on {self.scheme!r}"

    def _repr_html_(self) -> str:
        from pdla.nn.picture import picture

        return picture(self)


def _refuse_scheme(kind: str, scheme: Any) -> GridError:
    return GridError(f"{kind}({scheme!r}, ...): give a scheme, as nn.Megatron1D(grid) or nn.Cube3D(grid)")


def _prepare(init: Callable[..., None]) -> Callable[..., None]:
    """The constructor `init` as `Layer.__init_subclass__` wants it."""

    @wraps(init)
    def init_and_place(*args: Any, **named: Any) -> None:
        init(*map(to_python, args), **{name: to_python(value) for name, value in named.items()})
        layer: Layer = args[0]
        if "scheme" not in vars(layer):
            raise PdlaError(f"{type(layer).__name__}.__init__ does not call super().__init__(scheme)")
        layer._place_layers()  # those in lists that were empty when they became attributes

    return init_and_place


@contextmanager
def agree_on_arguments(kind: str, scheme: Scheme, numbers: str, **flags: bool) -> Iterator[None]:
    """Collective: encloses the checks of a layer's arguments.

    An error on one rank, or a difference between ranks, is an error on all. `numbers`: the
    arguments in words; flags must be True or False.
    """
    if not isinstance(scheme, Scheme):
        raise_everywhere(_refuse_scheme(kind, scheme))
    call = ", ".join([numbers, *(f"{name}={value}" for name, value in flags.items())])
    with agreed(scheme.grid.comm, f"{kind}({call}) in {scheme.description}"):
        checks.flags(**flags)
        yield
