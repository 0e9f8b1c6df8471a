"""2.5-D: c layers of q x q ranks; each layer walks a c-th of k, and C is summed over the layers.

A and B are spread over all q^2 c ranks, each nested within its layer's part of k. A rank receives

    (mk + kn) (q - 1) / P + (mn / q^2) (1 - 1/c)  words,   P = q^2 c.

c = 1 is Cannon or SUMMA, c = q the cube. Solomonik and Demmel, Euro-Par 2011, copy A and B from one
layer to every other. Their copies cost (mk + kn)(c - 1)/P more. c is any number of layers, q the
largest that the ranks allow.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt

from pdla.matmul.algorithms.table import Algorithm, Table, tabulate_box
from pdla.model.machine import Machine


def list_shapes(m: int, n: int, k: int, ranks: int, machine: Machine) -> Iterator[tuple[int, int, int]]:
    layers = 1
    while layers <= isqrt(ranks // layers):
        q = isqrt(ranks // layers)
        yield q, q, layers
        layers += 1


def list_tables(shape: tuple[int, int, int]) -> list[Table]:
    return [tabulate_box("2.5d", shape, schedule) for schedule in ("summa", "cannon")]


ALGORITHM = Algorithm("2.5d", list_shapes, list_tables)
