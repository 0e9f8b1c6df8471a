"""A dry run's time on a described machine: links, work, overlap; machines as files; the search for a scheme and a grid."""

import numpy as np
import pytest

import pdla
from pdla import nn
from pdla.bench import networks
from pdla.bench.cli import main
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


def test_work():
    machine = Machine(flops=1e9, single=2.0, half=4.0, call=1.0, memory=1e6, erf=10.0)
    assert machine.gemm(100, 100, 50000, "float64") == pytest.approx(1 + (100 * 50000 * 2 + 2 * 100 * 100) * 8 / 1e6)  # read longer
    work = Machine(flops=1e9, single=2.0, half=4.0, call=1.0, memory=1e30)
    times = {dtype: work.gemm(1000, 1000, 500, dtype) - 1 for dtype in ("float64", "float32", "float16", "complex128", "complex64")}
    assert times == pytest.approx({"float64": 1.0, "float32": 0.5, "float16": 0.25, "complex128": 4.0, "complex64": 2.0})
    assert work.gemm(1000, 1000, 500, "float64", count=3) == pytest.approx(6.0)
    assert machine.error_function(20, 8) == 2.0 and machine.touch(10**6) == 1.0
    assert Machine(network=5e9, injection=8e9, node=4).rate(True) == 2e9
    assert [PLAIN.home(rank) for rank in range(5)] == [0, 0, 1, 1, 2]


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
    # Rank 0 sends panels 0 and 1 in 2 s each, one after the other; 2 comes meanwhile; 3 is asked for when 1 is multiplied, at
    # 4.125 s, and is here 2 s later; its own product follows.
    assert ledger.seconds == pytest.approx(4.125 + 2 + 0.125)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("length", [0, 1, 2, 4, 7])
def test_dry_halves_are_counted_as_threads_count_theirs(size, length):
    def program(comm):
        with pdla.record() as ledger:
            x = comm.xp.empty((length,), "float64")
            for half in comm.halves(x, x):
                half.wait()
        return [(e.what, e.bytes, e.messages, e.far) for e in ledger.events], ledger.peak_workspace

    for rank, real in enumerate(pdla.run(size, program)):
        assert pdla.dry_run(size, program, rank=rank)[0] == real


def test_machines_are_files(tmp_path):
    assert {"v100x4", "a100x4", "h200x8"} <= set(Machine.known())
    for name in Machine.known():
        machine = Machine.load(name)
        assert machine.source and machine.node > 1
        path = tmp_path / "again.toml"
        path.write_text(machine.text())
        assert Machine.load(path) == machine
    with pytest.raises(FileNotFoundError, match="a100x4"):
        Machine.load("a100")
    for wrong in ("speed = 1.0", "flops = -1.0", 'flops = "fast"', "name = 3"):
        path.write_text(wrong)
        with pytest.raises(ValueError, match=wrong.split()[0]):
            Machine.load(path)


def test_the_best_grid_is_found():
    """On a slow network between nodes of 4 the model's axis stays inside a node."""
    net = networks.Net(hidden=256, heads=8, sequence=32, batch=16, layers=2)
    machine = Machine(flops=1e12, memory=1e12, bandwidth=1e11, network=1e8, latency=1e-6, far_latency=1e-5, node=4)
    found = networks.best(16, net, machine, 1000)
    assert [step.seconds for step in found] == sorted(step.seconds for step in found)
    assert {step.choice.name for step in found} == {"Megatron1D", "Summa2D", "Tesseract", "Cube3D", "Tensor3D"}
    sizes = dict(zip(found[0].choice.axes, found[0].choice.shape, strict=True))
    assert sizes["row"] * sizes.get("col", 1) <= 4
    again = networks.step(found[0].choice, net, machine)
    assert again == found[0] and 0 < again.computing <= again.seconds
    assert all(np.prod(step.choice.shape) == 16 for step in found)


def test_predictions_of_layers_count_every_layer():
    net = networks.Net(hidden=64, heads=4, sequence=8, batch=4, layers=3)
    choice = networks.Choice("Tensor3D", (1, 2, 2, 1), ("data", "row", "col", "depth"))

    def one(comm):
        scheme = choice.scheme(comm)
        layer = nn.TransformerLayer(scheme, 64, 4, sequence=8, dtype="float32")
        with pdla.record() as ledger:
            layer.backward(layer.forward(pdla.zeros((32, 64), scheme.grid, scheme.residual(8), dtype="float32")))
        return ledger.bytes_received

    assert networks.step(choice, net, Machine()).received == 3 * pdla.dry_run(4, one)[0]


def test_the_command_line(capsys):
    small = ["--hidden", "64", "--heads", "4", "--sequence", "8", "--batch", "4", "--layers", "2"]
    assert main(["predict", "-P", "4", *small, "--best", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("2 layers of 64 features, 4 heads, 4 sequences of 8") and len(lines) == 3 + 3
    assert main(["predict", "-P", "4", "--heads", "5"]) == 2 and "equal heads" in capsys.readouterr().err
    assert main(["predict", "-P", "4", "--machine", "nowhere"]) == 2 and "a100x4" in capsys.readouterr().err


def test_calibrate_writes_a_machine(tmp_path, monkeypatch):
    monkeypatch.setattr("pdla.bench.calibrate.LARGE", 64)
    monkeypatch.setattr("pdla.bench.calibrate.MESSAGE", 1 << 12)
    monkeypatch.setattr("pdla.bench.calibrate.STREAM", 1 << 12)
    path = tmp_path / "here.toml"
    assert main(["calibrate", "--threads", "2", "--out", str(path)]) == 0
    machine = Machine.load(path)
    assert min(machine.flops, machine.memory, machine.bandwidth, machine.latency, machine.erf) > 0 and 0 <= machine.overlap <= 1
