"""Where the time of a run goes: the rule on made-up events, on runs of threads and on predicted ones."""

import time

import numpy as np
import pytest
from helpers.clocks import Ahead

import pdla
from pdla.comm.clock import current as current_clock
from pdla.comm.ledger import Event, timed
from pdla.matmul import planner
from pdla.matmul.builder import PlanBuilder
from pdla.matmul.choose.problem import Operand
from pdla.matmul.dry import make_communicator
from pdla.matmul.options import Options
from pdla.matmul.plan import costs
from pdla.model.machine import Machine
from pdla.simulate.split import RANKS, SPANS, Part, combine, measure_split, measure_union, split_ledgers

MACHINE = Machine()
EVENTS = [
    Event("bcast", "row", 80, start=1.0, end=4.0),
    Event("gemm", start=2.0, end=5.0),
    Event("shift", "col", 8, start=4.5, end=7.0),
    Event("read", "row", 16, start=7.0, end=7.0),
]


@pytest.mark.parametrize(
    ("intervals", "length"),
    [([], 0), ([(1, 3)], 2), ([(1, 3), (2, 5)], 4), ([(6, 7), (1, 5), (2, 3)], 5), ([(1, 1)], 0), ([(1, 2), (2, 3)], 2)],
)
def test_overlapping_time_counts_once(intervals, length):
    assert measure_union(intervals) == length


def test_a_rank_computes_then_communicates_then_waits():
    alone = combine([Part.of(0, EVENTS, 0.0, 10.0, SPANS)], 1)
    assert (alone.seconds, alone.computing, alone.communicating, alone.waiting) == (10, 3, 3, 4)


def test_means_over_ranks_add_up_to_the_time_until_the_last_is_done():
    parts = [Part.of(0, EVENTS, 0.0, 8.0, SPANS), Part.of(1, [Event("gemm", start=0.5, end=9.5)], 0.5, 10.0, SPANS)]
    both = combine(parts, 2)
    assert (both.seconds, both.computing, both.busiest, both.communicating) == (10, 6, 9, 1.5)
    assert both.computing + both.communicating + both.waiting == both.seconds
    assert [span.rank for span in both.timeline.spans] == [0, 0, 0, 0, 1]
    assert both.timeline.left_out == ()


def test_long_spans_are_kept_and_what_is_left_out_is_told():
    events = [Event("gemm", start=i, end=i + 1 / (i + 1)) for i in range(SPANS + 5)]
    made = combine([Part.of(0, events, 0.0, SPANS, SPANS), Part.of(RANKS, events, 0.0, SPANS, SPANS)], RANKS + 1)
    assert len(made.timeline.spans) == SPANS
    assert made.timeline.left_out == (f"of {RANKS + 1} ranks all but rank 0", f"5 spans, none longer than {1 / SPANS:.3g} s")
    assert max(span.start for span in made.timeline.spans) == SPANS - 1


def test_ranks_that_compute_and_wait_are_told_apart():
    def program(comm):
        def work():
            with pdla.tagged("nap"), timed("sleep"):
                time.sleep(0.05 if comm.rank == 0 else 0.0)

        return measure_split(comm, work)[1]

    told = pdla.run(2, program)
    assert told[0] == told[1]
    assert told[0].busiest >= 0.05 and told[0].busiest > told[0].computing > 0  # of one rank; the mean of both
    assert told[0].waiting == pytest.approx(told[0].seconds - told[0].computing)
    assert {(span.what, span.tag) for span in told[0].timeline.spans} == {("sleep", "nap")}


def test_clocks_of_different_nodes_are_set():
    """Three ranks on two nodes whose clocks differ by an hour; ranks of a node have one clock."""

    def program(comm):
        comm.homes = [0, 1, 1]
        token = current_clock.set(Ahead(3600 * comm.homes[comm.rank]))
        told = measure_split(comm, lambda: comm.allreduce(np.ones(4)).wait())[1]
        current_clock.reset(token)
        return told

    told = pdla.run(3, program)[0]
    assert told.seconds < 60
    assert all(-60 < span.start <= span.end < 60 for span in told.timeline.spans)
    assert {span.rank for span in told.timeline.spans} == {0, 1, 2}


def planned(comm, n, machine):
    """SUMMA in four panels, planned for a machine; and its matrices."""
    grid = pdla.ProcessGrid(pdla.balanced_shape(comm.size), comm=comm)
    A = pdla.zeros((n, n), grid, pdla.Layout("row", "col"))
    C = Operand(A.shape, A.layout, grid)
    options = Options("summa", None, "summa", panel=n // 4)
    return planner.make(PlanBuilder(Operand.of(A), Operand.of(A), C, A.dtype, options, machine)), A


def predicted(ranks, n, machine=MACHINE):
    """Where the time of that product goes on a machine."""
    return split_ledgers(costs.clock_ranks(planned(make_communicator(ranks, machine), n, machine)[0]), ranks)


def test_a_prediction_has_the_spans_of_the_run():
    """By the same rule: what is done, by whom, along which axis and of how many bytes; predicted on a machine."""

    def program(comm):
        plan, A = planned(comm, 64, MACHINE)
        return measure_split(comm, lambda: plan(A, A))[1]

    told, found = predicted(4, 64), pdla.run(4, program)[0]
    assert told.seconds == pytest.approx(told.computing + told.communicating + told.waiting)
    assert told.computing == pytest.approx(4 * MACHINE.gemm(32, 32, 16, "float64"))
    signs = [sorted((s.rank, s.what, s.axis, s.bytes) for s in one.timeline.spans) for one in (told, found)]
    assert signs[0] == signs[1]


def test_more_ranks_are_predicted_by_some():
    told = predicted(1024, 2048)
    assert told.timeline.left_out[0] == "of 1024 ranks all but ranks 0, 31"  # which are run, and drawn
    assert told.seconds > told.computing > 0


def test_a_slower_network_is_waited_for():
    fast, slow = (predicted(4, 256, Machine(bandwidth=rate)) for rate in (1e10, 1e7))
    assert fast.computing == pytest.approx(slow.computing)
    assert slow.communicating > 10 * fast.communicating
