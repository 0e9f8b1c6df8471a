"""Tesseract: a [pr, pc, d] grid cuts A's rows over depth, then row. Every layer has a copy of B, or depth cuts B, too.

Each layer multiplies its own rows of A by SUMMA. Nothing is summed over depth, except for the
gradient of B. If depth cuts B, B is gathered first. A rank receives

    (mk / P)(pc - 1) + (kn / (pr pc))(pr - 1)  words with B in every layer, and
    (kn / (pr pc))(1 - 1/d)  more with B cut,   P = pr pc d.

Wang, Xu, Bian and You, arXiv 2105.14500, there with pr = pc.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt

from pdla.layout import Layout
from pdla.matmul.algorithms.table import Algorithm, Table
from pdla.model.machine import Machine

CARRIES = (("row", "m"), ("col", "n"), ("depth", "m"))
ACTIVATIONS = Layout(("depth", "row"), "col")
WEIGHTS = (Layout("row", "col"), Layout(("row", "depth"), "col"))  # in every layer; cut over depth too


def list_shapes(m: int, n: int, k: int, ranks: int, machine: Machine) -> Iterator[tuple[int, int, int]]:
    depth = 1
    while depth <= isqrt(ranks // depth):
        pr = isqrt(ranks // depth)
        yield pr, ranks // depth // pr, depth
        depth += 1


def list_tables(shape: tuple[int, int, int]) -> Iterator[Table]:
    for B in WEIGHTS:
        yield Table("tesseract", shape, CARRIES, ACTIVATIONS, B, ACTIVATIONS, "summa")


ALGORITHM = Algorithm("tesseract", list_shapes, list_tables)
