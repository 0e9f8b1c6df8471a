"""Forbidden elements of a Matrix Market file, which scipy reads silently."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Faults = tuple[np.ndarray, str]  # places, each a row and a column, and what is wrong there


def find_fault(block: np.ndarray, found: Any, entries: int, symmetry: str) -> tuple[int, int, str] | None:
    """Find a forbidden element: (row, column, reason); None if there is none.

    block    the matrix
    found    the same, read and mirrored by scipy: an array, or coordinates, the file's `entries` first
    """
    for places, wrong in _faults(block, found, entries, symmetry):
        for row, col in places:
            return int(row), int(col), wrong
    return None


def _faults(block: np.ndarray, found: Any, entries: int, symmetry: str) -> Iterator[Faults]:
    if symmetry == "skew-symmetric":
        yield _to_places(block.diagonal() != 0), "not 0, as the diagonal of a skew-symmetric matrix is"
        if block.dtype.kind == "i":
            least = np.iinfo(block.dtype).min
            yield np.argwhere(block == least), f"{least} has no negative of {block.dtype}"
    if symmetry == "hermitian":
        yield _to_places(block.diagonal().imag != 0), "not real, as the diagonal of a hermitian matrix is"
    if not isinstance(found, np.ndarray):
        if symmetry != "general":
            yield _find_repeated(found.row[:entries].astype(np.int64), found.col[:entries].astype(np.int64))
        if block.dtype.kind in "iu":
            yield _find_overflows(block, found)


def _to_places(wrong: np.ndarray) -> np.ndarray:
    return np.flatnonzero(wrong)[:, None].repeat(2, axis=1)


def _find_repeated(rows: np.ndarray, cols: np.ndarray) -> Faults:
    """Find elements that the file has together with their mirror images: scipy adds both."""
    upper, lower, height = rows < cols, rows > cols, 1 + max(rows.max(initial=0), cols.max(initial=0))
    both = np.intersect1d((rows * height + cols)[upper], (cols * height + rows)[lower])
    return np.stack([both // height, both % height], axis=1), "its mirror image stands in the file, too"


def _find_overflows(block: np.ndarray, found: Any) -> Faults:
    """Find elements whose entries overflow their dtype when summed, by the same sum of floats."""
    from scipy.sparse import coo_array

    terms, wrong = found.data.astype(np.float64), f"the sum of its entries is too large for {block.dtype}"
    if np.abs(terms).sum() < 2.0**63:
        return np.empty((0, 2)), wrong
    sums = coo_array((terms, (found.row, found.col)), block.shape).toarray()
    return np.argwhere(np.abs(sums - block) > 2.0**62), wrong
