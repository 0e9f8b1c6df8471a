"""Optimizers whose steps are local: each rank updates its own blocks; and clipping of gradients.

The state has the parameters' layouts. Shampoo, whose steps are collective, is in shampoo.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, nan, sqrt
from numbers import Real
from typing import Any

import numpy as np

from pdla.array.composed import sum_dtype
from pdla.array.dtypes import restore_bfloat16
from pdla.comm.agreement import agreed, note, raise_everywhere
from pdla.errors import PdlaError, ShapeError, kind_of
from pdla.layout import Layout, Shape
from pdla.matrix.core import DistMatrix
from pdla.matrix.create import from_global
from pdla.matrix.redistribute import check_root
from pdla.matrix.reductions import frobenius
from pdla.nn.layer import Layer
from pdla.nn.parameter import Parameter
from pdla.nn.tree import check_state


class Optimizer:
    """Updates a layer's parameters by `step()`, after a backward pass. Collective to make.

    PdlaError for an argument that is no number or is out of range, AgreementError if the ranks'
    arguments differ. All numbers may be set between steps, as `optimizer.rate`.

    Attributes
    ----------
    numbers : tuple of str
        Names of the numbers that a step uses, each at least 0; betas are two below 1.
    moments : int
        Arrays kept for each parameter from step to step, in float32 for the 16-bit floats. Except
        for Shampoo, each has the parameter's shape.
    """

    __slots__ = ("layer", "state", "steps")  # so that a misspelled name is an error
    numbers: tuple[str, ...] = ()
    moments = 0

    def __init__(self, layer: Layer) -> None:
        if not isinstance(layer, Layer):
            message = f"{type(self).__name__} of {kind_of(layer)}: give the layer itself, whose parameters steps change"
            raise_everywhere(PdlaError(message))
        self.layer: Layer = layer
        self.steps: int = 0
        self.state: dict[Parameter, tuple[Any, ...]] = {}

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name}={_to_plain(getattr(self, name))!r}" for name in self.numbers)
        return f"{type(self).__name__}({numbers}) of {self.layer!r}"

    def _agree(self) -> None:
        with agreed(self.layer.scheme.grid.comm, repr(self)):
            self._check()

    def _check(self) -> None:
        """PdlaError unless all numbers are in range."""
        numbers = [getattr(self, name) for name in self.numbers if name != "betas"]
        betas = getattr(self, "betas", (0, 0))
        betas = betas if np.shape(betas) == (2,) else (1, 1)
        if not all(isinstance(number, Real) and float(number) >= 0 for number in (*numbers, *betas)):
            raise PdlaError(f"{self!r}: numbers must be at least 0")
        if max(betas) >= 1:
            raise PdlaError(f"{self!r}: betas must be two numbers below 1")

    def step(self) -> None:
        """Change every parameter by its gradient. Local; collective for Shampoo. All ranks call it.

        Raises
        ------
        PdlaError
            If a parameter has no gradient, or a number is out of range, on this rank. No parameter
            is changed.
        AgreementError
            At the next collective call, on every rank, if some ranks have not stepped or have
            stepped with other numbers.
        """
        self._check()
        updates = []
        for name, parameter in self.layer.named_parameters():
            if parameter.gradient is None:
                raise PdlaError(f"{name} of {self.layer!r} has no gradient: call backward before step")
            updates.append((parameter, parameter.value.stored, parameter.gradient.stored))
        self.steps += 1
        note(self.layer.scheme.grid.comm, f"step {self.steps} of {self!r}")
        for update in updates:
            self._step(*update)

    def _step(self, parameter: Parameter, value: Any, gradient: Any) -> None:
        raise NotImplementedError

    def state_dict(self, root: int | None = None) -> dict[str, Any]:
        """Gather the number of steps, and each parameter's state. Collective.

        Parameters
        ----------
        root : int, optional
            The rank that gets the state; by default every rank does.

        Returns
        -------
        dict
            "steps", and global arrays "name.0" and so on, None elsewhere; another scheme, on
            another grid, loads it.

        Raises
        ------
        AgreementError
            If ranks have made different numbers of steps.
        """
        comm = self.layer.scheme.grid.comm
        with agreed(comm, f"state_dict of {type(self).__name__} of {self.layer!r} to root={root} at step {self.steps}"):
            check_root(comm, root)
        state: dict[str, Any] = {"steps": self.steps}
        for name, parameter in self.layer.named_parameters():
            for i, block in enumerate(self.state.get(parameter, ())):
                shape, layout = self._lay_out(parameter, i)
                state[f"{name}.{i}"] = DistMatrix(block, shape, parameter.value.grid, layout).gather(root)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace steps and state by those of a state_dict. Collective.

        Parameters
        ----------
        state : mapping
            The result of `state_dict`, on every rank.

        Raises
        ------
        ShapeError
            If the state is of another kind of optimizer or of other parameters, on every rank. An
            error leaves the optimizer unchanged.
        """
        steps = state.get("steps", 0) if isinstance(state, Mapping) else 0
        with agreed(self.layer.scheme.grid.comm, f"load_state_dict of an optimizer of {self.layer!r}, at step {steps}"):
            places = self._find_places(self._count_arrays(state, steps))
            shapes: dict[str, tuple[int, ...]] = {key: self._lay_out(*place)[0] for key, place in places.items()}
            check_state(state, {"steps": (), **shapes}, f"{type(self).__name__} of {self.layer!r}")
            if not (float(steps) >= 0 and float(steps).is_integer()):
                raise ShapeError(f"steps={steps} in the state: a whole number, at least 0")
        loaded: dict[Parameter, tuple[Any, ...]] = {}
        for key, (parameter, number) in places.items():
            value, (_, layout) = parameter.value, self._lay_out(parameter, number)
            block = from_global(restore_bfloat16(state[key]), value.grid, layout).stored.astype(sum_dtype(value.dtype), copy=False)
            loaded[parameter] = *loaded.get(parameter, ()), block
        self.steps, self.state = int(state["steps"]), loaded

    def _count_arrays(self, state: Any, steps: int) -> int:
        """Count the arrays that a state must have for each parameter: none before the first step."""
        return self.moments if steps else 0

    def _find_places(self, arrays: int) -> dict[str, tuple[Parameter, int]]:
        """Find the parameter of each array of a state_dict, and the array's number for it."""
        return {f"{name}.{i}": (parameter, i) for name, parameter in self.layer.named_parameters() for i in range(arrays)}

    def _lay_out(self, parameter: Parameter, number: int) -> tuple[Shape, Layout]:
        """Give the shape and layout of an array of a parameter's state, over the parameter's grid."""
        return parameter.value.shape, parameter.value.layout

    def _get_moments(self, parameter: Parameter) -> tuple[Any, ...]:
        """Return the state of a parameter, zeros at its first step."""
        if parameter not in self.state:
            value = parameter.value
            blocks = tuple(value.xp.empty(value.stored.shape, sum_dtype(value.dtype)) for _ in range(self.moments))
            for block in blocks:
                block[...] = 0
            self.state[parameter] = blocks
        return self.state[parameter]


def _to_plain(number: Any) -> Any:
    """Convert a number, or several, to what ranks compare: 1 and np.float32(1) are the same."""
    if isinstance(number, (tuple, list)) or getattr(number, "ndim", 0) == 1:
        return tuple(map(_to_plain, number))
    return float(number) if isinstance(number, Real) else number


class SGD(Optimizer):
    """Gradient descent, with momentum and weight decay. Collective to make.

    All numbers may be set between steps, as `optimizer.rate`.

    Parameters
    ----------
    layer : Layer
        The layer whose parameters a step changes.
    rate : float
        The learning rate.
    momentum : float, optional
        The velocity becomes momentum times itself plus the gradient.
    decay : float, optional
        A step adds decay times the value to the gradient.

    Raises
    ------
    PdlaError
        For an argument that is no number or is out of range, on every rank.
    AgreementError
        If the ranks' arguments differ.

    Notes
    -----
    value -= rate (gradient + decay value), or with momentum rate times the velocity.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm))
    ...     layer = pdla.nn.Linear(scheme, 8, 6)
    ...     layer.backward(layer.forward(scheme.shard(np.ones((4, 8)))))
    ...     before = layer.weight.value.gather()
    ...     pdla.nn.SGD(layer, 0.5).step()
    ...     change = layer.weight.value.gather() - before
    ...     return np.allclose(change, -0.5 * layer.weight.gradient.gather())
    >>> pdla.run(2, program)
    [True, True]
    """

    decay: float
    momentum: float
    rate: float

    __slots__ = ("decay", "momentum", "rate")
    numbers = ("rate", "momentum", "decay")
    moments = 1

    def __init__(self, layer: Layer, rate: float, *, momentum: float = 0.0, decay: float = 0.0) -> None:
        super().__init__(layer)
        self.rate, self.momentum, self.decay = rate, momentum, decay
        self._agree()

    def _count_arrays(self, state: Any, steps: int) -> int:
        """Count one array, the velocity, if any step so far has had momentum."""
        return int(bool(steps) and len(state) > 1)

    def _step(self, parameter: Parameter, value: Any, gradient: Any) -> None:
        number = sum_dtype(value.dtype).type  # in 16 bits a small rate would be 0
        change = gradient + value * number(self.decay) if self.decay else gradient
        if self.momentum:
            (velocity,) = self._get_moments(parameter)
            velocity[...] = velocity * number(self.momentum) + change
            change = velocity
        value[...] -= change * number(self.rate)


class AdamW(Optimizer):
    """Adam with decoupled weight decay. Collective to make.

    All numbers may be set between steps, as `optimizer.rate`.

    Parameters
    ----------
    layer : Layer
        The layer whose parameters a step changes.
    rate : float, optional
        The learning rate.
    betas : (float, float), optional
        Factors, below 1, by which a step decays the running means of gradients and of their
        squares.
    eps : float, optional
        Added to the root of the mean of squares.
    decay : float, optional
        A step subtracts rate times decay times the value.

    Raises
    ------
    PdlaError
        For an argument that is no number or is out of range, on every rank.
    AgreementError
        If the ranks' arguments differ.

    Notes
    -----
    Loshchilov and Hutter, arXiv 1711.05101.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm))
    ...     layer = pdla.nn.Linear(scheme, 8, 6)
    ...     optimizer = pdla.nn.AdamW(layer, 1e-2)
    ...     for _ in range(3):
    ...         layer.backward(layer.forward(scheme.shard(np.ones((4, 8)))))
    ...         optimizer.step()
    ...     return optimizer.steps
    >>> pdla.run(2, program)
    [3, 3]
    """

    betas: tuple[float, float]
    decay: float
    eps: float
    rate: float

    __slots__ = ("betas", "decay", "eps", "rate")
    numbers = ("rate", "betas", "eps", "decay")
    moments = 2

    def __init__(
        self, layer: Layer, rate: float = 1e-3, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, decay: float = 0.01
    ) -> None:
        super().__init__(layer)
        self.rate, self.betas, self.eps, self.decay = rate, betas, eps, decay
        self._agree()

    def _step(self, parameter: Parameter, value: Any, gradient: Any) -> None:
        mean, square = self._get_moments(parameter)
        gradient, number = gradient.astype(mean.dtype, copy=False), mean.dtype.type
        rate, decay, b1, b2 = map(float, (self.rate, self.decay, *self.betas))  # 1 - beta would be rounded in 16 bits
        mean[...] = mean * number(b1) + gradient * number(1 - b1)
        square[...] = square * number(b2) + gradient * gradient * number(1 - b2)
        root = np.sqrt(square) / number(sqrt(1 - b2**self.steps)) + number(self.eps)
        value[...] = value * number(1 - rate * decay) - number(rate / (1 - b1**self.steps)) * mean / root


def clip(layer: Layer, largest: float) -> float:
    """Scale all gradients so that their common norm is at most `largest`. Collective.

    Parameters
    ----------
    layer : Layer
        Its gradients are scaled.
    largest : float
        At least 0; inf leaves the gradients as they are.

    Returns
    -------
    float
        The norm before clipping; copies count once. If the norm is NaN or infinite, all gradients
        become NaN. (PyTorch makes finite gradients 0 if another is infinite.)

    Raises
    ------
    PdlaError
        For a negative `largest`, and for a layer without gradients, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm))
    ...     layer = pdla.nn.Linear(scheme, 8, 6)
    ...     layer.backward(layer.forward(scheme.shard(np.ones((4, 8)))))
    ...     return pdla.nn.clip(layer, 1.0) > 1, round(pdla.nn.clip(layer, np.inf), 6)
    >>> pdla.run(2, program)[0]
    (True, 1.0)
    """
    if not isinstance(layer, Layer):
        raise_everywhere(PdlaError(f"clip of {kind_of(layer)}: give the layer itself, whose gradients are scaled"))
    comm = layer.scheme.grid.comm
    with agreed(comm, f"clip({layer!r}, {_to_plain(largest)!r})"):
        if not (isinstance(largest, Real) and float(largest) >= 0):
            raise PdlaError(f"clip to a norm of {largest!r}: at least 0; inf leaves the gradients unchanged")
        gradients = list(layer.gradients().values())
        if not gradients:
            raise PdlaError(f"clip: {layer!r} has no gradients; call backward before")
    norm = frobenius(*gradients)
    largest = float(largest)  # a comparison in 16 bits would round the norm, or make it infinite
    if largest < inf and not norm <= largest:
        for gradient in gradients:
            _shrink(gradient, largest / norm if norm < inf else nan)
    return norm


def _shrink(gradient: DistMatrix, factor: float) -> None:
    """Multiply a gradient by a factor; by its root, twice, if the factor itself would lose digits."""
    dtype = sum_dtype(gradient.dtype)  # in float16 the factor may be 0
    steps = [sqrt(factor)] * 2 if factor < np.finfo(dtype).tiny else [factor]
    for step in steps:
        gradient.stored[...] *= dtype.type(step)
