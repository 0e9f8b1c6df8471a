"""A run's JSON, written and read back; schema.json describes it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from pdla.bench.measure.case import Case
from pdla.bench.measure.product import Results, Row
from pdla.bench.stop import refuse
from pdla.model.machine import Machine
from pdla.simulate.split import Span, Split, Timeline

SCHEMA = Path(__file__).with_name("schema.json")
VERSION = 2  # of the schema; a removed field, or a field's new meaning, raises it
ASKED = ("type", "enum", "minimum", "exclusiveMinimum")  # rules of the schema that a file must obey to be read
LEAST, MOST = 1e-50, 1e50  # magnitudes of nonzero numbers in a file, so that results and plots stay finite
DIGITS = 9  # of a span's seconds, after the point


def report(
    known: Mapping[str, Any], world: str, ranks: int, arguments: list[str], results: Results, peaks: Mapping[str, float],
    machine: Machine | None = None,
) -> dict[str, Any]:
    """A run as JSON.

    known    facts.facts(...)
    peaks    FLOP/s of all ranks together, by dtype
    machine  the described machine of predicted times, if any
    """
    return {
        "schema": VERSION, "arguments": arguments, "world": world, "ranks": ranks, **known,
        "peak_flops_per_second": dict(peaks),
        "predicted_on": None if machine is None else asdict(machine),
        "rows": [entry(row) for row in results.rows], "left_out": results.left_out,
    }


def entry(row: Row) -> dict[str, Any]:
    """A row as JSON, with derived figures."""
    values = asdict(row)
    del values["explained"]
    for split in (values["split"], values["predicted"]):
        if split is not None:
            split["timeline"]["spans"] = [_round(span) for span in split["timeline"]["spans"]]
    derived = {"flops_per_second": row.flops_per_second, "multiple_of_bound": row.multiple_of_bound, "right": row.right}
    return {**values.pop("case"), **values, **derived}


def _round(span: Span) -> Span:
    return span._replace(start=round(span.start, DIGITS), end=round(span.end, DIGITS))


def write(path: str, content: Mapping[str, Any]) -> None:
    """Write a report; raises OSError if that fails."""
    Path(path).write_text(json.dumps(content) + "\n")


# ---------------------------------------------------------------------------------------------- back


def find_misfit(content: Any) -> str | None:
    """Describe the first value whose type or size the schema forbids, with its path; None: no such value.

    Missing and unknown fields are allowed, as files of other versions have fewer or more. Raises Stop
    without jsonschema.
    """
    try:
        from jsonschema import Draft202012Validator, validators
    except ImportError as error:
        raise refuse("reading a report needs jsonschema: pip install 'pdla[bench]'") from error

    kinds = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, x: type(x) is int)  # JSON Schema takes 2.0 for one, too
    faults = validators.extend(Draft202012Validator, type_checker=kinds)(json.loads(SCHEMA.read_text())).iter_errors(content)
    found = (f"{fault.json_path.removeprefix('$')} is {fault.instance!r:.60}" for fault in faults if fault.validator in ASKED)
    first = next(chain(found, _find_extremes(content)), None)
    return first and first.removeprefix(".")


def _find_extremes(content: Any) -> Iterator[str]:
    """Describe numbers that are too large, too small or NaN, with their paths."""
    left = [("", content)]
    for where, value in left:
        if isinstance(value, dict):
            left += [(f"{where}.{key}", each) for key, each in value.items()]
        elif isinstance(value, list):
            left += [(f"{where}[{i}]", each) for i, each in enumerate(value)]
        elif isinstance(value, (int, float)) and value != 0 and not LEAST <= abs(value) <= MOST:
            yield f"{where} is {value!r:.60}, neither 0 nor of a magnitude from {LEAST} to {MOST}"


def row(values: Mapping[str, Any]) -> Row:
    """The row of an entry, whose case names the algorithm that `auto` chose. Raises KeyError or TypeError for other entries."""
    np.dtype(values["dtype"])  # TypeError for an unknown name
    case = Case(**{one.name: values[one.name] for one in fields(Case)} | {"grid": tuple(values["grid"])})
    kept = {one.name: values[one.name] for one in fields(Row) if one.name in values}
    return Row(**kept | {
        "case": case, "checks": tuple(values["checks"]), "seconds": tuple(values["seconds"]),
        "split": _split(values["split"]), "predicted": _split(values["predicted"]),
    })


def _split(values: Mapping[str, Any] | None) -> Split | None:
    if values is None:
        return None
    spans = tuple(Span(*span) for span in values["timeline"]["spans"])
    return Split(**{**values, "timeline": Timeline(spans, tuple(values["timeline"]["left_out"]))})
