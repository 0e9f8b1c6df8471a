"""Strips of a triangle on the ranks of a node."""

import itertools

import numpy as np
import pytest
from helpers.level3 import (
    BLOCKS,
    TURNS,
    pairs,
)

import pdla
from pdla import Layout, ProcessGrid
from pdla.comm.communicator import Communicator
from pdla.linalg.products import rank_k_plan
from pdla.linalg.products.strips import Strips


@pytest.mark.parametrize(("shape", "wanted"), [((2, 2), TURNS), ((2, 3), BLOCKS), ((1, 5), Layout("row"))], ids=str)
def test_on_a_node_strips_are_even_and_read_what_they_lack(shape, wanted, monkeypatch):
    """Words by sets of elements; of the workspace a rank's part of A, its strip and its part of what goes home."""
    n, k, ranks = 60, 30, shape[0] * shape[1]
    monkeypatch.setattr(Communicator, "shared_limit", 2**30)
    monkeypatch.setattr(rank_k_plan, "choose_together", lambda *_: Strips(ranks))
    monkeypatch.setattr("pdla.linalg.products.rank_k.LEAF", 1)
    sizes, strips = dict(zip(("row", "col"), shape, strict=True)), Strips(ranks)

    def program(comm):
        grid = ProcessGrid(shape)
        A, C = pdla.zeros((n, k), grid, BLOCKS), pdla.zeros((n, n), grid, wanted)
        with pdla.record() as ledger:
            pdla.syrk(A, out=C)
        return ledger.by_verb(), ledger.peak_workspace / 8, ledger.flops

    done = set()
    for rank, (verbs, peak, flops) in enumerate(pdla.run(ranks, program)):
        coords = dict(zip(("row", "col"), map(int, np.unravel_index(rank, shape)), strict=True))
        [tile] = strips.tiles(n, rank)
        needs = set(itertools.product(range(len(tile.cols)), range(k)))
        mine = {(i, j) for i, j in pairs(wanted.indices((n, n), sizes, coords)) if i >= j}
        strip = {(i, j) for i, j in pairs((tile.rows, tile.cols)) if i >= j}
        read = len(needs - pairs(BLOCKS.indices((n, k), sizes, coords))) + len(mine - strip)
        assert verbs == {"read": 8 * read}
        assert peak <= n * k / ranks + len(tile.rows) * len(tile.cols) + n * (n + 1) / 2
        assert flops == 2 * k * len(strip) and abs(len(strip) - n * (n + 1) / 2 / ranks) < n
        done |= strip
    assert len(done) == n * (n + 1) / 2
