"""Cross-entropy of logits with a cut vocabulary: ranks exchange three numbers a token, no logits."""

from __future__ import annotations

from math import inf
from numbers import Integral
from typing import Any

import numpy as np

from pdla.array.composed import sum_dtype
from pdla.comm.agreement import agreed, collective_section, raise_everywhere
from pdla.comm.ledger import tagged
from pdla.errors import PdlaError, ShapeError, kind_of
from pdla.indices import IndexSet
from pdla.layout import axes_of
from pdla.matrix.core import DistMatrix
from pdla.nn.blocks import like, to_row_major
from pdla.nn.checks import check_ids, check_output
from pdla.nn.passes import describe
from pdla.nn.scheme import is_count
from pdla.nn.transfers import Transfer, allreduce


class CrossEntropy:
    """The mean over tokens of -log softmax(logits)[target]. Local to make.

    `forward`, then `backward` for the gradient.

    Parameters
    ----------
    ignore : int, optional
        The target of a token that does not count: any whole number. PyTorch's ignore_index is -100.

    Notes
    -----
    Ranks that share a token reduce its greatest logit, then its sum of exponentials and its
    target's logit. Ranks with different tokens then sum the losses. A rank with m tokens takes part
    in all-reduces of m words, 2 m words and 1 word.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,), comm=comm)
    ...     logits = pdla.zeros((3, 4), grid, pdla.Layout(cols="row"))
    ...     loss = pdla.nn.CrossEntropy()
    ...     mean = loss.forward(logits, np.array([0, 3, 1]))
    ...     return round(mean, 3), loss.backward().shape
    >>> pdla.run(2, program)[0]
    (1.386, (3, 4))
    """

    def __init__(self, *, ignore: int = -1) -> None:
        self.ignore: int = int(ignore) if isinstance(ignore, Integral) else ignore
        self._saved: tuple[DistMatrix, Any, np.ndarray, np.ndarray, int] | None = None

    def forward(self, logits: DistMatrix, targets: np.ndarray) -> float:
        """Compute the loss, a mean over the tokens that count. Collective.

        Parameters
        ----------
        logits : DistMatrix
            (tokens, vocabulary), of real floats.
        targets : ndarray
            Token numbers of all tokens, 1-D, on every rank.

        Returns
        -------
        float
            The same on every rank.

        Raises
        ------
        ShapeError
            If logits are no real floats, targets do not fit them, or no token counts.
        LayoutError
            For partial sums.
        GridError
            For a grid that leaves ranks idle.
        AgreementError
            For targets that differ between ranks. All of these are raised on every rank.
        """
        if not isinstance(logits, DistMatrix):
            message = f"CrossEntropy takes logits as a DistMatrix (tokens, vocabulary), not {kind_of(logits)}"
            raise_everywhere(ShapeError(message))
        with agreed(logits.grid.comm, f"{self!r} of {logits.description} and {describe(targets)}"):
            check_output("CrossEntropy", logits)
            counted = self._count(targets, *logits.shape)
        self._saved = None  # after an error in this pass, no earlier pass can be taken backward
        with tagged("loss"), collective_section(logits.grid.comm, "a loss"):
            return self._compute(to_row_major(logits), targets, counted)

    def __repr__(self) -> str:
        return f"CrossEntropy(ignore={self.ignore!r})"

    def _count(self, targets: Any, tokens: int, vocabulary: int) -> int:
        """Count the tokens that are not ignored; ShapeError for none, and for targets that do not fit."""
        if not is_count(self.ignore, -inf):
            raise ShapeError(f"{self!r}: a whole number, the target of a token that does not count")
        check_ids("CrossEntropy", targets, vocabulary, ignore=self.ignore)
        if len(targets) != tokens:
            raise ShapeError(f"{len(targets)} targets for the logits of {tokens} tokens")
        count = int((targets != self.ignore).sum())
        if count == 0:
            none = f"no token counts: all {tokens} targets are {self.ignore}" if tokens else "CrossEntropy of no tokens"
            raise ShapeError(f"{none}: there is no mean loss; skip this step, on every rank")
        return count

    def _compute(self, logits: DistMatrix, targets: np.ndarray, count: int) -> float:
        x, grid, xp, vocabulary_axes = logits.stored, logits.grid, logits.xp, axes_of(logits.layout.cols)
        rows, cols = logits.indices
        labels = targets[rows.indices()]
        labels = np.where(labels == self.ignore, -1, labels.astype(np.int64))
        columns = _find_columns(cols, logits.shape[1])[labels]
        top = xp.empty((x.shape[0], 1), x.dtype)
        top[...] = x.max(axis=1, keepdims=True) if x.shape[1] else -np.inf
        top = Transfer(allreduce(top, grid, vocabulary_axes, "maximum")).wait()
        sums = xp.empty((2, x.shape[0]), sum_dtype(x.dtype))
        powers = xp.exponentials(x, top, columns, sums)
        sums = Transfer(allreduce(sums, grid, vocabulary_axes)).wait()
        local = np.flatnonzero(labels >= 0)
        loss = xp.empty((1,), sum_dtype(x.dtype))
        loss[...] = (np.log(sums[0]) - sums[1])[local].astype(loss.dtype, copy=False).sum() / count
        loss = Transfer(allreduce(loss, grid, axes_of(logits.layout.rows))).wait()
        self._saved = like(logits, powers), sums[0], columns, labels < 0, count
        return float(loss[0])

    def backward(self) -> DistMatrix:
        """Compute the gradient with regard to the logits. Local.

        Returns
        -------
        DistMatrix
            In the logits' layout.

        Raises
        ------
        PdlaError
            Without a forward before it, on this rank.
        """
        if self._saved is None:
            raise PdlaError("backward of CrossEntropy without a forward before it: each serves one backward")
        powers, *saved = self._saved
        self._saved = None
        powers.xp.softmax_gradient(powers.stored, *saved)
        return powers


def _find_columns(columns: IndexSet, vocabulary: int) -> np.ndarray:
    """Find the local column of each token number; -1 for columns of other ranks.

    The last element is -1, too: the target -1 of an ignored token indexes it.
    """
    places = np.full(vocabulary + 1, -1)
    places[columns.indices()] = np.arange(len(columns))
    return places
