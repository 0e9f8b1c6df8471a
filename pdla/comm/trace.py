"""Write events as a Chrome trace, for Perfetto: a process for each rank, work as spans, messages as asynchronous spans."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import count
from typing import Any


def shift(events: Sequence[Any], seconds: float) -> list[Any]:
    """Add seconds to the times of events."""
    return [replace(event, start=event.start + seconds, end=event.end + seconds) for event in events]


def write(path: str, ranks: Mapping[int, Sequence[Any]]) -> None:
    """Write all ranks' events; times count from the start of the first event."""
    origin = min((event.start for events in ranks.values() for event in events), default=0.0)
    numbers = count()
    rows = [row for rank, events in ranks.items() for row in _list_rows(rank, events, origin, numbers)]
    with open(path, "w") as file:
        json.dump({"traceEvents": rows, "displayTimeUnit": "ms"}, file)


def _list_rows(rank: int, events: Sequence[Any], origin: float, numbers: Iterator[int]) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}}
    for event in events:
        begin, end = (1e6 * (at - origin) for at in (event.start, event.end))
        row = {"name": event.tag or event.what, "cat": event.axis or "local", "pid": rank, "tid": 0, "ts": begin}
        if event.axis:  # messages overlap each other, as ordinary spans of one row must not
            row["id"] = next(numbers)
            yield row | {"ph": "b", "args": asdict(event)}
            yield row | {"ph": "e", "ts": end}
        else:
            yield row | {"ph": "X", "dur": end - begin, "args": asdict(event)}
