"""Blocks that go from where they lie to where they are wanted: of copies the nearest gives, and few ranks are looked at."""

import numpy as np
import pytest
from helpers.level3 import BLOCKS
from helpers.matmuls import exact

import pdla
from pdla import Cyclic, Layout, ProcessGrid
from pdla.linalg.products import block_exchange
from pdla.linalg.products.symmetrize import symmetrize


def test_of_many_ranks_few_are_looked_at(monkeypatch):
    """1024 ranks: of those that a rank gives to and takes from, no more than twice as many, and itself."""
    looked, met = [], block_exchange._intersect
    monkeypatch.setattr(block_exchange, "_intersect", lambda *given: looked.append(met(*given)) or looked[-1])

    def program(comm):
        A = pdla.zeros((2048, 1024), ProcessGrid((32, 32), comm=comm), BLOCKS)
        pdla.syrk(A, mirror=True, layout=BLOCKS)

    for rank in (0, 500, 1023):
        looked.clear()
        pdla.dry_run(1024, program, rank=rank)
        assert len(looked) <= 2 * sum(map(bool, looked)) + 3 < 1024


def test_of_copies_the_nearest_to_the_taker_alone_gives():
    """So each word comes once, and not all ranks ask the first one for it."""

    def program(comm):
        sources = block_exchange.find_sources(Layout("row"), (6, 4), ProcessGrid((2, 3)))
        return [[sender for sender in range(6) if sources.list_blocks(sender, receiver)] for receiver in range(6)]

    assert pdla.run(6, program)[0] == [[0, 3], [1, 3], [2, 3], [2, 3], [2, 4], [2, 5]]


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_much_is_read_in_rounds_with_the_same_figures_but_less_memory(dtype, monkeypatch):
    def program(comm, at_once):
        monkeypatch.setattr(block_exchange, "ROUND", at_once)
        comm.shared_limit = 2**30
        C = exact((50, 50), ProcessGrid((2, 3), comm=comm), Layout(Cyclic("row", 4), Cyclic("col", 3)), dtype)
        before = C.gather()
        with pdla.record() as ledger:
            symmetrize(C, True)
        lower = np.tril(before, -1)
        assert np.array_equal(C.gather(), np.tril(before) + lower.conj().T)
        return {event.what for event in ledger.events}, ledger.bytes_received, ledger.messages, ledger.peak_workspace

    one, many = (pdla.run(6, program, at_once) for at_once in (2**20, 2**9))
    assert [rank[:3] for rank in one] == [rank[:3] for rank in many] and {*one[0][0]} == {"read"}
    assert all(few[3] < much[3] / 3 for few, much in zip(many, one, strict=True))


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
        sources, targets = block_exchange.find_sources(given, (12, 9), grid), block_exchange.find_targets(wanted, (12, 9), grid)
        way = block_exchange.BlockExchange.of(comm, sources, targets)
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


def test_dry_runs_on_a_node_that_shares_memory_foretell_what_is_received():
    """One rank alone does not know where the others put what they give."""

    def program(comm):
        comm.shared_limit = 2**30
        C = pdla.ones((50, 50), ProcessGrid((2, 3), comm=comm), Layout(Cyclic("row", 4), Cyclic("col", 3)))
        with pdla.record() as ledger:
            symmetrize(C, True)
        return ledger.bytes_received, ledger.messages, ledger.peak_workspace

    *ran, peaks = zip(*pdla.run(6, program), strict=True)
    *dry, most = zip(*(pdla.dry_run(6, program, rank=rank)[0] for rank in range(6)), strict=True)
    assert ran == dry and max(peaks) <= max(most)
