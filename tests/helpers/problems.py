"""Problems of a choice: products of matrices in blocks, on nodes of several ranks."""

import numpy as np

import pdla
from helpers.matmuls import LAYOUT
from pdla.matmul.choose.mapping import Place
from pdla.matmul.choose.problem import PlacedOperand, Problem
from pdla.model.machine import Machine


def from_blocks(ranks, *mnk):
    """A product of 2-D blocks into 2-D blocks on the near-square grid of one node."""
    m, n, k = mnk
    place = Place(("row", "col"), pdla.balanced_shape(ranks), np.arange(ranks), ranks, b"")
    A, B, C = (PlacedOperand(shape, LAYOUT, place) for shape in ((m, k), (k, n), (m, n)))
    return Problem(mnk, ranks, 8, Machine(), 2**33, (), A=A, B=B, C=C)


def cluster(hosts, ranks, *mnk):
    """A product of 2-D blocks into 2-D blocks, hosts of so many ranks."""
    (m, n, k), P = mnk, hosts * ranks
    place = Place(("row", "col"), pdla.balanced_shape(P), np.arange(P), P, b"")
    A, B, C = (PlacedOperand(shape, LAYOUT, place) for shape in ((m, k), (k, n), (m, n)))
    return Problem(mnk, P, 8, Machine(), 0, tuple(r // ranks * ranks for r in range(P)), A=A, B=B, C=C)
