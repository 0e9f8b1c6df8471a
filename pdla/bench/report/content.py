"""The JSON that a run leaves behind, and rows read back from it; schema.json says what is in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from pdla.bench.case import Case
from pdla.bench.gemm import Row
from pdla.bench.split import Span, Split, Timeline
from pdla.bench.suite import Results
from pdla.model.machine import Machine

SCHEMA = Path(__file__).with_name("schema.json")
VERSION = 2  # of the schema: more when a field goes or changes its meaning
TYPES: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None),
}  # fmt: skip
DIGITS = 9  # of a span's seconds behind the point


def report(
    known: Mapping[str, Any],
    world: str,
    ranks: int,
    arguments: list[str],
    results: Results,
    peaks: Mapping[str, float],
    machine: Machine | None = None,
) -> dict[str, Any]:
    """Everything of a run; `known` as info.facts gives it, peaks in FLOP/s by dtype, of all ranks together.

    machine  the described one that times were foretold on, if any
    """
    return {
        "schema": VERSION,
        "arguments": arguments,
        "world": world,
        "ranks": ranks,
        **known,
        "peak_flops_per_second": dict(peaks),
        "predicted_on": None if machine is None else asdict(machine),
        "rows": [entry(row) for row in results.rows],
        "left_out": results.left_out,
    }


def entry(row: Row) -> dict[str, Any]:
    """A row, with what follows from it."""
    values = asdict(row)
    del values["explained"]
    for split in (values["split"], values["predicted"]):
        if split is not None:
            split["timeline"]["spans"] = [_short(span) for span in split["timeline"]["spans"]]
    derived = {"flops_per_second": row.flops_per_second, "multiple_of_bound": row.multiple_of_bound, "right": row.right}
    return {**values.pop("case"), **values, **derived}


def _short(span: Span) -> Span:
    return span._replace(start=round(span.start, DIGITS), end=round(span.end, DIGITS))


def write(path: str, content: Mapping[str, Any]) -> None:
    """Write a report; OSError where that cannot be done."""
    Path(path).write_text(json.dumps(content) + "\n")


# ---------------------------------------------------------------------------------------------- back


def misfit(value: Any, rules: Mapping[str, Any], place: str = "") -> str | None:
    """Where something is that these rules of the schema do not allow, and what; None where there is nothing.

    What is missing is not asked: files of earlier versions may lack what they did not know.
    """
    rules = {**schema()["$defs"].get(rules.get("$ref", "").rpartition("/")[2], {}), **rules}
    if "oneOf" in rules:
        each = [misfit(value, choice, place) for choice in rules["oneOf"]]
        return None if None in each else each[0]
    if not _allowed(value, rules):
        return f"{place.removeprefix('.')} is {value!r:.60}"
    for key, inner, ruled in _inside(value, rules):
        if (found := misfit(inner, ruled, place + key)) is not None:
            return found
    return None


def _allowed(value: Any, rules: Mapping[str, Any]) -> bool:
    """Whether a value is of the kind and size that is wanted, whatever is in it."""
    kinds = rules.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    kind = not kinds or any(isinstance(value, TYPES[k]) and (is_number or k not in ("integer", "number")) for k in kinds)
    large = not is_number or (value >= rules.get("minimum", -inf) and value > rules.get("exclusiveMinimum", -inf))
    return kind and large and value in rules.get("enum", [value])


def _inside(value: Any, rules: Mapping[str, Any]) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """What is in an object or array, by its place, with the rules for it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f".{key}", inner, rules.get("properties", {}).get(key) or rules.get("additionalProperties") or {}
    elif isinstance(value, list):
        first = rules.get("prefixItems", [])
        for i, inner in enumerate(value):
            yield f"[{i}]", inner, first[i] if i < len(first) else rules.get("items") or {}


@cache
def schema() -> dict[str, Any]:
    """schema.json's content."""
    return json.loads(SCHEMA.read_text())


def row(values: Mapping[str, Any]) -> Row:
    """The row of an entry, `auto` resolved; KeyError or TypeError where it is none."""
    np.dtype(values["dtype"])
    case = Case(**{one.name: values[one.name] for one in fields(Case)} | {"grid": tuple(values["grid"])})
    kept = {one.name: values[one.name] for one in fields(Row) if one.name in values}
    return Row(**kept | {
        "case": case, "checks": tuple(values["checks"]), "seconds": tuple(values["seconds"]),
        "split": _split(values["split"]), "predicted": _split(values["predicted"]),
    })  # fmt: skip


def _split(values: Mapping[str, Any] | None) -> Split | None:
    if values is None:
        return None
    spans = tuple(Span(*span) for span in values["timeline"]["spans"])
    return Split(**{**values, "timeline": Timeline(spans, tuple(values["timeline"]["left_out"]))})
