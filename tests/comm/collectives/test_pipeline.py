"""Sums that go from node to node: the same bits as anywhere, each piece over a node's link once."""

from math import inf

import numpy as np
import pytest

import pdla
from pdla import record, run
from pdla.comm.collectives import pipeline, ring
from pdla.comm.collectives.ring import Nodes
from pdla.model.machine import Machine

HOMES = {
    "two by two": [0, 0, 2, 2],
    "three by two": [4, 4, 1, 1, 0, 0],
    "two by three": [0, 0, 0, 3, 3, 3],
    "four by four": np.repeat([0, 4, 8, 12], 4).tolist(),
}
every_place = pytest.mark.parametrize("homes", HOMES.values(), ids=HOMES)
SHAPES = [(5, 7), (0, 3), (1, 40), (37, 2), (2, 0), (40, 1)]  # of the pieces of ranks, in turns


@pytest.fixture
def always(monkeypatch):
    """However short they are, and in chunks of a few rows."""
    monkeypatch.setattr(ring, "LONG", 0)
    monkeypatch.setattr(pipeline, "STEP", -inf)
    monkeypatch.setattr(pipeline, "CHUNK", 64)


def summing(comm, homes, op="add", turned=False, dtype="float64"):
    """This rank's piece of the sum of random addends, and the event."""
    comm.homes = homes
    real, shapes = comm.xp.name == "numpy", [SHAPES[r % len(SHAPES)] for r in range(comm.size)]
    rng = np.random.default_rng(comm.rank)
    parts = [rng.standard_normal(shape).astype(dtype) if real else comm.xp.empty(shape, dtype) for shape in shapes]
    kept = [part.copy() for part in parts] if real else []
    shape = shapes[comm.rank]
    out = comm.xp.empty(shape[::-1], dtype).T if turned else comm.xp.empty(shape, dtype)
    with record() as ledger:
        comm.reduce_scatter(parts, out, op=op).wait()
    assert all(np.array_equal(part, before) for part, before in zip(parts, kept, strict=bool(real)))
    (event,) = ledger.events
    return (out.tolist() if real else None), (event.bytes, event.messages, event.far, event.way), ledger.peak_workspace


@every_place
@pytest.mark.parametrize("op", ["add", "maximum"])
@pytest.mark.parametrize("turned", [False, True], ids=["C", "transposed"])
@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_a_sum_has_the_same_bits_as_on_one_node(always, homes, op, turned, dtype):
    here, there = run(len(homes), summing, (), op, turned, dtype), run(len(homes), summing, homes, op, turned, dtype)
    assert [x for x, *_ in there] == [x for x, *_ in here]
    assert {event[-1] for _, event, _ in there} == {"pipeline"} and {event[-1] for _, event, _ in here} == {""}


@every_place
def test_each_piece_comes_to_a_node_once_and_its_own_once_more(always, homes):
    told, nodes = run(len(homes), summing, homes), Nodes(homes)
    sizes = [8 * np.prod(SHAPES[r % len(SHAPES)]) for r in range(len(homes))]
    for number, there in enumerate(nodes.ranks):
        own = sum(sizes[r] for r in there)
        last = number == len(nodes.ranks) - 1
        assert sum(told[r][1][2] for r in there) == (sum(sizes) if number else 0) + (0 if last else own)
        assert sum(told[r][1][0] - told[r][1][2] for r in there) == (len(there) - 1) * sum(sizes)
    assert [pdla.dry_run(len(homes), summing, homes, rank=r)[0][1:] for r in range(len(homes))] == [one[1:] for one in told]
    straight = [0 if r in nodes.ranks[-1] else sizes[r] for r in range(len(homes))]  # into what is asked for
    assert [peak for *_, peak in told] == [event[0] - size for (_, event, _), size in zip(told, straight, strict=True)]


@every_place
@pytest.mark.parametrize("length", [0, 1, 7, 200])
@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_all_reduces_go_the_same_way_dry_or_not(always, homes, length, dtype):
    def program(comm, homes):
        comm.homes = homes
        real = comm.xp.name == "numpy"
        x = np.random.default_rng(comm.rank).standard_normal(length).astype(dtype) if real else comm.xp.empty((length,), dtype)
        out = comm.xp.empty((length,), dtype)
        with record() as ledger:
            for half in comm.halves(x, out):
                half.wait()
        return (out.tolist() if real else None), [(e.bytes, e.messages, e.far, e.way) for e in ledger.events], ledger.peak_workspace

    here, there = run(len(homes), program, ()), run(len(homes), program, homes)
    assert [x for x, *_ in there] == [x for x, *_ in here]
    assert there[0][1][0][-1] == "pipeline"
    dry = [pdla.dry_run(len(homes), program, homes, rank=r)[0] for r in range(len(homes))]
    assert [(sums[0], peak) for _, sums, peak in dry] == [(sums[0], peak) for _, sums, peak in there]


@pytest.mark.parametrize("homes", [[0, 1, 0, 1], [0, 0, 0, 1], [0, 1, 2, 3], [0, 0, 0, 0]], ids=str)
def test_nodes_that_do_not_follow_each_other_are_sent_to_directly(always, homes):
    told = run(4, summing, homes)
    assert {event[-1] for _, event, _ in told} == {""} and [x for x, *_ in told] == [x for x, *_ in run(4, summing, ())]


def test_it_is_for_long_sums_on_nodes_of_several_ranks():
    assert not pipeline.pays(2**30, 2, 2) and not pipeline.pays(2**30, 64, 1) and not pipeline.pays(2**16, 4, 4)
    assert pipeline.pays(2**21, 4, 4) and pipeline.pays(2**21, 16, 4) and pipeline.pays(2**30, 64, 16)
    even = 3 * pipeline.STEP  # n bytes: 12 n directly; or 5 n in turn, and 12 steps, each of 4 pieces, which are n / 16, and STEP
    assert pipeline.pays(even + 16, 4, 4) and not pipeline.pays(even, 4, 4)
    assert pipeline.pays(2**30, 4, 4, growth=2) and pipeline.pays(2**30, 4, 2) and not pipeline.pays(2**30, 4, 2, growth=2)


@pytest.mark.parametrize(
    ("nbytes", "chunks"), [(0, 0), (1, 1), (2**16, 1), (2**16 + 99, 2), (2**17, 2), (2**18, 4), (2**18 + 1, 4), (2**22, 4)]
)
def test_a_long_piece_goes_in_four_chunks_and_a_shorter_one_in_fewer(nbytes, chunks):
    rows = pipeline.cut(1000, nbytes)
    assert len(rows) == chunks and [row for chunk in rows for row in range(1000)[chunk]] == [*range(1000)] * bool(nbytes)


def test_several_sums_may_be_under_way():
    """Of two communicators, waited for after both have begun."""

    def program(comm):
        comm.homes = homes
        x = [np.random.default_rng([comm.rank, i]).standard_normal(3 * 2**17) for i in range(2)]
        outs = [np.empty(3 * 2**13) for _ in x]
        with record() as ledger:
            begun = [comm.reduce_scatter(np.split(one, 16), out) for one, out in zip(x, outs, strict=True)]
            for one in begun:
                one.wait()
        return [out.tolist() for out in outs], {event.way for event in ledger.events}

    homes = HOMES["four by four"]
    told = run(16, program)
    whole = [[np.random.default_rng([r, i]).standard_normal(3 * 2**17) for r in range(16)] for i in range(2)]
    sums = [np.split(np.add.reduce(one), 16) for one in whole]
    for rank, (outs, ways) in enumerate(told):
        assert ways == {"pipeline"}
        np.testing.assert_allclose(outs, [one[rank] for one in sums], rtol=1e-12, atol=1e-12)


@every_place
def test_a_dry_run_tells_the_memory_of_several(always, homes):
    def program(comm):
        comm.homes = homes
        pieces = [(comm.xp.empty((size, 5), "float32"), size) for size in (40, 3)]
        with record() as ledger:
            begun = [comm.reduce_scatter([x] * comm.size, comm.xp.empty((size, 5), "float32")) for x, size in pieces]
            for one in begun:
                one.wait()
        assert ledger.workspace == 0
        return ledger.peak_workspace

    assert [pdla.dry_run(len(homes), program, rank=r)[0] for r in range(len(homes))] == run(len(homes), program)


@pytest.mark.parametrize(("ranks", "nodes"), [(4, 4), (8, 2)])
def test_its_time_on_a_described_machine(ranks, nodes):
    """A link that a node's ranks share carries what `pays` counts, at least; directly, each of its ranks' addends."""
    rate = 1e6 * ranks
    machine = Machine(
        flops=1e9, call=0.0, gap=0.0, memory=1e300, bandwidth=1e12, latency=0.0, network=rate, far_latency=0.0, node=ranks,
        injection=rate,
    )
    size = 2**18 * nodes * ranks

    def program(comm):
        x = comm.xp.empty((size // 8,), "float64")
        parts = [x[: x.size // comm.size]] * comm.size
        comm.reduce_scatter(parts, comm.xp.empty(parts[0].shape, "float64")).wait()

    every = pdla.dry_run_all(ranks * nodes, program, machine=machine)
    chunk = 2**16
    expected = (size + (nodes - 2) * chunk * ranks) / rate
    assert expected <= every.seconds <= 1.3 * expected + size / nodes / rate
    direct = ranks * (nodes - 1) * size / nodes / rate
    assert every.seconds < direct
