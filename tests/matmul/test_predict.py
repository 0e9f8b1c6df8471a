"""Predictions of products, and words by formula."""

import itertools

import numpy as np
import pytest

import pdla
from pdla.model.bounds import received_lower_bound


@pytest.mark.parametrize(
    ("algorithm", "sizes", "grid", "match"),
    [
        ("summa", (10, 10, 10), (2, 2, 2), "summa takes a grid of 2 axes"), ("summa", (10, 10, 10), 4, "grid=4"),
        ("tesseract", (10, 10, 10), (2, 2), "tesseract takes a grid of 3 axes"), ("gather", (10, 10, 10), (2, 0), r"grid=\(2, 0\)"),
        ("3d", (10, -1, 10), (2, 2, 2), "n=-1"), ("sum", (10, 10, 10), (2, 2), "one of 'gather', .*, 'shared'"),
    ],
)
def test_words_of_what_is_no_grid_of_an_algorithm(algorithm, sizes, grid, match):
    with pytest.raises(pdla.errors.PlanError, match=match):
        pdla.matmul_words(algorithm, *sizes, grid)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_far_out_a_box_has_neither_many_words_nor_many_messages(order):
    """1048576 x 2048 x 2048 went to 502 x 13 x 10 ranks: 1.69 times the bound's words, in 29 messages. The steps of 2621 ranks that
    gather 512 bytes each did not count as such, as these are 1.3 MB in all."""
    mnk = [(2**20, 2**11, 2**11)[i] for i in order]
    for ranks in (65536, 65537):
        found = pdla.predict_matmul(*mnk, ranks)
        assert found.bytes_received < 1.05 * found.lower_bound and found.messages <= 20


def test_of_a_box_and_its_mirror_image_elements_of_eight_bytes_cut_m():
    for dtype, tie in (("float32", (1, 2, 1)), ("float64", (2, 1, 1)), ("complex64", (2, 1, 1)), ("complex128", (1, 2, 1))):
        found = pdla.predict_matmul(64, 64, 64, 2, dtype=dtype)
        assert found.grid == tie and found.lower_bound == np.dtype(dtype).itemsize * received_lower_bound(64, 64, 64, 2)
        assert pdla.predict_matmul(64, 128, 64, 2, dtype=dtype).grid == (1, 2, 1)
        assert pdla.predict_matmul(128, 64, 64, 2, dtype=dtype).grid == (2, 1, 1)


def test_a_million_ranks():
    found = pdla.predict_matmul(10**6, 10**6, 10**6, 10**6)
    assert found.grid == (100, 100, 10, 10) and found.ranks_used == 10**6  # C is summed over 10 ranks, twice
    assert found.bytes_received == 8 * 3 * 10**8 * (1 - 1 / 100) == pytest.approx(found.lower_bound, rel=0.02)
    prime = pdla.predict_matmul(32768, 32768, 32768, 999983)
    assert prime.ranks_used > 0.89 * 999983 and prime.bytes_received < 1.1 * prime.lower_bound


def test_a_block_of_more_bytes_than_there_are_addresses_is_a_memory_error():
    with pytest.raises(MemoryError, match="no array of 731644239 x 1099511627776 fits any memory"):
        pdla.predict_matmul(0, 2**40, 731644239, 1)
    longest = 2**63 - 1
    with pytest.raises(MemoryError, match="no array of 4611686018427387904 x 4611686018427387904 fits any memory"):
        pdla.predict_matmul(longest, longest, longest, 4)


def test_no_rank_is_idle_for_messages_that_take_no_time_beside_the_work():
    """Of long products by small matrices half of the ranks were left out: messages weighed against the few words of the bound."""
    for ranks, mnk in ((64, (10**8, 32, 32)), (1024, (10**8, 64, 64)), (64, (32, 10**8, 32))):
        assert pdla.predict_matmul(*mnk, ranks).ranks_used == ranks, mnk
    assert pdla.predict_matmul(10**4, 2, 2, 64).ranks_used < 16  # here they would


@pytest.mark.parametrize(("ranks", "mnk"), [(107, (32, 32, 560233)), (16661, (1016, 8183, 10**8)), (67, (117, 155, 524530))])
def test_of_a_prime_number_of_ranks_along_k_a_few_are_idle_so_that_the_others_sum_c_twice(ranks, mnk):
    """The first received 2.7 times the bound's words, as 107 ranks share 32 rows unevenly, the second twice the bound's. Of the
    first, 2 x 53 ranks receive 7 messages and 1.041 times the bound, 8 x 13 ranks 19 messages and 1.025 times the bound."""
    found = pdla.predict_matmul(*mnk, ranks)
    assert found.ranks_used > 0.95 * ranks and found.bytes_received < (1.042 if ranks == 107 else 1.03) * found.lower_bound
    assert found.messages < (8 if ranks == 107 else 25)


def test_no_rank_is_idle_whichever_matrix_stays():
    """C stayed on 9 of 64 ranks: messages weighed against the words and the work of a product with a k of 1."""
    for name, grid in (("a-stationary", (8, 1, 8)), ("b-stationary", (1, 8, 8)), ("c-stationary", (8, 8, 1))):
        assert pdla.predict_matmul(1000, 1000, 1000, 64, algorithm=name).grid == grid
    assert pdla.predict_matmul(10**5, 10**5, 10**5, 4096, algorithm="c-stationary").grid == (64, 64, 1)


def test_a_memory_limit_is_kept_by_a_grid_of_fewer_layers():
    """No plan kept it, it was said, where the cheapest grid's did not: 8 x 8 ranks need less than 4 x 4 x 4."""
    for algorithm in ("auto", "2.5d", "tesseract"):
        layers = []
        for limit in (10**7, 600_000, 10**5):
            found = pdla.predict_matmul(1000, 1000, 1000, 64, algorithm=algorithm, memory_limit=limit)
            assert found.peak_workspace <= limit
            layers.append(found.grid[2])
        assert layers == sorted(layers, reverse=True) and layers[-1] == 1
    with pytest.raises(pdla.errors.PlanError, match=r"memory_limit=100: .* too few; the leanest plan found"):
        pdla.predict_matmul(100, 100, 100, 64, memory_limit=100)


@pytest.mark.parametrize("mnk", [(100, 100, 10**9), (300, 300, 10**8), (50, 200, 10**7), (1000, 1000, 10**7)], ids=str)
def test_small_results_are_summed_evenly_over_any_number_of_ranks(mnk):
    """100 x 100 can be cut evenly over 1000 ranks, along both dimensions, but not over 1019, of which each then received four times
    as many addends."""
    for ranks in (53, 131, 509, 997, 1019, 4099, 8951, 9949):
        found = pdla.predict_matmul(*mnk, ranks)
        assert found.bytes_received <= 1.1 * found.lower_bound, (ranks, found)
        assert found.ranks_used >= 0.95 * ranks, (ranks, found)


@pytest.mark.parametrize("ranks", [20_000, 100_000, 999_983, 10**6])
def test_a_long_matrix_is_cut_over_all_of_very_many_ranks(ranks):
    """Most of them have no row of the small matrix, which is gathered in steps: who has some is all that planning looks at."""
    found = pdla.predict_matmul(10**9, 100, 100, ranks)
    assert found.grid == (ranks, 1, 1)
    assert found.bytes_received == 100 * 100 * 8 and found.messages <= 20  # log2(ranks)
