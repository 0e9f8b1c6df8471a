"""Embedding, and the head tied to it: one weight, its vocabulary cut as a first layer's outputs.

Looking up rows of a table is multiplying the table by rows of the identity. An embedding is
therefore a first layer's dX = dY W^T, where the rows of dY are rows of the identity. Its gradient
is that layer's dW = X^T dY, its table has the layout of W, and the head is that layer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.array import namespace
from pdla.array.composed import widen
from pdla.array.dtypes import check_numbers
from pdla.comm.ledger import tagged
from pdla.errors import PdlaError, kind_of
from pdla.layout import Layout, axes_of
from pdla.matrix.core import DistMatrix
from pdla.matrix.create import zeros
from pdla.nn.blocks import like
from pdla.nn.checks import check_counts, check_floats, check_ids, check_number, check_sequence
from pdla.nn.context import MicroBatch, Write
from pdla.nn.layer import Layer, agree_on_arguments
from pdla.nn.layers.linear import Linear
from pdla.nn.parameter import Parameter
from pdla.nn.scheme import LinearLayouts, Scheme
from pdla.nn.transfers import Transfer, gather, reduce
from pdla.nn.weights import make_draw, make_weight


class Embedding(Layer):
    """Rows of a table by token number, in the layout of a first layer's input. Collective to make.

    ``forward(ids)`` takes the numbers of all tokens, from 0 to vocabulary - 1, in a 1-D array on
    every rank. The weight is hidden x vocabulary, as TiedHead multiplies by it.

    Parameters
    ----------
    scheme : Scheme
        How the layer is cut.
    vocabulary : int
        Rows of the table, cut as a first layer's outputs.
    hidden : int
        Features of a row.
    sequence : int, optional
        Tokens of a sequence. If more than 1, Positions adds a learned row for each token's
        position.
    scale : float, optional
        The standard deviation of the weight, which is normal.
    seed : int, optional
        The seed of the weight.
    dtype : dtype-like, optional
        Of real floats.
    name : str, optional
        The ledger's name for its messages; the weight depends on it.

    Raises
    ------
    ShapeError
        If a number is out of range, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm))
    ...     return pdla.nn.Embedding(scheme, 100, 8).forward(np.array([5, 99, 5])).shape
    >>> pdla.run(2, program)
    [(3, 8), (3, 8)]
    """

    vocabulary: int
    hidden: int
    name: str

    units = 1, 1

    def __init__(
        self, scheme: Scheme, vocabulary: int, hidden: int, *, sequence: int = 1, scale: float = 0.02, seed: int = 0,
        dtype: Any = np.float64, name: str = "embedding",
    ) -> None:
        with agree_on_arguments("Embedding", scheme, f"{vocabulary}, {hidden}, sequence={sequence}"):
            check_counts("Embedding", vocabulary=vocabulary, hidden=hidden)
            check_sequence("Embedding", sequence)
        super().__init__(scheme)
        self.vocabulary, self.hidden, self.sequence, self.name = vocabulary, hidden, sequence, name
        self.weight: Parameter = make_weight(self, scheme.first, (hidden, vocabulary), (1, 1), scale, seed, dtype, name)
        self.weight.backward = False
        self.gives, self.widths = scheme.first.X, (None, hidden)
        self.positions: Positions | None = None
        if sequence > 1:
            self.positions = Positions(scheme, hidden, sequence=sequence, scale=scale, seed=seed, dtype=dtype, name=name)

    def __repr__(self) -> str:
        return f"Embedding({self.vocabulary}, {self.hidden}) on {self.scheme!r}"

    def check_input(self, ids: Any) -> None:
        """Raise unless the layer takes these token numbers. Local; `forward` raises on all ranks.

        Parameters
        ----------
        ids : object
            The argument of `forward`.

        Raises
        ------
        ShapeError
            If `ids` is no 1-D array of token numbers in whole sequences.
        """
        check_ids(self, ids, self.vocabulary, self.sequence)

    def _find_layouts(self, batch: MicroBatch) -> LinearLayouts:
        """Find a first layer's layouts, whose cuts keep the whole pass's sequences together."""
        return self.scheme.linear(self.scheme.first, batch.context.sequence, (1, 1))

    def _find_tokens(self, ids: np.ndarray, layouts: LinearLayouts, batch: MicroBatch) -> tuple[Any, Any, Any]:
        """Find this rank's tokens whose numbers are in its part of the vocabulary.

        Returns the numbers' columns in the rank's block, these tokens' places among the rank's
        tokens, and the numbers of all the rank's tokens.
        """
        grid = self.scheme.grid
        assert grid.coords is not None
        columns = layouts.w.indices((self.hidden, self.vocabulary), grid.sizes, grid.coords)[1]
        own = ids[batch.find_rows(layouts.x, batch.tokens)].astype(np.int64)  # in 8 bits the difference to `first` may overflow
        first, last = (int(columns.starts[0]), int(columns.stops[-1])) if len(columns) else (0, 0)
        found = (own >= first) & (own < last)
        return own[found] - first, np.flatnonzero(found), own

    async def forward_async(self, ids: np.ndarray, batch: MicroBatch) -> DistMatrix:
        """Look up the tokens' rows. Collective; called by `forward`.

        Parameters
        ----------
        ids : ndarray
            The numbers of all tokens, of all micro-batches.
        batch : MicroBatch
            The micro-batch whose rows are looked up.

        Returns
        -------
        DistMatrix
            (tokens, hidden).
        """
        layouts = self._find_layouts(batch)
        w = batch.context.fetch(self.weight)
        columns, tokens, own = self._find_tokens(ids, layouts, batch)
        block = w.xp.empty((len(own), w.stored.shape[0]), w.dtype)
        block[...] = 0
        block[tokens] = w.stored.T[columns]
        batch.context.release(self.weight, batch)
        batch.save(self, ids)
        addends = DistMatrix(block, (batch.tokens, self.hidden), w.grid, layouts.dx)
        with tagged(f"{self.name} forward"):
            x = await batch.receive(Transfer(reduce(addends, layouts.X, layouts.dx_sum_axes, w.dtype)))
        return x if self.positions is None else self.positions.forward_local(x, batch)

    async def backward_async(self, dx: DistMatrix, batch: MicroBatch) -> None:
        """Add to the gradient of the table. Collective; called by `backward`.

        Parameters
        ----------
        dx : DistMatrix
            The gradient with regard to the rows.
        batch : MicroBatch
            The argument of `forward_async`.
        """
        (ids,) = batch.saved(self)
        layouts = self._find_layouts(batch)
        if self.positions is not None:
            dx = self.positions.backward_local(dx, batch)
        with tagged(f"{self.name} backward"):
            gathered_dx = await batch.receive(Transfer(gather(dx, layouts.x, layouts.x_gather_axes)))
            columns, tokens, _ = self._find_tokens(ids, layouts, batch)
            rows = _make_row_write(columns, gathered_dx.stored[tokens])
            batch.context.add_gradient(self.weight, layouts.dw.partial, lambda block, first: rows(block.T, first))


class Positions(Layer):
    """x plus a learned row for each token's position in its sequence. Collective to make.

    x has the layout of a first layer's input.

    Parameters
    ----------
    scheme : Scheme
        How the layer is cut.
    features : int
        Features of x.
    sequence : int
        Tokens of a sequence.
    scale : float, optional
        The standard deviation of the rows, which are normal.
    seed : int, optional
        The seed of the rows.
    dtype : dtype-like, optional
        Of real floats.
    name : str, optional
        The ledger's name for its messages; the rows depend on it.

    Raises
    ------
    ShapeError
        If a number is out of range, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm))
    ...     layer = pdla.nn.Positions(scheme, 8, sequence=2)
    ...     y = layer.forward(scheme.shard(np.zeros((4, 8)), sequence=2)).gather()
    ...     return np.array_equal(y[:2], y[2:])
    >>> pdla.run(2, program)
    [True, True]
    """

    features: int
    name: str

    units = 1, 1

    def __init__(
        self, scheme: Scheme, features: int, *, sequence: int, scale: float = 0.02, seed: int = 0, dtype: Any = np.float64,
        name: str = "positions",
    ) -> None:
        call = f"{features}, sequence={sequence}, scale={scale}, seed={seed}, {name} of {dtype!r}"
        with agree_on_arguments("Positions", scheme, call):
            check_sequence("Positions", sequence)
            check_counts("Positions", features=features)
            kind = np.dtype(dtype)
            check_floats(f"{name} positions", kind)
            check_numbers(f"{name} positions", kind, scheme.grid.comm.xp)
            check_number("Positions", "scale", scale)
        super().__init__(scheme)
        self.features, self.sequence, self.name = features, sequence, name
        self.takes = self.gives = scheme.first.X
        self.widths, self.dtype = (features, features), kind
        value = zeros((sequence, features), scheme.grid, Layout(None, scheme.residual().cols), dtype=kind)
        self.table: Parameter = Parameter(value, draw=make_draw(self, value, scale, seed, f"{name} positions"))

    def __repr__(self) -> str:
        return f"Positions({self.features}, sequences of {self.sequence}) on {self.scheme!r}"

    def forward_local(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Add to each token its position's row. Local.

        Parameters
        ----------
        x, batch : DistMatrix, MicroBatch
            As `Layer.forward_local`'s.

        Returns
        -------
        DistMatrix
            The micro-batch's part of y.
        """
        return like(x, x.stored + self.table.value.stored[batch.rows(x) % self.sequence])

    def backward_local(self, dy: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Return dy, and add to the gradient of the rows. Collective.

        Parameters
        ----------
        dy, batch : DistMatrix, MicroBatch
            As `Layer.backward_local`'s.

        Returns
        -------
        DistMatrix
            In x's layout.
        """
        with tagged(f"{self.name} positions"):
            write = _make_row_write(batch.rows(dy) % self.sequence, dy.stored)
            batch.context.add_gradient(self.table, axes_of(dy.layout.rows), write)
        return dy


def _make_row_write(places: Any, rows: Any) -> Write:
    """Make the function that adds `rows` to the rows `places` of a block; places may repeat."""

    def write(block: Any, first: bool) -> None:
        if first:
            block[...] = 0
        sums = widen(block)
        namespace(block).add_at(sums, places, widen(rows))
        if sums is not block:
            block[...] = sums

    return write


class TiedHead(Linear):
    """Logits (tokens, vocabulary) by an embedding's own weight, the vocabulary cut.

    The embedding and all its heads add to the weight's gradient; training without one of them is an
    error.

    Parameters
    ----------
    embedding : Embedding
        The layer whose weight the head multiplies by.
    name : str, optional
        The ledger's name for its messages.

    Raises
    ------
    PdlaError
        If `embedding` is no Embedding, on this rank.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm))
    ...     embedding = pdla.nn.Embedding(scheme, 100, 8)
    ...     model = pdla.nn.Sequential(scheme, [embedding, pdla.nn.TiedHead(embedding)])
    ...     return model.forward(np.array([5, 99, 5])).shape
    >>> pdla.run(2, program)
    [(3, 100), (3, 100)]
    """

    k: int
    n: int
    name: str
    weight: Parameter
    bias: None
    panels: None

    def __init__(self, embedding: Embedding, *, name: str = "head") -> None:
        if not isinstance(embedding, Embedding):
            raise PdlaError(f"TiedHead of {kind_of(embedding)}: give the Embedding whose weight it multiplies by")
        Layer.__init__(self, embedding.scheme)
        self.k, self.n, self.units, self.name = embedding.hidden, embedding.vocabulary, (1, 1), name
        self.table, self.weight, self.bias, self.panels = embedding.scheme.first, embedding.weight, None, None
        self.takes, self.gives, self.widths = self.table.X, self.table.Y, (self.k, self.n)
        self.dtype = self.weight.allocated.dtype
        self.weight.layers += 1
        self.weight.backward = True
