"""The world of threads: what its verbs bring and count, and how it ends when a program is wrong."""

import itertools
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from unittest.mock import patch

import ml_dtypes
import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import pdla
from pdla import Layout, ProcessGrid, config, matmul, random, record, run
from pdla.array import blas
from pdla.comm.collectives import broadcast
from pdla.comm.pending import done
from pdla.errors import AgreementError, DeadlockError, GridError, PdlaError, RemoteError, ShapeError


def numbers(rank, shape, dtype="float64"):
    """Small integers that tell ranks and places apart."""
    return ((np.arange(np.prod(shape)).reshape(shape) * 7 + rank * 3) % 11).astype(dtype)


# ---------------------------------------------------------------------------------------------- verbs


@pytest.mark.parametrize("way", ["flat", "chain"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_every_verb(size, way):
    def program(comm):
        me = comm.rank
        for root in range(size):
            np.testing.assert_array_equal(comm.bcast(numbers(me, (3, 2)), root).wait(), numbers(root, (3, 2)))
            total = comm.reduce(numbers(me, (2, 2)), root).wait()
            assert (total is None) == (me != root)
            if me == root:
                np.testing.assert_array_equal(total, sum(numbers(r, (2, 2)) for r in range(size)))
        x = numbers(me, (5, 3))
        assert comm.allreduce(x).wait() is x
        np.testing.assert_array_equal(x, sum(numbers(r, (5, 3)) for r in range(size)))
        outs = comm.allgather(numbers(me, (me % 3, 4)), [np.empty((r % 3, 4)) for r in range(size)]).wait()
        for r, out in enumerate(outs):
            np.testing.assert_array_equal(out, numbers(r, (r % 3, 4)))
        part = comm.reduce_scatter([numbers(me + r, (r % 2, 3)) for r in range(size)], np.empty((me % 2, 3))).wait()
        np.testing.assert_array_equal(part, sum(numbers(me + r, (me % 2, 3)) for r in range(size)))
        for step in (1, -1, 2, size):
            out = comm.shift(numbers(me, (2, 3)), np.empty((2, 3)), step).wait()
            np.testing.assert_array_equal(out, numbers((me - step) % size, (2, 3)))
        comm.barrier()

    with config.override(bcast=way), patch.object(broadcast, "CHUNK", 40):
        run(size, program)


@pytest.mark.parametrize("way", ["flat", "chain"])
def test_a_number_alone_is_broadcast(way):
    with config.override(bcast=way):
        assert run(4, lambda comm: comm.bcast(np.array(comm.rank + 0.5), 2).wait().tolist()) == [2.5] * 4


def test_a_verb_whose_arrivals_are_left_early_ends_where_it_is_waited_for():
    def program(comm):
        outs = [np.full(2, -1) for _ in range(comm.size)]
        with record() as ledger:
            pending = comm.allgather(np.full(2, comm.rank), outs)
            for _ in pending:
                break
            assert not ledger.events
            came = pending.wait()
        assert [(event.what, event.messages) for event in ledger.events] == [("allgather", 4)]
        return [out.tolist() for out in came]

    assert run(5, program) == [[[r, r] for r in range(5)]] * 5


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_16_bits_are_added_up_in_32_and_rounded_once(size, dtype):
    dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)

    def program(comm):
        parts = [(np.arange(1, 9, dtype=np.float32) / (3 + r) / (1 + 40 * comm.rank)).astype(dtype) for r in range(size)]
        addends = [np.stack(one).astype(np.float32) for one in zip(*comm.share(parts), strict=True)]  # each rank's, by rank
        total = addends[comm.rank][0].copy()
        for one in addends[comm.rank][1:]:
            total += one
        assert np.array_equal(comm.reduce_scatter(parts, np.empty(8, np.float32)).wait(), total)
        assert np.array_equal(comm.reduce_scatter(parts, np.empty(8, dtype)).wait(), total.astype(dtype))
        first = comm.reduce(parts[0].copy(), size - 1).wait()
        whole = comm.allreduce(parts[0].copy()).wait()
        largest = parts[0].copy()
        for half in comm.halves(largest, largest, "maximum"):
            half.wait()
        assert whole.dtype == largest.dtype == dtype and np.array_equal(largest, addends[0].max(axis=0).astype(dtype))
        return whole.tolist(), first if first is None else first.tolist(), total.astype(dtype).tolist()

    told = run(size, program)
    assert all(whole == told[0][2] for whole, _, _ in told) and told[-1][1] == told[0][2]


@pytest.mark.parametrize(("way", "messages"), [("mpi", 1), ("flat", 1), ("chain", 6)])
def test_ways_to_broadcast_bring_the_same_in_messages_of_their_own(way, messages):
    def program(comm):
        x = numbers(comm.rank, (6, 8))[:, ::2]
        with record() as ledger:
            sources = list(comm.bcast(x, 1))
        np.testing.assert_array_equal(x, numbers(1, (6, 8))[:, ::2])
        assert comm.rank == 1 or sources[0] == ((comm.rank - 1) % 5 if way == "chain" else 1)  # first what others wait for
        (event,) = ledger.events
        return event.bytes, event.messages, event.way

    with config.override(bcast=way), patch.object(broadcast, "CHUNK", 40):
        done = run(5, program)
        dry = [pdla.dry_run(5, lambda comm: comm.bcast(comm.xp.empty((6, 4), "float64"), 1).wait(), rank=r)[1] for r in range(5)]
    assert [size for size, _, _ in done] == [192, 0, 192, 192, 192]
    assert [count for _, count, _ in done] == [messages, 0, messages, messages, messages]
    assert {name for _, _, name in done} == {"flat" if way == "mpi" else way}
    assert [(ledger.bytes_received, ledger.messages) for ledger in dry] == [d[:2] for d in done]


def test_the_way_is_chosen_by_size_ranks_and_nodes_the_same_in_every_world():
    def program(comm):
        comm.homes = [0, 0, 2, 2]  # two nodes
        with record() as ledger:
            for rows in (1, 1000):
                comm.bcast(comm.xp.empty((rows, 100), "float64"), 0).wait()
        return [(event.way, event.bytes, event.messages) for event in ledger.events]

    assert run(4, program)[3] == [("flat", 800, 1), ("chain", 800_000, 13)]
    assert pdla.dry_run(4, program, rank=3)[0] == run(4, program)[3]
    chosen = [broadcast.best(1 << 20, ranks, nodes) for ranks, nodes in ((4, 0), (4, 1), (2, 2), (3, 2))]
    assert chosen == ["mpi", "mpi", "flat", "chain"]
    assert [broadcast.best(broadcast.LONG - 1, 4, 2), broadcast.best(broadcast.LONG, 4, 2)] == ["mpi", "chain"]


@pytest.mark.parametrize(
    ("rows", "length", "ranks", "chunk", "chunks"),
    [(1024, 2**10, 4, None, 16), (64, 2**16, 4, None, 32), (128, 2**16, 8, None, 64), (6, 80, 4, 160, 3), (6, 80, 4, 40, 6)],
)
def test_a_chain_has_eight_chunks_a_rank_of_64_kib_or_more_and_of_a_row_at_least(rows, length, ranks, chunk, chunks, monkeypatch):
    monkeypatch.setattr(broadcast, "CHUNK", chunk or broadcast.CHUNK)
    x = np.empty((rows, length), "uint8")
    first, *_, last = (broadcast.messages("chain", x, rank, ranks, 1) for rank in (1, 2, 0))
    pieces = [(rows // chunks, length)] * chunks
    assert [piece.shape for _, piece in first.sends] == [piece.shape for _, piece in last.recvs] == pieces


@pytest.mark.parametrize("way", ["flat", "chain"])
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,)], ids=str)
def test_of_nothing_no_message_is_sent(way, shape):
    assert all(broadcast.messages(way, np.empty(shape), rank, 3, 0) == ((), (), {}) for rank in range(3))


@pytest.mark.parametrize(
    ("way", "from_far"), [("mpi", (0, 0, 160, 160)), ("chain", (160, 0, 160, 0))]
)
def test_the_ledger_tells_bytes_from_ranks_on_other_nodes(way, from_far):
    """Nodes of ranks 0 and 1, 2 and 3. A broadcast of 160 bytes from rank 1, in a chain by way of 2, 3 and 0; other verbs."""

    def program(comm):
        comm.homes = [0, 0, 2, 2]
        empty, far = comm.xp.empty, []
        x = empty((4, 5), "float64")

        def count(verb):
            with record() as ledger:
                verb().wait()
            far.append(ledger.bytes_from_far)
            assert far[-1] <= ledger.bytes_received

        count(lambda: comm.bcast(x, 1))
        count(lambda: comm.allgather(x, [empty((4, 5), "float64") for _ in range(4)]))
        count(lambda: comm.reduce(x, 3))
        count(lambda: comm.shift(x, empty((4, 5), "float64"), 1))
        count(lambda: comm.send(x, 3) if comm.rank == 0 else comm.recv(x, 0) if comm.rank == 3 else done(None))
        count(lambda: comm.alltoall({comm.rank ^ 1: x}, {comm.rank ^ 1: empty((4, 5), "float64")}))
        return far

    with config.override(bcast=way), patch.object(broadcast, "CHUNK", 40):
        by_rank = run(4, program)
        assert [pdla.dry_run(4, program, rank=r)[0] for r in range(4)] == by_rank
    bcast, *others = zip(*by_rank, strict=True)
    assert bcast == from_far
    assert others == [(320,) * 4, (0, 0, 0, 320), (160, 0, 160, 0), (0, 0, 0, 160), (0, 0, 0, 0)]


def test_totals_tell_bytes_from_other_nodes_and_one_node_has_none():
    def program(comm, homes):
        comm.homes = homes
        with record() as ledger:
            comm.shift(np.zeros(comm.rank + 1), np.zeros((comm.rank - 1) % 3 + 1)).wait()
        total = ledger.total(comm)
        return total["bytes_received"], total["bytes_from_far"], total["max_bytes_from_far"]

    assert run(3, program, [0, 1, 1])[0] == (48, 32, 24)  # 0 receives 3 words from 2, 1 one from 0, 2 two from 1
    assert run(3, program, [5, 5, 5])[0] == run(3, program, ())[0] == (48, 0, 0)


def test_a_way_that_is_none_is_refused():
    assert config.read({"PDLA_BCAST": "chain"}).bcast == "chain"
    with pytest.raises(ValueError, match="PDLA_BCAST='tree' is none of auto, mpi, flat, chain"):
        config.read({"PDLA_BCAST": "tree"})


def test_alltoall_between_some_ranks_into_strided_views():
    def program(comm):
        outs = {r: np.zeros((4, 6))[::2, ::3].T for r in range(4) if (r + 2 * comm.rank) % 3}
        sends = {t: numbers(10 * comm.rank + t, (2, 2)).T for t in range(4) if (comm.rank + 2 * t) % 3}
        comm.alltoall(sends, outs).wait()
        for r, out in outs.items():
            np.testing.assert_array_equal(out, numbers(10 * r + comm.rank, (2, 2)).T)

    run(4, program)


def test_send_and_recv_match_by_tag():
    def program(comm):
        ahead, back = (comm.rank + 1) % 3, (comm.rank - 1) % 3
        sent = [comm.send(numbers(comm.rank + tag, (2, 2)), ahead, tag) for tag in (0, 7)]
        for tag in (7, 0):
            np.testing.assert_array_equal(comm.recv(np.empty((2, 2)), back, tag).wait(), numbers(back + tag, (2, 2)))
        for pending in sent:
            pending.wait()

    run(3, program)


@pytest.mark.parametrize("tag", [-1, 2**14])
def test_tags_are_kept_apart_from_those_of_verbs(tag):
    def program(comm):
        for verb in (comm.send, comm.recv):
            with pytest.raises(PdlaError, match=f"tag={tag}: give one from 0 to 16383"):
                verb(np.zeros(3), 0, tag)

    run(1, program)


@pytest.mark.parametrize(
    ("verb", "told"),
    [
        (lambda comm, x: comm.bcast(x, 3), "bcast on 'all': root=3: the communicator has ranks 0 to 2"),
        (lambda comm, x: comm.reduce(x, -1), "reduce on 'all': root=-1: the communicator has ranks 0 to 2"),
        (lambda comm, x: comm.send(x, comm.rank - 3), "send on 'all': to=-[1-3]: the communicator has"),
        (lambda comm, x: comm.recv(x, comm.rank + 3), "recv on 'all': source=[3-5]: the communicator has"),
        (lambda comm, x: comm.allgather(x, [x, x]), "allgather on 'all': 2 arrays: give one for each of 3 ranks"),
        (lambda comm, x: comm.reduce_scatter([x] * 4, x), "reduce_scatter on 'all': 4 arrays: give one for each of 3 ranks"),
    ],
)
def test_ranks_that_are_none_and_arrays_that_are_too_few(verb, told):
    def program(comm):
        with pytest.raises((GridError, ShapeError), match=told):
            verb(comm, np.zeros(2))

    run(3, program)


@pytest.mark.parametrize("given", [2.5, np.float64(2.5), [2.5]])
@pytest.mark.parametrize("verb", ["allreduce", "bcast", "reduce", "send", "recv", "shift"])
def test_a_verb_refuses_what_is_no_array(verb, given):
    """np.float64, which NumPy's sums give, has what a verb asks for, but cannot be written to: each rank would keep its own."""
    others = {"bcast": [0], "reduce": [0], "send": [0], "recv": [0], "shift": [np.zeros(1)]}

    def program(comm):
        with pytest.raises(ShapeError, match=rf"{verb} on 'all': .*2\.5.* is a (float|float64|list): give an array"):
            getattr(comm, verb)(given, *others.get(verb, []))

    run(2, program)


def test_a_sender_may_change_what_it_has_waited_for():
    def program(comm):
        x = np.zeros(3)
        if comm.rank == 0:
            comm.send(x, 1).wait()
            x[...] = 1
        else:
            time.sleep(0.02)  # meanwhile the sender waits
            assert not comm.recv(x, 0).wait().any()

    run(2, program)


def test_a_group_knows_of_its_ranks_what_the_whole_does():
    def program(comm):
        comm.homes, comm.shared_limit = [0, 0, 5, 5], 2**20
        group = comm.split([3, 1] if comm.rank % 2 else None, "odd")
        return group and (group.rank, group.homes, group.shared_limit, group.xp is comm.xp)

    assert run(4, program) == [None, (1, [5, 0], 2**20, True), None, (0, [5, 0], 2**20, True)]
    assert pdla.dry_run(4, program, rank=3)[0] == (0, [5, 0], 2**20, True)


def test_verbs_under_way_together_are_told_apart():
    def program(comm):
        group = comm.split([r for r in range(4) if r % 2 == comm.rank % 2], "half")
        panels = [numbers(comm.rank + i, (i + 1, 3)) for i in range(5)]
        pending = [(comm if i % 2 else group).bcast(panel, 1) for i, panel in enumerate(panels)]
        for i in reversed(range(5)):
            root = 1 if i % 2 else 2 + comm.rank % 2
            np.testing.assert_array_equal(pending[i].wait(), numbers(root + i, (i + 1, 3)))

    run(4, program)


@pytest.mark.parametrize(("size", "program", "match"), [("4", print, "'4'"), (print, 4, "number of ranks first"), (4, 3, "4, 3")])
def test_what_is_no_number_of_ranks_or_no_program_is_told(size, program, match):
    for starter in (run, pdla.dry_run, partial(pdla.dry_run_all, machine="laptop")):
        with pytest.raises(PdlaError, match=match):
            starter(size, program)


def test_results_come_by_rank_and_arguments_go_to_all():
    assert run(3, lambda comm, a, b: (comm.rank, comm.size, a + b), 1, 2) == [(r, 3, 3) for r in range(3)]
    with pytest.raises(PdlaError, match="at least one rank, not 0"):
        run(0, lambda comm: None)
    with pytest.raises(PdlaError, match=r"1000000 ranks: at most 10000, .* pdla\.dry_run"):
        run(10**6, lambda comm: None)


STARTERS = {"run": run, "dry_run": pdla.dry_run, "dry_run_all": partial(pdla.dry_run_all, machine="a100x4")}


def results(starter, *given, **named):
    """By rank, or of the one that is run dry."""
    found = STARTERS[starter](*given, **named)
    return found.results if starter == "dry_run_all" else found if starter == "run" else [found[0]]


@pytest.mark.parametrize("starter", STARTERS)
def test_arguments_by_keyword_go_to_the_program(starter):
    def program(comm, n, *rest, layout, seed=0, **others):
        return n, rest, layout, seed, others

    assert set(map(repr, results(starter, 3, program, 8, 9, layout="row", kind=3))) == {"(8, (9,), 'row', 0, {'kind': 3})"}
    with pytest.raises(TypeError, match="unexpected keyword argument 'sed'"):
        STARTERS[starter](2, lambda comm, seed=0: seed, sed=3)


@pytest.mark.parametrize("starter", STARTERS)
def test_a_keyword_of_the_run_that_may_be_meant_for_the_program_is_refused(starter):
    """Where the program has it from elsewhere it is the run's."""

    def needs(comm, delay, rank, machine):
        return delay, rank, machine

    def may(comm, *, delay=None, rank=None, machine=None):
        return delay, rank, machine

    own = {"run": {"delay": 0.001}, "dry_run": {"rank": 1}, "dry_run_all": {"machine": "a100x4"}}[starter]
    (name,) = own
    told = pytest.raises(PdlaError, match=rf"{name}= is pdla\.{starter}'s own, and an argument of .* or by functools\.partial\(pr")
    for program, given in ((needs, {}), (needs, own), (may, own)):
        with told:
            STARTERS[starter](2, program, **given)
    for program, by_place in ((needs, (1, 2, 3)), (partial(may, delay=1, rank=2, machine=3), ())):
        assert set(results(starter, 2, program, *by_place, **own)) == {(1, 2, 3)}
    assert starter == "dry_run_all" or results(starter, 2, may) == [(None, None, None)] * (2 if starter == "run" else 1)
    assert not any(results(starter, 2, lambda comm, **others: others, **own))


COLLECTIVE = {
    "@": lambda A: A @ A,
    "gather": lambda A: A.gather(),
    "norm": lambda A: A.norm(),
    "redistribute": lambda A: A.redistribute(pdla.Layout("row")),
    "shared": lambda A: A.shared(),
    "a grid": lambda A: pdla.ProcessGrid(1, comm=A.grid.comm),
    "zeros": lambda A: pdla.zeros((3, 3), A.grid, A.layout),
    "along an axis": lambda A: A.grid["col"],
    "share": lambda A: A.grid.comm.share(1),
    "barrier": lambda A: A.grid.comm.barrier(),
    "split": lambda A: A.grid.comm.split([0], "new"),
    "allreduce": lambda A: A.grid.comm.allreduce(A.local).wait(),
    "bcast": lambda A: A.grid.comm.bcast(A.local, 0).wait(),
    "send": lambda A: A.grid.comm.send(A.local, 0).wait(),
    "recv": lambda A: A.grid.comm.recv(A.local, A.grid.comm.size - 1).wait(),
    "of a part": lambda A: A.grid["row"].barrier(),
    "a plan": lambda A: A.grid.made[0](A, A),
}


@pytest.mark.parametrize("call", COLLECTIVE)
@pytest.mark.parametrize("starter", STARTERS)
@pytest.mark.parametrize("ranks", [1, 3])
def test_what_is_collective_after_the_run_has_ended_says_so(starter, call, ranks):
    """And not of how many ranks each waits for which."""

    def program(comm):
        A = pdla.ones((3, 3), pdla.ProcessGrid((comm.size, 1), comm=comm), pdla.Layout("row", "col"))
        A.grid.made = pdla.plan_matmul(A, A), A.grid["row"]
        return A

    for A in results(starter, ranks, program):
        assert (A * 2).local.shape == A.local.shape
        with pytest.raises(GridError, match="the run that made this communicator has ended"):
            COLLECTIVE[call](A)


@pytest.mark.parametrize("starter", STARTERS)
def test_what_is_collective_after_a_run_that_failed_says_so(starter):
    kept = []

    def program(comm):
        kept.append(comm)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        STARTERS[starter](2, program)
    with pytest.raises(GridError, match="the run that made this communicator has ended"):
        kept[0].share(1)


# ---------------------------------------------------------------------------------------------- counting


def test_the_ledger_counts_what_the_world_copies():
    def program(comm):
        grid_half = comm.split([r for r in range(6) if r % 2 == comm.rank % 2], "half")
        with record() as ledger:
            comm.bcast(numbers(comm.rank, (5, 4)), 2).wait()
            grid_half.allgather(
                numbers(0, (comm.rank, 2)), [np.empty((2 * i + comm.rank % 2, 2)) for i in range(3)]
            ).wait()
            comm.allreduce(numbers(comm.rank, (7, 3), "complex64")).wait()
            grid_half.reduce(numbers(comm.rank, (3, 3), "float32"), 1).wait()
            comm.reduce_scatter([numbers(0, (r, 2)) for r in range(6)], np.empty((comm.rank, 2))).wait()
            comm.shift(numbers(0, (4, 4), "int8"), np.empty((4, 4), "int8"), 2).wait()
            comm.shift(numbers(0, (4, 4), "int8"), np.empty((4, 4), "int8"), 6).wait()  # to itself: nothing is received
            sent = comm.send(numbers(0, (2, 5)).T, (comm.rank + 1) % 6)
            comm.recv(np.empty((5, 2)), (comm.rank - 1) % 6).wait()
            sent.wait()
        comm.barrier()
        assert ledger.bytes_received == comm.world.bytes_copied[comm.rank]
        assert sum(ledger.by_axis().values()) == sum(ledger.by_verb().values()) == ledger.bytes_received
        assert set(ledger.by_axis()) == {"all", "half"}
        total = ledger.total(comm)
        assert total["bytes_received"] == sum(comm.world.bytes_copied)
        assert total["max_bytes_received"] == max(comm.world.bytes_copied)
        return ledger

    ledgers = run(6, program)
    assert ledgers[0].by_verb()["bcast"] == 5 * 4 * 8 and "bcast" not in ledgers[2].by_verb()
    assert ledgers[1].by_verb()["shift"] == 16
    assert ledgers[3].by_verb()["recv"] == 80


def test_elements_are_counted_where_they_are_copied():
    def program(comm):
        comm.bcast(numbers(comm.rank, (5, 4), "complex128"), 0).wait()
        comm.barrier()
        return comm.world.elements_copied, comm.world.bytes_copied

    assert run(3, program)[0] == ([0, 20, 20], [0, 320, 320])


def test_without_a_ledger_nothing_is_recorded():
    def program(comm):
        with record() as ledger:
            pass
        comm.bcast(numbers(0, (3, 3)), 0).wait()
        return ledger.events

    assert run(2, program) == [[], []]


def test_a_trace_can_be_saved(tmp_path):
    """Of one rank, and of all of them by rank 0: work as spans that do not cross, messages as pairs, clocks that agree."""
    import json

    def program(comm):
        grid = pdla.ProcessGrid((1, 2), comm=comm)
        A = pdla.ones((64, 64), grid, pdla.Layout("row", "col"))
        with record() as ledger, pdla.tagged("product"):
            pdla.matmul(A, A, algorithm="summa", panel=16)
        ledger.save_trace(tmp_path / f"{comm.rank}.json")
        ledger.save_trace(tmp_path / "all.json", comm)
        with pytest.raises(OSError, match="nowhere"):
            ledger.save_trace(tmp_path / "nowhere" / "all.json", comm)
        with pytest.raises(OSError, match="null"):
            ledger.save_trace("all\0.json", comm)
        return len(ledger.events)

    counts = run(2, program)
    alone, all_ranks = (json.loads((tmp_path / f"{name}.json").read_text())["traceEvents"] for name in ("1", "all"))
    assert {row["pid"] for row in alone} == {0} and {row["pid"] for row in all_ranks} == {0, 1}
    assert [row["args"]["name"] for row in all_ranks if row["ph"] == "M"] == ["rank 0", "rank 1"]
    begun, ended = ({row["id"]: row for row in all_ranks if row["ph"] == phase} for phase in "be")
    spans = [row for row in all_ranks if row["ph"] == "X"]
    assert len(spans) + len(begun) == sum(counts) and begun.keys() == ended.keys()
    assert all(begun[i]["ts"] <= ended[i]["ts"] and begun[i]["cat"] == ended[i]["cat"] for i in begun)
    assert min(row["ts"] for row in all_ranks if "ts" in row) == 0
    assert {row["name"] for row in (*spans, *begun.values())} == {"product"}
    for rank in (0, 1):
        mine = sorted((row["ts"], row["ts"] + row["dur"]) for row in spans if row["pid"] == rank)
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(mine))


# ---------------------------------------------------------------------------------------------- when it goes wrong


def test_a_deadlock_names_what_each_rank_waits_for():
    def program(comm):
        if comm.rank == 0:
            time.sleep(0.02)  # the last to wait is the first to be named
            comm.recv(np.empty((2, 2)), 1, tag=5).wait()
        elif comm.rank == 1:
            comm.bcast(np.empty((2, 2)), 2).wait()
        else:
            comm.share("hello")

    with pytest.raises(DeadlockError, match="all ranks wait, none can go on") as caught:
        run(3, program)
    text = str(caught.value)
    assert "rank 0 waits in recv(tag=5)" in text and "for rank 1" in text
    assert "rank 1 waits in bcast (call 0 on 'all', 3 ranks) for rank 2" in text
    assert "rank 2 waits in share" in text and "for ranks [0, 1]" in text
    assert [line.split()[:2] for line in text.splitlines()[1:]] == [["rank", "0"], ["rank", "1"], ["rank", "2"]]


def test_waiting_for_a_rank_that_has_ended_is_a_deadlock():
    def program(comm):
        if comm.rank:
            comm.barrier()

    told = "".join(rf"\n  rank {rank} waits in barrier \(.*\) for rank 0" for rank in (1, 2))
    with pytest.raises(DeadlockError, match=rf"{told}\n  ended: ranks \[0\]"):
        run(3, program)


def test_every_rank_sees_the_deadlock():
    seen = [None] * 2

    def program(comm):
        try:
            comm.recv(np.empty(1), 1 - comm.rank).wait()
        except DeadlockError as error:
            seen[comm.rank] = str(error)
            raise

    with pytest.raises(DeadlockError):
        run(2, program)
    assert seen[0] == seen[1] != None  # noqa: E711


def test_ranks_that_call_different_verbs():
    def program(comm):
        x = np.zeros((2, 2))
        if comm.rank == 1:
            comm.shift(x, np.empty((2, 2))).wait()
        else:
            comm.allgather(x, [np.empty((2, 2)), np.empty((2, 2))]).wait()

    with pytest.raises(AgreementError) as caught:
        run(2, program)
    text = str(caught.value)
    assert "ranks disagree on call 0 on 'all'" in text
    assert "calls allgather" in text and "calls shift" in text


def test_who_shares_is_not_told_what_others_compare():
    with pytest.raises(DeadlockError, match=r"rank 0 waits in share .*\n  rank 1 waits in same words "):
        run(2, lambda comm: comm.share("words") if comm.rank == 0 else comm.same("same words"))


def test_a_barrier_beside_what_others_compare_is_an_error():
    with pytest.raises(AgreementError, match="barrier on 'all', 2 ranks: other ranks are in another call"):
        run(2, lambda comm: comm.barrier() if comm.rank == 0 else comm.same("words"))


def test_ranks_that_expect_different_arrays():
    def program(comm):
        comm.bcast(np.zeros((2, 3 + comm.rank)), 0).wait()

    with pytest.raises(AgreementError, match=r"rank 0 sends float64 \(2, 3\), rank 1 expects float64 \(2, 4\)"):
        run(2, program)

    def of_another_dtype(comm):
        comm.bcast(np.zeros((2, 3), "float32" if comm.rank else "float64"), 0).wait()

    with pytest.raises(AgreementError, match=r"sends float64 \(2, 3\), rank 1 expects float32 \(2, 3\)"):
        run(2, of_another_dtype)


def test_the_failure_of_one_rank_ends_all():
    ended = [None] * 4

    def program(comm):
        if comm.rank == 2:
            raise KeyError("lost")
        try:
            comm.barrier()
        except RemoteError as error:
            ended[comm.rank] = str(error)
            raise

    with pytest.raises(KeyError, match="lost") as caught:
        run(4, program)
    assert caught.value.__notes__ == ["raised on rank 2 of 4"]
    assert [text for text in ended if text] == ["rank 2 failed: KeyError: 'lost'"] * 3


def test_a_failure_reaches_ranks_that_wait_for_others():
    def program(comm):
        if comm.rank == 0:
            time.sleep(0.05)  # the others already wait
            raise ZeroDivisionError
        comm.recv(np.empty(3), 0).wait()

    with pytest.raises(ZeroDivisionError):
        run(3, program)


def test_ranks_that_cannot_begin_leave_none_waiting(monkeypatch):
    def start(thread):
        if thread.name == "rank 2":
            raise RuntimeError("can't start new thread")
        begin(thread)

    begin, before = threading.Thread.start, set(threading.enumerate())
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="new thread"):
        run(4, lambda comm: comm.barrier())
    for thread in threading.enumerate():
        if thread.name in ("rank 0", "rank 1"):
            thread.join(10)
    assert before.issuperset(threading.enumerate())  # one of an earlier test may have ended since


@pytest.mark.parametrize("size", [1, 3])
def test_what_is_shifted_is_not_overwritten(size):
    def program(comm):
        x = numbers(comm.rank, (4, 6))
        with pytest.raises(ShapeError, match=r"shift on 'all': x and out, of shape \(4, 3\), share memory"):
            comm.shift(x[:, :3], x[:, 2:5])
        comm.shift(x[:, ::2], x[:, 1::2]).wait()
        np.testing.assert_array_equal(x[:, 1::2], numbers((comm.rank - 1) % size, (4, 6))[:, ::2])

    run(size, program)


def test_messages_that_nobody_received():
    def program(comm):
        if comm.rank == 0:
            comm.send(np.zeros(3), 1, tag=3)

    with pytest.raises(PdlaError, match=r"messages nobody received: send\(tag=3\)"):
        run(2, program)


# ---------------------------------------------------------------------------------------------- an imagined network


def test_an_array_is_there_a_known_time_after_it_was_sent():
    def program(comm):
        start = time.perf_counter()
        pending = [comm.shift(numbers(comm.rank, (100, 1)), np.empty((100, 1))) for _ in range(200)]
        ends = []
        for shift in pending:
            np.testing.assert_array_equal(shift.wait(), numbers((comm.rank - 1) % 3, (100, 1)))
            ends.append(time.perf_counter())
        return start, ends

    starts, ends = zip(*run(3, program, delay=0.05, bandwidth=16_000), strict=True)
    for rank in range(3):
        assert ends[rank][0] >= starts[rank - 1] + 0.05 + 800 / 16_000
        assert ends[rank][-1] < starts[rank - 1] + 200 * 0.1  # all were on their way at once


def test_a_rank_that_waits_for_the_network_is_in_no_deadlock():
    def program(comm):
        if comm.rank == 0:
            time.sleep(0.02)  # by now rank 1 waits
        return comm.bcast(numbers(comm.rank, (2, 2)), 0).wait().sum()

    assert run(2, program, delay=0.05) == [numbers(0, (2, 2)).sum()] * 2


def test_a_network_that_cannot_be():
    for network in ({"delay": -1}, {"bandwidth": 0}, {"delay": float("nan")}):
        with pytest.raises(PdlaError, match="at least 0 seconds, more than 0 bytes a second"):
            run(2, lambda comm: None, **network)


@pytest.mark.parametrize(("algorithm", "verb"), [("summa", "bcast"), ("cannon", "shift")])
@pytest.mark.parametrize("how", ["A B", "At B"])
def test_what_is_needed_next_travels_while_panels_are_multiplied(algorithm, verb, how):
    """All but the first panels, those of the skew, and the last sums on their way home."""

    def program(comm):
        grid, layout = ProcessGrid((2, 2)), Layout("row", "col")
        A, B = (random((64, 64), grid, layout, seed=seed) for seed in (1, 2))
        with record() as ledger:
            matmul(A if how == "A B" else A.T, B, algorithm=algorithm, panel=8)
        return [event for event in ledger.events if event.what in ("gemm", verb)]

    for events in run(4, program, delay=0.002):
        gemms = [event for event in events if event.what == "gemm"]
        travels = sorted((event for event in events if event.what == verb), key=lambda event: event.start)
        first, last = min(gemm.start for gemm in gemms), max(gemm.end for gemm in gemms)
        alone = [travel for travel in travels if travel.end <= first or travel.start >= last]
        assert len(gemms) == 8 and len(alone) <= 2 < len(travels) / 2
        for travel in travels:
            assert travel in alone or any(travel.start <= gemm.start and gemm.end <= travel.end for gemm in gemms)


def test_a_run_holds_blas_to_a_thread_a_rank_and_then_gives_it_back_what_it_had():
    def threads():
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    blas._routine("dgemm")  # so that SciPy's is loaded
    with threadpool_limits(2, user_api="blas"):
        before = threads()
        assert set(before) == {2}
        assert set(run(2, lambda comm: tuple(threads()))) == {(1,) * len(before)}
        with pytest.raises(ValueError, match="none"):
            run(2, lambda comm: int("none"))
        assert threads() == before


def test_a_run_holds_the_blas_that_it_is_the_first_to_load_and_leaves_it_as_the_others():
    """In a process of its own, as SciPy's BLAS is loaded once."""
    program = """
from threadpoolctl import threadpool_info, threadpool_limits
from pdla import run
from pdla.array import blas

threadpool_limits(3)  # by the environment there would be no more than cores

def threads():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

def load(comm):
    blas._routine("dgemm")
    comm.barrier()
    return threads()

print(len(threads()), run(2, load), threads())
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "1 [[1, 1], [1, 1]] [3, 3]"


def test_a_rank_that_waits_for_no_other_ends_after_an_interruption():
    ranks = []

    def program(comm):
        ranks.append(threading.current_thread())
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        while True:
            comm.barrier()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            run(1, program)
    finally:
        signal.signal(signal.SIGINT, before)
    ranks[0].join(20)
    assert not ranks[0].is_alive()
