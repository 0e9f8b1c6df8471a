"""A residual block: x plus the outputs of branches of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pdla.errors import PdlaError, ShapeError
from pdla.matrix.core import DistMatrix
from pdla.nn.blocks import like
from pdla.nn.context import MicroBatch
from pdla.nn.layer import Layer, agree_on_arguments
from pdla.nn.layers.sequential import chain, check_first, check_layers, declare, to_list
from pdla.nn.scheme import Scheme


class Block(Layer):
    """x + branch(x), then the same with the next branch. Collective to make.

    A branch is layers of any kind one after the other, such as a norm and a linear. Its last layer
    gives what its first takes.

    Parameters
    ----------
    scheme : Scheme
        The scheme of all layers.
    branches : sequence of sequences of Layer
        In order.
    recompute : bool, optional
        True keeps x alone from forward to backward; backward then repeats the forward pass first.

    Raises
    ------
    ShapeError, LayoutError
        If layers do not fit together, or a branch does not give what it takes.
    GridError, PdlaError
        As `Sequential`'s. All of these are raised on every rank.

    Examples
    --------
    A transformer layer with RMSNorm, whose MLP has ReLU:

    >>> def program(comm):
    ...     scheme = pdla.nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm))
    ...     attention = pdla.nn.SelfAttention(scheme, 8, 2, sequence=4)
    ...     mlp = pdla.nn.MLP(scheme, 8, activation=pdla.nn.ReLU)
    ...     norms = [pdla.nn.RMSNorm(scheme, 8) for _ in range(2)]
    ...     block = pdla.nn.Block(scheme, [[norms[0], attention], [norms[1], mlp]])
    ...     return block.forward(scheme.shard(np.ones((8, 8)), sequence=4)).shape
    >>> pdla.run(2, program)
    [(8, 8), (8, 8)]
    """

    recompute: bool
    branches: Sequence[Sequence[Layer]]
    layers: list[Layer]

    numbers = ("recompute",)

    def __init__(self, scheme: Scheme, branches: Sequence[Sequence[Layer]], *, recompute: bool = False) -> None:
        kind, branches = type(self).__name__, to_list(branches)
        if isinstance(branches, list):
            branches = list(map(to_list, branches))
        with agree_on_arguments(kind, scheme, f"{branches}", recompute=recompute):
            super().__init__(scheme)
            if not isinstance(branches, list) or not branches:
                raise PdlaError(f"{kind}: branches={branches!r}: give a list of branches, each a list of layers")
            for branch in branches:
                check_layers(kind, branch)
            self.recompute, self.branches = recompute, branches
            self.layers = [layer for branch in branches for layer in branch]  # names the layers that are no attributes
            declare(self, self.layers)
            for branch in branches:
                _check_branch(kind, branch)

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {len(self.branches)} branches on {self.scheme!r}"

    def check_input(self, x: Any) -> None:
        """Raise unless the block's layers take x. Local; `forward` raises on all ranks.

        Parameters
        ----------
        x : object
            The argument of `forward`.

        Raises
        ------
        ShapeError, LayoutError
            If the layer does not take x.
        """
        super().check_input(x)
        check_first(self.branches[0], x)

    async def forward_async(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Add each branch's output to x. Collective.

        Parameters
        ----------
        x, batch : DistMatrix, MicroBatch
            As `Layer.forward_async`'s.

        Returns
        -------
        DistMatrix
            The micro-batch's part of y.
        """
        if not self.recompute:
            return await self._add_branches(x, batch)
        batch.save(self, x)
        return await self._add_branches(x, batch.to_forward_only())

    async def _add_branches(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        for branch in self.branches:
            y = x
            for layer in branch:
                y = await layer.forward_async(y, batch)
            x = like(x, x.stored + y.stored)
        return x

    async def backward_async(self, dy: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Compute the gradient with regard to x. Collective.

        Parameters
        ----------
        dy, batch : DistMatrix, MicroBatch
            As `Layer.backward_async`'s.

        Returns
        -------
        DistMatrix
            In x's layout.
        """
        if self.recompute:
            (x,) = batch.saved(self)
            batch = batch.to_recomputation()
            await self._add_branches(x, batch)
            batch.recomputing = False
        for branch in reversed(self.branches):
            dx = dy
            for layer in reversed(branch):
                dx = await layer.backward_async(dx, batch)
            dy = like(dy, dy.stored + dx.stored)
        return dy


def _check_branch(kind: str, branch: Sequence[Layer]) -> None:
    """ShapeError or LayoutError unless a branch gives what it takes, so that it could follow itself."""
    if (scale := chain(branch).scale) != 1:
        raise ShapeError(f"{kind}: {branch} gives {scale} tokens for each that it takes; a branch must give as many as it takes")
    chain([*branch, *branch])
