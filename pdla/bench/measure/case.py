"""A product to measure, as a value: its operands, algorithm and grid."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import pdla
from pdla.io import load
from pdla.matmul.search.products import LAYOUT
from pdla.model.machine import operations

TURNS: dict[str, Callable[[pdla.DistMatrix], pdla.DistMatrix]] = {
    "N": lambda X: X,
    "T": lambda X: X.T,
    "C": lambda X: X.H,
}


@dataclass(frozen=True)
class Case:
    """C = op(A) op(B): C is m x n, op(A) is m x k; on a grid of pr x pc ranks. `source`: random, digits or files."""

    m: int
    n: int
    k: int
    dtype: str = "float64"
    algorithm: str = "auto"
    grid: tuple[int, int] = (1, 1)
    transa: str = "N"
    transb: str = "N"
    panel: int | None = None
    source: str = "random"

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The stored shapes of A and B."""
        a, b = (self.m, self.k), (self.k, self.n)
        return (a if self.transa == "N" else a[::-1]), (b if self.transb == "N" else b[::-1])

    @property
    def flops(self) -> int:
        """Additions and multiplications, in real arithmetic."""
        return operations(self.m, self.n, self.k, self.dtype)

    @property
    def problem(self) -> tuple[Any, ...]:
        """A key; cases with equal matrices have equal keys."""
        return (self.m, self.n, self.k, self.dtype, self.transa, self.transb, self.source)

    @property
    def title(self) -> str:
        """The product in words: 64 × 64 × 1797, float64, digitsᵀ digits."""
        name = {"random": ("A", "B"), "files": ("A", "B"), "digits": ("X", "X")}[self.source]
        marks = {"N": "", "T": "ᵀ", "C": "ᴴ"}
        factors = f"{name[0]}{marks[self.transa]} {name[1]}{marks[self.transb]}"
        return f"{factors}, m n k = {self.m} {self.n} {self.k}, {self.dtype}, {self.source}"


Operands = tuple[pdla.DistMatrix, pdla.DistMatrix]
Make = Callable[[Case, pdla.ProcessGrid], Operands]


def random_operands(case: Case, grid: pdla.ProcessGrid, **how: Any) -> Operands:
    """Collective: random op(A) and op(B), the same on every grid. pdla.random takes `how`."""
    a, b = (
        pdla.random(shape, grid, LAYOUT, dtype=case.dtype, seed=seed, **how) for seed, shape in enumerate(case.shapes)
    )
    return TURNS[case.transa](a), TURNS[case.transb](b)


def integer_operands(case: Case, grid: pdla.ProcessGrid) -> Operands:
    """Collective: random operands of small integers, whose partial sums are exact."""
    low, high = (-4, 5) if 32 * case.k < exact_limit(case.dtype) else (-1, 2)
    return random_operands(case, grid, distribution="integers", low=low, high=high)


def exact_limit(dtype: str) -> int:
    """The largest integer up to which a dtype represents all integers."""
    kind = np.dtype(dtype)
    return 2 ** (np.finfo(kind).nmant + 1) if kind.kind in "fc" else int(np.iinfo(kind).max)


# ---------------------------------------------------------------------------------------------- real input


def file_operands(paths: tuple[str, str]) -> Make:
    """Return a collective function that reads op(A) and op(B) from files, and raises FileError on every rank if one fails."""

    def make(case: Case, grid: pdla.ProcessGrid) -> Operands:
        a, b = (load(path, grid, LAYOUT) for path in paths)
        return TURNS[case.transa](a), TURNS[case.transb](b)

    return make


def file_case(case: Case, A: pdla.DistMatrix, B: pdla.DistMatrix) -> Case:
    """The case with the sizes and the dtype of matrices from files."""
    dtype = np.result_type(A.dtype, B.dtype).name
    return replace(case, m=A.shape[0], n=B.shape[1], k=A.shape[1], dtype=dtype, source="files")


def digits_path() -> Path | None:
    """Find scikit-learn's file of digits (1797 x 64, then labels), without its slow import."""
    package = importlib.util.find_spec("sklearn")
    folders = package.submodule_search_locations if package else None
    paths = [Path(folder, "datasets", "data", "digits.csv.gz") for folder in folders or ()]
    return next((path for path in paths if path.exists()), None)


def digits(path: Path) -> np.ndarray:
    """The images as rows of 64 integers from 0 to 16, in float64."""
    return np.loadtxt(path, delimiter=",", usecols=range(64))


def digits_operands(X: np.ndarray | None) -> Make:
    """Return a collective function that distributes rank 0's X as op(A) and as op(B)."""

    def make(case: Case, grid: pdla.ProcessGrid) -> Operands:
        whole = pdla.from_global(X, grid, LAYOUT, root=0)
        return TURNS[case.transa](whole), TURNS[case.transb](whole)

    return make
