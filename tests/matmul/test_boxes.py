"""Which box of ranks is best: the search against all boxes, and against the lower bound."""

import itertools
from math import prod

import numpy as np
import pytest

import pdla
from pdla.comm.collectives import circulant
from pdla.matmul import boxes
from pdla.matmul.boxes import Box
from pdla.model.bounds import accessed_lower_bound, received_lower_bound
from pdla.model.machine import Machine


def test_boxes_stay_near_the_lower_bound_for_every_rank_count():
    """The figures that the documentation quotes, on fewer rank counts."""
    for mnk in ((32768,) * 3, (100000, 100000, 5000), (6000, 6000, 1200000), (10007, 20011, 4999)):
        found = {ranks: boxes.find_cheapest(*mnk, ranks, Machine())[0] for ranks in range(32, 1025, 7)}
        over = [boxes.count_words(*mnk, box) / received_lower_bound(*mnk, ranks) for ranks, box in found.items()]
        assert np.percentile(over, 95) <= 1.12 and max(over) <= 1.25, mnk
        assert min(box.ranks / ranks for ranks, box in found.items()) >= 0.89, mnk


def test_search_is_exhaustive():
    """Against a loop over every box, for a few sizes."""
    machine = Machine()
    for mnk, ranks in itertools.product(((64, 32, 5), (1, 9, 100), (7, 7, 7)), (1, 2, 7, 12, 37, 150)):
        bound = received_lower_bound(*mnk, ranks)

        def price(box, mnk=mnk, ranks=ranks, bound=bound):
            begun, (m, n, k) = sum(boxes.count_messages(*mnk, box)), mnk
            over, words = boxes.compute_excess(*mnk, box, ranks), boxes.count_words(*mnk, box)
            faces = (m * k * box.n + k * n * box.m + m * n * box.k) / box.ranks
            far = ranks >= circulant.MANY and faces > boxes.NEAR * accessed_lower_bound(*mnk, box.ranks)
            found = boxes.price(ranks, over, words, begun, box.k > 1, bound, prod(mnk) / ranks, machine)
            return found * (boxes.LOPSIDED if far else 1)

        pairs = [(pm, pn) for pm in range(1, min(ranks, mnk[0]) + 1) for pn in range(1, min(ranks // pm, mnk[1]) + 1)]
        most = [Box(pm, pn, min(ranks // (pm * pn), mnk[2])) for pm, pn in pairs]
        fewer = [box._replace(k=max(1, box.k >> i)) for box in most for i in range(1, 8)]
        best = min(price(box) for box in (*most, *fewer))
        assert price(boxes.find_cheapest(*mnk, ranks, machine)[0]) == pytest.approx(best), (mnk, ranks)


@pytest.mark.parametrize("n", [8, 100, 1001, 32768])
def test_of_equal_words_no_box_that_sums_is_taken(n):
    """A cube on 2 ranks, whichever dimension is cut: half of one matrix comes from the other rank."""
    words = [boxes.count_words(n, n, n, Box(*cut)) for cut in ((2, 1, 1), (1, 2, 1), (1, 1, 2))]
    assert words == pytest.approx([n * n / 2] * 3, rel=0.02)
    assert boxes.find_cheapest(n, n, n, 2, Machine())[0].k == 1


def test_no_lopsided_box_is_taken_for_a_few_messages_less():
    """4 x 4 x 32 boxes of a small cube need 11 messages, 8 x 8 x 8 boxes 21, and half as many words."""
    box = boxes.find_cheapest(400, 400, 400, 512, Machine())[0]
    assert boxes.count_words(400, 400, 400, box) < 1.1 * received_lower_bound(400, 400, 400, 512)


@pytest.mark.parametrize("face", [(1, 4099, 8192), (4099, 1, 8192), (64, 1, 16386)])
def test_a_face_is_summed_in_no_row_of_ranks_too_long_to_plan_if_it_can_be_cut_otherwise(face):
    assert max(boxes.split(*face)) <= boxes.LONGEST < max(boxes.split(*face[:2], 2 * 4099))  # 2 * 4099: a prime too long


@pytest.mark.parametrize("ranks", [64, 5000, 720720, 10**6])
@pytest.mark.parametrize("mnk", [(10**6, 10**6, 10**6), (10**5, 10**6, 10**4), (1000, 10**6, 1000), (300, 300, 3)], ids=str)
def test_boxes_of_few_layers_are_nearly_as_cheap_as_a_finer_search_finds(monkeypatch, mnk, ranks):
    machine, bound = Machine(), received_lower_bound(*mnk, ranks)

    def price(box):
        begun, words = sum(boxes.count_messages(*mnk, box)), boxes.count_words(*mnk, box)
        excess, work = boxes.compute_excess(*mnk, box, ranks), prod(mnk) / ranks
        return boxes.price(ranks, excess, words, begun, box.k > 1, bound, work, machine)

    found = boxes.find_by_layers(*mnk, ranks, machine, True, True)
    assert len(found) == min(ranks, mnk[2]).bit_length()
    monkeypatch.setattr(boxes, "LOOKS", (513, 256))
    for i, box in enumerate(found):
        finer = boxes.find_cheapest(*mnk, ranks, machine, most=Box(ranks, ranks, 2**i), rows_first=True)[0]
        assert box.k <= 2**i and price(box) <= 1.05 * price(finer), (box, finer)


def test_of_a_small_product_ranks_along_k_may_be_idle():
    """Messages take longer than the product on one rank, or on two that do not sum C."""
    assert boxes.find_cheapest(64, 100, 2, 24, Machine.load("laptop"))[0] == (1, 1, 1)
    assert boxes.find_cheapest(10000, 7, 500, 6, Machine.load("a100x4"))[0] == (2, 1, 1)
    assert pdla.predict_matmul(10000, 7, 500, 6, machine="a100x4").grid == (4, 1, 1)  # by the seconds of dry runs
    untold = pdla.predict_matmul(10000, 7, 500, 6)
    assert untold.grid == (6, 1, 1) and untold.seconds is None
    found = pdla.predict_matmul(1, 1000, 1000, 1000, machine=Machine())
    assert found.ranks_used < 300 and found.seconds < 30e-6  # of 1,000 ranks, which receive less, the fastest take 37e-6 s


def test_of_many_ranks_boxes_far_from_the_ideal_one_are_looked_at_too():
    """Where there are more ranks than products, and where messages weigh most."""
    assert pdla.predict_matmul(3, 3, 3, 10**6).grid == (3, 3, 3)
    assert pdla.predict_matmul(0, 5, 5, 4097).ranks_used == 1
    for mnk in ((10**6, 1, 1), (20, 20, 20), (10**4, 10**4, 1), (7, 10**9, 3)):
        few, many = (boxes.find_cheapest(*mnk, ranks, Machine())[0] for ranks in (boxes.EVERY, boxes.EVERY + 1))
        assert np.allclose(few, many, rtol=0.02), mnk
        assert sum(boxes.count_messages(*mnk, boxes.find_cheapest(*mnk, 10**6, Machine())[0])) < 10**4
