"""Optimizers: each rank updates its own blocks, without messages, and the state is laid out as the parameters; and clipping."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, sqrt
from numbers import Real
from typing import Any

import numpy as np

from pdla.array.composed import summing
from pdla.array.dtypes import as_saved
from pdla.comm.agreement import agreed, collective_section, note
from pdla.comm.ledger import tagged
from pdla.errors import PdlaError, ShapeError, kind_of
from pdla.matrix.create import from_global
from pdla.matrix.redistribute import check_root
from pdla.nn.blocks import like
from pdla.nn.layer import Layer, check_state
from pdla.nn.parameter import Parameter


class Optimizer:
    """Updates a layer's parameters: `step()`, after a backward pass. Collective to make: PdlaError for an argument that is no
    number or is out of range, AgreementError where ranks give different ones. All may be set between steps, as `optimizer.rate`.

    numbers  names of what steps go by: numbers of at least 0; betas: two below 1
    moments  arrays of each parameter's size that are kept from step to step, in float32 for the 16-bit floats
    """

    __slots__ = ("layer", "state", "steps")  # so that to set a rate by another name is an error
    numbers: tuple[str, ...] = ()
    moments = 0

    def __init__(self, layer: Layer) -> None:
        if not isinstance(layer, Layer):
            raise PdlaError(f"{type(self).__name__} of {kind_of(layer)}: give the layer itself, whose parameters are stepped")
        self.layer = layer
        self.steps = 0
        self.state: dict[Parameter, tuple[Any, ...]] = {}

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={_plain(getattr(self, name))!r}" for name in self.numbers)
        return f"{type(self).__name__}({told}) of {self.layer!r}"

    def _agree(self) -> None:
        with agreed(self.layer.scheme.grid.comm, repr(self)):
            self._check()

    def _check(self) -> None:
        """PdlaError unless the numbers are what they may be."""
        given = [getattr(self, name) for name in self.numbers if name != "betas"]
        betas = getattr(self, "betas", (0, 0))
        two = betas if np.shape(betas) == (2,) else (1, 1)
        if not all(isinstance(number, Real) and float(number) >= 0 for number in (*given, *two)):
            raise PdlaError(f"{self!r}: numbers of at least 0")
        if max(two) >= 1:
            raise PdlaError(f"{self!r}: two betas below 1")

    def step(self) -> None:
        """Change every parameter by its gradient, without messages. PdlaError where one has none, or for numbers out of range, and
        then none is changed; AgreementError, on every rank, at the next collective call, where some of them have not stepped, or by
        other numbers."""
        self._check()
        stepped = []
        for name, parameter in self.layer.named_parameters():
            if parameter.gradient is None:
                raise PdlaError(f"{name} of {self.layer!r} has no gradient: backward comes before step")
            stepped.append((parameter, parameter.value.stored, parameter.gradient.stored))
        self.steps += 1
        note(self.layer.scheme.grid.comm, f"step {self.steps} of {self!r}")
        for each in stepped:
            self._step(*each)

    def _step(self, parameter: Parameter, value: Any, gradient: Any) -> None:
        raise NotImplementedError

    def state_dict(self, root: int | None = None) -> dict[str, Any]:
        """Collective: the number of steps, and each parameter's state as global arrays, "name.0" and so on, on every rank or on
        `root` (None elsewhere); another scheme, on another grid, loads it. AgreementError where ranks have made different numbers
        of steps."""
        comm = self.layer.scheme.grid.comm
        with agreed(comm, f"state_dict of {type(self).__name__} of {self.layer!r} to root={root} at step {self.steps}"):
            check_root(comm, root)
        state: dict[str, Any] = {"steps": self.steps}
        for name, parameter in self.layer.named_parameters():
            for i, block in enumerate(self.state.get(parameter, ())):
                state[f"{name}.{i}"] = like(parameter.value, block).gather(root)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Collective: replace steps and state by those of a state_dict, which every rank has. ShapeError where it is of another
        kind of optimizer or of other parameters; an error leaves the optimizer as it was."""
        steps = state.get("steps", 0) if isinstance(state, Mapping) else 0
        with agreed(self.layer.scheme.grid.comm, f"load_state_dict of an optimizer of {self.layer!r}, at step {steps}"):
            places = self._places(steps)
            shapes: dict[str, tuple[int, ...]] = {key: parameter.value.shape for key, parameter in places.items()}
            check_state(state, {"steps": (), **shapes}, f"{type(self).__name__} of {self.layer!r}")
            if not (float(steps) >= 0 and float(steps).is_integer()):
                raise ShapeError(f"steps={steps} in the state: a whole number of them")
        loaded: dict[Parameter, tuple[Any, ...]] = {}
        for key, parameter in places.items():
            value = parameter.value
            block = from_global(as_saved(state[key]), value.grid, value.layout).stored.astype(summing(value.dtype), copy=False)
            loaded[parameter] = *loaded.get(parameter, ()), block
        self.steps, self.state = int(state["steps"]), loaded

    def _places(self, steps: int) -> dict[str, Parameter]:
        """The parameter to which each array of a state_dict belongs; there are no arrays before the first step."""
        named = self.layer.named_parameters() if steps else ()
        return {f"{name}.{i}": parameter for name, parameter in named for i in range(self.moments)}

    def _moments(self, parameter: Parameter) -> tuple[Any, ...]:
        """The state of a parameter: zeros at its first step."""
        if parameter not in self.state:
            value = parameter.value
            blocks = tuple(value.xp.empty(value.stored.shape, summing(value.dtype)) for _ in range(self.moments))
            for block in blocks:
                block[...] = 0
            self.state[parameter] = blocks
        return self.state[parameter]


def _plain(number: Any) -> Any:
    """A number, or several, as they are told to other ranks: 1 and np.float32(1) are the same."""
    if isinstance(number, (tuple, list)) or getattr(number, "ndim", 0) == 1:
        return tuple(map(_plain, number))
    return float(number) if isinstance(number, Real) else number


class SGD(Optimizer):
    """value -= rate (gradient + decay value), with momentum: the velocity is momentum times itself plus the gradient."""

    __slots__ = ("decay", "momentum", "rate")
    numbers = ("rate", "momentum", "decay")

    def __init__(self, layer: Layer, rate: float, *, momentum: float = 0.0, decay: float = 0.0) -> None:
        super().__init__(layer)
        self.rate, self.momentum, self.decay = rate, momentum, decay
        self._agree()

    @property
    def moments(self) -> int:  # type: ignore[override]
        return 1 if self.momentum else 0

    def _step(self, parameter: Parameter, value: Any, gradient: Any) -> None:
        number = summing(value.dtype).type  # in 16 bits a small rate would be 0
        change = gradient + value * number(self.decay) if self.decay else gradient
        if self.momentum:
            (velocity,) = self._moments(parameter)
            velocity[...] = velocity * number(self.momentum) + change
            change = velocity
        value[...] -= change * number(self.rate)


class AdamW(Optimizer):
    """Adam with decoupled weight decay; Loshchilov and Hutter, arXiv 1711.05101."""

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
        mean, square = self._moments(parameter)
        gradient, number = gradient.astype(mean.dtype, copy=False), mean.dtype.type
        rate, decay, b1, b2 = map(float, (self.rate, self.decay, *self.betas))  # 1 - beta would be rounded in a short float
        mean[...] = mean * number(b1) + gradient * number(1 - b1)
        square[...] = square * number(b2) + gradient * gradient * number(1 - b2)
        root = np.sqrt(square) / number(sqrt(1 - b2**self.steps)) + number(self.eps)
        value[...] = value * number(1 - rate * decay) - number(rate / (1 - b1**self.steps)) * mean / root


def clip(layer: Layer, largest: float) -> float:
    """Collective: scale all gradients so that their common norm is at most `largest`; gives the norm before. Copies count once.

    Where the norm is NaN, all gradients become NaN, as in PyTorch; largest=inf leaves them as they are.
    """
    if not isinstance(layer, Layer):
        raise PdlaError(f"clip of {kind_of(layer)}: give the layer itself, whose gradients are scaled")
    comm = layer.scheme.grid.comm
    with agreed(comm, f"clip({layer!r}, {_plain(largest)!r})"):
        if not (isinstance(largest, Real) and float(largest) >= 0):
            raise PdlaError(f"clip to a norm of {largest!r}: at least 0; inf leaves the gradients as they are")
        gradients = list(layer.gradients().values())
        if not gradients:
            raise PdlaError(f"clip: {layer!r} has no gradients; backward comes before")
    with tagged("clip"), collective_section(comm, "clipping"):
        total = comm.xp.empty((1,), np.float64)
        total[...] = 0
        for gradient in gradients:
            if gradient.first:
                block = gradient.stored.astype(np.float64, copy=False)
                total[...] += (block * block).sum()
        norm = sqrt(comm.allreduce(total).wait()[0])
    largest = float(largest)  # comparing in a short float would round the norm, or make it infinite
    if largest < inf and not norm <= largest:
        for gradient in gradients:
            gradient.stored[...] *= summing(gradient.dtype).type(largest / norm)  # in float16 it may be 0
    return norm
