"""Keys of A[...]: rows and columns, each a number or a range; and the origin of a part."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pdla.errors import ShapeError
from pdla.layout import Layout, Shape

Index = int | range


class Origin(NamedTuple):
    """The user's matrix of which a view is a part: its shape and layout, and the part's rows and columns in it."""

    shape: Shape
    layout: Layout
    rows: range
    cols: range

    def __str__(self) -> str:
        pairs = zip((self.rows, self.cols), self.shape, strict=True)
        part = ", ".join(":" if index == range(n) else in_words(index) for index, n in pairs)
        return f"[{part}] of {self.shape[0]} x {self.shape[1]}"

    @property
    def T(self) -> Origin:
        return Origin(self.shape[::-1], self.layout.T, self.cols, self.rows)

    def part(self, rows: range, cols: range) -> Origin:
        """Find the origin of a part of the part."""
        return self._replace(rows=self.rows[to_slice(rows)], cols=self.cols[to_slice(cols)])


def to_slice(indices: range) -> slice:
    return slice(indices.start, indices.stop, indices.step)


def parse_key(key: Any, shape: Shape) -> tuple[Index, Index]:
    """Find the rows and the columns of A[key], counted from 0; ranges have stop >= start.

    Raise IndexError, in NumPy's words, for a number outside the matrix, and ShapeError for another key.
    """
    index = [*key] if isinstance(key, tuple) else [key]
    ellipses = [at for at, part in enumerate(index) if part is Ellipsis]
    if len(ellipses) == 1 and len(index) <= 3:
        index[ellipses[0] : ellipses[0] + 1] = [slice(None)] * (3 - len(index))
    index += [slice(None)] * (2 - len(index))
    if len(index) != 2 or not all(map(_is_index, index)):
        raise ShapeError(
            f"A[{in_words(key)}] of a matrix of shape {shape}: give numbers, and slices of steps of 1 or more, as A[i], A[i, j] "
            "or A[i:j, k:l]; A.gather() is an array, which takes any index"
        )
    rows, cols = (_to_index(part, axis, n) for axis, (part, n) in enumerate(zip(index, shape, strict=True)))
    return rows, cols


def _is_index(part: Any) -> bool:
    if isinstance(part, slice):
        return part.step is None or (isinstance(part.step, (int, np.integer)) and int(part.step) >= 1)
    return isinstance(part, (int, np.integer)) and not isinstance(part, bool)


def _to_index(part: Any, axis: int, n: int) -> Index:
    if isinstance(part, slice):
        start, stop, step = part.indices(n)
        return range(start, max(start, stop), step)
    if not -n <= part < n:
        raise IndexError(f"index {part} is out of bounds for axis {axis} with size {n}")
    return int(part) % n


def in_words(key: Any) -> str:
    """Write a key as a user does."""
    if isinstance(key, tuple):
        return ", ".join(map(in_words, key))
    if isinstance(key, range):
        return in_words(slice(key.start, key.stop, None if key.step == 1 else key.step))
    if isinstance(key, slice):
        ends = ["" if end is None else repr(end) for end in (key.start, key.stop, key.step)]
        return ":".join(ends if ends[2] else ends[:2])
    return "..." if key is Ellipsis else repr(key)
