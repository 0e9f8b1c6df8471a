"""The transformer's layer: a block of attention and an MLP, each after a LayerNorm."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.nn.layer import agree_on_arguments
from pdla.nn.layers.activations import Dropout
from pdla.nn.layers.attention import SelfAttention
from pdla.nn.layers.block import Block
from pdla.nn.layers.mlp import MLP
from pdla.nn.layers.norms import LayerNorm
from pdla.nn.scheme import Scheme


class TransformerLayer(Block):
    """x + dropped(attention(norm(x))), then the same with the MLP. Collective to make.

    Parameters
    ----------
    scheme : Scheme
        How the layer is cut.
    hidden : int
        Features of x and of y.
    heads : int
        Equal parts of the features.
    sequence : int
        Tokens of a sequence.
    inner : int, optional
        Features between the MLP's linears; 4 hidden by default.
    causal : bool, optional
        Whether a token sees only itself and those before it.
    dropout : float, optional
        The probability with which an element is dropped.
    bias : bool, optional
        Whether the linears have a bias.
    recompute : bool, optional
        True keeps x alone from forward to backward; backward then repeats the forward pass first.
    seed : int, optional
        The seed of weights and of dropout, which also depend on names and places.
    dtype : dtype-like, optional
        Of real floats.
    name : str, optional
        Prefix of the layers' names.

    Raises
    ------
    ShapeError
        If numbers do not fit together, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm))
    ...     layer = pdla.nn.TransformerLayer(scheme, 8, 2, sequence=4, dropout=0.1)
    ...     return layer.forward(scheme.shard(np.ones((8, 8)), sequence=4)).shape
    >>> pdla.run(2, program)
    [(8, 8), (8, 8)]
    """

    hidden: int
    heads: int

    def __init__(
        self, scheme: Scheme, hidden: int, heads: int, *, sequence: int, inner: int | None = None, causal: bool = True,
        dropout: float = 0.0, bias: bool = True, recompute: bool = False, seed: int = 0, dtype: Any = np.float64,
        name: str = "layer",
    ) -> None:
        numbers = f"{hidden}, {heads} heads, sequence={sequence}"
        with agree_on_arguments("TransformerLayer", scheme, numbers, causal=causal, bias=bias, recompute=recompute):
            self.hidden, self.heads = hidden, heads
        self.norm1: LayerNorm = LayerNorm(scheme, hidden, dtype=dtype, name=f"{name} norm1")
        self.attention: SelfAttention = SelfAttention(
            scheme, hidden, heads, sequence=sequence, causal=causal, bias=bias, seed=seed, dtype=dtype, name=f"{name} attention"
        )
        self.dropout1: Dropout = Dropout(scheme, dropout, seed=seed, name=f"{name} dropout1")
        self.norm2: LayerNorm = LayerNorm(scheme, hidden, dtype=dtype, name=f"{name} norm2")
        self.mlp: MLP = MLP(scheme, hidden, inner, bias=bias, seed=seed, dtype=dtype, name=f"{name} mlp")
        self.dropout2: Dropout = Dropout(scheme, dropout, seed=seed, name=f"{name} dropout2")
        branches = [self.norm1, self.attention, self.dropout1], [self.norm2, self.mlp, self.dropout2]
        super().__init__(scheme, branches, recompute=recompute)

    def __repr__(self) -> str:
        return f"TransformerLayer({self.hidden}, {self.heads} heads) on {self.scheme!r}"
