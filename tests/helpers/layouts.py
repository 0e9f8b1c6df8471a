"""Grids and layouts as hypothesis draws them, and matrices spread over them by hand."""

from itertools import product
from math import prod

import hypothesis.strategies as st
import numpy as np

import pdla
from pdla import Balanced, Cuts, Cyclic, Layout

NAMES = ("x", "y", "z")
SIZES = {"row": 2, "col": 3, "depth": 4}
sizes = st.integers(0, 20)


@st.composite
def grids(draw, ranks):
    """Shape, axes and order of a grid on at most so many ranks."""
    shape = []
    for _ in range(draw(st.integers(1, 3))):
        shape.append(draw(st.integers(1, ranks // prod(shape))))
    order = draw(
        st.one_of(st.sampled_from([None, "C", "F"]), st.permutations(range(ranks)).map(lambda r: r[: prod(shape)]))
    )
    return tuple(shape), draw(st.permutations(NAMES))[: len(shape)], order


@st.composite
def cuts(draw, n, axes, parts):
    """The cuts of a dimension of length n along the axes, outermost first."""
    made = []
    for i, axis in enumerate(axes):
        kind = draw(
            st.sampled_from(["axis", "balanced", "cyclic", "cuts"] if i == 0 else ["axis", "balanced", "cyclic"])
        )
        if kind == "axis":
            made.append(axis)
        elif kind == "balanced":
            made.append(Balanced(axis, draw(st.integers(1, 6))))
        elif kind == "cyclic":
            block = draw(st.integers(1, 6))
            made.append(Cyclic(axis, block, draw(st.integers(0, parts[axis] - 1)), draw(st.integers(0, block))))
        else:
            inner = draw(st.lists(st.integers(0, n), min_size=parts[axis] - 1, max_size=parts[axis] - 1))
            made.append(Cuts(axis, (0, *sorted(inner), n)))
    return tuple(made)


@st.composite
def layouts(draw, shape, grid, partial=False):
    """A layout that fits a matrix of this shape on the grid."""
    parts = dict(zip(grid[1], grid[0], strict=True))
    uses = {
        axis: draw(st.sampled_from(["rows", "cols", "copies", "partial"][: 4 if partial else 3])) for axis in grid[1]
    }
    rows, cols, sums = ([axis for axis in grid[1] if uses[axis] == use] for use in ("rows", "cols", "partial"))
    return Layout(
        draw(cuts(shape[0], draw(st.permutations(rows)), parts)),
        draw(cuts(shape[1], draw(st.permutations(cols)), parts)),
        sums,
    )


def addend(whole, layout, grid):
    """What this rank adds to the matrix: other numbers at other coordinates, whose sum is the whole."""
    position, count = 0, 1
    for axis in layout.partial:
        position, count = position * grid.sizes[axis] + grid.coords[axis], count * grid.sizes[axis]
    return whole - sum(range(1, count)) if position == 0 else np.full_like(whole, position)


def spread(whole, grid, layout):
    """The matrix in a layout, each rank taking its part by hand; on some ranks it lies by columns."""
    if not grid.active:
        return pdla.from_local(None, whole.shape, grid, layout)
    rows, cols = (held.indices() for held in layout.indices(whole.shape, grid.sizes, grid.coords))
    block = np.array(addend(whole, layout, grid)[np.ix_(rows, cols)], order="CF"[grid.comm.rank % 3 == 1])
    return pdla.from_local(block, whole.shape, grid, layout)


@st.composite
def triangles(draw):
    """A grid and its rank count, two layouts, sizes."""
    ranks = draw(st.integers(1, 7))
    grid, (n, k) = draw(grids(ranks)), (draw(sizes), draw(sizes))
    return ranks, grid, n, k, draw(layouts((n, k), grid, partial=True)), draw(layouts((n, n), grid))


def places(axes=SIZES):
    """Every coordinate of the grid."""
    return [dict(zip(axes, point, strict=True)) for point in product(*(range(SIZES[axis]) for axis in axes))]


def held(spec, n, where):
    return Layout(rows=spec).indices((n, 1), SIZES, where)[0].indices().tolist()
