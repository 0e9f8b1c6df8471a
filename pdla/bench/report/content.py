"""The JSON that a run leaves behind; schema.json says what is in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pdla.bench.gemm import Row
from pdla.bench.suite import Results

SCHEMA = Path(__file__).with_name("schema.json")
VERSION = 1  # of the schema: more when a field goes or changes its meaning


def report(
    known: Mapping[str, Any], world: str, ranks: int, arguments: list[str], results: Results, peaks: Mapping[str, float]
) -> dict[str, Any]:
    """Everything of a run; `known` as info.facts gives it, peaks in FLOP/s by dtype, of all ranks together."""
    return {
        "schema": VERSION,
        "arguments": arguments,
        "world": world,
        "ranks": ranks,
        **known,
        "peak_flops_per_second": dict(peaks),
        "rows": [entry(row) for row in results.rows],
        "left_out": results.left_out,
    }


def entry(row: Row) -> dict[str, Any]:
    """A row, with what follows from it."""
    values = asdict(row)
    del values["explained"]
    derived = {"flops_per_second": row.flops_per_second, "multiple_of_bound": row.multiple_of_bound, "right": row.right}
    return {**values.pop("case"), **values, **derived}


def write(path: str, content: Mapping[str, Any]) -> None:
    """Write a report; OSError where that cannot be done."""
    Path(path).write_text(json.dumps(content, indent=1) + "\n")
