"""A-, B- and C-stationary: one matrix does not move, and panels of the other two move past it.

The stationary matrix should be the largest. Panels walk along the dimension that it lacks: k for C,
n for A, m for B. Each algorithm is a box with one rank along that dimension. Schatz, van de Geijn
and Poulson, SIAM J. Sci. Comput. 38 (2016).
"""

from __future__ import annotations

from pdla.matmul.algorithms.table import Algorithm, Table, tabulate_box
from pdla.matmul.boxes import Box, find_cheapest
from pdla.model.machine import Machine


def define_algorithm(name: str, walked: str) -> Algorithm:
    """Define the algorithm of this name, whose boxes have one rank along the walked dimension."""

    def list_shapes(m: int, n: int, k: int, ranks: int, machine: Machine) -> list[Box]:
        return find_cheapest(m, n, k, ranks, machine, 4, Box(ranks, ranks, ranks)._replace(**{walked: 1}))

    def list_tables(shape: tuple[int, int, int]) -> list[Table]:
        return [tabulate_box(name, shape, "summa", walked)]

    return Algorithm(name, list_shapes, list_tables)


ALGORITHMS = (define_algorithm("a-stationary", "n"), define_algorithm("b-stationary", "m"), define_algorithm("c-stationary", "k"))
