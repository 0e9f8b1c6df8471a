"""Checks of arguments, of this package and those above. They run inside `agreed`, so that an error is the same on every rank."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from pdla.array import namespace
from pdla.array.dtypes import promoted
from pdla.array.lapack import PREFIXES
from pdla.array.numpy import significant
from pdla.comm.agreement import in_words
from pdla.errors import GridError, LayoutError, LinAlgError, PlanError, ShapeError
from pdla.grid import one_communicator
from pdla.indices import IndexSet
from pdla.layout import Layout, Shape
from pdla.matmul.checks import matrix, one_of, writeable
from pdla.matmul.images import Part, not_finite
from pdla.matrix.core import DistMatrix

FACTORLESS = ("lower triangular", "upper triangular", "diagonal")
ASSUMED = ("gen", "pos", "sym", "her", *FACTORLESS)  # what may be known of A


def describe(*operands: Any, **options: Any) -> str:
    """Local: operands and options in words that are the same on every rank; of an array all but its elements."""
    said = [X.described if isinstance(X, DistMatrix) else _describe(X) for X in operands]
    for key, given in options.items():
        said.append(f"{key}={given if given is None or given is True or given is False else _describe(given)}")
    return "; ".join(said)


def describe_call(name: str, *operands: Any, **options: Any) -> str:
    """Local: a call in words, the elements of arrays among its operands included."""
    return f"{name}({describe(*operands, **options)}){digest_arrays(operands)}"


def _describe(given: Any) -> str:
    if isinstance(given, DistMatrix):
        return given.described
    return f"array of shape {given.shape}, {given.dtype}" if _is_array(given) else in_words(given)


def _is_array(given: Any) -> bool:
    return hasattr(given, "dtype") and bool(getattr(given, "shape", None))


def digest_arrays(operands: Iterable[Any]) -> str:
    """Local: the elements of those operands that are arrays, which all ranks have alike, in words."""
    return "".join([f"; {digest(X)}" for X in operands if not isinstance(X, DistMatrix) and _is_array(X)])


def digest(x: Any) -> str:
    """Local: an array's elements in words, equal on two ranks where they are equal bit by bit, NaN too."""
    seen = namespace(x).host(x)
    shown = hashlib.blake2b(significant(seen), digest_size=8).hexdigest() if isinstance(seen, np.ndarray) else ""
    return f"digest {shown}"


def flags(**named: Any) -> None:
    """ShapeError unless each of these is True or False: otherwise any text, such as "upper", would count as True."""
    for name, value in named.items():
        if not isinstance(value, (bool, np.bool_)):
            raise ShapeError(f"{name}={value!r}: True or False")


def square(name: str, A: Any) -> None:
    """ShapeError unless A is a square matrix."""
    if matrix(A).shape[0] != A.shape[1]:
        raise ShapeError(f"{name}: A is {A.shape[0]} x {A.shape[1]}, it must be square")


def worked_on(name: str, *dtypes: np.dtype) -> np.dtype:
    """The dtype in which matrices of these dtypes are factored: integers as float64. ShapeError where LAPACK has none."""
    kind = promoted(*(np.dtype(float) if dtype.kind in "biu" else dtype for dtype in dtypes)).newbyteorder("=")
    if kind.char not in PREFIXES:
        raise ShapeError(
            f"{name} of {' and '.join(dict.fromkeys(map(str, dtypes)))}: LAPACK has float32, float64, complex64 and complex128: "
            "cast the matrix by astype first"
        )
    return kind


def counts_rows(name: str, A: DistMatrix, dtype: np.dtype) -> None:
    """ShapeError unless this dtype has the numbers of A's rows, which travel with their elements."""
    if A.shape[0] > (most := int(2 / np.finfo(dtype).eps)):
        raise ShapeError(f"{name}: A has {A.shape[0]} rows, {dtype} counts to {most}: cast it to double precision by astype first")


def pivots(name: str, X: DistMatrix, given: Any) -> None:
    """ShapeError unless these are the pivots of LU factors in X: a number of a row for each row."""
    n = X.shape[0]
    alike = isinstance(given, np.ndarray) and given.dtype.kind in "iu" and given.shape == (n,)
    if not alike or not 0 <= given.min(initial=0) <= given.max(initial=0) < max(1, n):
        raise ShapeError(f"{name}: pivots={given!r}: {n} numbers of rows, as lu_factor gives them")


def formula(grid: tuple[int, ...], dimensions: tuple[int, ...] = (2,), block: int = 1, **sizes: int) -> None:
    """ShapeError unless a formula of words has sizes from 0 on, a grid of so many dimensions, and a block, from 1 on."""
    if len(grid) not in dimensions or min(*grid, block) < 1 or min(sizes.values()) < 0:
        said = ", ".join(f"{name}={value}" for name, value in sizes.items())
        raise ShapeError(
            f"{said}, grid={grid}, block={block}: sizes are 0 or more, a grid has {' or '.join(map(str, dimensions))} numbers "
            "of ranks, 1 or more, as a block has rows"
        )


def check_assumption(name: str, assume_a: Any) -> None:
    """PlanError unless assume_a is one of the words for a matrix."""
    if not one_of(assume_a, ASSUMED):
        raise PlanError(f"{name}: assume_a={assume_a!r}: one of {', '.join(map(repr, ASSUMED))}")


def part_of(assume_a: str, lower: bool) -> Part | None:
    """What is read of a matrix of which so much is known; None: all of it."""
    parts = {
        "gen": None, "sym": Part(lower), "her": Part(lower, "real"), "pos": Part(lower, "real"),
        "lower triangular": Part(True), "upper triangular": Part(False), "diagonal": Part(True, "alone"),
    }
    return parts[assume_a]


def overwritten(name: str, X: DistMatrix, *others: Any) -> None:
    """ShapeError unless X, which may be overwritten, can be written to, and shares no memory with the others."""
    writeable(X, f"overwrite_{name.lower()}: {name}")
    blocks = [Y.base if isinstance(Y, DistMatrix) else Y for Y in others]  # or vectors
    if X.base.size and any(isinstance(y, type(X.base)) and X.xp.overlap(X.base, y) for y in blocks):
        raise ShapeError(f"overwrite_{name.lower()}: {name} shares memory with the other operand, which is not to be written to")


def finite(A: DistMatrix, B: Any = None, *, part: Part | None = None) -> None:
    """LinAlgError where this rank has an element that is infinite or NaN, in this part of A, or in B, a matrix or a vector."""
    _finite("A", A.stored, A.indices, part)
    if isinstance(B, DistMatrix):
        _finite("B", B.stored, B.indices)
    elif B is not None:
        _finite("B", B.reshape(len(B), 1), (IndexSet.interval(0, len(B)), IndexSet.interval(0, 1)), dimensions=1)


def _finite(name: str, x: Any, held: tuple[IndexSet, IndexSet], part: Part | None = None, dimensions: int = 2) -> None:
    if found := not_finite(x, held, part):
        raise LinAlgError(f"{name} has {found[0]} at {found[1][:dimensions]}: elements must be finite")


def same_grid(A: DistMatrix, X: Any, name: str) -> None:
    X = matrix(X, name)
    one_communicator(A.grid, X.grid, name)
    if X.grid != A.grid:
        raise GridError(f"A is on {A.grid!r}, {name} on {X.grid!r}: redistribute {name} to A's grid first")


def result(A: DistMatrix, shape: Shape, dtype: np.dtype, out: Any, layout: Any) -> None:
    """LayoutError, GridError or ShapeError unless a result of this shape and dtype can lie in `layout`, and goes with `out`.

    layout=None is the default one, out=None a new matrix.
    """
    if layout is not None:
        if not isinstance(layout, Layout):
            raise LayoutError(f"layout={layout!r}: a Layout or None")
        layout.check(shape, A.grid.sizes)
        if layout.partial:
            raise LayoutError(f"layout={layout!r}: the result cannot be left as partial sums")
    if out is None:
        return
    same_grid(A, out, "out")
    if out.shape != shape or out.dtype != dtype:
        raise ShapeError(f"out is {out.shape} {out.dtype}, the result {shape} {dtype}")
    if out.conjugated or out.layout.partial or (layout is not None and layout != out.layout):
        raise LayoutError(f"out={out.described} must be no conjugate view, without partial sums, and in the layout asked for")


def written_to(out: Any, *operands: Any) -> None:
    """ShapeError unless `out`, a matrix or an array, or None, can be written to, and shares no memory with the operands."""
    if out is None:
        return
    if isinstance(out, DistMatrix):
        writeable(out)
    elif isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ShapeError("out lies in memory that is only to be read: give an array that may be written to")
    written = out.base if isinstance(out, DistMatrix) else out
    for number, X in enumerate(operands):
        x = X.base if isinstance(X, DistMatrix) else X
        if written.size and isinstance(x, type(written)) and namespace(written).overlap(written, x):
            raise ShapeError(f"out shares memory with {'B' if number else 'A'}, which is never written to")
