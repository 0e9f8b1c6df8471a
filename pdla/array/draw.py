"""Random matrices that are the same in every layout.

NumPy's Philox draws each tile; the key is the seed, the counter the tile's place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pdla.array.quantile import normal
from pdla.indices import IndexSet

TILE = 1 << 14  # the most elements of a tile: 128 KiB of float64, which fit a core's cache


@dataclass(frozen=True)
class Draw:
    """A random matrix of so many columns. A tile has as many, but at most 128, and is always drawn whole, row by row.

    distribution  "uniform" on [low, high), "integers" from low to high - 1, or "normal" with mean 0 and deviation 1.
    """

    columns: int
    dtype: np.dtype
    seed: int
    distribution: str
    low: float
    high: float

    @property
    def width(self) -> int:
        return min(128, max(1, self.columns))

    @property
    def height(self) -> int:
        return TILE // self.width

    @property
    def parts(self) -> int:
        """Parts of a number: different keys draw the real and imaginary parts of a complex one."""
        return 2 if self.dtype.kind == "c" else 1

    def fill(self, block: np.ndarray, rows: IndexSet, cols: IndexSet) -> None:
        """Write the matrix's elements in these rows and columns to block."""
        columns = list(tiles(cols, self.width))
        for i, here, within in tiles(rows, self.height):
            for j, there, across in columns:
                block[here, there] = self.tile(i, j)[within][:, across]

    def tile(self, i: int, j: int) -> np.ndarray:
        parts = [self._numbers(i, j, part) for part in range(self.parts)]
        return parts[0] if len(parts) == 1 else parts[0] + 1j * parts[1]

    def key(self, part: int) -> Any:
        return np.array([int(self.seed) % 2**64, part], np.uint64)  # as a list, large seeds would become floats

    def _numbers(self, i: int, j: int, part: int) -> np.ndarray:
        bits = np.random.Philox(key=self.key(part), counter=[0, j, i, 0])
        generator, size = np.random.Generator(bits), (self.height, self.width)
        if self.distribution == "integers":
            return generator.integers(int(self.low), int(self.high), size).astype(self.dtype.type(0).real.dtype)
        uniform = generator.random(size)
        if self.distribution == "uniform":
            return self.low + (self.high - self.low) * uniform
        return normal(uniform)


def tiles(held: IndexSet, size: int) -> Iterator[tuple[int, slice, np.ndarray]]:
    """Yield the tiles, of `size` indices each, that have some of the held indices.

    Each with its number, the positions of these indices in `held`, a slice, and those in the tile.
    """
    indices = held.indices()
    numbers = indices // size
    firsts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
    for first, last in zip(firsts, [*firsts[1:], len(indices)], strict=False):
        tile = int(numbers[first])
        yield tile, slice(first, last), indices[first:last] - tile * size
