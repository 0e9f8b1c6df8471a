"""Which arrangement of the ranks a rank-k update takes, and what it receives: by formula, copied and dry."""

import itertools

import numpy as np
import pytest
from helpers.level3 import (
    BLOCKS,
    TURNS,
    check_rank_k,
    pairs,
    rank_k,
)
from helpers.matmuls import DTYPES, exact

import pdla
from pdla import Cyclic, Layout, ProcessGrid
from pdla.linalg.products import rank_k_plan, stationary
from pdla.linalg.products.difference_cover import find_ruler, list_covers


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8, 9, 16])
def test_every_arrangement_of_the_ranks(ranks, monkeypatch):
    def program(comm):
        grid = ProcessGrid(pdla.balanced_shape(ranks))
        sizes = ((29, 23), (5, 40), (1, 1), (0, 3), (3, 0))[: 5 if ranks < 9 else 1]
        for (n, k), dtype, hermitian in zip(sizes, (np.complex64, *DTYPES), (True, False, True, True, False), strict=False):
            check_rank_k(exact((n, k), grid, BLOCKS, dtype), hermitian, True, TURNS)
            check_rank_k(exact((k, n), grid, TURNS, dtype).T, hermitian, False, BLOCKS, 2, 3, mirror=True)

    for cover in list_covers(ranks):
        monkeypatch.setattr(rank_k_plan, "choose", lambda *_, cover=cover: cover)
        pdla.run(ranks, program)
    monkeypatch.setattr(rank_k_plan, "choose", lambda n, k, layout, sizes: stationary.Stationary(layout, sizes))
    pdla.run(ranks, program)


def expected_words(cover, shape, n, k, layout, wanted, rank):
    """Words that a rank must get for a cover, by sets of elements; the sums by the closed formula."""
    sizes = dict(zip(("row", "col"), shape, strict=True))
    coords = dict(zip(("row", "col"), np.unravel_index(rank, shape), strict=True))
    inner = range(rank % cover.c * k // cover.c, (rank % cover.c + 1) * k // cover.c)
    needs = set(itertools.product(cover.rows(n, rank).indices().tolist(), inner))
    fetched = len(needs - pairs(layout.indices((n, k), sizes, coords)))
    mine = {(i, j) for i, j in pairs(wanted.indices((n, n), sizes, coords)) if i >= j}
    at_hand = set().union(*(pairs((tile.rows, tile.cols)) for tile in cover.sums(n, rank)))
    return fetched + len(mine - at_hand)


@pytest.mark.parametrize("shape", [(2, 2), (2, 3), (1, 5)], ids=str)
def test_words_of_every_arrangement_by_formula_copied_and_dry(shape, monkeypatch):
    n, k, ranks = 60, 60, shape[0] * shape[1]
    for cover, layout, wanted in itertools.product(list_covers(ranks), (BLOCKS, Layout(Cyclic("row", 2), "col")), (BLOCKS, TURNS)):
        monkeypatch.setattr(rank_k_plan, "choose", lambda *_, cover=cover: cover)
        real = pdla.run(ranks, rank_k, shape, n, k, layout, wanted)
        assert real == [pdla.dry_run(ranks, rank_k, shape, n, k, layout, wanted, rank=rank)[0] for rank in range(ranks)]
        for rank, (verbs, _, _, _) in enumerate(real):
            assert verbs.get("alltoall", 0) == 8 * expected_words(cover, shape, n, k, layout, wanted, rank)
        sums = cover.words(n, k) - len(find_ruler(cover.v // 2)) * (n / cover.v) * (k / cover.c)
        assert max(verbs.get("reduce_scatter", 0) for verbs, *_ in real) == 8 * sums
        assert max(verbs.get("alltoall", 0) for verbs, *_ in real) <= 8 * (cover.words(n, k) - sums + n * n / ranks)


def test_k_is_cut_as_it_is_cut_already():
    layout = Layout(cols=(Cyclic("row", 2), Cyclic("col", 1)))
    for verbs, *_ in pdla.run(4, rank_k, (2, 2), 12, 480, layout, Layout(cols=("row", "col"))):
        assert verbs["alltoall"] <= 8 * 12 * 12 / 4, "of C only"


@pytest.mark.parametrize(("shape", "wanted"), [((2, 2), TURNS), ((2, 3), Layout("row")), ((3, 4), BLOCKS)], ids=str)
def test_workspace_of_every_arrangement(shape, wanted, monkeypatch):
    """Rows of A and what brings them; rows and tiles; tiles and the messages made of them: never all three."""
    ranks, copies = shape[0] * shape[1], 1 if wanted.cols else shape[1]

    def peak(comm, n, k):
        A, C = pdla.zeros((n, k), ProcessGrid(shape), BLOCKS), pdla.zeros((n, n), ProcessGrid(shape), wanted)
        with pdla.record() as ledger:
            pdla.syrk(A, out=C)
        return ledger.peak_workspace / 8

    for cover, (n, k) in itertools.product(list_covers(ranks), ((240, 120), (120, 1200), (240, 4))):
        monkeypatch.setattr(rank_k_plan, "choose", lambda *_, cover=cover: cover)
        rows, tiles = len(find_ruler(cover.v // 2)) / cover.v * n * k / cover.c, (cover.v + 1) * n * n / 2 / cover.v**2
        sums = 2 * tiles if cover.c > 1 else 0
        home = copies * tiles / cover.c + stationary.Stationary(wanted, tuple(zip(("row", "col"), shape, strict=True))).part(n)
        most = max(pdla.dry_run(ranks, peak, n, k, rank=rank)[0] for rank in range(ranks))
        assert most <= 1.01 * max(3 * rows, rows + tiles, tiles + sums, tiles + home), (cover, n, k)


def test_C_stays_where_that_is_cheaper():
    turns = Layout(Cyclic("row", 16), Cyclic("col", 16))
    assert isinstance(rank_k_plan.choose(1440, 96, turns, (("row", 2), ("col", 2))), stationary.Stationary)
    for shape in ((2, 2), (2, 3)):
        for verbs, *_ in pdla.run(shape[0] * shape[1], rank_k, shape, 96, 1, TURNS, TURNS):
            assert verbs.get("alltoall", 0) <= 8 * stationary.Stationary(TURNS, (("row", shape[0]), ("col", shape[1]))).words(96, 1)


def test_copies_of_a_C_that_stays_agree_however_A_lies():
    """Half of the ranks hold all the rows that they need, here with gaps between the columns."""

    def program(comm):
        grid, rows = ProcessGrid((2, 2)), Layout("row")
        held = pdla.random((37, 2), grid, Layout("col"), dtype=complex, distribution="normal").local
        A = pdla.from_local(np.repeat(held, 2, axis=1)[:, ::2], (37, 2), grid, Layout("col"))
        assert isinstance(rank_k_plan.choose(37, 2, rows, tuple(grid.sizes.items())), stationary.Stationary)
        assert pdla.syrk(A, layout=rows).check_copies()

    pdla.run(4, program)
