"""Local checks of arguments that packages share, and calls in words. Inside `agreed` an error on one rank is raised on all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import numpy as np

from pdla.array import namespace
from pdla.array.composed import sum_dtype
from pdla.array.dtypes import COMPLEX, find_largest, has, has_fractions, is_number
from pdla.array.numpy import has_no_overlap, to_bytes
from pdla.comm.agreement import raise_everywhere, to_text
from pdla.comm.communicator import Communicator
from pdla.errors import ArgumentError, GridError, LayoutError, PlanError, ShapeError, kind_of, shorten
from pdla.grid import ProcessGrid, check_same_communicator, find_communicator
from pdla.indices import MOST
from pdla.layout import Layout, Shape
from pdla.matrix.core import DistMatrix

_PLAIN = (int, float)
SIDES = ("left", "right")
QUOTED = 60  # characters of a number in an error, at most


def matrix(X: Any, name: str = "A") -> DistMatrix:
    """Return X; ShapeError unless it is a DistMatrix."""
    if not isinstance(X, DistMatrix):
        raise _no_matrix(X, name)
    return X


def _no_matrix(X: Any, name: str) -> ShapeError:
    return ShapeError(f"{name} is {kind_of(X)}, not a DistMatrix: make one with pdla.from_global or another")


def communicator(operands: Sequence[Any], name: str = "A") -> Communicator:
    """Find the communicator of the operands that are matrices, over which ranks can agree on an error of the others.

    ShapeError, on every rank that this one knows, if none is a matrix. name: of operands[0], for the
    error.
    """
    return find_communicator(operands) or raise_everywhere(_no_matrix(operands[0], name))


def scalars(dtype: np.dtype, alpha: Any, beta: Any, out: Any) -> None:
    """ShapeError unless matrices of this dtype can be multiplied by alpha and beta, and beta is 0 without `out`."""
    most = find_largest(dtype)
    if not (most and type(alpha) in _PLAIN and type(beta) in _PLAIN and abs(alpha) <= most >= abs(beta)):
        for name, value in (("alpha", alpha), ("beta", beta)):
            _scalar(dtype, name, value)
    if out is None and beta != 0:
        raise ShapeError(f"beta={beta} without out: there is no C to scale")


def _scalar(dtype: np.dtype, name: str, value: Any) -> None:
    if not is_number(value):
        raise ShapeError(f"{name}={value!r} is {kind_of(value)}, not a number")
    if isinstance(value, COMPLEX) and dtype.kind != "c":
        raise ShapeError(f"{name}={value} is complex, the matrices {dtype}: cast one to complex first")
    if not has_fractions(dtype) and value % 1 != 0:
        raise ShapeError(f"{name}={value} is no integer, the matrices {dtype}: cast one to float first")
    if dtype.kind != "b" and not has(sum_dtype(dtype), value):
        said = shorten(to_text(value), QUOTED)
        raise ShapeError(f"{name}={said}: matrices of {dtype} cannot be multiplied by it: cast one to a wider dtype first")


def one_of(given: Any, names: Iterable[str]) -> bool:
    """Whether an argument is one of these names. An array is none: `in` would compare its elements."""
    return isinstance(given, str) and given in names


def sizes(*numbers: Any) -> bool:
    """Whether numbers, converted by `exact`, can be sizes of a matrix: integers from 0 to 2^63 - 1."""
    return all(isinstance(n, int) and 0 <= n <= MOST for n in numbers)


def limit(memory_limit: Any) -> None:
    """PlanError unless a memory limit is None or a number, and not NaN."""
    if memory_limit is not None and not (isinstance(memory_limit, Real) and memory_limit == memory_limit):
        raise PlanError(f"memory_limit={memory_limit!r}: a number of bytes")


def open_grids(grids: Iterable[ProcessGrid]) -> None:
    """GridError if one of these grids is closed.

    Later, between messages, ranks would notice at different places, and idle ones never.
    """
    for grid in grids:
        if grid.closed:
            raise GridError(f"{grid!r} is closed: redistribute the matrices on it to an open grid first")


def writeable(out: DistMatrix, name: str = "out") -> None:
    """ShapeError if this rank's block of a matrix is read-only, or has two elements at one address."""
    base = out.base
    if not isinstance(base, np.ndarray) or not base.size:
        return
    if not base.flags.writeable:
        raise ShapeError(f"{name} is in read-only memory: make it of a writeable array")
    if not base.flags.forc and not has_no_overlap(base.shape, base.strides):
        raise ShapeError(f"{name} has two elements in one place, with strides {base.strides}: make it of an array that has none")


def takes(out: DistMatrix, shape: Shape, dtype: np.dtype, layout: Any, what: str = "result") -> None:
    """ShapeError or LayoutError unless `out` fits a result of this shape and dtype, and `layout`, if given."""
    if out.shape != shape or out.dtype != dtype:
        raise ShapeError(f"out is {out.shape} {out.dtype}, the {what} {shape} {dtype}")
    if out.conjugated or out.layout.partial or (isinstance(layout, Layout) and layout != out.layout):
        raise LayoutError(f"out={out.description} must be no conjugate view, without partial sums, and in the layout asked for")


def describe(*operands: Any, **options: Any) -> str:
    """Local: describe operands and options, in the same words on every rank; of an array without its elements."""
    said = [*map(_describe, operands)]
    for key, given in options.items():
        said.append(f"{key}={given if given is None or given is True or given is False else _describe(given)}")
    return "; ".join(said)


def describe_call(name: str, *operands: Any, **options: Any) -> str:
    """Local: describe a call, with a digest of the arrays among its operands."""
    return f"{name}({describe(*operands, **options)}){digest_arrays(operands)}"


def _describe(given: Any) -> str:
    if isinstance(given, DistMatrix) or hasattr(given, "description"):  # as a Stack has
        return given.description
    return f"array of shape {given.shape}, {given.dtype}" if _is_array(given) else to_text(given)


def _is_array(given: Any) -> bool:
    return hasattr(given, "dtype") and bool(getattr(given, "shape", None)) and not hasattr(given, "description")


def digest_arrays(operands: Iterable[Any]) -> str:
    """Local: digest those operands that are arrays, and should be equal on all ranks."""
    return "".join([f"; {digest(X)}" for X in operands if _is_array(X)])


def digest(x: Any) -> str:
    """Local: digest an array; equal on two ranks if all elements are equal bit for bit, NaN too."""
    seen = namespace(x).host(x)
    shown = hashlib.blake2b(to_bytes(seen), digest_size=8).hexdigest() if isinstance(seen, np.ndarray) else ""
    return f"digest {shown}"


def flags(**named: Any) -> None:
    """ArgumentError unless each of these is True or False: otherwise texts such as "upper" would count as True."""
    for name, value in named.items():
        if not isinstance(value, (bool, np.bool_)):
            raise ArgumentError(f"{name}={value!r}: True or False")


def same_grid(A: DistMatrix, X: Any, name: str) -> None:
    X = matrix(X, name)
    check_same_communicator(A.grid, X.grid, name)
    if X.grid != A.grid:
        raise GridError(f"A is on {A.grid!r}, {name} on {X.grid!r}: redistribute {name} to A's grid first")


def written_to(out: Any, *operands: Any) -> None:
    """ShapeError unless `out`, a matrix, an array or None, is writeable, and shares no memory with the operands."""
    if out is None:
        return
    if isinstance(out, DistMatrix):
        writeable(out)
    elif not hasattr(out, "flags"):
        raise ShapeError(f"out is {kind_of(out)}: give a matrix, or an array for a vector")
    elif isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ShapeError("out is in read-only memory: give a writeable array")
    written = out.base if isinstance(out, DistMatrix) else out
    for number, X in enumerate(operands):
        x = X.base if isinstance(X, DistMatrix) else X
        if written.size and isinstance(x, type(written)) and namespace(written).overlap(written, x):
            raise ShapeError(f"out shares memory with {'B' if number else 'A'}, which is never written to")
