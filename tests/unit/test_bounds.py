"""The lower bound holds for every share of the multiplications (brute force), and is reached where boxes fit."""

from itertools import permutations, product

import numpy as np
import pytest

from pdla.model import received_lower_bound
from pdla.model.bounds import accessed_lower_bound

TINY = [(1, 1, 4), (1, 3, 4), (2, 2, 2), (2, 2, 3), (2, 2, 4), (1, 4, 4), (3, 5, 1), (1, 1, 12), (2, 3, 2)]


def touched(m, n, k):
    """For every set of multiplications (a bit mask): how many it has, and elements of A, B and C that it touches."""
    sets = np.arange(2 ** (m * n * k))
    bit = {point: 1 << i for i, point in enumerate(product(range(m), range(n), range(k)))}
    sizes = sum((sets & b > 0).astype(int) for b in bit.values())
    parts = []
    for dropped, extents in ((1, (m, k)), (0, (n, k)), (2, (m, n))):
        masks = [
            sum(b for point, b in bit.items() if point[:dropped] + point[dropped + 1 :] == element)
            for element in product(*map(range, extents))
        ]
        parts.append(sum((sets & mask > 0).astype(int) for mask in masks))
    return sizes, parts


@pytest.mark.parametrize(("m", "n", "k"), TINY)
def test_no_share_of_the_work_touches_less(m, n, k):
    sizes, parts = touched(m, n, k)
    for P in range(1, m * n * k + 1):
        enough = sizes * P >= m * n * k
        assert sum(parts)[enough].min() >= accessed_lower_bound(m, n, k, P) - 1e-9


def boxes(P):
    return [(pm, pn, P // (pm * pn)) for pm in range(1, P + 1) for pn in range(1, P + 1) if P % (pm * pn) == 0]


def volume(sizes, box):
    m, n, k = (size / parts for size, parts in zip(sizes, box, strict=True))
    return m * k + k * n + m * n


@pytest.mark.parametrize("sizes", [(64, 64, 64), (256, 16, 4), (4, 256, 16), (16, 4, 1024), (128, 128, 2)])
@pytest.mark.parametrize("P", [1, 2, 4, 8, 16, 64, 512])
def test_no_box_touches_less(sizes, P):
    assert min(volume(sizes, box) for box in boxes(P)) >= accessed_lower_bound(*sizes, P) * (1 - 1e-12)


@pytest.mark.parametrize(
    ("sizes", "P", "box"),
    [
        ((64, 64, 64), 64, (4, 4, 4)),  # a cube: all three are cut
        ((64, 64, 4), 16, (4, 4, 1)),  # a plate: two are
        ((256, 64, 4), 16, (8, 2, 1)),  # a longer one
        ((1024, 16, 4), 16, (16, 1, 1)),  # a needle: one is
    ],
)
def test_a_box_that_fits_reaches_the_bound(sizes, P, box):
    for order in permutations(range(3)):
        turned = [sizes[i] for i in order]
        assert accessed_lower_bound(*turned, P) == pytest.approx(volume(sizes, box), rel=1e-12)


def test_received_words():
    assert received_lower_bound(64, 64, 64, 64) == pytest.approx(3 * 16 * 16 - 3 * 64)
    assert received_lower_bound(1024, 16, 4, 16) == pytest.approx(16 * 4 * 15 / 16)


@pytest.mark.parametrize("sizes", [(100, 100, 100), (7, 5, 3), (1, 1000, 1)])
def test_one_rank_receives_nothing(sizes):
    assert received_lower_bound(*sizes, 1) == 0


@pytest.mark.parametrize("sizes", [(0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 0)])
def test_empty_matrices_need_nothing(sizes):
    assert received_lower_bound(*sizes, 6) == 0


@pytest.mark.parametrize(("m", "n", "k", "P"), [(1, 1, 1, 0), (-1, 2, 2, 4)])
def test_arguments_that_make_no_sense(m, n, k, P):
    with pytest.raises(ValueError, match=f"m={m}, n={n}, k={k}, P={P}"):
        received_lower_bound(m, n, k, P)
