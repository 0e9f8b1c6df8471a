"""A dry run's time on a described machine: links, work, overlap; machines as files; calibration."""


import numpy as np
import pytest

import pdla
from pdla import Layout
from pdla.comm.clock import Clock
from pdla.model.machine import Machine

PLAIN = Machine(flops=1e9, single=2.0, call=0.0, memory=1e30, bandwidth=1e6, latency=1e-3, network=1e5, far_latency=1e-2, node=2)


def test_a_link_takes_one_message_after_another():
    clock = Clock(PLAIN)
    assert clock.receive(1000, 0) == pytest.approx(0.001 + 0.001)
    assert clock.receive(1000, 0) == pytest.approx(0.001 + 0.002)
    assert clock.receive(1000, 2) == pytest.approx(0.01 + 0.01)
    assert clock.send(1000, 0) == pytest.approx(0.002)  # sending is another link
    clock.wait(0.003)
    assert clock.time == 0.003 and clock.computed == 0
    clock.wait(0.002)
    assert clock.time == 0.003


@pytest.mark.parametrize(("overlap", "expected"), [(1.0, 1.0), (0.0, 1.6), (0.5, 1.1)])
def test_messages_move_on_while_the_rank_computes_if_the_machine_lets_them(overlap, expected):
    """A message of 0.6 s and a product of 1 s."""
    clock = Clock(Machine(flops=1e9, call=0.0, memory=1e30, bandwidth=1e6, latency=0.0, overlap=overlap))
    due = clock.receive(600_000, 0)
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


def test_messages_are_handled_one_after_another_while_bytes_move():
    clock = Clock(Machine(bandwidth=1e6, latency=1e-3, gap=0.5))
    assert clock.receive(0, 0) == pytest.approx(0.501)
    assert clock.receive(10**6, 0) == pytest.approx(1.001 + 1.0)  # its bytes, behind its own handling
    assert clock.receive(10**5, 0) == pytest.approx(2.001 + 0.1)  # handled meanwhile; behind the other's bytes
    assert clock.receive(10**5, 2) == pytest.approx(0.5 + 2e-5 + 1e5 / 1.25e9)  # another link
    assert clock.send(10**6, 0, messages=3) == pytest.approx(1.501 + 1 / 3)  # the last one's bytes, behind its handling
    assert clock.send(10**7, 0, messages=3) == pytest.approx(2.001 + 10.0)  # begun behind the first one's
    assert clock.send(10**5, 0, messages=3) == pytest.approx(2.001 + 10.1)


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


@pytest.mark.parametrize("grid", [(4, 8), (8, 4), (2, 16), (16, 2), (32, 1), (1, 32)])
@pytest.mark.parametrize("ahead", [1, 3, 4])
def test_ranks_of_a_node_share_its_link_where_they_receive_from_others_at_once(grid, ahead):
    """Counted by hand: on a grid by rows, 4 ranks a node, each rank receives from the one so many further along an axis."""
    ranks, machine = grid[0] * grid[1], Machine(node=4, injection=1.0)
    for axis in (0, 1):

        def partner(rank, axis=axis):
            row, col = divmod(rank, grid[1])
            row, col = ((row + ahead) % grid[0], col) if axis == 0 else (row, (col + ahead) % grid[1])
            return row * grid[1] + col

        def program(comm, axis=axis):
            line = pdla.ProcessGrid(grid, comm=comm)[("row", "col")[axis]]
            return line._count_sharing((line.rank + ahead) % line.size, 4)

        for rank in range(ranks):
            node = range(rank // 4 * 4, rank // 4 * 4 + 4)
            abroad = partner(rank) // 4 != rank // 4
            expected = sum(partner(each) // 4 != rank // 4 for each in node) if abroad else 0
            assert pdla.dry_run(ranks, program, rank=rank, machine=machine)[0] == expected


def test_a_chain_along_a_grid_row_goes_into_a_node_once():
    """2 MB from rank to rank along 1 x 8 on nodes of 4 whose link carries 1 MB/s: 2 s; as columns of 8 x 4 do, four times that."""
    machine = Machine(call=0.0, memory=1e30, bandwidth=1e12, network=1e6, injection=1e6, latency=0.0, far_latency=0.0, node=4)

    def seconds(shape, axis):
        def program(comm):
            line = pdla.ProcessGrid(shape, comm=comm)[("row", "col")[axis]]
            sent, came = (comm.xp.empty((2_000_000,), np.dtype("uint8")) for _ in range(2))
            line.shift(sent, came, 1).wait()

        return pdla.dry_run(shape[0] * shape[1], program, machine=machine)[1].seconds

    assert seconds((1, 8), 1) == pytest.approx(2.0, rel=1e-3)
    assert seconds((8, 4), 0) == pytest.approx(8.0, rel=1e-3)
