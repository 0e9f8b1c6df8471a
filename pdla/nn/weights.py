"""Make parameters: weights, whose elements are the same in every scheme, and vectors, one number for each feature."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np

from pdla.array.draw import Draw
from pdla.array.dtypes import check_numbers
from pdla.comm.agreement import agreed
from pdla.errors import LayoutError, ShapeError
from pdla.layout import Layout
from pdla.matrix.core import DistMatrix
from pdla.matrix.create import zeros
from pdla.nn.checks import check_counts, check_floats, check_number
from pdla.nn.layer import Layer, agree_on_arguments
from pdla.nn.parameter import Parameter, derive_seed
from pdla.nn.scheme import Scheme, Table, is_count


def make_weight(
    layer: Layer, table: Table, shape: tuple[int, int], units: tuple[int, int], scale: float, seed: int, dtype: Any, name: str,
    *, whole: bool = True,
) -> Parameter:
    """Collective: make a weight for a layer of this table, the same in every scheme.

    The weight is normal with standard deviation `scale`. With `whole`, layers gather it before use.
    """
    scheme = layer.scheme
    with agreed(scheme.grid.comm, f"{name} of seed {seed} times {scale}, of {dtype!r}"):
        weight_dtype = np.dtype(dtype)
        check_floats(name, weight_dtype)
        check_numbers(name, weight_dtype, scheme.grid.comm.xp)
        check_number(name, "scale", scale)
    layouts = scheme.linear(table, 1, units)
    value = zeros(shape, scheme.grid, layouts.W, dtype=weight_dtype)
    return Parameter(value, layouts.w if whole else None, name, make_draw(layer, value, scale, seed, name))


def make_draw(layer: Layer, value: DistMatrix, scale: float, seed: int, name: str) -> Callable[[], None]:
    """Make the function that draws this matrix's block, normal with standard deviation `scale`.

    The numbers depend on the seed, the layer's place and the name, so drawing settles the place.
    """

    def draw() -> None:
        layer.drawn = True
        if value.xp.name != "meta":  # dry arrays have no elements, and drawing would count as work of the first pass
            distribution = Draw(value.shape[1], np.dtype(np.float64), derive_seed(seed, layer.place + name), "normal", 0, 1)
            value.xp.copy(value.stored, (value.xp.draw_part(*value.indices, distribution) * scale).astype(value.dtype))

    return draw


def make_vector(scheme: Scheme, n: int, spec: str, unit: int, fill: float, dtype: Any) -> Parameter:
    """Collective: make a parameter (1, n), cut as the features of an activation of layout `spec`.

    Ranks along axes that cut tokens hold copies.
    """
    value = zeros((1, n), scheme.grid, Layout(None, scheme.activation(spec, 1, unit).cols), dtype=dtype)
    check_floats("a parameter", value.dtype)
    value.stored[...] += fill
    return Parameter(value)


def feature_vector(
    scheme: Scheme, features: int, cut: str, *, unit: int = 1, fill: float = 0.0, dtype: Any = np.float64
) -> Parameter:
    """Make a parameter (1, features) of a layer of your own, a number for each feature. Collective.

    Parameters
    ----------
    scheme : Scheme
        The layer's scheme.
    features : int
        Features on all ranks together.
    cut : str
        How the scheme cuts the activations that use the parameter: the layer's `takes` or `gives`.
    unit : int, optional
        Features that cuts keep together.
    fill : float, optional
        The first value of each number.
    dtype : dtype-like, optional
        Of real floats.

    Returns
    -------
    Parameter
        Its block, `parameter.value.local`, has the columns of an activation's block. Ranks with the
        same columns hold copies. `MicroBatch.add_gradient` takes its gradient.

    Raises
    ------
    ShapeError, LayoutError
        On every rank, for numbers out of range, and for a cut over axes that the scheme's grid does
        not have.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Summa2D(pdla.ProcessGrid((1, 2), comm=comm))
    ...     gain = pdla.nn.feature_vector(scheme, 6, scheme.first.X, fill=1)
    ...     return gain.value.local.tolist()
    >>> pdla.run(2, program)
    [[[1.0, 1.0, 1.0]], [[1.0, 1.0, 1.0]]]
    """
    with agree_on_arguments("feature_vector", scheme, f"{features}, {cut!r}, unit={unit}, fill={fill}, of {dtype!r}"):
        check_counts("feature_vector", features=features)
        if not is_count(unit):
            raise ShapeError(f"feature_vector: unit={unit!r}: a whole number, at least 1")
        if not isinstance(fill, Real):
            raise ShapeError(f"feature_vector: fill={fill!r}: a number")
        check_floats("feature_vector", np.dtype(dtype))
        if not isinstance(cut, str) or cut.count("|") != 1 or not set(cut.replace("|", " ").split()) <= set(scheme.grid.axes):
            raise LayoutError(f"feature_vector: cut={cut!r}: 'axes that cut rows | axes that cut columns' of {scheme.grid!r}")
    return make_vector(scheme, features, cut, unit, fill, dtype)
