"""The checks of a layer's arguments, and of the activations of a pass."""

from __future__ import annotations

from numbers import Real
from typing import Any, Protocol

import numpy as np

from pdla.errors import GridError, LayoutError, ShapeError, kind_of, misfit
from pdla.grid import ProcessGrid, check_same_communicator
from pdla.layout import Layout, axes_of, shares
from pdla.matrix.core import DistMatrix
from pdla.nn.scheme import Scheme, find_sequence, is_count


class Declared(Protocol):
    """A layer's declaration of the activations that it takes; `Layer` describes it."""

    scheme: Scheme
    sequence: int
    takes: str | None
    widths: tuple[int | None, int | None]

    @property
    def units(self) -> tuple[int | None, int | None]: ...


def check_gradient(dy: Any, y: DistMatrix) -> None:
    """Raise unless dy has the shape, dtype, grid and layout of y, a layer's output, and is no view."""
    if not isinstance(dy, DistMatrix):
        raise ShapeError(f"dy is {kind_of(dy)}, not a DistMatrix laid out as the layer's output, {y!r}")
    if dy.shape != y.shape or dy.dtype != y.dtype:
        raise ShapeError(f"dy is {dy.shape} {dy.dtype}, the layer's output {y.shape} {y.dtype}")
    check_same_communicator(dy.grid, y.grid, "the layer's output", "dy")
    if dy.grid != y.grid or dy.layout != y.layout:
        raise LayoutError(f"dy has {dy.layout!r} on {dy.grid!r}, the layer's output {y.layout!r} on {y.grid!r}")
    if dy.transposed or dy.conjugated:
        raise LayoutError("dy is a transposed or conjugated view; give its copy()")


def check_anywhere(layer: Declared, x: Any) -> None:
    """Raise unless x is an activation of real floats on the layer's grid, in any layout."""
    if isinstance(x, DistMatrix):
        check_same_communicator(x.grid, layer.scheme.grid, "the layer's scheme", "x")
    if not isinstance(x, DistMatrix) or x.grid != layer.scheme.grid:
        raise ShapeError(f"{layer!r} takes a DistMatrix on the scheme's grid, not {x!r}")
    if x.layout.partial:
        raise LayoutError(f"{layer!r} of partial sums {x.layout!r}: redistribute to {x.layout.summed!r} first")
    check_floats(layer, x.dtype)
    if layer.widths[0] not in (None, x.shape[1]):
        raise ShapeError(f"{layer!r} takes (tokens, {layer.widths[0]}), not {x.shape}")


def check_activation(layer: Declared, x: Any, dtype: np.dtype | None) -> None:
    """Raise unless x is an activation of this dtype, with the layer's features and layout."""
    scheme, takes = layer.scheme, layer.takes
    if not isinstance(x, DistMatrix):
        raise ShapeError(f"{layer!r} takes a DistMatrix (tokens, features), not {kind_of(x)}: scheme.shard(x) makes one")
    assert takes is not None
    expected = scheme.activation(takes, max(find_sequence(x.layout), layer.sequence), layer.units[0] or 1)
    features = layer.widths[0]
    if (features is not None and x.shape[1] != features) or (dtype is not None and x.dtype != dtype):
        expected_features = x.shape[1] if features is None else features
        raise ShapeError(f"{layer!r} takes (tokens, {expected_features}) of {dtype or x.dtype}, not {x.shape} of {x.dtype}")
    if dtype is None:
        check_floats(layer, x.dtype)
    check_same_communicator(x.grid, scheme.grid, "the layer's scheme", "x")
    if x.grid != scheme.grid:
        raise LayoutError(f"x is on {x.grid!r}, {layer!r} works on {scheme.grid!r}")
    if x.layout != expected:
        raise LayoutError(
            f"x has {x.layout!r}, {layer!r} takes {expected!r}: scheme.shard(x, sequence={layer.sequence}) distributes x so"
        )
    if x.transposed or x.conjugated:
        raise LayoutError(f"x is a transposed or conjugated view; {layer!r} takes its copy()")


def check_output(loss: str, y: DistMatrix) -> None:
    """Raise unless a loss takes y: real floats, no partial sums, on a grid without idle ranks."""
    if y.grid.size < y.grid.comm.size:
        raise GridError(f"{loss} on {y.grid!r}, which leaves ranks idle: y must be on a grid of all ranks")
    if y.layout.partial:
        raise LayoutError(f"{loss} of partial sums {y.layout!r}: redistribute to {y.layout.summed!r} first")
    check_floats(loss, y.dtype)


def check_floats(name: object, dtype: np.dtype) -> None:
    """ShapeError unless dtype is one of real floats of at most 64 bits.

    Integers would be rounded, complex numbers have other gradients, and pdla has no error function
    of long doubles.
    """
    if (dtype.kind != "f" or dtype.itemsize > 8) and dtype.name != "bfloat16":
        hint = ": bfloat16 in NumPy's files needs ml_dtypes" if dtype == np.dtype("V2") else ""
        raise ShapeError(f"{name} is of real floats, float64, float32, float16 or bfloat16, not of {dtype}{hint}")


def check_reals(name: str, dtype: np.dtype) -> None:
    """ShapeError unless dtype is one of booleans, integers or real floats, which set parameters."""
    if dtype.kind not in "biuf":
        check_floats(name, dtype)


def check_counts(kind: str, **numbers: Any) -> None:
    """ShapeError unless each number, such as that of features, is whole and at least 0."""
    for name, number in numbers.items():
        if not is_count(number, 0):
            raise misfit(ShapeError, number)(f"{kind}: {name}={number!r}: a whole number, at least 0")


def check_number(kind: str, name: str, number: Any) -> None:
    """ShapeError unless `number` is a real number of at least 0."""
    if not (isinstance(number, Real) and float(number) >= 0):
        raise ShapeError(f"{kind}: {name}={number!r}: a number, at least 0")


def check_sequence(kind: str, sequence: int) -> None:
    """ShapeError unless `sequence`, the tokens of a sequence, is a whole number of at least 1."""
    if not is_count(sequence):
        raise misfit(ShapeError, sequence)(f"{kind}: sequence={sequence}: tokens of a sequence, a whole number, at least 1")


def check_sequences(layer: Declared, x: Any) -> None:
    """Raise unless x has whole sequences. x's cuts must not divide a sequence that the scheme's cuts keep whole."""
    if x.shape[0] % layer.sequence:
        raise ShapeError(f"{layer!r} takes whole sequences of {layer.sequence} tokens, not {x.shape[0]} tokens")
    if layer.sequence == 1 or layer.takes is None or not isinstance(x, DistMatrix):
        return
    expected = layer.scheme.activation(layer.takes, layer.sequence)
    pairs = zip(x.layout.rows, expected.rows, strict=True)
    if any(cut.unit % expected_cut.unit for cut, expected_cut in pairs):  # type: ignore[union-attr]
        raise LayoutError(
            f"{layer!r} takes whole sequences of {layer.sequence} tokens, but the cuts of {x.layout!r} divide x's sequences: "
            f"scheme.shard(x, sequence={layer.sequence}) keeps them whole"
        )


def check_whole_sequences(layer: Declared, x: DistMatrix) -> None:
    """LayoutError unless each rank has whole sequences of x: a scheme may cut them within a pair."""
    if any(tokens % layer.sequence for tokens in count_tokens(x.shape[0], x.layout, x.grid)):
        raise LayoutError(
            f"{layer!r} takes whole sequences of {layer.sequence} tokens on each rank, but {x.layout!r} divides x's sequences"
        )


def count_tokens(tokens: int, layout: Layout, grid: ProcessGrid) -> list[int]:
    """Count the tokens that each rank holds in a layout."""
    return [len(indices) for indices in shares(tokens, layout.rows, grid.sizes, axes_of(layout.rows), {})]


def check_ids(layer: object, ids: Any, vocabulary: int, sequence: int = 1, ignore: int | None = None) -> None:
    """ShapeError unless ids is a 1-D array of whole sequences of token numbers, or `ignore`."""
    if not isinstance(ids, np.ndarray) or ids.ndim != 1 or ids.dtype.kind not in "iu":
        description = f"of {ids.dtype}, of shape {ids.shape}" if isinstance(ids, np.ndarray) else f"in {kind_of(ids)}"
        raise ShapeError(f"{layer} takes token numbers in a 1-D array of integers, not {description}")
    if np.ma.is_masked(ids):
        advice = "" if ignore is None else f", with x={ignore} to ignore them"
        raise ShapeError(f"{layer}: masked elements among token numbers: give .filled(x){advice}")
    labels = ids if ignore is None else ids[ids != ignore]
    if labels.size and (int(labels.min()) < 0 or int(labels.max()) >= vocabulary):
        ignored = "" if ignore is None else f"; {ignore} is ignored, CrossEntropy(ignore=-100) would ignore -100"
        span = f"from {labels.min()} to {labels.max()}; they go from 0 to {vocabulary - 1}"
        raise ShapeError(f"{layer}: token numbers {span}{ignored}")
    if len(ids) % sequence:
        raise ShapeError(f"{layer}: {len(ids)} tokens are not whole sequences of {sequence}")
