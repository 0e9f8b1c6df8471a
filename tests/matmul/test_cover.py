"""A pairwise cover of algorithm x transposes x dtype x ranks x sizes: any two choices meet in some product, checked bit by bit.

PDLA_TEST_FULL=1 (`make test-full`) runs the full cross instead, of sizes that are small or large, in every pattern.
"""

import itertools
import os

import numpy as np
import pytest
from helpers.covers import cover
from helpers.matmuls import DTYPES, check_product
from hypothesis import given, settings
from hypothesis import strategies as st

import pdla
from pdla import ProcessGrid

FULL = os.environ.get("PDLA_TEST_FULL") == "1"
RANKS = (*range(1, 17), 24, 27, 36, 64)
ALGORITHMS = (*pdla.algorithms, "auto", "fetch")
HOWS = ("NN", "NT", "TN", "TT", "NC", "CN", "CC")
SIZES = (2, 13, 47)  # below most rank counts, a prime, above them all but 64
CHOICES = (ALGORITHMS, HOWS, DTYPES, SIZES, SIZES, SIZES)


PAIRS = list(cover((RANKS, *CHOICES), 0))


def cross():
    """Conjugates of complex matrices only: those of real ones are transposes."""
    for algorithm, hows, dtype, *mnk in itertools.product(*CHOICES[:3], *[(min(SIZES), max(SIZES))] * 3):
        if "C" not in hows or np.dtype(dtype).kind == "c":
            yield algorithm, hows, dtype, *mnk


@pytest.mark.parametrize("ranks", sorted(RANKS, reverse=FULL))  # the longest first
def test_bitwise(ranks):
    """Every product twice, NaN in C before beta = 0, then beta; inputs compared."""
    rows = cross() if FULL else [row[1:] for row in PAIRS if row[0] == ranks]

    def program(comm, rows):
        grid = ProcessGrid(pdla.balanced_shape(ranks))
        for algorithm, hows, dtype, *mnk in rows:
            check_product(grid, mnk, dtype, algorithm, *hows, panel=5)

    pdla.run(ranks, program, list(rows))


def test_the_cover_covers():
    for i, j in itertools.combinations(range(len(CHOICES)), 2):
        assert {(row[1 + i], row[1 + j]) for row in PAIRS} == set(itertools.product(CHOICES[i], CHOICES[j]))
    assert {(row[0], row[1]) for row in PAIRS} == set(itertools.product(RANKS, ALGORITHMS))


size = st.integers(0, 30)


@settings(max_examples=1000 if FULL else 100)
@given(
    ranks=st.integers(1, 12), mnk=st.tuples(size, size, size), dtype=st.sampled_from(DTYPES), algorithm=st.sampled_from(ALGORITHMS),
    hows=st.sampled_from(HOWS), panel=st.integers(1, 12), rows=st.integers(1, 4),
)
def test_random_products(ranks, mnk, dtype, algorithm, hows, panel, rows):
    """Any grid that the ranks allow, some of them idle."""

    def program(comm):
        check_product(ProcessGrid((min(rows, ranks), ranks // min(rows, ranks))), mnk, dtype, algorithm, *hows, panel=panel)

    pdla.run(ranks, program)
