"""A cost has the most of each figure, and says on what machine its seconds are."""

from types import SimpleNamespace

from pdla.model.cost import Cost, in_words
from pdla.model.machine import Machine


def ledger(*figures):
    return SimpleNamespace(
        **dict(zip(("bytes_received", "messages", "peak_workspace", "flops", "seconds", "computed"), figures, strict=True))
    )


def test_each_figure_is_the_most_of_any_rank():
    assert Cost.of([ledger(1, 20, 3, 40, 5.0, 60.0), ledger(10, 2, 30, 4, 50.0, 6.0)]) == Cost(10, 20, 30, 40, 50.0, 60.0)


def test_the_machine_is_named_with_its_nodes_and_overlap():
    cost = Cost(0, 0, 0, seconds=0.012345)
    assert in_words(cost, Machine(), 8) == "0.0123 s on the default machine, one node, overlap 1"
    assert in_words(cost, Machine(name="ours", node=4, overlap=0.25), 9) == "0.0123 s on ours, 3 nodes of 4 ranks, overlap 0.25"
    assert "one node" in in_words(cost, Machine(node=4), 4)
