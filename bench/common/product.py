"""The product of every side: its blocks on a rank, their elements, and the check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isqrt

import numpy as np

CHUNK = 1 << 20  # elements at a time, so that a check takes little memory
A, B = 1, 2  # salts, by which the elements of A and B differ


@dataclass(frozen=True)
class Product:
    """C (m x n) = A (m x k) B (k x n)."""

    m: int
    n: int
    k: int
    dtype: str


@dataclass(frozen=True)
class Block:
    """A rank's part of a matrix: the global rows and columns of `array`."""

    array: np.ndarray
    rows: np.ndarray
    cols: np.ndarray


@dataclass(frozen=True)
class Side:
    """A side on one rank: its blocks of A and B, the rows and columns of its block of C, and its product.

    multiply   collective: returns the local block of C, a NumPy array in old or new memory
    workspace  bytes a rank besides A, B and C; None if unknown
    volume     bytes of one product to the host that receives most, by the side's own count; None if unknown
    """

    a: Block
    b: Block
    c: tuple[np.ndarray, np.ndarray]
    multiply: Callable[[], np.ndarray]
    workspace: int | None = None
    about: str = ""
    volume: int | None = None


def choose_grid(ranks: int) -> tuple[int, int]:
    """Choose the most nearly square grid of all ranks."""
    rows = next(p for p in range(isqrt(ranks), 0, -1) if ranks % p == 0)
    return rows, ranks // rows


def cut_evenly(n: int, parts: int, i: int) -> np.ndarray:
    """List the indices of part i of n indices cut evenly."""
    return np.arange(n * i // parts, n * (i + 1) // parts)


def make_block(rows: np.ndarray, cols: np.ndarray, dtype: str, order: str = "C") -> Block:
    return Block(np.zeros((len(rows), len(cols)), dtype, order=order), rows, cols)


# ---------------------------------------------------------------------------------------------- elements


def _cut_chunks(rows: int, cols: int) -> Iterator[slice]:
    step = max(1, CHUNK // max(1, cols))
    return (slice(first, first + step) for first in range(0, rows, step))


def make_integers(rows: np.ndarray, cols: np.ndarray, salt: int) -> np.ndarray:
    """Make integers from -4 to 4, functions of row and column; sums of 10^6 of their products are exact in float32."""
    return (((rows[:, None] * 73856093) ^ (cols[None, :] * 19349663) ^ (salt * 83492791)) >> 5) % 9 - 4


def fill_with_integers(side: Side) -> None:
    for part, salt in ((side.a, A), (side.b, B)):
        for rows in _cut_chunks(*part.array.shape):
            part.array[rows] = make_integers(part.rows[rows], part.cols, salt)


def fill_at_random(side: Side, seed: int) -> None:
    generator = np.random.default_rng(seed)
    for part in (side.a, side.b):
        for rows in _cut_chunks(*part.array.shape):
            part.array[rows] = generator.random(part.array[rows].shape, np.float32)
            part.array[rows] -= 0.5


def is_right(side: Side, product: Product) -> bool:
    """Whether this rank's block of C is exactly A B, for integers: C x = A (B x) for a vector x of integers."""
    block = side.multiply()
    rows, cols = side.c
    if block.shape != (len(rows), len(cols)):
        return False
    x = np.random.default_rng(3).integers(1, 98, len(cols)).astype(float)
    inner = np.arange(product.k)
    bx = _multiply(inner, cols, B, x)
    return all(
        np.array_equal(block[chunk].astype(float) @ x, _multiply(rows[chunk], inner, A, bx)) for chunk in _cut_chunks(*block.shape)
    )


def _multiply(rows: np.ndarray, cols: np.ndarray, salt: int, x: np.ndarray) -> np.ndarray:
    """The block of integers, rows x cols, times x, in chunks."""
    parts = [make_integers(rows[chunk], cols, salt) @ x for chunk in _cut_chunks(len(rows), len(cols))]
    return np.concatenate(parts) if parts else np.empty(0)
