"""Small matrices on small grids."""

import numpy as np

import pdla
from pdla import Cyclic, Layout, ProcessGrid

LAYOUTS = [
    Layout(),
    Layout("row", "col"),
    Layout("col"),
    Layout(cols=("col", "row")),
    Layout(Cyclic("col", 2), Cyclic("row", 1)),
]
DTYPES = ["float64", "float32", "complex64", "complex128", "int32"]


def numbers(shape=(7, 5), dtype="float64", seed=0):
    """Small integers, complex ones where the dtype is."""
    draw = np.random.default_rng([seed, *shape])
    x = draw.integers(-4, 5, shape)
    return (x + 1j * draw.integers(-4, 5, shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def on_a_grid(program, *args, ranks=5):
    """Run program(grid, *args) on a grid of 2 x 2 with one rank idle; gives the results by rank."""
    return pdla.run(ranks, lambda comm: program(ProcessGrid((2, 2)), *args))
