"""All ranks of a dry run, each with a clock: who waits for whom, how long, and the path that says why."""

import json
import time
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

import pdla
from pdla import nn
from pdla.comm.collectives import broadcast
from pdla.errors import AgreementError, DeadlockError, PdlaError, RemoteError
from pdla.model.machine import Machine

# A second computes 1e9 flops and carries 1e6 bytes near, 5e5 far (a node's 1e6 shared by two); 1 ms and 10 ms until they come.
PLAIN = Machine(flops=1e9, single=1.0, call=0.0, gap=0.0, memory=1e300, bandwidth=1e6, latency=1e-3)
NODES = Machine(
    flops=1e9, call=0.0, gap=0.0, memory=1e300, bandwidth=1e6, latency=1e-3, network=2e6, far_latency=1e-2, node=2, injection=1e6
)
TENTH = 12_500  # elements, 0.1 s on a link within a node


def block(comm, size=TENTH):
    return comm.xp.empty((size,), "float64")


def work(comm, seconds):
    """A product of so many seconds."""
    x = comm.xp.empty((1000, 1000), "float64")
    comm.xp.gemm(comm.xp.empty((1000, int(500 * seconds)), "float64"), comm.xp.empty((int(500 * seconds), 1000), "float64"), x)


def ends(run):
    return [ledger.seconds for ledger in run.ledgers]


def check(path, seconds):
    """Steps follow each other without a gap, from the start to the end."""
    assert path.steps[0].start == 0 and path.steps[-1].end == path.seconds == seconds
    assert all(one.end == after.start for one, after in zip(path.steps, path.steps[1:], strict=False))
    assert sum(path.by_kind().values()) == pytest.approx(seconds)


# ---------------------------------------------------------------------------------------------- by hand


@pytest.mark.parametrize("late", [0, 1])
def test_a_message_sets_out_when_both_ranks_have_asked_for_it(late):
    def program(comm):
        if comm.rank == late:
            with pdla.tagged("slow"):
                work(comm, 1)
        (comm.send(block(comm), 1) if comm.rank == 0 else comm.recv(block(comm), 0)).wait()
        return comm.rank

    run = pdla.dry_run_all(2, program, machine=PLAIN)
    assert run.results == [0, 1] and ends(run) == pytest.approx([1.101, 1.101])
    assert [ledger.computed for ledger in run.ledgers] == [float(late == 0), float(late == 1)]
    check(run.path, run.seconds)
    steps = [(step.kind, step.source, step.rank, step.what, step.tag) for step in run.path.steps]
    assert steps == [("computing", -1, late, "gemm", "slow"), ("latency", 0, 1, "recv", ""), ("near", 0, 1, "recv", "")]
    assert run.path.by_kind() == pytest.approx({"computing": 1, "latency": 0.001, "near": 0.1})
    assert run.path.by_tag() == pytest.approx({"slow": 1, "": 0.101})
    assert str(run.path).splitlines() == [
        "1.101 s: computing 91%, latency 0%, near 9%",
        "      start    seconds                 rank",
        f"          0          1  computing {late:>9}  gemm           slow",
        "          1      0.001  latency       0 > 1  recv",
        "      1.001        0.1  near          0 > 1  recv",
    ]


def test_a_message_to_oneself_comes():
    def program(comm):
        x, y, z = (comm.xp.empty((10,), "float64") for _ in range(3))
        comm.alltoall({comm.rank: x}, {comm.rank: y}).wait()
        sent = comm.send(y, comm.rank)
        comm.recv(z, comm.rank).wait()
        sent.wait()

    run = pdla.dry_run_all(2, program, machine=PLAIN)
    assert [ledger.messages for ledger in run.ledgers] == [2, 2]


@pytest.mark.parametrize(("at_once", "seconds"), [(True, 0.001 + 0.3), (False, 0.003 + 0.3)])
def test_a_link_takes_one_message_after_another_whoever_sends_them(at_once, seconds):
    def program(comm):
        if comm.rank:
            comm.send(block(comm), 0).wait()
            return
        if at_once:
            for one in [comm.recv(block(comm), source) for source in (1, 2, 3)]:
                one.wait()
        else:
            for source in (1, 2, 3):
                comm.recv(block(comm), source).wait()

    run = pdla.dry_run_all(4, program, machine=PLAIN)
    assert run.seconds == pytest.approx(seconds)
    check(run.path, run.seconds)
    if at_once:
        assert ends(run) == pytest.approx([0.301, 0.101, 0.201, 0.301])
        assert [(step.kind, step.source) for step in run.path.steps] == [("latency", 1), ("near", 1), ("near", 2), ("near", 3)]


@pytest.mark.parametrize(
    ("gap", "kinds"),
    [
        (0.05, ["handling", "latency", "near", "near", "near"]),  # longer on the link than handled
        (0.15, ["handling", "handling", "handling", "latency", "near"]),
    ],
)
def test_bytes_move_while_the_next_message_is_handled(gap, kinds):
    def program(comm):
        if comm.rank:
            comm.send(block(comm), 0).wait()
            return
        coming = [comm.recv(block(comm), source) for source in (1, 2, 3)]
        for pending in coming:
            pending.wait()

    run = pdla.dry_run_all(4, program, machine=replace(PLAIN, gap=gap))
    assert run.seconds == pytest.approx(0.001 + max(gap + 0.3, 3 * gap + 0.1))
    assert run.seconds == pytest.approx(pdla.dry_run(4, program, machine=replace(PLAIN, gap=gap))[1].seconds)
    assert [step.kind for step in run.path.steps] == kinds
    check(run.path, run.seconds)


def test_a_late_message_holds_up_no_other():
    """The link is free until what was asked for first comes; what came meanwhile is worked on."""

    def program(comm):
        if comm.rank == 1:
            work(comm, 1)
        if comm.rank:
            comm.send(block(comm), 0).wait()
            return
        first, second = comm.recv(block(comm), 1), comm.recv(block(comm), 2)
        second.wait()
        work(comm, 2)
        first.wait()

    run = pdla.dry_run_all(3, program, machine=PLAIN)
    assert ends(run) == pytest.approx([2.101, 1.101, 0.101])
    assert [step.rank for step in run.path.steps] == [0, 0, 0] and run.path.steps[0].source == 2


def test_messages_are_worked_on_as_they_come():
    def program(comm):
        if comm.rank:
            work(comm, 3 - comm.rank)
        outs = [block(comm) for _ in range(3)]
        order = []
        for source in comm.allgather(block(comm), outs):
            work(comm, 1)
            order.append(source)
        return order

    run = pdla.dry_run_all(3, program, machine=PLAIN)  # rank 2 is ready at 1 s, rank 1 at 2 s
    assert run.results[0] == [2, 1] and run.results[2] == [0, 1]
    assert run.ledgers[0].seconds == pytest.approx(2.101 + 1)


@pytest.mark.parametrize("ranks", [2, 5])
def test_a_chain_of_ranks_takes_their_times_together(ranks):
    def program(comm):
        if comm.rank:
            comm.recv(block(comm), comm.rank - 1).wait()
        work(comm, 1)
        if comm.rank + 1 < comm.size:
            comm.send(block(comm), comm.rank + 1).wait()

    run = pdla.dry_run_all(ranks, program, machine=PLAIN)
    assert run.seconds == pytest.approx(ranks + 0.101 * (ranks - 1))
    assert run.path.by_kind() == pytest.approx({"computing": ranks, "latency": 0.001 * (ranks - 1), "near": 0.1 * (ranks - 1)})
    assert run.path.by_rank() == pytest.approx({0: 1.0} | dict.fromkeys(range(1, ranks), 1.101))
    assert pdla.dry_run(ranks, program, rank=ranks - 1, machine=PLAIN)[1].seconds == pytest.approx(1.101)
    check(run.path, run.seconds)


@pytest.mark.parametrize(("way", "seconds"), [("flat", 0.001 + 3 * 0.1), ("chain", 3 * (0.001 + 0.025) + 3 * 0.025)])
def test_broadcasts(way, seconds):
    """To three ranks: flat, all through the root's link; in a chain, 4 chunks, each sent on when it is there."""

    def program(comm):
        work(comm, 1 if comm.rank == 1 else 0)
        comm.bcast(block(comm), 1).wait()

    with patch.object(broadcast, "choose", lambda *_: way), patch.object(broadcast, "CHUNK", TENTH * 2):
        run = pdla.dry_run_all(4, program, machine=PLAIN)
    assert run.seconds == pytest.approx(1 + seconds)
    assert run.path.steps[0].rank == 1 and {step.what for step in run.path.steps} == {"gemm", "bcast"}
    check(run.path, run.seconds)


def test_nodes():
    def program(comm):
        other = (comm.rank + 2) % 4
        sent = comm.send(block(comm), other)
        comm.recv(block(comm), other).wait()
        sent.wait()
        if comm.rank < 2:
            peer = 1 - comm.rank
            sent = comm.send(block(comm), peer)
            comm.recv(block(comm), peer).wait()
            sent.wait()

    run = pdla.dry_run_all(4, program, machine=NODES)
    far, near = 0.01 + 0.2, 0.001 + 0.1
    assert ends(run) == pytest.approx([far + near, far + near, far, far])
    assert run.path.by_kind() == pytest.approx({"latency": 0.011, "far": 0.2, "near": 0.1})
    assert [ledger.bytes_from_far for ledger in run.ledgers] == [8 * TENTH] * 4


def test_nobody_goes_on_before_the_last_has_come():
    def program(comm):
        work(comm, 2 if comm.rank == 1 else 1)
        comm.barrier()
        work(comm, 1 if comm.rank == 2 else 0)

    run = pdla.dry_run_all(3, program, machine=PLAIN)
    assert ends(run) == [2, 2, 3]
    assert [(step.rank, step.start, step.end) for step in run.path.steps] == [(1, 0, 2), (2, 2, 3)]


@pytest.mark.parametrize(("overlap", "sender", "receiver"), [(1.0, 1.0, 0.101), (0.0, 1.101, 1.101), (0.5, 1.0, 0.202)])
def test_messages_stand_still_while_their_sender_works_if_the_machine_is_so(overlap, sender, receiver):
    def program(comm):
        if comm.rank:
            comm.recv(block(comm), 0).wait()
        else:
            sent = comm.send(block(comm), 1)
            work(comm, 1)
            sent.wait()

    run = pdla.dry_run_all(2, program, machine=replace(PLAIN, overlap=overlap))
    assert ends(run) == pytest.approx([sender, receiver])
    check(run.path, run.seconds)
    assert run.path.by_kind()["computing"] == pytest.approx(1.0)


# ---------------------------------------------------------------------------------------------- beside the other worlds


def product(comm, how, sizes, shape):
    (m, n, k), grid = sizes, pdla.ProcessGrid(shape, comm=comm)
    layout = pdla.Layout("row", "col")
    pdla.matmul(pdla.zeros((m, k), grid, layout), pdla.zeros((k, n), grid, layout), **how)


def layer(comm, name, shape, hidden=16, heads=4):
    axes = ("row", "col", "depth")[: len(shape)] if name != "Tensor3D" else ("data", "row", "col", "depth")
    scheme = getattr(nn, name)(pdla.ProcessGrid(shape, axes, comm))
    made = nn.TransformerLayer(scheme, hidden, heads, sequence=4, dtype="float32")
    made.backward(made.forward(pdla.zeros((8 * 4, hidden), scheme.grid, scheme.residual(4), dtype="float32")))


LAYERS = [("Megatron1D", (4,)), ("Summa2D", (2, 2)), ("Cube3D", (2, 2, 2)), ("Tensor3D", (1, 2, 2, 2)), ("Tensor3D", (2, 1, 1, 2))]
SLOW = Machine(flops=1e7, bandwidth=1e6, latency=1e-4, gap=3e-5, network=3e5, far_latency=1e-3, memory=1e8)


def dry(ranks, program, *args, machine=None):
    return [pdla.dry_run(ranks, program, *args, rank=r, machine=machine)[1] for r in range(ranks)]


@pytest.mark.parametrize("overlap", [1.0, 0.4, 0.0])
@pytest.mark.parametrize(("name", "shape"), LAYERS)
def test_where_ranks_are_alike_each_takes_what_a_dry_run_of_one_says(name, shape, overlap):
    ranks = int(np.prod(shape))
    machine = replace(SLOW, node=2, overlap=overlap)
    run = pdla.dry_run_all(ranks, layer, name, shape, machine=machine)
    alone = dry(ranks, layer, name, shape, machine=machine)
    if name == "Summa2D":  # roots of broadcasts send more than others: the last rank counts
        assert run.seconds == pytest.approx(max(ledger.seconds for ledger in alone), rel=0.2)
    else:
        assert ends(run) == pytest.approx([ledger.seconds for ledger in alone])
    assert [ledger.computed for ledger in run.ledgers] == pytest.approx([ledger.computed for ledger in alone])
    check(run.path, run.seconds)


@pytest.mark.parametrize("shape", [(2, 2), (3, 3), (4, 4)])
@pytest.mark.parametrize(
    "how", [{"algorithm": "gather"}, {"schedule": "shared"}, {"algorithm": "cannon"}, {"algorithm": "summa"}], ids=str
)
def test_products_that_divide_take_what_a_dry_run_of_the_slowest_rank_says(how, shape):
    """SUMMA's roots copy a panel before they send it, so that on more than 2 x 2 a little waits for a little."""
    ranks = shape[0] * shape[1]
    run = pdla.dry_run_all(ranks, product, how, (48, 48, 48), shape, machine=SLOW)
    alone = [ledger.seconds for ledger in dry(ranks, product, how, (48, 48, 48), shape, machine=SLOW)]
    exact = shape == (2, 2) or how != {"algorithm": "summa"}
    assert run.seconds == pytest.approx(max(alone), rel=1e-6 if exact else 0.01) and run.seconds >= max(alone) - 1e-12
    if how in ({"algorithm": "gather"}, {"schedule": "shared"}):
        assert ends(run) == pytest.approx(alone)


@pytest.mark.parametrize("algorithm", ["gather", "summa", "cannon"])
def test_ragged_products_are_as_slow_as_their_path_says(algorithm):
    args = ({"algorithm": algorithm}, (7, 50, 23), (2, 3))
    run = pdla.dry_run_all(6, product, *args, machine=SLOW)
    alone = [ledger.seconds for ledger in dry(6, product, *args, machine=SLOW)]
    assert run.seconds >= min(alone) and max(ends(run)) == run.seconds
    assert run.path.by_kind().get("computing", 0) <= sum(ledger.computed for ledger in run.ledgers)
    check(run.path, run.seconds)


@pytest.mark.parametrize(
    ("ranks", "program", "args"),
    [
        (6, product, ({"algorithm": "summa"}, (7, 5, 23), (2, 3))),
        (6, product, ({"algorithm": "cannon"}, (7, 5, 23), (2, 3))),
        (5, product, ({"algorithm": "gather"}, (7, 5, 23), (2, 2))),
        *((int(np.prod(shape)), layer, (name, shape)) for name, shape in LAYERS),
    ],
)
def test_bytes_and_messages_are_those_of_the_other_worlds(ranks, program, args):
    def counted(ledger):
        return sorted((e.what, e.axis, e.bytes, e.messages, e.flops, e.tag) for e in ledger.events)

    def recorded(comm):
        with pdla.record() as ledger:
            program(comm, *args)
        return ledger

    every = [counted(ledger) for ledger in pdla.dry_run_all(ranks, program, *args, machine=PLAIN).ledgers]
    assert every == [counted(ledger) for ledger in dry(ranks, program, *args)]
    assert every == [counted(ledger) for ledger in pdla.run(ranks, recorded)]


def test_twenty_runs_are_alike():
    machine = replace(SLOW, node=4, overlap=0.3)

    def once():
        run = pdla.dry_run_all(6, product, {"algorithm": "summa"}, (31, 50, 23), (2, 3), machine=machine)
        return [ledger.events for ledger in run.ledgers], run.path

    first = once()
    assert all(once() == first for _ in range(19))


def test_64_ranks(capsys):
    start = time.perf_counter()
    run = pdla.dry_run_all(64, layer, "Tensor3D", (4, 4, 2, 2), 64, 8, machine=Machine.load("a100x4"))
    check(run.path, run.seconds)
    with capsys.disabled():
        print(f" [a layer on 64 ranks: {time.perf_counter() - start:.1f} s] ", end="")


# ---------------------------------------------------------------------------------------------- errors, files


def stuck(comm):
    if comm.rank == 0:
        comm.recv(block(comm), 1, tag=5).wait()
    elif comm.rank == 1:
        comm.bcast(block(comm), 2).wait()
    else:
        comm.share("hello")


def ended(comm):
    if comm.rank:
        comm.barrier()


def unsent(comm):
    comm.send(block(comm), 1 - comm.rank).wait()


@pytest.mark.parametrize(("ranks", "program"), [(3, stuck), (3, ended), (2, unsent)])
def test_deadlocks_are_told_as_by_threads(ranks, program):
    with pytest.raises(DeadlockError, match="all ranks wait, none can go on") as here:
        pdla.dry_run_all(ranks, program, machine=PLAIN)
    with pytest.raises(DeadlockError) as there:
        pdla.run(ranks, program)
    assert str(here.value) == str(there.value)


def test_a_failure_ends_all_ranks():
    seen = []

    def program(comm):
        work(comm, comm.rank)
        if comm.rank == 1:
            raise ValueError("no")
        try:
            comm.recv(block(comm), 1).wait()
        except RemoteError as error:
            seen.append(str(error))
            raise

    with pytest.raises(ValueError, match="no") as caught:
        pdla.dry_run_all(4, program, machine=PLAIN)
    assert caught.value.__notes__ == ["raised on rank 1 of 4"]
    assert seen == ["rank 1 failed: ValueError: no"] * 3


def test_ranks_that_do_not_fit():
    def verbs(comm):
        x = block(comm, 4)
        (comm.shift(x, block(comm)) if comm.rank else comm.allgather(x, [x, x])).wait()

    def sizes(comm):
        (comm.recv(block(comm, 4), 0) if comm.rank else comm.send(block(comm, 3), 1)).wait()

    def unread(comm):
        if comm.rank:
            comm.send(block(comm), 0)

    with pytest.raises(AgreementError, match="ranks disagree on call 0 on 'all': rank 1 calls shift, rank 0 calls allgather"):
        pdla.dry_run_all(2, verbs, machine=PLAIN)
    with pytest.raises(AgreementError, match=r"rank 0 sends float64 \(3,\), rank 1 expects float64 \(4,\)"):
        pdla.dry_run_all(2, sizes, machine=PLAIN)
    with pytest.raises(PdlaError, match="messages that no rank received: send"):
        pdla.dry_run_all(2, unread, machine=PLAIN)
    with pytest.raises(PdlaError, match="dry_run_all needs at least one rank, not 0"):
        pdla.dry_run_all(0, unread, machine=PLAIN)


def test_an_error_in_what_is_sent_on_is_its_senders():
    def program(comm):
        x = block(comm)
        if comm.rank == 0:
            work(comm, 1)
        if comm.rank < 3:
            comm.bcast(x, 0).wait()
        else:
            comm.shift(x, block(comm)).wait()

    told = "rank 2 calls bcast, rank 3 calls shift"
    with patch.object(broadcast, "choose", lambda *_: "chain"), pytest.raises(AgreementError, match=told) as caught:
        pdla.dry_run_all(4, program, machine=PLAIN)
    assert caught.value.__notes__ == ["raised on rank 2 of 4"]


def test_the_trace_has_all_ranks(tmp_path):
    run = pdla.dry_run_all(4, product, {"algorithm": "summa"}, (48, 48, 48), (2, 2), machine=SLOW)
    run.save_trace(str(tmp_path / "trace.json"))
    rows = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {row["pid"] for row in rows} == {0, 1, 2, 3}
    last = max(row["ts"] + row.get("dur", 0) for row in rows if row["ph"] != "M")
    assert last / 1e6 == pytest.approx(run.seconds)


def test_a_run_without_work_takes_no_time():
    run = pdla.dry_run_all(2, lambda comm: None, machine=PLAIN)
    assert run.seconds == 0 and run.path.steps == () and str(run.path).startswith("0 s")


def test_a_buffer_whose_messages_have_come_is_no_longer_in_use():
    """Letters, which the path keeps, held the addends of a sum: the ledgers of all ranks had a higher peak than the plan's."""

    def program(comm):
        grid = pdla.ProcessGrid((3,), ("row",), comm)
        A, B = pdla.zeros((97, 120), grid, pdla.Layout(cols="row")), pdla.zeros((120, 7), grid, pdla.Layout(rows="row"))
        plan = pdla.plan_matmul(A, B, layout=pdla.Layout(), algorithm="gather")
        with pdla.record() as ledger:
            plan(A, B)
        return ledger.peak_workspace, plan.predicted.peak_workspace

    peaks, foretold = zip(*pdla.dry_run_all(3, program, machine=pdla.Machine.load("laptop")).results, strict=True)
    assert max(peaks) == foretold[0]
