"""Calibration: what is measured, left out, written, and predicted."""

import threading
from collections import Counter
from math import inf
from types import SimpleNamespace

import pytest

import pdla
from pdla.bench.cli import main
from pdla.bench.measure import calibration, verbs
from pdla.bench.screen import Screen
from pdla.model.machine import Machine

PLAIN = Machine(flops=1e9, single=2.0, call=0.0, memory=1e30, bandwidth=1e6, latency=1e-3, network=1e5, far_latency=1e-2, node=2)


@pytest.fixture
def quick(monkeypatch):
    """Little to measure, once."""
    for name, value in {
        "LARGE": 64,
        "STACK": 1 << 8,
        "MESSAGE": 1 << 12,
        "STREAM": 1 << 12,
        "TURNS": 1,
    }.items():
        monkeypatch.setattr(calibration, name, value)
    monkeypatch.setattr(verbs, "SIZES", (8, 1 << 10))


def test_calibrate_writes_a_machine(tmp_path, quick, capsys, monkeypatch):
    monkeypatch.setattr(verbs, "PATIENCE", inf)  # however slow a link has seemed, all verbs are timed
    path = tmp_path / "here.toml"
    assert main(["calibrate", "--threads", "2", "--out", str(path)]) == 0
    machine = Machine.load(path)
    assert min(machine.flops, machine.memory, machine.bandwidth, machine.call, machine.erf) > 0
    assert 0 <= machine.overlap <= 1 and min(machine.latency, machine.gap) >= 0  # the gap is a difference of two times
    assert [size for size, _ in machine.reached] == [8, 16, 32] and all(0 < share <= 1 for _, share in machine.reached)
    printed = capsys.readouterr().out
    *lines, stride, size, ratio = [line.split() for line in printed.partition(machine.text())[2].splitlines() if line][1:]
    assert [stride[0], size[0], ratio[0]] == ["stride:", "bytes:", "ratio:"]
    assert [line[:4] for line in lines[:4]] == [[verb, "2", "1", "8"] for verb in verbs.VERBS]
    assert len(lines) == 9 and lines[-1][:4] == ["barrier", "2", "1", "0"] and lines[-1][5:] == ["–", "–"]


def test_the_share_of_a_small_product_is_no_zero(monkeypatch):
    """A machine that has one is refused when it is read; 8 x 8 x 8 took long, or the large product is a fast GPU's."""
    monkeypatch.setattr(calibration, "_measure_rate", lambda comm, n: 1e13 if n == calibration.LARGE else 1.23456e5 * n)
    _, reached = pdla.run(1, calibration._measure_rates)[0]
    assert reached[:2] == ((8.0, 9.88e-8), (16.0, 1.98e-7))


@pytest.mark.parametrize(("homes", "step"), [((), 0), ((0, 0, 2, 2), 2), ((0, 1, 0, 1), 1), ((0, 0, 0, 3), 0)])
def test_links_are_measured_inside_nodes_and_between_them(homes, step, quick, monkeypatch):
    """Each node's ranks around that node; to ranks of other nodes all at once, where there is such a step, and one of each node."""
    seen = [[] for _ in range(4)]
    here = threading.local()

    def link(comm, step):
        """Inside a node 8 GB/s, between nodes all at once 1 GB/s, one of each node 1.5."""
        seen[here.rank].append((comm.size, step))
        return 1e-6, 2e-6, [8e9, 1e9, 1.5e9][len(seen[here.rank]) - 1]

    monkeypatch.setattr(calibration, "_measure_link", link)

    def program(comm):
        here.rank, comm.homes = comm.rank, homes
        return calibration.measure_machine(comm, Screen(first=False))

    machine = pdla.run(4, program)[0]
    beyond = [(4, step)] if step else []
    near = [homes.count(home) or 4 for home in homes or [0] * 4]
    first = [[(2, 1)] if step and homes.index(home) == rank else [] for rank, home in enumerate(homes or [0] * 4)]
    assert seen == [([(n, 1)] if n > 1 else []) + beyond + alone for n, alone in zip(near, first, strict=True)]
    assert (machine.network, machine.injection) == ((1.5e9, 2e9) if step else (Machine.network, 0))
    assert (machine.gap, machine.latency, machine.bandwidth) == (1e-6, 2e-6, 8e9)
    assert machine.source.endswith("; far_latency, network by default: no such links") != bool(step)


def test_what_is_predicted_to_take_long_is_left_out(quick):
    """1 KiB at 2 KB a second and more would take half a second."""
    slow = Machine(bandwidth=2e3, latency=0.0, gap=0.0)
    (rows, _) = pdla.run(2, lambda comm: list(verbs.compare_verbs(comm, slow)))
    assert [(row.verb, row.size) for row in rows] == [*((verb, 8) for verb in verbs.VERBS), ("barrier", 0)]


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

    monkeypatch.setattr(calibration, "_make_shift", message)
    monkeypatch.setattr(calibration, "time", SimpleNamespace(perf_counter=lambda: seconds[threading.get_ident()]))
    assert pdla.run(2, calibration._find_full_size, 1, least) == [size, size]


def test_groups_of_ranks():
    assert list(verbs._groups(8)) == [(2, 1), (2, 4), (4, 1), (4, 2), (8, 1)]
    assert list(verbs._groups(6)) == [(2, 1), (2, 3), (6, 1)] and list(verbs._groups(1)) == []
    assert [verbs._members(rank, 2, 2) for rank in range(8)] == [[0, 2], [1, 3], [0, 2], [1, 3], [4, 6], [5, 7], [4, 6], [5, 7]]


def test_verbs_are_predicted():
    """Of 4 ranks 2 apart, on nodes of 2: the other's 1000 bytes come from the other node, at 1e5 a second after 10 ms."""
    told = verbs._predict(verbs.VERBS["allgather"], 4, 2, 2, 1000, PLAIN)
    assert told == pytest.approx(0.01 + 1000 / 1e5)
    assert verbs._predict(verbs.VERBS["alltoall"], 4, 2, 1, 1000, PLAIN) == pytest.approx(0.001 + 1000 / 1e6)
