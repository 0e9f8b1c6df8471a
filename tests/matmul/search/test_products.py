"""Products foretold: closed forms against dry runs."""

from dataclasses import replace
from math import prod

import pytest
from helpers.machines import FREE, MIXED

from pdla.matmul.dry import make_communicator
from pdla.matmul.plan import costs
from pdla.matmul.search import products
from pdla.matmul.search.products import Product


def find_first_rank(of, choice, ranks, machine):
    """The ledger of the first rank of a choice's grid."""
    plan = products.make_plan(of, choice, machine, make_communicator(ranks, machine)).plan
    return costs.clock(plan, costs.find_first_rank(plan))


@pytest.mark.parametrize("sizes", [(24, 24, 24), (13, 29, 17)])
def test_what_products_receive_is_known_in_closed_form(sizes):
    of = Product(*sizes)
    for ranks in (6, 8, 16):
        for table in products.list_tables(of, ranks, FREE):
            guess = products.guess(of, table, FREE)
            found = find_first_rank(of, guess.choice, ranks, FREE)
            words = sum(move.words for move in products.list_moves(of, table))
            more = table.schedule == "cannon" and found.bytes_received > 8 * words
            assert more or found.bytes_received == 8 * words, guess.choice
            assert guess.size == products.make_plan(of, guess.choice, FREE, make_communicator(ranks, FREE)).matrices, guess.choice


@pytest.mark.parametrize("node", [1, 4])
def test_messages_are_those_of_the_sums_that_the_grid_has(node):
    """36 ranks sum a face of C in two sums of six where nodes have one rank, and else in one."""
    machine, of = replace(MIXED, node=node, call=0.0, latency=0.0, far_latency=0.0, gap=1e-3), Product(2000, 2000, 10**7)
    (table,) = (table for table in products.list_tables(of, 144, machine) if (table.box, table.schedule) == ((2, 2, 36), "gather"))
    guess = products.guess(of, table, machine)
    found = find_first_rank(of, guess.choice, 144, machine)
    assert found.messages == (2 + 2 * 5 if node == 1 else 2 + 35)
    assert guess.seconds.overhead == pytest.approx(found.messages * machine.gap)


@pytest.mark.parametrize("schedule", ["gather", "summa"])
def test_short_panels_of_many_ranks_come_one_by_one_and_what_is_gathered_at_once_in_steps(schedule):
    machine, of = replace(MIXED, node=0, call=0.0, latency=0.0, gap=1e-3), Product(400, 40, 400)
    (table,) = (one for one in products.list_tables(of, 64, machine) if (one.algorithm, one.shape) == (schedule, (64, 1)))
    guess = products.guess(of, table, machine)
    found = find_first_rank(of, guess.choice, 64, machine)
    assert found.messages == {"gather": 6, "summa": 63}[schedule]
    assert guess.seconds.overhead == pytest.approx(found.messages * machine.gap)


@pytest.mark.parametrize("node", [0, 4, 8])
def test_messages_sent_at_once_wait_for_one_latency_that_of_the_node_within_it(node):
    machine, of = replace(MIXED, node=node, call=0.0), Product(40, 30, 50)
    begun, rounds = zip(*(
        (products.guess(of, table, machine).seconds.overhead, len([*products.list_moves(of, table)]))
        for table in products.list_tables(of, 8, machine) if table.schedule == "gather" and prod(table.shape) == 8
    ), strict=True)
    if node == 4:
        assert min(begun) >= machine.far_latency
    else:
        assert begun == pytest.approx([n * machine.latency for n in rounds])


@pytest.mark.parametrize(("schedule", "calls"), [("gather", 0), ("summa", 3)])
def test_products_of_panels_are_counted_one_for_a_panel_of_a_and_one_of_b(schedule, calls):
    machine, of = replace(FREE, call=1.0), Product(400, 400, 400)
    (table,) = (one for one in products.list_tables(of, 16, machine) if (one.algorithm, one.shape) == (schedule, (4, 4)))
    assert products.guess(of, table, machine).seconds.overhead == calls


@pytest.mark.parametrize("sizes", [(1, 17, 10**6), (2000, 3, 10**5), (2000, 2000, 10**6)])
def test_short_sums_of_many_ranks_come_in_steps(sizes):
    """Where a step takes long, a sum that is priced as if all addends came by themselves would take longer than the run."""
    machine, of = replace(MIXED, call=1e-3, node=0), Product(*sizes)
    for table in products.list_tables(of, 64, machine):
        if table.box.k >= 32:
            guess = products.guess(of, table, machine)
            found = find_first_rank(of, guess.choice, 64, machine)
            assert found.bytes_received == 8 * sum(move.words for move in products.list_moves(of, table)), guess.choice
            assert guess.seconds.least <= found.seconds, guess.choice
