"""The mean over each sequence, between tokens and one answer for each sequence."""

from __future__ import annotations

from fractions import Fraction

from pdla.array.composed import widen
from pdla.cuts import Block
from pdla.layout import Layout
from pdla.matrix.core import DistMatrix
from pdla.nn.checks import check_sequence
from pdla.nn.context import MicroBatch
from pdla.nn.layer import Layer, agree_on_arguments
from pdla.nn.scheme import Scheme, find_sequence


class MeanOverSequence(Layer):
    """The mean over each sequence's tokens, one row for each sequence. Collective to make.

    x has the layout of a first layer's output.

    Parameters
    ----------
    scheme : Scheme
        Any; nothing is sent.
    sequence : int
        Tokens of a sequence.

    Raises
    ------
    ShapeError, ArgumentError
        If sequence is no whole number of at least 1, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Summa2D(pdla.ProcessGrid((1, 2), comm=comm))
    ...     layer = pdla.nn.MeanOverSequence(scheme, sequence=2)
    ...     x = scheme.shard([[1.0, 2.0], [3.0, 4.0]], sequence=2)
    ...     return layer.forward(x).gather().tolist()
    >>> pdla.run(2, program)[0]
    [[2.0, 3.0]]
    """

    scale: Fraction

    sizes = None, (1, 1)
    units = 1, 1

    def __init__(self, scheme: Scheme, *, sequence: int) -> None:
        with agree_on_arguments("MeanOverSequence", scheme, f"sequence={sequence}"):
            check_sequence("MeanOverSequence", sequence)
        super().__init__(scheme)
        self.sequence, self.scale = sequence, Fraction(1, sequence)
        self.takes = self.gives = scheme.first.Y

    def forward_local(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Compute each sequence's mean. Local.

        Parameters
        ----------
        x, batch : DistMatrix, MicroBatch
            As `Layer.forward_local`'s.

        Returns
        -------
        DistMatrix
            The micro-batch's part of y.
        """
        batch.save(self, x.layout)
        rows_cut = tuple(Block(cut.axis, find_sequence(x.layout) // self.sequence) for cut in x.layout.rows)
        rows, cols = x.stored.shape
        means = widen(x.stored.reshape(rows // self.sequence, self.sequence, cols)).sum(axis=1) / self.sequence
        means = means.astype(x.dtype, copy=False)
        return DistMatrix(means, (x.shape[0] // self.sequence, x.shape[1]), x.grid, Layout(rows_cut, x.layout.cols))

    def backward_local(self, dy: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Compute each token's part of the mean's gradient. Local.

        Parameters
        ----------
        dy, batch : DistMatrix, MicroBatch
            As `Layer.backward_local`'s.

        Returns
        -------
        DistMatrix
            In x's layout.
        """
        (layout,) = batch.saved(self)
        rows, cols = dy.stored.shape
        each = dy.xp.empty((rows, self.sequence, cols), dy.dtype)
        each[...] = dy.stored.reshape(rows, 1, cols) / self.sequence
        return DistMatrix(each.reshape(rows * self.sequence, cols), (dy.shape[0] * self.sequence, dy.shape[1]), dy.grid, layout)
