"""The tree of a network: a layer holds, saves and loads parameters and inner layers by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pdla.array.dtypes import restore_bfloat16
from pdla.comm.agreement import agreed
from pdla.errors import ShapeError, kind_of
from pdla.matrix.core import DistMatrix
from pdla.matrix.create import from_global
from pdla.matrix.redistribute import check_root
from pdla.nn.checks import check_reals
from pdla.nn.parameter import Parameter
from pdla.nn.scheme import Scheme


class Node:
    """Holds parameters and inner layers by the names of attributes, which `Layer` describes."""

    scheme: Scheme
    drawn: bool
    place = ""

    @property
    def description(self) -> str:
        """The layer, and how its scheme runs a pass, in words; the same on every rank."""
        return f"{self!r}, {self.scheme.description}"

    # ------------------------------------------------------------------ named

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if isinstance(value, (Node, list, tuple)):
            self._place_layers()

    def _place_layers(self) -> None:
        """Set the places of all layers in this one that have none in it yet."""
        placed = vars(self).setdefault("_placed", set())
        for name, layer in list(self.named_layers()):
            if layer not in placed:
                placed.add(layer)
                for inner in layer.all_layers():
                    inner.place = inner.place if inner.drawn else f"{name}.{inner.place}"

    def named_layers(self) -> Iterator[tuple[str, Any]]:
        """Give the inner layers, with their names, in order. Local.

        Yields
        ------
        tuple of str and Layer
            One after the other.
        """
        for name, value in vars(self).items():
            if isinstance(value, Node):
                yield name, value
            elif isinstance(value, (list, tuple)):
                for i, element in enumerate(value):
                    if isinstance(element, Node):
                        yield f"{name}.{i}", element

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Give all parameters, with their names, in the order in which a pass uses them. Local.

        Parameters
        ----------
        prefix : str, optional
            Prefix of the names.

        Yields
        ------
        tuple of str and Parameter
            One after the other; a parameter that two layers use comes once.
        """
        seen: set[Parameter] = set()
        for name, parameter in name_parameters(self.all_layers(prefix)):
            if parameter not in seen:
                seen.add(parameter)
                yield name, parameter

    def all_layers(self, prefix: str = "", found: dict[Any, str] | None = None) -> dict[Any, str]:
        """Give this layer and all layers in it, in order. Local.

        Parameters
        ----------
        prefix : str, optional
            Prefix of the names.
        found : dict, optional
            A dict to which the layers are added, unless it has them.

        Returns
        -------
        dict
            The prefix of each layer's parameters' names.
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
            In the parameters' layouts, the same on all copies.
        """
        return {name: p.gradient for name, p in self.named_parameters() if p.gradient is not None}

    def state_dict(self, root: int | None = None) -> dict[str, Any]:
        """Gather the parameters as global arrays by name. Collective.

        Parameters
        ----------
        root : int, optional
            The rank that gets the arrays; by default every rank does.

        Returns
        -------
        dict of array
            None for each array on other ranks. The order of rows and columns does not depend on the
            scheme: another scheme, on another grid, loads the arrays.
        """
        comm = self.scheme.grid.comm
        with agreed(comm, f"state_dict of {self.description} to root={root}"):  # collective also without parameters
            check_root(comm, root)
        return {name: p.value.gather(root) for name, p in self.named_parameters()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the parameters from global arrays. Collective.

        Parameters
        ----------
        state : mapping of str to array
            Arrays of real numbers, on every rank; in bfloat16 also of dtype ``|V2``, as
            `numpy.load` returns them.

        Raises
        ------
        ShapeError
            If names or shapes differ, on every rank. An error leaves the layer unchanged.
        """
        with agreed(self.scheme.grid.comm, f"load_state_dict of {self.description}"):
            parameters = self.parameters()
            check_state(state, {name: value.shape for name, value in parameters.items()}, repr(self))
        blocks = [from_global(restore_bfloat16(state[name]), value.grid, value.layout).stored for name, value in parameters.items()]
        for value, block in zip(parameters.values(), blocks, strict=True):
            value.xp.copy(value.stored, block.astype(value.dtype, copy=False))  # NumPy casts no other dtype to bfloat16 implicitly


def name_parameters(layers: Mapping[Any, str]) -> Iterator[tuple[str, Parameter]]:
    """Yield the parameters of these layers with their names, a shared one once for each layer."""
    for layer, prefix in layers.items():
        for name, value in vars(layer).items():
            if isinstance(value, Parameter):
                yield prefix + name, value


def check_state(state: Any, shapes: Mapping[str, tuple[int, ...]], owner: str) -> None:
    """ShapeError unless a state has exactly arrays of real numbers of these names and shapes."""
    if not isinstance(state, Mapping):
        raise ShapeError(f"a state of {owner} is a dict of arrays by name, on every rank, not {kind_of(state)}")
    if set(shapes) != set(state):
        lacks, has = sorted(set(shapes) - set(state)), sorted(set(state) - set(shapes), key=str)
        raise ShapeError(f"the state is not {owner}'s: it lacks {lacks}, and also has {has}")
    for name, shape in shapes.items():
        value = restore_bfloat16(state[name])  # once: each access may read a file
        if shape != np.shape(value):
            raise ShapeError(f"{name} is {np.shape(value)} in the state, {shape} in {owner}")
        dtype = getattr(value, "dtype", None)
        check_reals(f"{name} in the state", dtype if isinstance(dtype, np.dtype) else np.asarray(value).dtype)
