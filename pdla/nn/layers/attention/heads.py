"""Heads: parts of the features, each with a query, a key and a value for every token of a sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Heads:
    """Divides blocks of activations into heads of `size` features, in sequences of so many tokens.

    A head's q, k and v are adjacent columns, so that a cut in units of `columns` keeps heads whole.
    """

    size: int
    sequence: int

    @property
    def columns(self) -> int:
        """Columns of q, k and v of a head."""
        return 3 * self.size

    def split(self, block: Any) -> Any:
        """View a block of one array, such as V, as (sequences, heads, tokens, features of a head)."""
        rows, columns = block.shape
        return block.reshape(rows // self.sequence, self.sequence, columns // self.size, self.size).transpose(0, 2, 1, 3)

    def split_qkv(self, block: Any) -> Any:
        """View a block of Q, K and V as (3, sequences, heads, tokens, features of a head)."""
        rows, columns = block.shape
        split = block.reshape(rows // self.sequence, self.sequence, columns // self.columns, 3, self.size)
        return split.transpose(3, 0, 2, 1, 4)
