"""Machines: files of figures, and how long work and messages take by them."""

import re
from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest

from pdla import config
from pdla.errors import ArgumentError, PlanError
from pdla.model.machine import Machine

PLAIN = Machine(flops=1e9, single=2.0, call=0.0, memory=1e30, bandwidth=1e6, latency=1e-3, network=1e5, far_latency=1e-2, node=2)


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
    shared = Machine(network=5e9, injection=8e9, node=4)
    assert [shared.rate(sharing) for sharing in (0, 1, 2, 4)] == [shared.bandwidth, 5e9, 4e9, 2e9]
    assert [PLAIN.home(rank) for rank in range(5)] == [0, 0, 1, 1, 2]


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


def test_machines_are_files(tmp_path):
    assert {"laptop", "v100x4", "a100x4", "h200x8"} <= set(Machine.known())
    for name in Machine.known():
        machine = Machine.load(name)
        assert machine.source and machine.name
        path = tmp_path / "again.toml"
        path.write_text(machine.text())
        assert Machine.load(path) == machine
    with pytest.raises(ValueError, match=r"no machine 'a100x': a TOML file, or one of 'a100x4', .*; did you mean 'a100x4'"):
        Machine.load("a100x")
    with pytest.raises(FileNotFoundError, match=r"no machine 'none\.toml'"):
        Machine.load("none.toml")
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
        Machine.choose()
    assert str(told.value).startswith(f"PDLA_MACHINE: {path}: lacks {', '.join(lost.split())}; only reached, ")


def without(names):
    """A file of a machine that lacks these figures."""
    return "\n".join(line for line in Machine(node=4).text().splitlines() if line.split()[0] not in names)


def test_what_a_machine_has_none_of_may_be_left_out(tmp_path):
    path = tmp_path / "least.toml"
    path.write_text(without(["reached", "erf", "gap", "node", "injection", "at_once", "name", "source"]))
    assert Machine.load(path) == Machine()


def test_only_the_machine_of_round_figures_is_called_the_default():
    named = Machine.load("a100x4")
    assert [one.title for one in (Machine(), Machine(flops=1e12), named)] == [
        "the default machine", "a machine without a name", named.name
    ]


def test_figures_are_checked_where_a_machine_is_made():
    wrong_types = {"flops": "1e12", "node": 2.0, "latency": None, "overlap": True, "name": 3, "reached": 0.5}
    wrong_numbers = {"network": 0, "half": -1.0, "gap": inf, "step": nan, "overlap": 1.5, "node": -4, "flops": 10**400}
    no_pairs, wrong_pairs = ([8, 0.5], [("8", 0.5)], [(8, 0.5, 1)]), ([(8, 0)], [(8, 0.5), (4, 0.6)], [(8, 0.5), (8, 0.6)])
    pairs = {ArgumentError: no_pairs, PlanError: wrong_pairs}
    tried = [(ArgumentError, *each) for each in wrong_types.items()] + [(PlanError, *each) for each in wrong_numbers.items()]
    for kind, name, value in [*tried, *((kind, "reached", value) for kind, values in pairs.items() for value in values)]:
        with pytest.raises(kind, match=re.escape(f"Machine: {name}={value!r}: ")):
            Machine(**{name: value})
        with pytest.raises(kind, match=name):
            replace(PLAIN, **{name: value})
    with pytest.raises(PlanError, match="node=-4: a whole number, 0 or more"):
        Machine(node=-4)
    made = Machine(flops=np.float32(2e12), node=np.int64(4), reached=[[8, np.float64(0.5)]])  # and written as Python's numbers
    assert "np." not in made.text() and (made.flops, made.node, made.reached) == (float(np.float32(2e12)), 4, ((8.0, 0.5),))


def test_a_machine_says_in_which_figures_it_is_a_desktop_core():
    assert repr(Machine(flops=1e12, network=2e10, node=4)).endswith(
        "node=4; by default bandwidth, latency, single, half, call, memory, far_latency)"
    )
    assert repr(Machine()) == "Machine()"
    assert "by default, as of a desktop core: flops, bandwidth, " in Machine()._repr_html_()
    assert "by default" not in repr(Machine.load("h200x8")) + Machine.load("h200x8")._repr_html_()
    assert repr(Machine.load("laptop")).endswith("; by default network, far_latency)")  # one computer has no such links


@pytest.mark.parametrize("content", [b"flops = \n", b"\xff\xfe"])
def test_files_that_are_no_toml_are_named(content, tmp_path):
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with config.override(machine=str(path)), pytest.raises(ValueError, match=f"PDLA_MACHINE: {path}: "):
        Machine.choose()


def test_lapack_takes_its_operations_and_a_narrow_product_more():
    machine = Machine(flops=1e9, call=2.0, memory=1e30, narrow=50.0)
    assert machine.lapack(300, 200, 6e6, "float64") == pytest.approx(2 + (6e6 + 2 * 300 * 200 * 50) / 1e9)
    assert machine.lapack(300, 200, 6e6, "complex64") == pytest.approx(2 + 4 * (6e6 + 2 * 300 * 200 * 50) / 2e9)


def test_the_ladder_has_powers_of_two_with_and_without_three_and_whole_nodes():
    assert Machine().ladder(1) == [1] and Machine().ladder(13) == [1, 2, 3, 4, 6, 8, 12, 13]
    assert Machine(node=5).ladder(45) == [1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 16, 20, 24, 30, 32, 40, 45]
    assert max(map(len, map(Machine(node=8).ladder, (10**6, 10**7)))) < 100


def test_homes_are_whole_nodes_one_after_another():
    assert Machine(node=3).homes(7) == (0, 0, 0, 1, 1, 1, 2) and Machine(node=3).homes(3) == () == Machine().homes(9)


def test_only_another_machine_than_the_default_is_described():
    assert not Machine().is_custom and Machine(flops=1e9).is_custom and Machine.load("laptop").is_custom
