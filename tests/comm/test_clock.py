"""A dry run's time on a described machine: links, work, overlap; machines as files; calibration."""

import threading
from collections import Counter
from dataclasses import replace
from math import inf
from types import SimpleNamespace

import numpy as np
import pytest

import pdla
from pdla import Layout, config
from pdla.bench.cli import main
from pdla.bench.commands import calibrate
from pdla.comm.clock import Clock
from pdla.model.machine import Machine

PLAIN = Machine(flops=1e9, single=2.0, call=0.0, memory=1e30, bandwidth=1e6, latency=1e-3, network=1e5, far_latency=1e-2, node=2)


def test_a_link_takes_one_message_after_another():
    clock = Clock(PLAIN)
    assert clock.received(1000, far=False) == pytest.approx(0.001 + 0.001)
    assert clock.received(1000, far=False) == pytest.approx(0.001 + 0.002)
    assert clock.received(1000, far=True) == pytest.approx(0.01 + 0.01)
    assert clock.sent(1000, far=False) == pytest.approx(0.002)  # sending is another link
    clock.wait(0.003)
    assert clock.time == 0.003 and clock.computed == 0
    clock.wait(0.002)
    assert clock.time == 0.003


@pytest.mark.parametrize(("overlap", "expected"), [(1.0, 1.0), (0.0, 1.6), (0.5, 1.1)])
def test_messages_move_on_while_the_rank_computes_if_the_machine_lets_them(overlap, expected):
    """A message of 0.6 s and a product of 1 s."""
    clock = Clock(Machine(flops=1e9, call=0.0, memory=1e30, bandwidth=1e6, latency=0.0, overlap=overlap))
    due = clock.received(600_000, far=False)
    clock.gemm(1000, 1000, 500, np.float64)
    clock.wait(due)
    assert clock.time == pytest.approx(expected) and clock.computed == pytest.approx(1.0)


def test_a_clock_works_as_long_as_its_machine_says():
    machine = Machine(flops=1e9, call=1.0, memory=1e6, erf=10.0)
    clock = Clock(machine)
    clock.gemm(10, 20, 30, "float32", 3)
    clock.touch(10**6, 3)
    clock.erf(20, 8)
    seconds = machine.gemm(10, 20, 30, "float32", 3) + machine.touch(10**6, 3) + machine.error_function(20, 8)
    assert clock.time == clock.computed == pytest.approx(seconds)


def test_who_only_receives_waits_too():
    seconds = pdla.dry_run(2, lambda comm: comm.recv(comm.xp.empty((125,), "float64"), 1).wait(), machine=PLAIN)[1].seconds
    assert seconds == pytest.approx(0.001 + 1000 / 1e6)


def test_addends_of_a_sum_take_time_as_they_are_added():
    """Of 4 ranks, 3 messages of a quarter each, after the rank's own quarter; all are read and written."""
    machine = Machine(flops=1e9, call=0.5, gap=0.0, memory=1e6, bandwidth=1e30, latency=0.0)

    def program(comm):
        x = comm.xp.empty((4000,), "float64")
        for half in comm.halves(x, x):
            half.wait()

    expected = machine.touch(2 * 8000) + machine.touch(2 * 3 * 8000, 3)
    assert pdla.dry_run(4, program, machine=machine)[1].seconds == pytest.approx(expected)


def test_work():
    machine = Machine(flops=1e9, single=2.0, half=4.0, call=1.0, memory=1e6, erf=10.0)
    assert machine.gemm(100, 100, 50000, "float64") == pytest.approx(1 + (100 * 50000 * 2 + 2 * 100 * 100) * 8 / 1e6)  # read longer
    work = Machine(flops=1e9, single=2.0, half=4.0, call=1.0, memory=1e30)
    times = {dtype: work.gemm(1000, 1000, 500, dtype) - 1 for dtype in ("float64", "float32", "float16", "complex128", "complex64")}
    assert times == pytest.approx({"float64": 1.0, "float32": 0.5, "float16": 0.25, "complex128": 4.0, "complex64": 2.0})
    assert work.gemm(1000, 1000, 500, "float16", out="float32") == pytest.approx(1.25)  # the rate is the factors'
    read, written = (100 * 50000 * 2) * 2, 2 * 100 * 100 * 4
    assert machine.gemm(100, 100, 50000, "float16", out="float32") == pytest.approx(1 + (read + written) / 1e6)
    assert work.gemm(1000, 1000, 500, "float64", count=3) == pytest.approx(1 + 3.0)  # one call
    assert machine.error_function(20, 8) == 1 + 2.0 and machine.touch(10**6) == 1 + 1.0
    assert Machine(network=5e9, injection=8e9, node=4).rate(True) == 2e9
    assert [PLAIN.home(rank) for rank in range(5)] == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("wanted", [Layout("row", "col"), Layout("row"), Layout()], ids=str)
@pytest.mark.parametrize("algorithm", ["gather", "summa", "cannon", "3d"])
def test_16_bits_are_multiplied_at_their_own_rate_though_they_are_summed_over_ranks_in_32(algorithm, wanted, dtype):
    """k is cut, and C comes as addends in float32."""
    machine = Machine(flops=1e9, single=1.0, half=10.0, call=0.0, memory=1e30)

    def program(comm):
        grid = pdla.ProcessGrid((2, 2), comm=comm)
        cut = Layout(None, ("row", "col")), Layout(("row", "col"))
        A, B = (pdla.zeros((256, 256), grid, layout, dtype=dtype) for layout in cut)
        pdla.matmul(A, B, layout=wanted, algorithm=algorithm)
        pdla.syrk(A)

    for _, ledger in (pdla.dry_run(4, program, machine=machine), (None, pdla.dry_run_all(4, program, machine=machine).ledgers[3])):
        products = [event for event in ledger.events if event.what == "gemm"]
        assert sum(event.end - event.start for event in products) == pytest.approx(sum(event.flops for event in products) / 1e10)


def test_small_products_reach_a_share_of_the_rate():
    """Along a line of logarithms between the sizes that were measured, by the cube root of m n k."""
    machine = Machine(flops=1e9, single=2.0, reached=((10, 0.01), (1000, 1.0)), call=0.0, memory=1e30)
    for shape, share in {
        (10, 10, 10): 0.01,
        (100, 100, 100): 0.1,
        (1000, 10, 100): 0.1,
        (2, 2, 2): 0.01,
        (1000, 1000, 1000): 1.0,
    }.items():
        work = 2 * shape[0] * shape[1] * shape[2]
        assert machine.gemm(*shape, "float64") == pytest.approx(work / (share * 1e9))
        assert machine.gemm(*shape, "float32", count=4) == pytest.approx(4 * work / (share * 2e9))
    assert machine.gemm(2000, 2000, 2000, "float64") == pytest.approx(16.0)
    assert machine.gemm(0, 10, 10, "float64") == pytest.approx(0)


def test_messages_are_handled_one_after_another_while_bytes_move():
    clock = Clock(Machine(bandwidth=1e6, latency=1e-3, gap=0.5))
    assert clock.received(0, far=False) == pytest.approx(0.501)
    assert clock.received(10**6, far=False) == pytest.approx(1.001 + 1.0)  # its bytes, behind its own handling
    assert clock.received(10**5, far=False) == pytest.approx(2.001 + 0.1)  # handled meanwhile; behind the other's bytes
    assert clock.received(10**5, far=True) == pytest.approx(0.5 + 2e-5 + 1e5 / 1.25e9)  # another link
    assert clock.sent(10**6, far=False, messages=3) == pytest.approx(1.501 + 1 / 3)  # the last one's bytes, behind its handling
    assert clock.sent(10**7, far=False, messages=3) == pytest.approx(2.001 + 10.0)  # begun behind the first one's
    assert clock.sent(10**5, far=False, messages=3) == pytest.approx(2.001 + 10.1)
    assert Machine(bandwidth=1e6, latency=1e-3, gap=0.5).seconds(0, 10**6, 2) == pytest.approx(1 + 2 * 0.501)


def gathered(comm):
    """Of two ranks a node, rank 0 gets one block from its own node and two from the other."""
    x = comm.xp.empty((125,), "float64")
    comm.allgather(x, [comm.xp.empty((125,), "float64") for _ in range(4)]).wait()


def test_a_dry_run_tells_the_time():
    _, ledger = pdla.dry_run(4, gathered, machine=PLAIN)
    assert ledger.seconds == pytest.approx(0.01 + 2 * 1000 / 1e5)  # the other node's come last
    assert ledger.events[0].end - ledger.events[0].start == pytest.approx(ledger.seconds)
    assert pdla.dry_run(4, gathered)[1].seconds == 0


def test_products_are_timed():
    def product(comm):
        grid = pdla.ProcessGrid((2, 2), comm=comm)
        A = pdla.zeros((1000, 1000), grid, pdla.Layout("row", "col"))
        with pdla.tagged("product"):
            pdla.matmul(A, A, algorithm="summa", panel=250)

    machine = Machine(flops=1e9, call=0.0, memory=1e30, bandwidth=1e6, latency=0.0)
    _, ledger = pdla.dry_run(4, product, machine=machine)
    assert ledger.computed == pytest.approx(0.5)
    gemms = [event for event in ledger.events if event.what == "gemm"]
    assert sum(event.end - event.start for event in gemms) == pytest.approx(0.5)
    # Rank 0 sends panels 0 and 1 in 2 s each, one after the other; 2 comes meanwhile; 3 is asked for when 0 has been multiplied,
    # at 2.125 s, and is here 2 s later. So nothing is waited for behind panel 1: three products follow.
    assert ledger.seconds == pytest.approx(4 + 3 * 0.125)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("length", [0, 1, 2, 4, 7])
@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_dry_halves_are_counted_as_threads_count_theirs(size, length, dtype):
    def program(comm):
        with pdla.record() as ledger:
            x = comm.xp.empty((length,), dtype)
            for half in comm.halves(x, x):
                half.wait()
        return [(e.what, e.bytes, e.messages, e.far) for e in ledger.events], ledger.peak_workspace

    for rank, real in enumerate(pdla.run(size, program)):
        assert pdla.dry_run(size, program, rank=rank)[0] == real


def test_machines_are_files(tmp_path):
    assert {"laptop", "v100x4", "a100x4", "h200x8"} <= set(Machine.known())
    for name in Machine.known():
        machine = Machine.load(name)
        assert machine.source and machine.name
        path = tmp_path / "again.toml"
        path.write_text(machine.text())
        assert Machine.load(path) == machine
    with pytest.raises(FileNotFoundError, match="a100x4"):
        Machine.load("a100")
    path.write_text(replace(machine, reached=((8, 0.5), (64.5, 0.75))).text())
    assert Machine.load(path).reached == ((8.0, 0.5), (64.5, 0.75))
    shares = ("0.5", "[1, 2]", "[[8, 0.5, 1]]", "[[8, 0]]", '[["8", 0.5]]', "[[8, 0.5], [8, 0.6]]", "[[8, 0.5], [4, 0.6]]")
    never = ("flops = 0", "single = 0.0", "half = 0", "memory = 0", "bandwidth = 0", "network = 0", "flops = inf", "latency = nan")
    kinds = ("speed = 1.0", "flops = -1.0", 'flops = "fast"', "name = 3", "node = 1.5", "node = true", "overlap = 1.5")
    for wrong in (*kinds, *never, *(f"reached = {share}" for share in shares)):
        path.write_text(wrong)
        with pytest.raises(ValueError, match=wrong.split()[0]):
            Machine.load(path)


@pytest.mark.parametrize("lost", ["flops", "overlap", "latency single call memory far_latency overlap"])
def test_a_file_without_all_figures_is_no_machine(lost, tmp_path):
    """It would have a desktop core's in their place."""
    path = tmp_path / "partial.toml"
    path.write_text(without(lost.split()))
    with config.override(machine=str(path)), pytest.raises(ValueError) as told:
        Machine.chosen()
    assert str(told.value).startswith(f"PDLA_MACHINE: {path}: lacks {', '.join(lost.split())}; only reached, ")


def without(names):
    """A file of a machine that lacks these figures."""
    return "\n".join(line for line in Machine(node=4).text().splitlines() if line.split()[0] not in names)


def test_what_a_machine_has_none_of_may_be_left_out(tmp_path):
    path = tmp_path / "least.toml"
    path.write_text(without(["reached", "erf", "gap", "node", "injection", "name", "source"]))
    assert Machine.load(path) == Machine()


def test_only_the_machine_of_round_figures_is_called_the_default():
    named = Machine.load("a100x4")
    assert [one.title for one in (Machine(), Machine(flops=1e12), named)] == [
        "the default machine", "a machine without a name", named.name
    ]


@pytest.mark.parametrize("content", [b"flops = \n", b"\xff\xfe"])
def test_files_that_are_no_toml_are_named(content, tmp_path):
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with config.override(machine=str(path)), pytest.raises(ValueError, match=f"PDLA_MACHINE: {path}: "):
        Machine.chosen()


@pytest.fixture
def quick(monkeypatch):
    """Little to measure, once."""
    for name, value in {
        "LARGE": 64,
        "STACK": 1 << 8,
        "MESSAGE": 1 << 12,
        "STREAM": 1 << 12,
        "TURNS": 1,
        "SIZES": (8, 1 << 10),
    }.items():
        monkeypatch.setattr(calibrate, name, value)


def test_calibrate_writes_a_machine(tmp_path, quick, capsys, monkeypatch):
    monkeypatch.setattr(calibrate, "PATIENCE", inf)  # however slow a link has seemed, all verbs are timed
    path = tmp_path / "here.toml"
    assert main(["calibrate", "--threads", "2", "--out", str(path)]) == 0
    machine = Machine.load(path)
    assert min(machine.flops, machine.memory, machine.bandwidth, machine.call, machine.erf) > 0
    assert 0 <= machine.overlap <= 1 and min(machine.latency, machine.gap) >= 0  # the gap is a difference of two times
    assert [size for size, _ in machine.reached] == [8, 16, 32] and all(0 < share <= 1 for _, share in machine.reached)
    printed = capsys.readouterr().out
    assert printed.startswith(machine.text())
    lines = [line.split() for line in printed[len(machine.text()) :].splitlines() if line][1:]
    assert [line[:4] for line in lines[:4]] == [[verb, "2", "1", "8"] for verb in calibrate.VERBS]
    assert len(lines) == 9 and lines[-1][:4] == ["barrier", "2", "1", "0"] and len(lines[-1]) == 5


def test_the_share_of_a_small_product_is_no_zero(monkeypatch):
    """A machine that has one is refused when it is read; 8 x 8 x 8 took long, or the large product is a fast GPU's."""
    monkeypatch.setattr(calibrate, "_rate", lambda comm, n: 1e13 if n == calibrate.LARGE else 1.23456e5 * n)
    _, reached = pdla.run(1, calibrate._rates)[0]
    assert reached[:2] == ((8.0, 9.88e-8), (16.0, 1.98e-7))


@pytest.mark.parametrize(("homes", "step"), [((), 0), ((0, 0, 2, 2), 2), ((0, 1, 0, 1), 1), ((0, 0, 0, 3), 0)])
def test_links_are_measured_inside_nodes_and_between_them(homes, step, quick, monkeypatch):
    """Each node's ranks around that node; all at once to ranks that are all on other nodes, where there is such a step."""
    seen = [[] for _ in range(4)]
    link = calibrate._link
    monkeypatch.setattr(calibrate, "_link", lambda comm, step: seen[here.rank].append((comm.size, step)) or link(comm, step))
    here = threading.local()

    def program(comm):
        here.rank, comm.homes = comm.rank, homes
        return calibrate.measured(comm)

    machine = pdla.run(4, program)[0]
    beyond = [(4, step)] if step else []
    assert seen == [([(n, 1)] if n > 1 else []) + beyond for n in (homes.count(home) or 4 for home in homes or [0] * 4)]
    assert machine.bandwidth not in (0, Machine.bandwidth) and (machine.network != Machine.network) == bool(step)


def test_what_is_predicted_to_take_long_is_left_out(quick):
    """1 KiB at 2 KB a second and more would take half a second."""
    slow = Machine(bandwidth=2e3, latency=0.0, gap=0.0)
    (rows, _) = pdla.run(2, lambda comm: list(calibrate.compared(comm, slow)))
    assert [(row.verb, row.size) for row in rows] == [*((verb, 8) for verb in calibrate.VERBS), ("barrier", 0)]


@pytest.mark.parametrize(
    ("bandwidth", "least", "size"),
    [(1e6, 0.0, 1 << 16), (1e7, 0.0, 1 << 20), (1e12, 0.0, 1 << 22), (1e6, 0.2, 1 << 18)],  # by the last 64 KiB take 66 ms
)
def test_messages_are_as_long_as_links_and_latency_ask_for(bandwidth, least, size, monkeypatch):
    """The first of 64 KiB, 256 KiB, 1 MiB that takes more than a twentieth of a second and than `least`, or 4 MiB.

    On a clock that messages alone move: a thread may be held up for as long as they take.
    """
    seconds = Counter()  # of each rank

    def message(comm, nbytes, step):
        return lambda: SimpleNamespace(wait=lambda: seconds.update({threading.get_ident(): nbytes / bandwidth}))

    monkeypatch.setattr(calibrate, "_message", message)
    monkeypatch.setattr(calibrate, "time", SimpleNamespace(perf_counter=lambda: seconds[threading.get_ident()]))
    assert pdla.run(2, calibrate._full, 1, least) == [size, size]


def test_groups_of_ranks():
    assert list(calibrate._groups(8)) == [(2, 1), (2, 4), (4, 1), (4, 2), (8, 1)]
    assert list(calibrate._groups(6)) == [(2, 1), (2, 3), (6, 1)] and list(calibrate._groups(1)) == []
    assert [calibrate._members(rank, 2, 2) for rank in range(8)] == [[0, 2], [1, 3], [0, 2], [1, 3], [4, 6], [5, 7], [4, 6], [5, 7]]


def test_verbs_are_foretold():
    """Of 4 ranks 2 apart, on nodes of 2: the other's 1000 bytes come from the other node, at 1e5 a second after 10 ms."""
    told = calibrate._foretold(calibrate.VERBS["allgather"], 4, 2, 2, 1000, PLAIN)
    assert told == pytest.approx(0.01 + 1000 / 1e5)
    assert calibrate._foretold(calibrate.VERBS["alltoall"], 4, 2, 1, 1000, PLAIN) == pytest.approx(0.001 + 1000 / 1e6)
