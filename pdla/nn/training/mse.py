"""The mean squared error of a network's output in any layout: ranks exchange one number."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.array.composed import sum_dtype
from pdla.comm.agreement import agreed, collective_section, raise_everywhere
from pdla.comm.ledger import tagged
from pdla.errors import PdlaError, ShapeError, kind_of
from pdla.grid import check_same_communicator
from pdla.matrix.core import DistMatrix
from pdla.matrix.create import from_global
from pdla.nn.blocks import like, to_row_major
from pdla.nn.checks import check_output, check_reals
from pdla.nn.passes import describe
from pdla.nn.transfers import Transfer, allreduce


class MeanSquaredError:
    """The mean over all elements of (y - target)^2. Local to make.

    `forward`, then `backward` for the gradient.

    Notes
    -----
    The gradient is 2 (y - target) / (tokens features). Ranks that hold different elements take part
    in an all-reduce of 1 word. Targets in another layout than y's are redistributed.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,), comm=comm)
    ...     y = pdla.ones((3, 4), grid, pdla.Layout(cols="row"))
    ...     loss = pdla.nn.MeanSquaredError()
    ...     value = loss.forward(y, np.full((3, 4), 3.0))
    ...     return value, loss.backward().gather()[0].tolist()
    >>> pdla.run(2, program)[0]
    (4.0, [-0.3333333333333333, -0.3333333333333333, -0.3333333333333333, -0.3333333333333333])
    """

    def __init__(self) -> None:
        self._saved: DistMatrix | None = None

    def __repr__(self) -> str:
        return "MeanSquaredError()"

    def forward(self, y: DistMatrix, targets: DistMatrix | np.ndarray) -> float:
        """Compute the loss. Collective.

        Parameters
        ----------
        y : DistMatrix
            (tokens, features), of real floats.
        targets : DistMatrix or ndarray
            Real numbers in y's shape: a matrix in any layout, or the whole array on every rank.

        Returns
        -------
        float
            The same on every rank.

        Raises
        ------
        ShapeError
            If y is no real floats or is empty, or targets do not fit it.
        LayoutError
            For partial sums.
        GridError
            For a grid that leaves ranks idle, and targets on another communicator.
        AgreementError
            For targets that differ between ranks. All of these are raised on every rank.
        """
        if not isinstance(y, DistMatrix):
            raise_everywhere(ShapeError(f"MeanSquaredError takes y as a DistMatrix (tokens, features), not {kind_of(y)}"))
        with agreed(y.grid.comm, f"MeanSquaredError of {y.description} and {describe(targets)}"):
            check_output("MeanSquaredError", y)
            _check_targets(y, targets)
        self._saved = None  # after an error in this pass, no earlier pass can be taken backward
        with tagged("loss"), collective_section(y.grid.comm, "a loss"):
            matrix = targets if isinstance(targets, DistMatrix) else from_global(targets, y.grid, y.layout)
            same = matrix.grid == y.grid and matrix.matches_layout(y.layout)
            return self._compute(to_row_major(y), matrix if same else matrix.redistribute(y.layout, y.grid))

    def _compute(self, y: DistMatrix, targets: DistMatrix) -> float:
        dtype = sum_dtype(y.dtype)  # in 16 bits squares would soon overflow
        difference = y.xp.empty(y.stored.shape, dtype)
        difference[...] = y.stored
        difference -= targets.local
        loss = y.xp.empty((1,), dtype)
        loss[...] = (difference * difference).sum() / y.size
        loss = Transfer(allreduce(loss, y.grid, y.layout.axes)).wait()
        difference *= dtype.type(2 / y.size)
        self._saved = like(y, difference.astype(y.dtype, copy=False))
        return float(loss[0])

    def backward(self) -> DistMatrix:
        """Compute the gradient with regard to y. Local.

        Returns
        -------
        DistMatrix
            In y's layout.

        Raises
        ------
        PdlaError
            Without a forward before it, on this rank.
        """
        if self._saved is None:
            raise PdlaError("backward of MeanSquaredError without a forward before it: each serves one backward")
        gradient, self._saved = self._saved, None
        return gradient


def _check_targets(y: DistMatrix, targets: Any) -> None:
    """Raise unless the targets are real numbers in y's shape, and y has elements."""
    if not isinstance(targets, (DistMatrix, np.ndarray)):
        raise ShapeError(f"targets are {kind_of(targets)}: a DistMatrix, or an ndarray on every rank, of y's shape {y.shape}")
    if targets.shape != y.shape:
        raise ShapeError(f"targets of shape {targets.shape} for y of {y.shape}")
    check_reals("targets", targets.dtype)
    if isinstance(targets, DistMatrix):
        check_same_communicator(targets.grid, y.grid, "y", "targets")
    if not y.size:
        raise ShapeError(f"MeanSquaredError of no elements, {y.shape}: there is no mean; skip this step, on every rank")
