"""Activations: which axes cut them, and the checks of what a layer is given."""

from __future__ import annotations

from fractions import Fraction
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from pdla.errors import LayoutError, ShapeError
from pdla.layout import Layout, shares
from pdla.matrix import DistMatrix
from pdla.nn.scheme import counts, sequence_of

if TYPE_CHECKING:
    from pdla.nn.layer import Layer


def rows_of(layout: Layout) -> tuple[str, ...]:
    """The axes that cut an activation's tokens."""
    return tuple(cut.axis for cut in layout.rows)


def cols_of(layout: Layout) -> tuple[str, ...]:
    """The axes that cut an activation's features."""
    return tuple(cut.axis for cut in layout.cols)


def like(x: DistMatrix, block: Any) -> DistMatrix:
    """Another block in x's place."""
    return DistMatrix(block, x.shape, x.grid, x.layout)


# ---------------------------------------------------------------------------------------------- checks


def check_like(x: Any, model: DistMatrix, name: str, what: str) -> None:
    if not isinstance(x, DistMatrix):
        raise ShapeError(f"{name} is a {type(x).__name__}, not a DistMatrix laid out as {what}, {model!r}")
    if x.shape != model.shape or x.dtype != model.dtype:
        raise ShapeError(f"{name} is {x.shape} {x.dtype}, {what} {model.shape} {model.dtype}")
    if x.grid != model.grid or x.layout != model.layout:
        raise LayoutError(f"{name} lies as {x.layout!r} on {x.grid!r}, {what} as {model.layout!r} on {model.grid!r}")
    if x.transposed or x.conjugated:
        raise LayoutError(f"{name} is a transposed or conjugated view; give its copy()")


def check_activation(layer: Layer, x: Any, features: int, dtype: np.dtype, spec: str, unit: int = 1) -> None:
    """Raise unless x is an activation of so many features that lies as a spec of the scheme's says."""
    scheme = layer.scheme
    if not isinstance(x, DistMatrix):
        raise ShapeError(f"{layer!r} takes a DistMatrix (tokens, features), not a {type(x).__name__}: scheme.shard(x) makes one")
    expected = scheme.activation(spec, max(sequence_of(x.layout), layer.sequence), unit)
    if x.shape[1] != features or x.dtype != dtype:
        raise ShapeError(f"{layer!r} takes (tokens, {features}) of {dtype}, not {x.shape} of {x.dtype}")
    if x.grid != scheme.grid:
        raise LayoutError(f"x is on {x.grid!r}, {layer!r} works on {scheme.grid!r}")
    if x.layout != expected:
        raise LayoutError(
            f"x lies as {x.layout!r}, {layer!r} takes {expected!r}: scheme.shard(x, sequence={layer.sequence}) deals out so"
        )
    if x.transposed or x.conjugated:
        raise LayoutError(f"x is a transposed or conjugated view; {layer!r} takes its copy()")


def check_floats(what: object, dtype: np.dtype) -> None:
    """Raise unless numbers are real floats: integers would be rounded, complex numbers have other gradients; and no long doubles,
    for which there is no error function."""
    if (dtype.kind != "f" or dtype.itemsize > 8) and dtype.name != "bfloat16":
        raise ShapeError(f"{what} is of real floats, float64, float32, float16 or bfloat16, not of {dtype}")


def check_reals(what: str, dtype: np.dtype) -> None:
    """Raise unless a parameter may be set to such numbers: to floats, or what floats are made of."""
    if dtype.kind not in "biuf":
        check_floats(what, dtype)


def check_counts(kind: str, **numbers: Any) -> None:
    """Raise unless each is a number of features, channels, tokens: whole, and 0 will do."""
    for name, number in numbers.items():
        if not counts(number, 0):
            raise ShapeError(f"{kind}: {name}={number!r}: a whole number, at least 0")


def check_number(kind: str, name: str, number: Any) -> None:
    """Raise unless it is a real number of at least 0."""
    if not (isinstance(number, Real) and float(number) >= 0):
        raise ShapeError(f"{kind}: {name}={number!r}: a number, at least 0")


def check_sequence(kind: str, sequence: int) -> None:
    """Raise unless a sequence has a token."""
    if not counts(sequence):
        raise ShapeError(f"{kind}: sequence={sequence}: tokens of a sequence, a whole number, at least 1")


def check_sequences(layer: Layer, x: Any) -> None:
    """Raise unless x has whole sequences, and cuts that keep them whole wherever a scheme's inner layers want them so."""
    if x.shape[0] % layer.sequence:
        raise ShapeError(f"{x.shape[0]} tokens are not whole sequences of {layer.sequence}, as {layer!r} wants them")
    whole = isinstance(x, DistMatrix) and layer.takes is not None
    expected = layer.scheme.activation(layer.takes, layer.sequence) if whole else None  # type: ignore[arg-type]
    if expected and any(cut.unit % want.unit for cut, want in zip(x.layout.rows, expected.rows, strict=True)):  # type: ignore[union-attr]
        raise LayoutError(
            f"x lies as {x.layout!r}, whose cuts do not keep sequences of {layer.sequence} tokens whole, as {layer!r} wants "
            f"them: scheme.shard(x, sequence={layer.sequence}) deals out so"
        )


def check_whole(layer: Layer, x: DistMatrix, given: Layout | None = None) -> None:
    """Raise unless each rank has whole sequences of x, in schemes too that cut sequences between the layers of a pair; and unless
    what becomes of them is its part of y, where that is to lie in a given layout."""

    def held(layout: Layout, scale: Fraction | int = 1) -> list[int]:
        cuts = layout.rows
        return [len(tokens) for _, tokens in shares(int(x.shape[0] * scale), cuts, x.grid.sizes, rows_of(layout), {})]

    if any(tokens % layer.sequence for tokens in held(x.layout)):
        raise LayoutError(
            f"x lies as {x.layout!r}, which does not leave sequences of {layer.sequence} tokens whole, as {layer!r} wants them"
        )
    if given is not None and [tokens * layer.scale for tokens in held(x.layout)] != held(given, layer.scale):
        raise LayoutError(
            f"{layer!r} makes {layer.scale} tokens of one, where they lie: of the {x.shape[0]} tokens of x no rank may have more "
            f"than another, as x lies as {x.layout!r}"
        )
