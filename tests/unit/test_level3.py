"""Level 3 beyond matmul: bitwise NumPy's on every layout, and as many words as the formulas say."""

import itertools
import time

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from level3 import VIEWS, both, check_matvec, check_rank_k, check_stack, check_symm, random_array
from matmuls import DTYPES, exact
from property.test_redistribute import grids, layouts

import pdla
from pdla import Cyclic, Layout, ProcessGrid, errors
from pdla.array import numpy as xp
from pdla.comm.communicator import Communicator
from pdla.indices import IndexSet
from pdla.linalg import block_exchange, chain, rank_k_plan, stationary
from pdla.linalg.difference_cover import DifferenceCover, covers, measures, ruler
from pdla.linalg.rank_k import _products
from pdla.linalg.strips import Strips
from pdla.linalg.trapezoid import Block, meeting

BLOCKS, TURNS = Layout("row", "col"), Layout(Cyclic("row", 2), Cyclic("col", 2))
LAYOUTS = (BLOCKS, TURNS, Layout(), Layout(cols=("row", "col")), Layout(("col", "row")), Layout("row", partial="col"))
sizes = st.integers(0, 20)


def test_matrices_in_another_byte_order():
    """BLAS reads this machine's only."""

    def program(comm):
        grid = ProcessGrid((2, 2))
        A = exact((8, 6), grid, BLOCKS)
        B = pdla.from_local(A.local.astype(">f8"), (8, 6), grid, BLOCKS)
        assert np.array_equal(pdla.syrk(B, alpha=2.0).gather(), pdla.syrk(A, alpha=2.0).gather())

    pdla.run(4, program)


# ---------------------------------------------------------------------------------------------- who computes what


def test_rulers_measure_every_distance_with_few_marks():
    for length in range(200):
        marks = ruler(length)
        measured = {b - a for a, b in itertools.combinations(marks, 2)}
        assert set(range(1, length + 1)) <= measured
        assert len(marks) <= 1.8 * length**0.5 + 2
    assert [len(ruler(v // 2)) for v in (1, 2, 3, 7, 13, 64)] == [1, 2, 2, 3, 4, 10]


@pytest.mark.parametrize("n", [40, 7])
def test_every_tile_is_computed_once_from_the_rows_at_hand(n):
    for v in range(1, 30):
        cover, seen, work = DifferenceCover(v, 1), np.zeros((n, n), int), []
        for place in range(v):
            rows = cover.rows(n, place).indices()
            tiles = [(t.rows.indices(), t.cols.indices()) for t in cover.tiles(n, place)]
            for i, j in tiles:
                seen[np.ix_(i, j)] += 1
                assert {*i, *j} <= {*rows}
            work.append(sum((i[:, None] >= j).sum() for i, j in tiles))
        assert (both(seen, True) == both(np.ones_like(seen), True)).all(), v
        if n % (2 * v) == 0:
            assert len(set(work)) == 1, "the same work for all"


@pytest.mark.parametrize("cover", [DifferenceCover(12, 2), DifferenceCover(7, 1), DifferenceCover(1, 4)], ids=str)
def test_a_place_offers_all_that_is_wanted_of_it(cover):
    ends = itertools.product(((0, 40), (7, 8), (0, 0)), ((0, 30), (9, 50)))
    blocks = [Block(IndexSet.interval(*rows), IndexSet.interval(*cols)) for rows, cols in ends]
    blocks.append(Block(Cyclic("", 5).share(50, 4, 1), Cyclic("", 3).share(50, 5, 4)))
    for wanted, place in itertools.product(blocks, range(cover.v * cover.c)):
        offered = dict(cover.gives(50, place, 0, wanted))
        for number, tile in enumerate(cover.sums(50, place)):
            assert offered.get(number, tile).rows == tile.rows
            assert number in offered or meeting(tile, wanted, None) is None
            assert place - place % cover.c in cover.having(50, wanted) or meeting(tile, wanted, None) is None
        needs = cover.rows(50, place).overlay(wanted.rows)[2] > 0
        assert needs == (place - place % cover.c in cover.needing(50, wanted.rows))


def test_of_many_ranks_few_are_looked_at(monkeypatch):
    """1024 ranks: of those that a rank gives to and takes from, no more than twice as many, and itself."""
    looked, met = [], block_exchange._met
    monkeypatch.setattr(block_exchange, "_met", lambda *given: looked.append(met(*given)) or looked[-1])

    def program(comm):
        A = pdla.zeros((2048, 1024), ProcessGrid((32, 32), comm=comm), BLOCKS)
        pdla.syrk(A, mirror=True, layout=BLOCKS)

    for rank in (0, 500, 1023):
        looked.clear()
        pdla.dry_run(1024, program, rank=rank)
        assert len(looked) <= 2 * sum(map(bool, looked)) + 3 < 1024


@pytest.mark.parametrize(
    ("held", "halves"), [(IndexSet.interval(0, 80), 0), (Cyclic("", 10).share(640, 8, 3), 4)], ids=["together", "in turn"]
)
def test_of_many_places_few_offer_something(held, halves):
    """Eight row blocks of 64, and as many columns; pairs that are 32 blocks apart are offered by two places."""
    offered = sum(len(DifferenceCover(64, 1).gives(640, place, 0, Block(held, held))) for place in range(64))
    assert offered == 8 * 9 / 2 + halves


def test_measures_name_marks():
    assert measures(7) == {1: (0, 1), 2: (1, 3), 3: (0, 3)}


# ---------------------------------------------------------------------------------------------- syrk and herk


@st.composite
def triangles(draw):
    """A grid and its rank count, two layouts, sizes."""
    ranks = draw(st.integers(1, 7))
    grid, (n, k) = draw(grids(ranks)), (draw(sizes), draw(sizes))
    return ranks, grid, n, k, draw(layouts((n, k), grid, partial=True)), draw(layouts((n, n), grid))


@given(
    triangles(), st.sampled_from([*DTYPES, np.int64]), st.sampled_from(sorted(VIEWS)), st.booleans(), st.booleans(), st.booleans(),
    st.sampled_from([(1, 0), (2, -1), (0, 3)]), st.integers(0, 4), st.booleans(),
)
def test_triangles_of_any_layout(case, dtype, view, hermitian, lower, mirror, scalars, which, together):
    """By messages, and on a shared buffer."""
    ranks, (shape, axes, order), n, k, layout, wanted = case
    if view in "TH":
        layout = layout.T

    def program(comm):
        grid = ProcessGrid(shape, axes, order=order)
        A = VIEWS[view](exact((k, n) if view in "TH" else (n, k), grid, layout, dtype, 1))
        check_rank_k(A, hermitian, lower, wanted, *scalars, mirror)

    places = int(np.prod(shape))
    stays = lambda n, k, layout, sizes: stationary.Stationary(layout, sizes)  # noqa: E731
    choices = [stays, rank_k_plan.choose, *(lambda *_, cover=cover: cover for cover in covers(places))]
    alike = [stays, rank_k_plan.choose_together, lambda *_: Strips(places)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_k_plan, "choose", choices[which % len(choices)])
        patch.setattr(rank_k_plan, "choose_together", alike[which % len(alike)])
        patch.setattr(Communicator, "shared_limit", 2**30 if together else 0)
        pdla.run(ranks, program)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8, 9, 16])
def test_every_arrangement_of_the_ranks(ranks, monkeypatch):
    def program(comm):
        grid = ProcessGrid(pdla.balanced_shape(ranks))
        sizes = ((29, 23), (5, 40), (1, 1), (0, 3), (3, 0))[: 5 if ranks < 9 else 1]
        for (n, k), dtype, hermitian in zip(sizes, (np.complex64, *DTYPES), (True, False, True, True, False), strict=False):
            check_rank_k(exact((n, k), grid, BLOCKS, dtype), hermitian, True, TURNS)
            check_rank_k(exact((k, n), grid, TURNS, dtype).T, hermitian, False, BLOCKS, 2, 3, mirror=True)

    for cover in covers(ranks):
        monkeypatch.setattr(rank_k_plan, "choose", lambda *_, cover=cover: cover)
        pdla.run(ranks, program)
    monkeypatch.setattr(rank_k_plan, "choose", lambda n, k, layout, sizes: stationary.Stationary(layout, sizes))
    pdla.run(ranks, program)


def test_what_is_kept_of_one_call_serves_no_other():
    """Of what a call keeps all depends on the grid, the shape, both layouts, and whether all ranks read A in place."""

    def program(comm):
        grid = ProcessGrid((2, 2))
        for here, shape, layout, wanted, limit in (
            (grid, (12, 7), BLOCKS, BLOCKS, 0),
            (ProcessGrid((2, 2), order=[1, 0, 3, 2]), (12, 7), BLOCKS, BLOCKS, 0),
            (grid, (10, 7), BLOCKS, BLOCKS, 0),
            (grid, (12, 4), BLOCKS, BLOCKS, 0),
            (grid, (12, 7), TURNS, BLOCKS, 0),
            (grid, (12, 7), BLOCKS, TURNS, 0),
            (grid, (12, 7), BLOCKS, BLOCKS, 2**30),
        ):
            comm.shared_limit, A = limit, exact(shape, here, layout)
            with pdla.record() as ledger:
                pdla.syrk(A, layout=wanted)
            assert set().union(*comm.share({*ledger.by_verb()})) == {"read" if limit else "alltoall"}
            check_rank_k(A, False, True, wanted, mirror=True)

    pdla.run(4, program)


def test_a_new_result_is_zero_above_and_lies_as_the_product():
    def program(comm):
        A = exact((9, 5), ProcessGrid((2, 2)), BLOCKS)
        C = pdla.syrk(A)
        assert C.layout == (A @ A.T).layout == BLOCKS and np.array_equal(C.gather(), np.tril(A.gather() @ A.gather().T))
        assert np.array_equal(pdla.syrk(A, mirror=True, layout=BLOCKS).gather(), A.gather() @ A.gather().T)

    pdla.run(5, program)


def test_leaves_smaller_than_tiles(monkeypatch):
    """Tiles are multiplied by halves of halves, here down to three rows; herk's diagonal is exactly real."""
    monkeypatch.setattr("pdla.linalg.rank_k.LEAF", 3)

    def program(comm):
        grid = ProcessGrid((2, 2))
        for layout in (BLOCKS, TURNS):
            check_rank_k(exact((50, 7), grid, BLOCKS, complex), False, True, layout)
        A = pdla.random((50, 7), grid, BLOCKS, dtype=complex, distribution="normal")
        C = pdla.herk(A, layout=BLOCKS).gather()
        assert (np.diagonal(C).imag == 0).all() and np.allclose(C, np.tril(A.gather() @ A.gather().conj().T))

    for cover in (*covers(4), None):
        if cover is not None:
            monkeypatch.setattr(rank_k_plan, "choose", lambda *_, cover=cover: cover)
        else:
            monkeypatch.setattr(rank_k_plan, "choose", lambda n, k, layout, sizes: stationary.Stationary(layout, sizes))
        pdla.run(4, program)


# ---------------------------------------------------------------------------------------------- its words and flops


def rank_k(comm, shape, n, k, layout, wanted, product=pdla.syrk):
    grid = ProcessGrid(shape)
    A, C = pdla.zeros((n, k), grid, layout), pdla.zeros((n, n), grid, wanted)
    before = comm.world.bytes_copied[comm.rank] if hasattr(comm, "world") else 0
    with pdla.record() as ledger:
        product(A, out=C)
    copied = comm.world.bytes_copied[comm.rank] - before if hasattr(comm, "world") else ledger.bytes_received
    assert copied == ledger.bytes_received
    return ledger.by_verb(), ledger.bytes_received, ledger.messages, ledger.flops


def pairs(block):
    """The elements of a block, as a set."""
    return set(itertools.product(block[0].indices().tolist(), block[1].indices().tolist()))


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
    for cover, layout, wanted in itertools.product(covers(ranks), (BLOCKS, Layout(Cyclic("row", 2), "col")), (BLOCKS, TURNS)):
        monkeypatch.setattr(rank_k_plan, "choose", lambda *_, cover=cover: cover)
        real = pdla.run(ranks, rank_k, shape, n, k, layout, wanted)
        assert real == [pdla.dry_run(ranks, rank_k, shape, n, k, layout, wanted, rank=rank)[0] for rank in range(ranks)]
        for rank, (verbs, _, _, _) in enumerate(real):
            assert verbs.get("alltoall", 0) == 8 * expected_words(cover, shape, n, k, layout, wanted, rank)
        sums = cover.words(n, k) - len(ruler(cover.v // 2)) * (n / cover.v) * (k / cover.c)
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

    for cover, (n, k) in itertools.product(covers(ranks), ((240, 120), (120, 1200), (240, 4))):
        monkeypatch.setattr(rank_k_plan, "choose", lambda *_, cover=cover: cover)
        rows, tiles = len(ruler(cover.v // 2)) / cover.v * n * k / cover.c, (cover.v + 1) * n * n / 2 / cover.v**2
        sums = 2 * tiles if cover.c > 1 else 0
        home = copies * tiles / cover.c + stationary.Stationary(wanted, tuple(zip(("row", "col"), shape, strict=True))).part(n)
        most = max(pdla.dry_run(ranks, peak, n, k, rank=rank)[0] for rank in range(ranks))
        assert most <= 1.01 * max(3 * rows, rows + tiles, tiles + sums, tiles + home), (cover, n, k)


@pytest.mark.parametrize(("shape", "wanted"), [((2, 2), TURNS), ((2, 3), BLOCKS), ((1, 5), Layout("row"))], ids=str)
def test_on_a_node_strips_are_even_and_read_what_they_lack(shape, wanted, monkeypatch):
    """Words by sets of elements; of the workspace a rank's part of A, its strip and its part of what goes home."""
    n, k, ranks = 60, 30, shape[0] * shape[1]
    monkeypatch.setattr(Communicator, "shared_limit", 2**30)
    monkeypatch.setattr(rank_k_plan, "choose_together", lambda *_: Strips(ranks))
    monkeypatch.setattr("pdla.linalg.rank_k.LEAF", 1)
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


def test_where_all_see_A_nothing_of_it_is_copied():
    def program(comm):
        grid = ProcessGrid((2, 2))
        A = exact((40, 60), grid, BLOCKS).shared()
        C = pdla.zeros((40, 40), grid, BLOCKS)
        peaks = []
        for X in (A, A.T[:40, :]):
            with pdla.record() as ledger:
                pdla.syrk(X, out=C)
            peaks.append(ledger.peak_workspace)
            assert np.array_equal(C.gather(), np.tril(X.gather() @ X.gather().T))
        return peaks

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_k_plan, "choose_together", lambda n, k, layout, sizes: stationary.Stationary(layout, sizes))
        for peaks in pdla.run(4, program):
            assert max(peaks) <= 8 * 20 * 20, "its part of C's triangle"


@pytest.mark.parametrize("reader", [0, 3])
@pytest.mark.parametrize("product", [pdla.syrk, pdla.herk])
def test_where_all_see_A_it_ends_when_all_have_read(product, reader, monkeypatch):
    """Who is first out of it may write to what the slowest still multiplies."""

    def program(comm):
        A = exact((12, 6), ProcessGrid((2, 2)), BLOCKS, complex).shared()
        C, a = pdla.zeros((12, 12), A.grid, BLOCKS, dtype=complex), A.gather()
        for step in range(3):
            product(A, out=C)
            A *= 2
            assert np.array_equal(C.gather(), 4**step * np.tril(a @ (a.T if product is pdla.syrk else a.conj().T)))

    def slowly(*given):
        if pdla.world().rank == reader:
            time.sleep(0.05)
        return _products(*given)

    monkeypatch.setattr("pdla.linalg.rank_k._products", slowly)
    monkeypatch.setattr(rank_k_plan, "choose_together", lambda n, k, layout, sizes: stationary.Stationary(layout, sizes))
    pdla.run(4, program)


@pytest.mark.parametrize("writer", [0, 3])
def test_where_all_see_A_none_reads_before_all_have_written(writer, monkeypatch):
    put = xp.put

    def slowly(*given):
        time.sleep(0.05 * (pdla.world().rank == writer))
        put(*given)

    def program(comm):
        A = exact((16, 12), ProcessGrid((2, 2)), BLOCKS)
        whole = np.tril(A.gather() @ A.gather().T)
        comm.shared_limit = 2**30
        for step in range(3):
            assert np.array_equal(pdla.syrk(A).gather(), 4**step * whole)
            A *= 2

    monkeypatch.setattr(xp, "put", slowly)
    pdla.run(4, program)


def test_words_public():
    assert pdla.syrk_words(60, 600, 1) == 60 * 600  # all of A, from elsewhere
    assert pdla.syrk_words(700, 70, 7) == 3 / 7 * 700 * 70
    assert pdla.syrk_words(12, 10**6, 4) == 12 * 10**6 / 4 + 3 * 4 * 3 * 4 / 2
    with pytest.raises(errors.ShapeError, match="P=0"):
        pdla.syrk_words(1, 1, 0)


@pytest.mark.parametrize(
    "shape, n, k, layout, wanted, words",
    [
        ((6, 6), 1440, 1440, BLOCKS, BLOCKS, 0.65),
        ((4, 4), 960, 960, BLOCKS, Layout(Cyclic("row", 32), Cyclic("col", 32)), 0.8),
        ((2, 3), 480, 9600, Layout(cols=("row", "col")), BLOCKS, 0.75),
        ((4, 4), 480, 9600, BLOCKS, BLOCKS, 0.75),
        ((2, 2), 1440, 96, BLOCKS, Layout(Cyclic("row", 16), Cyclic("col", 16)), 1.0),
    ],
    ids=str,
)
def test_fewer_words_and_half_the_flops_of_matmul(shape, n, k, layout, wanted, words):
    """The rank that receives most, and all ranks' flops and the busiest rank's, against the same product by matmul."""
    ranks = shape[0] * shape[1]
    whole = lambda A, out: pdla.matmul(A, A.T, out=out, algorithm="gather")  # noqa: E731
    half, full = (
        [pdla.dry_run(ranks, rank_k, shape, n, k, layout, wanted, how, rank=rank)[0] for rank in range(ranks)]
        for how in (pdla.syrk, whole)
    )
    assert max(rank[1] for rank in half) <= words * max(rank[1] for rank in full)
    assert max(rank[3] for rank in half) < 0.65 * max(rank[3] for rank in full)
    assert n * n * k <= sum(rank[3] for rank in half) < 0.65 * sum(rank[3] for rank in full) == 0.65 * 2 * n * n * k


def test_C_stays_where_that_is_cheaper():
    turns = Layout(Cyclic("row", 16), Cyclic("col", 16))
    assert isinstance(rank_k_plan.choose(1440, 96, turns, (("row", 2), ("col", 2))), stationary.Stationary)
    for shape in ((2, 2), (2, 3)):
        for verbs, *_ in pdla.run(shape[0] * shape[1], rank_k, shape, 96, 1, TURNS, TURNS):
            assert verbs.get("alltoall", 0) <= 8 * stationary.Stationary(TURNS, (("row", shape[0]), ("col", shape[1]))).words(96, 1)


def test_of_copies_the_nearest_to_the_taker_alone_gives():
    """So each word comes once, and not all ranks ask the first one for it."""

    def program(comm):
        holding = block_exchange.held_by(Layout("row"), (6, 4), ProcessGrid((2, 3)))
        return [[giver for giver in range(6) if holding.gives(giver, taker)] for taker in range(6)]

    assert pdla.run(6, program)[0] == [[0, 3], [1, 3], [2, 3], [2, 3], [2, 4], [2, 5]]


@pytest.mark.parametrize(
    ("limit", "homes", "verbs"),
    [
        (288, [0, 0, 0], ["read", "read"]), (287, [0, 0, 0], ["read", "alltoall"]), (143, [0, 0, 0], ["alltoall", "alltoall"]),
        (0, [0, 0, 0], ["alltoall", "alltoall"]), (288, [0, 0, 2], ["alltoall", "alltoall"]),
    ],
    ids=str,
)
def test_blocks_are_read_where_a_node_can_share_all_that_goes_and_else_sent(limit, homes, verbs):
    """72 words go: of 16 bits to be copied, and of 32 to be added to others."""

    def program(comm):
        comm.homes, comm.shared_limit = homes, limit
        grid, given, wanted = ProcessGrid(3, comm=comm), Layout("row"), Layout(cols="row")
        held_by, wanted_by = block_exchange.held_by(given, (12, 9), grid), block_exchange.wanted_by(wanted, (12, 9), grid)
        way = block_exchange.BlockExchange.of(comm, held_by, wanted_by)
        A, C = exact((12, 9), grid, given, np.float16), pdla.zeros((12, 9), grid, wanted, dtype=np.float16)
        events, held = [], []
        for beta in (0, 1):
            with pdla.record() as ledger:
                way.run(A.xp, comm, [A.stored], C.stored, beta)
            events += [(event.what, event.bytes) for event in ledger.events]
            held.append(ledger.peak_workspace)
        assert events == list(zip(verbs, (2 * 24, 4 * 24), strict=True))
        assert held == [width * (24 if verb == "read" else 48) for verb, width in zip(verbs, (2, 4), strict=True)]
        assert np.array_equal(C.gather(), 2 * A.gather())

    pdla.run(3, program)


def test_copies_of_a_C_that_stays_agree_however_A_lies():
    """Half of the ranks hold all the rows that they need, here with gaps between the columns."""

    def program(comm):
        grid, rows = ProcessGrid((2, 2)), Layout("row")
        held = pdla.random((37, 2), grid, Layout("col"), dtype=complex, distribution="normal").local
        A = pdla.from_local(np.repeat(held, 2, axis=1)[:, ::2], (37, 2), grid, Layout("col"))
        assert isinstance(rank_k_plan.choose(37, 2, rows, tuple(grid.sizes.items())), stationary.Stationary)
        assert pdla.syrk(A, layout=rows).check_copies()

    pdla.run(4, program)


def test_mirroring_moves_the_other_half():
    def program(comm):
        grid = ProcessGrid((3, 3))
        A, C = pdla.zeros((90, 9), grid, BLOCKS), pdla.zeros((90, 90), grid, BLOCKS)
        figures = []
        for mirror in (False, True):
            with pdla.record() as ledger:
                pdla.syrk(A, out=C, mirror=mirror)
            figures.append(ledger.bytes_received)
        return (figures[1] - figures[0]) // 8

    assert pdla.run(9, program) == [0, 900, 900, 0, 0, 900, 0, 0, 0]  # ranks above the diagonal get their blocks


# ---------------------------------------------------------------------------------------------- symm and hemm


@given(triangles(), st.sampled_from(DTYPES), st.booleans(), st.booleans(), st.sampled_from(["left", "right"]))
def test_half_of_a_symmetric_matrix_is_read(case, dtype, hermitian, lower, side):
    ranks, (shape, axes, order), n, k, layout, wanted = case
    layout = layout.summed if side == "left" else layout.summed.T

    def program(comm):
        grid = ProcessGrid(shape, axes, order=order)
        check_symm(grid, n, k, (wanted, layout), dtype, hermitian, lower, side)

    pdla.run(ranks, program)


def test_symm_adds_to_out_and_takes_transposes():
    def program(comm):
        grid = ProcessGrid((2, 3))
        A, B, C = (exact((8, 8), grid, layout, complex, seed) for seed, layout in enumerate((BLOCKS, TURNS, BLOCKS)))
        a, b, c = A.gather(), B.gather(), C.gather()
        whole = np.tril(a) + np.tril(a, -1).T
        pdla.symm(A, B.H, alpha=2, beta=-1, out=C)
        assert np.array_equal(C.gather(), 2 * whole @ b.conj().T - c)
        upper = np.tril(a).T + np.tril(a, -1)
        assert np.array_equal(pdla.symm(A.T, B, lower=False).gather(), upper @ b)

    pdla.run(6, program)


# ---------------------------------------------------------------------------------------------- matrix times vector


@given(triangles(), st.sampled_from([*DTYPES, np.int32]), st.sampled_from(sorted(VIEWS)), st.data())
def test_matrix_times_vector(case, dtype, view, data):
    ranks, (shape, axes, order), n, k, layout, _ = case
    rows, cols = (k, n) if view in "TH" else (n, k)
    vector = data.draw(layouts((cols, 1), (shape, axes, order), partial=True))
    wanted = data.draw(st.one_of(st.none(), layouts((rows, 1), (shape, axes, order))))

    def program(comm):
        grid = ProcessGrid(shape, axes, order=order)
        check_matvec(VIEWS[view](exact((n, k), grid, layout, dtype, 1)), vector, wanted)

    pdla.run(ranks, program)


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (2, 3), (4, 1)], ids=str)
def test_matvec_words_by_formula(shape):
    m, k, ranks = 48, 60, shape[0] * shape[1]

    def program(comm):
        grid = ProcessGrid(shape)
        A, x = pdla.zeros((m, k), grid, BLOCKS), pdla.zeros((k, 1), grid, Layout(("col", "row")))
        with pdla.record() as ledger:
            pdla.matvec(A, x)
        return ledger.bytes_received

    assert pdla.run(ranks, program) == [round(8 * pdla.matvec_words(m, k, shape))] * ranks


def test_of_addends_times_a_vector_only_the_results_are_summed():
    """Two ranks have a half of A's rows each: of the sums of y a rank receives as many words as y has there, 24; of A's 24 x 60."""

    def program(comm):
        grid = ProcessGrid((2, 2))
        A, x = (pdla.zeros(shape, grid, layout) for shape, layout in (((48, 60), Layout("row", None, "col")), ((60, 1), Layout())))
        with pdla.record() as ledger:
            pdla.matvec(A, x)
        return ledger.bytes_received

    assert pdla.run(4, program) == [8 * 24] * 4


def test_an_idle_rank_times_a_vector_dry():
    def program(comm):
        A = pdla.zeros((6, 4), ProcessGrid((1, 2)), BLOCKS)
        return pdla.matvec(A, pdla.zeros((4, 1), A.grid, BLOCKS)).local.shape, pdla.matvec(A, np.ones(4)).shape

    assert pdla.dry_run(3, program, rank=2)[0] == pdla.run(3, program)[2] == ((0, 0), (6,))


def test_dtypes_of_a_vector_promote():
    def program(comm):
        A = exact((5, 4), ProcessGrid((2, 2)), BLOCKS, np.float32)
        y = pdla.matvec(A, [1, 2j, 0, 1])
        assert y.dtype == np.result_type(np.float32, complex) and np.array_equal(y, A.gather() @ np.array([1, 2j, 0, 1]))

    pdla.run(4, program)


def test_a_triangle_of_blocks_in_another_byte_order_is_of_this_one_as_a_product_is():
    def program(comm):
        grid = ProcessGrid((2, 2))
        A = pdla.from_local(exact((6, 4), grid, BLOCKS).local.astype(">f8"), (6, 4), grid, BLOCKS)
        C = exact((6, 6), grid, BLOCKS)
        a, c = A.gather().astype(float), C.gather()
        pdla.syrk(A, out=C, beta=1, mirror=True)
        made = pdla.syrk(A, mirror=True)
        assert made.dtype.isnative and np.array_equal(made.gather(), a @ a.T)
        assert np.array_equal(np.tril(C.gather()), np.tril(a @ a.T + c))

    pdla.run(4, program)


def test_unused_bytes_of_a_long_double_make_no_other_vector():
    def program(comm):
        x = np.ones(4, np.longdouble)
        if np.finfo(np.longdouble).nmant == 63:  # of whose sixteen bytes ten are used
            x.view(np.uint8)[15::16] = comm.rank
        return pdla.matvec(exact((5, 4), ProcessGrid((2, 2)), BLOCKS), x).shape

    assert pdla.run(4, program) == [(5,)] * 4


# ---------------------------------------------------------------------------------------------- stacks


@given(
    st.sampled_from([((2, 2), None), ((2, 2), "row"), ((2, 3), "col"), ((3, 1), "row"), ((2, 1, 2), "depth"), ((3,), "row")]),
    st.tuples(st.integers(0, 5), *[st.integers(0, 9)] * 3), st.sampled_from([*DTYPES, np.int64]),
    st.tuples(*[st.sampled_from(sorted(VIEWS))] * 2), st.integers(0, 1), st.data(),
)
def test_stacks_against_numpy(case, bmnk, dtype, views, idle, data):
    (shape, axis), names = case, ("row", "col", "depth")
    others = [name for name in names[: len(shape)] if name != axis]
    cuts = [Layout(), *(Layout(name) for name in others), *(Layout(cols=Cyclic(name, 2)) for name in others)]
    cuts += [Layout(*others)] if len(others) == 2 else []
    layout = data.draw(st.sampled_from(cuts))
    pdla.run(int(np.prod(shape)) + idle, lambda comm: check_stack(ProcessGrid(shape), axis, layout, bmnk, dtype, views))


def test_layers_of_a_stack_do_not_talk():
    """Cut along depth, a product moves what a product on the layer's own grid does, and nothing along depth."""

    def program(comm):
        grid = ProcessGrid((2, 2, 3))
        A = pdla.stack(random_array((7, 8, 8), float, 0), grid, BLOCKS, "depth")
        with pdla.record() as ledger:
            pdla.batched_matmul(A, A, algorithm="gather")
        return len(A.blocks), ledger.bytes_received, ledger.by_axis()

    figures = pdla.run(12, program)
    assert [count for count, _, _ in figures] == [3] * 4 + [2] * 8
    for count, received, axes in figures:
        assert received == count * 8 * pdla.matmul_words("gather", 8, 8, 8, (2, 2))
        assert all("depth" not in axis for axis in axes)


@pytest.mark.parametrize("call", [
    lambda S: pdla.stack(np.ones((2, 3, 4)), S.grid, S.layout, "b"), lambda S: S @ S.T, lambda S: S.gather(),
], ids=["stack", "product", "gather"])
def test_a_grid_that_one_rank_has_closed_has_no_layers_on_any(call):
    def program(comm):
        S = pdla.stack(np.ones((2, 3, 4)), ProcessGrid((2, 2), ("b", "row")), Layout("row"), "b")
        if comm.rank == 1:
            S.grid.close()
        with pytest.raises(errors.GridError, match=r"rank 1: .*is closed"):
            call(S)
        comm.barrier()

    pdla.run(4, program)


def test_layers_agree_on_how_a_stack_is_looked_at():
    """They do not talk to each other: each alone would take its own view for everybody's."""

    def program(comm):
        S = pdla.stack(random_array((2, 3, 3), complex, 0), ProcessGrid((2, 1)), Layout(), "row")
        T, C = (view if comm.rank else S for view in (S.T, S.conj()))
        for words, wrong in (("by columns", lambda: T.gather()), ("conjugated", lambda: C.gather()), ("conjugated", lambda: S @ C)):
            with pytest.raises(errors.AgreementError, match=words):
                wrong()

    pdla.run(2, program)


# ---------------------------------------------------------------------------------------------- chains


@given(st.lists(st.integers(0, 12), min_size=2, max_size=7), st.permutations(range(5)), st.data())
def test_chains_in_any_order(dims, turns, data):
    count = len(dims) - 1
    views = data.draw(st.lists(st.sampled_from(["A", "T"]), min_size=count, max_size=count))
    order = data.draw(st.permutations(range(count)))
    words = ["abcdefgh"[i : i + 2][:: -1 if how == "T" else 1] for i, how in enumerate(views)]
    result = data.draw(st.sampled_from([f"a{'abcdefgh'[count]}", f"{'abcdefgh'[count]}a"]))
    subscripts = f"{','.join(words[i] for i in order)}->{result}"

    def program(comm):
        grid = ProcessGrid((2, 2))
        made = [exact((dims[i], dims[i + 1]), grid, LAYOUTS[turns[i % 5]], seed=i) for i in range(count)]
        expected = np.linalg.multi_dot([X.gather() for X in made]) if count > 1 else made[0].gather()
        assert np.array_equal(pdla.multi_dot(made, layout=BLOCKS).gather(), expected)
        given_ = [made[i].T.copy() if views[i] == "T" else made[i] for i in order]
        C = pdla.einsum(subscripts, *given_)
        assert np.array_equal(C.gather(), expected if result[0] == "a" else expected.T)

    pdla.run(4, program)


def test_a_chain_takes_the_order_of_fewest_multiplications():
    assert chain.order([10, 100, 5, 50]) == [0, 0] and chain.order([50, 5, 100, 10]) == [1, 0]

    def program(comm):
        grid = ProcessGrid((2, 2))
        A, B, x = (pdla.zeros(shape, grid, BLOCKS) for shape in ((40, 40), (40, 40), (40, 2)))
        with pdla.record() as ledger:
            pdla.multi_dot([A, B, x])
        return ledger.flops

    assert sum(pdla.run(4, program)) == 2 * 2 * 40 * 40 * 2


def test_a_chain_of_addends_that_are_not_to_be_cast():
    def program(comm):
        grid = ProcessGrid((1, 2))
        A = pdla.from_local(np.full((2, 2), 200, np.uint8), (2, 2), grid, Layout("row", partial="col"))
        B = pdla.ones((2, 2), grid, BLOCKS)
        assert np.array_equal(pdla.einsum("ij,kj->ik", A, B).gather(), A.gather() @ np.ones((2, 2)))

    pdla.run(2, program)


def test_a_chain_is_multiplied_in_the_dtype_of_all():
    def program(comm):
        grid = ProcessGrid((2, 2))
        X, F = np.full((2, 2), 100, np.int8), np.ones((2, 50))
        A, B = (pdla.from_global(x, grid, BLOCKS) for x in (X, F))
        expected = np.einsum("ij,jk,kl->il", X, X, F)
        assert np.array_equal(pdla.einsum("ij,jk,kl->il", A, A, B).gather(), expected)
        assert np.array_equal(pdla.multi_dot([A, A, B]).gather(), expected)

    pdla.run(4, program)


@pytest.mark.parametrize("dtypes", list(itertools.permutations((float, np.int64, ml_dtypes.bfloat16))))
def test_which_dtypes_a_chain_takes_does_not_depend_on_their_order(dtypes):
    def program(comm):
        made = [pdla.ones((2, 2), ProcessGrid((1, 2)), BLOCKS, dtype=dtype) for dtype in dtypes]
        for C in (pdla.multi_dot(made), pdla.einsum("ij,jk,kl->il", *made)):
            assert C.dtype == float and (C.gather() == 4).all()

    pdla.run(2, program)


# ---------------------------------------------------------------------------------------------- dtypes, and what is not read


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_addends_of_16_bits_are_summed_in_32(kind):
    """300 * 300 is more than float16 has."""
    x, y = np.array([[300, 300, -300, -300]], kind), np.full(4, 300, kind)
    z = np.vstack([np.repeat([16, -16], 1000), np.full(2000, 16)]).astype(kind)

    def program(comm):
        grid = ProcessGrid((1, 2))
        A, B = (pdla.from_global(whole, grid, Layout(None, "col")) for whole in (x, z))
        v = pdla.from_global(y.reshape(4, 1), grid, Layout("col"))
        for made in (pdla.matvec(A, y), pdla.matvec(A, v).gather()):
            assert made.dtype == kind and not made.any()
        with np.errstate(over="ignore"):  # its diagonal
            C = pdla.syrk(B)
        assert C.dtype == kind and C.gather()[1, 0] == 0

    pdla.run(2, program)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_copies_are_rounded_alike_where_16_bits_are_added_to(kind, monkeypatch):
    """Also the copy on the rank that made the addend, which has more of its bits."""

    def program(comm):
        grid = ProcessGrid((2, 2))
        A = pdla.random((9, 30), grid, BLOCKS, dtype=kind, distribution="normal")
        for wanted in (Layout(), Layout("row"), Layout(cols="col")):
            C = pdla.random((9, 9), grid, wanted, dtype=kind, seed=1, distribution="normal")
            assert pdla.syrk(A, beta=1, out=C).check_copies(), wanted

    for cover in covers(4):
        monkeypatch.setattr(rank_k_plan, "choose", lambda *_, cover=cover: cover)
        pdla.run(4, program)


def test_addends_of_integers_times_a_vector_of_floats():
    def program(comm):
        A = pdla.from_local(np.full((2, 2), 200, np.uint8), (2, 2), ProcessGrid((1, 2)), Layout("row", partial="col"))
        assert np.array_equal(pdla.matvec(A, np.ones(2)), A.gather() @ np.ones(2))

    pdla.run(2, program)


def test_addends_that_are_summed_first_leave_the_default_layout_as_it_is():
    def program(comm):
        grid = ProcessGrid((1, 2))
        A = pdla.from_local(np.full((2, 2), 200, np.uint8), (2, 2), grid, Layout("row", partial="col"))
        assert pdla.matvec(A, pdla.ones((2, 1), grid, Layout())).layout == Layout("row")
        assert pdla.einsum("ij,jk->ik", A, pdla.ones((2, 2), grid, Layout())).layout == Layout("row")

    pdla.run(2, program)


def test_imaginary_parts_of_a_hermitian_diagonal_are_not_read():
    spoilt = np.array([[complex(2, np.nan), 0], [1 + 1j, complex(1e308, np.inf)]])
    whole = np.array([[2, 1 - 1j], [1 + 1j, 1e308]])

    def program(comm):
        grid = ProcessGrid((2, 2))
        A, one = pdla.from_global(spoilt, grid, BLOCKS), pdla.eye(2, grid, BLOCKS, dtype=complex)
        assert np.array_equal(pdla.hemm(A, one).gather(), whole)
        pdla.herk(one * 0, beta=1, out=A)
        assert np.array_equal(np.tril(A.gather()), np.tril(whole))

    pdla.run(4, program)


def test_symm_of_addends_lies_as_the_product_does():
    def program(comm):
        A, B = (exact((4, 4), ProcessGrid((2, 2)), layout) for layout in (Layout("row", None, "col"), BLOCKS))
        return pdla.symm(A, B).layout == (A @ B).layout and pdla.symm(A, B, side="right").layout == (B @ A).layout

    assert pdla.run(4, program) == [True] * 4


# ---------------------------------------------------------------------------------------------- errors


def test_errors_are_the_same_on_every_rank():
    def program(comm):
        grid, other = ProcessGrid((2, 2)), ProcessGrid((4, 1))
        A, W = exact((4, 6), grid, BLOCKS), exact((4, 6), other, BLOCKS)
        Z, S = exact((4, 6), grid, BLOCKS, complex), exact((4, 4), grid, BLOCKS)
        batch = pdla.stack(np.ones((3, 4, 4)), grid, Layout("row"), "col")
        other_batch = pdla.stack(np.ones((3, 4, 2), np.float32), grid, Layout("row"), "col")
        odd, v = np.ones(6) * (1 + (comm.rank == 3)), exact((6, 1), grid, BLOCKS)
        half, brain = S.astype("float16"), S.astype("bfloat16")
        cases = [
            (errors.ShapeError, r"A is an ndarray", lambda: pdla.syrk(np.ones((2, 2)))),
            (errors.ShapeError, r"out is \(4, 4\) float64, the result \(4, 4\) complex", lambda: pdla.herk(Z, out=S)),
            (errors.ShapeError, "must be real", lambda: pdla.herk(Z, alpha=1j)),
            (errors.ShapeError, "must be real", lambda: pdla.herk(Z, alpha=np.complex64(1j))),
            (errors.ShapeError, "alpha=1j is complex", lambda: pdla.syrk(A, alpha=1j)),
            (errors.ShapeError, "beta=2 without out", lambda: pdla.syrk(A, beta=2)),
            (errors.ShapeError, "shares memory", lambda: pdla.syrk(S, out=S)),
            (errors.ShapeError, "out shares memory with A", lambda: pdla.symm(S, S.copy(), out=S)),
            (errors.LayoutError, "'native'", lambda: pdla.syrk(A, layout="native")),
            (errors.LayoutError, "'depth'", lambda: pdla.syrk(A, layout=Layout("depth"))),
            (errors.LayoutError, "cannot be left as partial sums", lambda: pdla.herk(A, layout=Layout("row", partial="col"))),
            (errors.LayoutError, "cannot be left as partial sums", lambda: pdla.matvec(A, v, layout=Layout("row", partial="col"))),
            (errors.GridError, "redistribute out to A's grid", lambda: pdla.syrk(A, out=exact((4, 4), other, BLOCKS))),
            (errors.AgreementError, "rank 2: syrk", lambda: pdla.syrk(A, alpha=2 if comm.rank == 2 else 1)),
            (errors.ShapeError, "A is 4 x 6, it must be square", lambda: pdla.symm(A, A)),
            (errors.ShapeError, "side='up'", lambda: pdla.hemm(S, A, side="up")),
            (errors.ShapeError, r"side=array\(", lambda: pdla.symm(S, A, side=np.arange(3))),
            (errors.GridError, "redistribute B to A's grid", lambda: pdla.symm(S, W)),
            (errors.ShapeError, "inner sizes differ", lambda: pdla.symm(S, A, side="right")),
            (errors.ShapeError, r"x has shape \(4,\): it must be \(6,\)", lambda: pdla.matvec(A, np.ones(4))),
            (errors.ShapeError, r"must be \(6, 1\)", lambda: pdla.matvec(A, A)),
            (errors.AgreementError, "rank 3: matvec", lambda: pdla.matvec(A, odd)),
            (errors.LayoutError, "y is whole on every rank", lambda: pdla.matvec(A, np.ones(6), layout=BLOCKS)),
            (errors.ShapeError, "three dimensions", lambda: pdla.stack(np.ones((2, 2)), grid, BLOCKS)),
            (errors.LayoutError, "which cuts the batch", lambda: pdla.stack(np.ones((2, 2, 2)), grid, BLOCKS, "col")),
            (errors.GridError, "no such axis", lambda: pdla.stack(np.ones((2, 2, 2)), grid, BLOCKS, "depth")),
            (errors.ShapeError, "B is a DistMatrix", lambda: pdla.batched_matmul(batch, A)),
            (errors.LayoutError, "layout='': a Layout", lambda: pdla.batched_matmul(batch, batch, layout="")),
            (errors.PlanError, "algorithm='x'", lambda: pdla.batched_matmul(batch, batch, algorithm="x")),
            (errors.GridError, "must be the same", lambda: batch @ pdla.stack(np.ones((3, 4, 4)), grid, Layout("row"))),
            (errors.ShapeError, "batches must be equal", lambda: batch @ pdla.stack(np.ones((3, 5, 4)), grid, Layout(), "col")),
            (errors.AgreementError, "digest", lambda: pdla.stack(np.full((2, 2, 2), comm.rank), grid, BLOCKS)),
            (errors.ShapeError, "stack: elements of dtype object", lambda: pdla.stack(np.ones((2, 2, 2), object), grid, BLOCKS)),
            (errors.ShapeError, "lower='upper': True or False", lambda: pdla.syrk(A, lower="upper")),
            (errors.ShapeError, "lower='upper': True or False", lambda: pdla.symm(S, A, lower="upper")),
            (errors.ShapeError, "mirror=1: True or False", lambda: pdla.herk(A, mirror=1)),
            (errors.ShapeError, r"multi_dot\(\[A, B, C\]\)", lambda: pdla.multi_dot(A)),
            (errors.ShapeError, r"rank 1: multi_dot of one", lambda: pdla.multi_dot(S if comm.rank == 1 else [S, A])),
            (errors.AgreementError, "rank 1: gather 3 x 4", lambda: (batch if comm.rank == 1 else other_batch).gather()),
            (errors.LayoutError, "layout='rows': a Layout", lambda: pdla.multi_dot([A], layout="rows")),
            (errors.PlanError, "algorithm='x': one of gather", lambda: pdla.multi_dot([A], algorithm="x")),
            (errors.PlanError, "algorithm='x': one of gather", lambda: pdla.einsum("ij->ji", A, algorithm="x")),
            (errors.ShapeError, "rank 1: A is an int", lambda: pdla.matmul(1 if comm.rank == 1 else S, A)),
            (errors.ShapeError, "rank 1: A is an int", lambda: pdla.matvec(1 if comm.rank == 1 else A, v)),
            (errors.ShapeError, "rank 1: A is an int", lambda: pdla.syrk(1 if comm.rank == 1 else A, out=S)),
            (errors.ShapeError, "rank 1: A is an int", lambda: pdla.hemm(1 if comm.rank == 1 else S, A)),
            (errors.ShapeError, "rank 1: A is an int", lambda: pdla.batched_matmul(1 if comm.rank == 1 else batch, batch)),
            (errors.ShapeError, "rank 1: B is an int", lambda: pdla.batched_matmul(batch, 1 if comm.rank == 1 else batch)),
            (ValueError, "rank 1: .*inhomogeneous", lambda: pdla.matvec(A, [[1], [1, 2]] if comm.rank == 1 else odd)),
            (errors.ShapeError, "elements of dtype object", lambda: pdla.matvec(A, odd.astype(object))),
            (errors.ShapeError, "masked elements", lambda: pdla.matvec(A, np.ma.masked_greater(np.arange(6), 3))),
            (errors.ShapeError, "masked elements", lambda: pdla.stack(np.ma.masked_all((2, 4, 4)), grid, BLOCKS)),
            (errors.GridError, "stack: grid=None", lambda: pdla.stack(np.ones((2, 2, 2)), None, BLOCKS)),
            (errors.ShapeError, "the letters come first", lambda: pdla.einsum(None, A, A)),
            (errors.ShapeError, "rank 1: matrix 1 is a NoneType", lambda: pdla.multi_dot([A, None if comm.rank == 1 else S])),
            (errors.ShapeError, "rank 1: matrix 0 is an int", lambda: pdla.einsum("ij,kj->ik", 1 if comm.rank == 1 else A, A)),
            (errors.ShapeError, "no matrices", lambda: pdla.multi_dot([])),
            (errors.ShapeError, "matrix 0 is 4 x 6, matrix 1 4 x 6", lambda: pdla.multi_dot([A, A])),
            (errors.GridError, "redistribute matrix 1", lambda: pdla.multi_dot([A, W.T])),
            (errors.ShapeError, "matrices of float16 and bfloat16: .* by astype", lambda: pdla.matmul(half, brain)),
            (errors.ShapeError, "matrices of float16 and bfloat16: .* by astype", lambda: pdla.multi_dot([half, brain])),
            (errors.ShapeError, "matrices of float16 and bfloat16: .* by astype", lambda: pdla.einsum("ij,jk->ik", half, brain)),
            (errors.ShapeError, "matrices of float16 and bfloat16: .* by astype", lambda: pdla.matvec(half, brain.gather()[0])),
        ]
        for kind, text, call in cases:
            with pytest.raises(kind, match=text):
                call()

    pdla.run(4, program)


@pytest.mark.parametrize("call", [
    lambda A, one: pdla.symm(A, A, lower=one),
    lambda A, one: pdla.hemm(A, A, side="left" if one else "right"),
    lambda A, one: pdla.syrk(A, lower=one),
    lambda A, one: pdla.herk(A, mirror=one),
    lambda A, one: pdla.syrk(A, layout=BLOCKS if one else TURNS),
    lambda A, one: pdla.matvec(A, pdla.ones((4, 1), A.grid, BLOCKS), layout=Layout("row" if one else "col")),
])
def test_calls_that_differ_between_ranks_are_refused(call):
    def program(comm):
        A = pdla.ones((4, 4), ProcessGrid((2, 2)), BLOCKS)
        with pytest.raises(errors.AgreementError):
            call(A, comm.rank == 1)

    pdla.run(4, program)


@pytest.mark.parametrize(
    "subscripts, text",
    [
        ("ij,ji", "two in the result"),
        ("ij,jk,kl->il", "names 3 matrices, 2 are given"),
        ("ijk,kl->il", "two letters an operand"),
        ("ij,jk->ij", "'j' occurs 3 times"),
        ("ij,kl->il", "'j' occurs 1 times"),
        ("ij,jk->i", "it takes a chain"),
        ("ij,ij->ij", "'i' occurs 3 times"),
        ("ij,kk->ij", "kk is not in the chain"),
        ("ii,jk->jk", "ii is not in the chain"),
    ],
)
def test_sums_that_are_no_chain_are_refused(subscripts, text):
    def program(comm):
        A = pdla.ones((4, 4), ProcessGrid((1, 2)), BLOCKS)
        with pytest.raises(errors.ShapeError, match=text) as raised:
            pdla.einsum(subscripts, A, A)
        return str(raised.value)

    assert len(set(pdla.run(2, program))) == 1


def test_a_sum_without_a_result_is_of_the_letters_that_occur_once_as_in_numpy():
    a, b = np.arange(12.0).reshape(3, 4), np.arange(8.0).reshape(4, 2)

    def program(comm):
        A, B = (pdla.from_global(x, ProcessGrid((1, 2)), BLOCKS) for x in (a, b))
        return [pdla.einsum(word, *some).gather() for word, *some in (("ij,jk", A, B), ("ba", A), ("cb,ba", A, B), ("ji,kj", B, A))]

    want = [np.einsum(word, *some) for word, *some in (("ij,jk", a, b), ("ba", a), ("cb,ba", a, b), ("ji,kj", b, a))]
    assert all(np.array_equal(*pair) for pair in zip(pdla.run(2, program)[1], want, strict=True))
