"""What a ledger looks like at a prompt."""

import pdla
from pdla.comm.ledger import Event


def test_the_repr_of_a_ledger_is_its_totals_in_a_few_lines():
    bytes_of = {"": 5, "fc1": 70, "fc2": 60, **{f"block {i}": 10 + i for i in range(1000)}}
    events = [Event("allgather", "row", size, 2, far=size // 2, tag=tag) for tag, size in bytes_of.items()]
    ledger = pdla.Ledger([*events, Event("gemm", flops=1000)], 64, 128, 2.0, 0.5)
    far = sum(size // 2 for size in bytes_of.values())
    total, last = sum(bytes_of.values()), "block 999: 1009, block 998: 1008, block 997: 1007, block 996: 1006, block 995: 1005"
    assert repr(ledger).splitlines() == [
        f"Ledger: 1004 events, {total} bytes received, {far} of them from other nodes, 2006 messages, 1000 flops",
        f"    bytes by verb: allgather: {total}",
        f"    bytes by axis: row: {total}",
        f"    bytes by tag: {last}, block 994: 1004, and 997 others",
        "    workspace: 64 bytes, at most 128; 2 s, 0.5 of them computing",
    ]


def test_an_empty_ledger_and_one_without_tags_have_fewer_lines():
    assert repr(pdla.Ledger()) == "Ledger: 0 events, 0 bytes received, 0 messages, 0 flops\n    workspace: 0 bytes, at most 0"
    assert "bytes by tag" not in repr(pdla.Ledger([Event("shift", "col", 8, 1)]))


def test_a_dry_run_of_all_ranks_is_told_in_a_line():
    def program(comm):
        A = pdla.zeros((64, 64), pdla.ProcessGrid((2, 2)), pdla.Layout("row", "col"))
        for _ in range(50):
            A @ A

    found = pdla.dry_run_all(4, program, machine=pdla.Machine())
    assert repr(found) == f"AllRanks(4 ranks, {found.seconds:.4g} s)"
    told = repr(found.path)
    assert told.startswith(f"Path({len(found.path.steps)} steps, {found.seconds:.4g} s: ") and len(told) < 120
