"""Traces against the rules of Chrome's trace-event format, by which Perfetto reads them; a row a rank, clocks aligned.

Trace Event Format, Google 2016: phases M (metadata), X (complete: ts and dur, nested within a thread) and b, e (async: pairs
of one category and id).
"""

import itertools
import json
from collections import Counter
from itertools import pairwise
from math import isfinite

import numpy as np
import pytest
from helpers.clocks import Ahead

import pdla
from pdla import record, run
from pdla.comm.clock import current as current_clock
from pdla.comm.clock import now
from pdla.comm.ledger import note_read
from pdla.model.machine import Machine

EVENT = {"name", "cat", "pid", "tid", "ts"}
PHASES = {"M": {"name", "pid", "args"}, "X": EVENT | {"dur"}, "b": EVENT | {"id"}, "e": EVENT | {"id"}}


def checked(path):
    """The rows of a trace that obeys the format."""
    content = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert content["displayTimeUnit"] in ("ms", "ns") and isinstance(content["traceEvents"], list)
    for row in content["traceEvents"]:
        _check_row(row)
    by_process = {row["pid"]: row for row in content["traceEvents"] if row["ph"] == "M"}
    assert by_process.keys() == {row["pid"] for row in content["traceEvents"]}
    _check_pairs(content["traceEvents"])
    _check_nesting(content["traceEvents"])
    return content["traceEvents"]


def _check_row(row):
    assert PHASES[row["ph"]] <= row.keys(), row
    assert isinstance(row["name"], str) and row["name"] and isinstance(row.get("cat", ""), str)
    assert all(isinstance(row[name], int) for name in ("pid", "tid") if name in row)
    for name in ("ts", "dur"):
        value = row.get(name, 0)
        assert isinstance(value, (int, float)) and isfinite(value) and value >= 0, row
    if row["ph"] == "M":
        assert row["name"] == "process_name" and row["args"] == {"name": f"rank {row['pid']}"}


def _check_pairs(rows):
    """Each id of a category begins once and ends once, later, in the same process."""
    pairs = {}
    for row in rows:
        if row["ph"] in "be":
            pairs.setdefault((row["cat"], row["id"]), []).append(row)
    for pair in pairs.values():
        assert [row["ph"] for row in pair] == ["b", "e"]
        begin, end = pair
        assert begin["ts"] <= end["ts"] and (begin["pid"], begin["tid"], begin["name"]) == (end["pid"], end["tid"], end["name"])


def _check_nesting(rows):
    """Complete events of a thread follow one another: pdla's local work does not nest."""
    for row in {(row["pid"], row["tid"]) for row in rows if row["ph"] == "X"}:
        spans = sorted((one["ts"], one["ts"] + one["dur"]) for one in rows if one["ph"] == "X" and (one["pid"], one["tid"]) == row)
        assert all(first[1] <= second[0] + 1e-6 for first, second in pairwise(spans))


def product(comm):
    grid = pdla.ProcessGrid((2, 2), comm=comm)
    A = pdla.ones((64, 64), grid, pdla.Layout("row", "col"))
    with pdla.tagged("product"):
        pdla.matmul(A, A, algorithm="summa", panel=8)


def test_a_job_of_four_ranks(tmp_path):
    def program(comm):
        with pdla.record() as ledger:
            product(comm)
        ledger.save_trace(tmp_path / "all.json", comm)
        return len(ledger.events)

    counts = pdla.run(4, program)
    phases = Counter(row["ph"] for row in checked(tmp_path / "all.json"))
    assert phases["M"] == 4 and phases["X"] + phases["b"] == sum(counts)
    assert phases["X"] and phases["b"] == phases["e"] > 0


def test_a_prediction(tmp_path):
    _, ledger = pdla.dry_run(4, product, machine=Machine())
    ledger.save_trace(tmp_path / "one.json")
    rows = checked(tmp_path / "one.json")
    last = max(row["ts"] + row.get("dur", 0) for row in rows if "ts" in row)
    begin, end = min(event.start for event in ledger.events), max(event.end for event in ledger.events)
    assert last == pytest.approx(1e6 * (end - begin))  # microseconds from the first event on


def test_what_is_read_in_shared_memory_is_an_event_of_its_moment_and_purpose():
    """Else a trace would begin with it at 0, on a clock that is days ahead."""
    with pdla.record() as ledger, pdla.tagged("fc1"):
        before = now()
        note_read("row", 24, 2)
    (event,) = ledger.events
    assert before <= event.start <= event.end <= now()
    assert (event.what, event.axis, event.bytes, event.messages, event.tag) == ("read", "row", 24, 2, "fc1")


def test_an_empty_ledger(tmp_path):
    with pdla.record() as ledger:
        pass
    ledger.save_trace(tmp_path / "none.json")
    assert [row["ph"] for row in checked(tmp_path / "none.json")] == ["M"]


def test_clocks_are_aligned(tmp_path):
    """Each rank's clock is an hour ahead of the one before; a message still ends on all of them within the job's seconds."""

    def program(comm):
        token = current_clock.set(Ahead(3600 * comm.rank))
        with pdla.record() as ledger:
            comm.bcast(np.ones(8), 0).wait()
        ledger.save_trace(tmp_path / "all.json", comm)
        current_clock.reset(token)

    pdla.run(3, program)
    rows = checked(tmp_path / "all.json")
    assert {row["pid"] for row in rows if row["ph"] == "e"} == {0, 1, 2}
    assert max(row["ts"] for row in rows if "ts" in row) < 60e6


def test_a_trace_can_be_saved(tmp_path):
    """Of one rank, and of all of them by rank 0: work as spans that do not cross, messages as pairs, clocks that agree."""
    import json

    def program(comm):
        grid = pdla.ProcessGrid((1, 2), comm=comm)
        A = pdla.ones((64, 64), grid, pdla.Layout("row", "col"))
        with record() as ledger, pdla.tagged("product"):
            pdla.matmul(A, A, algorithm="summa", panel=16)
        ledger.save_trace(tmp_path / f"{comm.rank}.json")
        ledger.save_trace(tmp_path / "all.json", comm)
        with pytest.raises(OSError, match="nowhere"):
            ledger.save_trace(tmp_path / "nowhere" / "all.json", comm)
        with pytest.raises(OSError, match="null"):
            ledger.save_trace("all\0.json", comm)
        return len(ledger.events)

    counts = run(2, program)
    alone, all_ranks = (json.loads((tmp_path / f"{name}.json").read_text())["traceEvents"] for name in ("1", "all"))
    assert {row["pid"] for row in alone} == {0} and {row["pid"] for row in all_ranks} == {0, 1}
    assert [row["args"]["name"] for row in all_ranks if row["ph"] == "M"] == ["rank 0", "rank 1"]
    begun, ended = ({row["id"]: row for row in all_ranks if row["ph"] == phase} for phase in "be")
    spans = [row for row in all_ranks if row["ph"] == "X"]
    assert len(spans) + len(begun) == sum(counts) and begun.keys() == ended.keys()
    assert all(begun[i]["ts"] <= ended[i]["ts"] and begun[i]["cat"] == ended[i]["cat"] for i in begun)
    assert min(row["ts"] for row in all_ranks if "ts" in row) == 0
    assert {row["name"] for row in (*spans, *begun.values())} == {"product"}
    for rank in (0, 1):
        mine = sorted((row["ts"], row["ts"] + row["dur"]) for row in spans if row["pid"] == rank)
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(mine))
