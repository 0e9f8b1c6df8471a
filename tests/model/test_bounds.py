"""The lower bounds hold for every share and every order of the multiplications (brute force), and are reached where boxes fit."""

from heapq import heappop, heappush
from itertools import combinations, permutations, product

import numpy as np
import pytest

import pdla
from pdla.matmul import boxes as chosen
from pdla.model import received_lower_bound, scaling_ends
from pdla.model.bounds import accessed_lower_bound, moved_lower_bound
from pdla.model.machine import Machine

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


def least_received(m, n, k, P):
    """Words that P ranks together must receive at least, over all ways to share the multiplications evenly.

    Each word needed by a rank comes there once but to one rank, which owns it; each sum of C goes once but from its owner.
    """
    sizes, parts = touched(m, n, k)
    least, work = np.inf, m * n * k // P
    fair = np.flatnonzero(sizes == work)
    shares = [(int(mask), int(words)) for mask, words in zip(fair, sum(parts)[fair], strict=True)]

    def share(free, words, ranks):
        nonlocal least
        if not ranks:
            least = min(least, words)
            return
        first = free & -free  # ranks are alike: who takes the first one left is the next
        for mask, more in shares:
            if mask & first and mask & ~free == 0 and words + more < least:
                share(free & ~mask, words + more, ranks - 1)

    share(2 ** (m * n * k) - 1, 0, P)
    return least - (m * k + k * n + m * n)


@pytest.mark.parametrize(
    ("m", "n", "k", "P"),
    [(2, 2, 2, 2), (2, 2, 2, 4), (2, 2, 2, 8), (2, 2, 3, 2), (2, 2, 3, 3), (2, 2, 3, 4), (2, 3, 2, 6), (3, 3, 1, 3), (1, 2, 6, 3)],
)
def test_no_even_share_receives_less(m, n, k, P):
    found = least_received(m, n, k, P) / P
    assert received_lower_bound(m, n, k, P) <= found + 1e-9
    assert found <= 1.6 * received_lower_bound(m, n, k, P)


def test_an_uneven_share_may_receive_less():
    """Two thirds of the ranks multiply, the others add up: why the bound speaks of even work, as bounds.md says."""
    n, ranks = 3000, 10**6
    side = n / (ranks * 2 / 3) ** (1 / 3)
    multiplying, adding = 2 * side**2, 2 * side**2  # faces of A and B; those of C of two ranks for each one that adds
    assert max(multiplying, adding) < 0.9 * received_lower_bound(n, n, n, ranks)


def least_moved(m, n, k, memory, work):
    """Words brought in or sent off for any so many multiplications, in any order, with so many words of memory: a search.

    A multiplication needs its words of A and B there, and room for its sum; what is no longer needed goes, sums at a word each.
    """
    elements = [("mk", (i, x)) for i in range(m) for x in range(k)] + [("kn", (x, j)) for x in range(k) for j in range(n)]
    bit = {e: 1 << i for i, e in enumerate(elements + [("mn", (i, j)) for i in range(m) for j in range(n)])}
    points = [bit["mk", (i, x)] | bit["kn", (x, j)] | bit["mn", (i, j)] for i, j, x in product(range(m), range(n), range(k))]
    sums = sum(b for (which, _), b in bit.items() if which == "mn")
    uses = {b: sum(1 << at for at, point in enumerate(points) if point & b) for b in bit.values()}
    best, queue = {}, [(0, 0, 0)]
    while queue:
        words, done, held = heappop(queue)
        if done.bit_count() >= work:
            return words
        for at, point in enumerate(points):
            new = point & ~held
            others = [b for b in uses if held & b and not point & b]
            for gone in combinations(others, max(0, held.bit_count() + new.bit_count() - memory)) if not done >> at & 1 else ():
                there = (held | point) & ~sum(gone)
                then = done | 1 << at
                cost = words + (new & ~sums).bit_count() + sum(b & sums > 0 for b in gone)
                over = [b for b in uses if there & b and (then.bit_count() >= work or not uses[b] & ~then)]
                cost, there = cost + sum(b & sums > 0 for b in over), there & ~sum(over)
                if cost < best.get((then, there), np.inf):
                    best[then, there] = cost
                    heappush(queue, (cost, then, there))
    raise AssertionError("no order found")


@pytest.mark.parametrize("memory", [3, 4, 5])
@pytest.mark.parametrize(
    ("m", "n", "k", "P"),
    [(1, 2, 3, 1), (1, 3, 3, 1), (2, 2, 2, 1), (2, 2, 2, 2), (2, 2, 2, 4), (1, 2, 4, 2), (3, 1, 3, 3), (1, 1, 6, 2)],
)
def test_no_order_moves_less(m, n, k, P, memory):
    found = least_moved(m, n, k, memory, m * n * k // P)
    assert moved_lower_bound(m, n, k, P, memory) <= found + 1e-9
    assert found <= 1.5 * moved_lower_bound(m, n, k, P, memory)


@pytest.mark.parametrize("sizes", [(64, 64, 64), (100, 3, 70), (5, 1000, 40), (2, 2, 2), (30, 200, 30)])
@pytest.mark.parametrize("P", [1, 4, 27, 1000])
def test_no_number_of_parts_gives_more(sizes, P):
    """The best one is told without a search."""
    m, n, k = sizes
    for memory in (3, 10, 50, 400, 3000, 10**5):
        parts = range(1, min(2000, max(2, m * n * k // P + 1)))
        most = max(j * accessed_lower_bound(m, n, k, P * j) - (j - 1) * memory for j in parts)
        assert moved_lower_bound(m, n, k, P, memory) >= most * (1 - 1e-12)


def test_the_published_form():
    """2 m n k / (P sqrt(memory)) + memory where the work is whole cubes; 3 (m n k / P)^(2/3) where memory is room enough."""
    assert moved_lower_bound(1024, 1024, 1024, 64, 4096) == pytest.approx(2 * 1024**3 / 64 / 64 + 4096)
    assert moved_lower_bound(1024, 1024, 1024, 64, 1 << 16) == pytest.approx(3 * 256**2)
    assert scaling_ends(1024, 1024, 1024, 4096) == 1024**3 / 64**3
    assert scaling_ends(1000, 1000, 10, 5000) == pytest.approx(1000 * 1000 * 10 / (5000**2 / 10))
    assert scaling_ends(1000, 10, 10, 5000) == 0


@pytest.mark.parametrize("sizes", [(64, 64, 64), (96, 32, 64), (128, 128, 4), (1000, 3, 17)])
def test_words_fall_as_ranks_until_scaling_ends(sizes):
    """P times the words that a rank moves beyond its memory stay until P*, and change beyond."""
    memory = 20
    end = scaling_ends(*sizes, memory)
    moved = [P * (moved_lower_bound(*sizes, P, memory) - memory) for P in (1, int(end / 9), int(end), 3 * int(end))]
    assert moved[1:3] == pytest.approx([moved[0]] * 2, rel=0.02)
    assert abs(moved[3] / moved[0] - 1) > 0.04


@pytest.mark.parametrize("sizes", [(64, 64, 64), (96, 24, 48), (512, 8, 8), (128, 128, 4), (60, 60, 60)])
@pytest.mark.parametrize("ranks", [2, 4, 6, 8, 12, 16, 64])
def test_no_plan_receives_less(sizes, ranks):
    """With the memory that it takes: its share of the matrices and its workspace. Not Tesseract, whose B begins in copies."""
    m, n, k = sizes
    for algorithm in ("3d", "2.5d", "a-stationary", "c-stationary"):
        told = pdla.predict_matmul(m, n, k, ranks, algorithm=algorithm)
        P = told.ranks_used
        memory = (m * n + m * k + k * n) / P + told.peak_workspace / 8
        assert told.bytes_received / 8 >= received_lower_bound(m, n, k, P, memory) * (1 - 1e-12)
    for box in chosen.find_cheapest(m, n, k, ranks, Machine(), 5):
        assert chosen.count_words(m, n, k, box) >= received_lower_bound(m, n, k, box.ranks) * (1 - 1e-12)


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


@pytest.mark.parametrize("memory", [11.9, 0, -1])
def test_memory_that_does_not_hold_the_matrices(memory):
    with pytest.raises(ValueError, match=f"memory={memory}: 1 ranks need 12 words each"):
        received_lower_bound(2, 2, 2, 1, memory)
    with pytest.raises(ValueError, match="need 3 words"):
        received_lower_bound(1, 1, 1, 8, 2)


@pytest.mark.parametrize(("sizes", "memory"), [((-1, 2, 2), 3), ((2, 2, 2), 0), ((2, 2, 2), -4), ((2, 2, 2), float("nan"))])
def test_no_scaling_ends_without_memory(sizes, memory):
    with pytest.raises(ValueError, match=f"k=2, memory={memory}: sizes are 0 or more, memory above 0"):
        scaling_ends(*sizes, memory)


@pytest.mark.parametrize(
    "figure",
    [
        lambda n, p: received_lower_bound(n, n, n, p**3),
        lambda n, p: received_lower_bound(n, n, n, p**3, int(n) ** 2),
        lambda n, p: scaling_ends(n, n, n, p),
        lambda n, p: pdla.matmul_words("summa", n, n, n, (p, p)),
        lambda n, p: pdla.matmul_words("3d", n, n, n, (p, p, p)),
        lambda n, p: pdla.predict_matmul(n, n, n, p, algorithm="2.5d"),
    ],
)
def test_numpys_whole_numbers_count_like_pythons(figure):
    """Words of 50000 x 50000 are too many for 32 bits, the products of three million cubed for 64."""
    assert figure(np.int32(50_000), np.int32(4)) == figure(50_000, 4)
    assert figure(np.int64(3_000_000), np.int64(4)) == figure(3_000_000, 4)
