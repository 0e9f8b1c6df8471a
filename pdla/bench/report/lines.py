"""Result files as lines to draw: one for each row, with its file's ranks, peaks and links."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pdla.bench.measure.product import Row
from pdla.bench.report.content import VERSION, find_misfit, row
from pdla.bench.stop import refuse
from pdla.errors import plural
from pdla.model.machine import Machine, operations
from pdla.simulate.split import Split

LARGE = 1 << 14  # n of a product at full rate
WHOLE = ("arguments", "world", "ranks", "machine", "versions", "peak_flops_per_second", "predicted_on", "rows")  # what is read here


@dataclass(frozen=True)
class File:
    """One result file: its name, its content, its rows."""

    name: str
    content: Mapping[str, Any]
    rows: tuple[Row, ...]
    machine: Machine | None  # for which times were predicted

    @property
    def about(self) -> dict[str, str]:
        """The file's name, and its run's ranks, machine, command and version, in words."""
        known, ranks = self.content, self.content["ranks"]
        host = known["machine"]
        where = f"{ranks} {plural(ranks, 'rank')}, {known['world']}"
        where += "" if known["world"] == "dry" else f", {host['hosts']} x {host['processor']}"
        predicted = f"predicted on {self.machine.title}" if self.machine else ""
        command = " ".join(["python -m pdla.bench", *known["arguments"]])
        return {"file": self.name, "where": where, "predicted": predicted, "command": command, "version": _version(known)}


def _version(known: Mapping[str, Any]) -> str:
    commit = known["versions"]["commit"]
    return f"pdla {known['versions']['pdla']}" + (f", commit {commit[:10]}{commit[40:]}" if commit else "")


@dataclass(frozen=True)
class Line:
    """A row to draw. Rates and bytes a second are of all ranks together; other bytes are the maximum over ranks.

    seconds    the median of the repeats
    flops      of all ranks together
    intensity  a rank's share of the flops over the most bytes that a rank receives; None if that is 0
    peak       FLOP/s of local GEMMs, a bound of the rate; None if unknown
    link       bytes a second over the links, a bound of the rate; None if unknown
    """

    label: str
    ranks: int
    product: str
    dtype: str
    algorithm: str
    seconds: float | None
    flops: int
    split: Split | None
    predicted: Split | None
    received: int
    multiple: float | None
    intensity: float | None
    peak: float | None
    link: float | None


def read(paths: Sequence[str]) -> list[File]:
    """Read files; raises Stop for a file that is no result of this version of the benchmark."""
    return [_read(Path(path)) for path in paths]


def _read(path: Path) -> File:
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise refuse(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise refuse(f"{path} is no result of python -m pdla.bench --json, nor any other JSON: {error}") from error
    version = content.get("schema") if isinstance(content, dict) else None
    if version != VERSION:
        schema = f"schema {VERSION}, as python -m pdla.bench --json writes it"
        raise refuse(f"{path}: {_name_schema(content)}; a report is made of files of {schema}")
    if lost := [name for name in WHOLE if name not in content]:
        raise refuse(f"{path}: lacks {', '.join(lost)}; see schema.json of pdla.bench.report")
    if wrong := find_misfit(content):
        raise refuse(f"{path}: {wrong}; see schema.json of pdla.bench.report")
    try:
        rows = tuple(row(values) for values in content["rows"])
    except (KeyError, TypeError) as error:
        raise refuse(f"{path}: a row lacks or has {error}; see schema.json of pdla.bench.report") from error
    try:
        machine = content["predicted_on"]
        found = File(path.name, content, rows, None if machine is None else Machine(**machine))
    except (TypeError, ValueError) as error:
        raise refuse(f"{path}: predicted_on is no machine of this version: {error}") from error
    try:
        found.about  # noqa: B018 - it reads all fields that a run must have
    except KeyError as error:
        raise refuse(f"{path}: lacks {error}; see schema.json of pdla.bench.report") from error
    return found


def _name_schema(content: Any) -> str:
    """Name the schema of a file, or its command: results of predict and scale have no schema."""
    found = content if isinstance(content, dict) else {}
    if "schema" in found:
        return f"schema {found['schema']!r:.60}"
    return f"a result of {found['command']!r:.60}" if "command" in found else "no schema"


def lines(files: Sequence[File]) -> list[Line]:
    """Every row of every file; rows of one product are together."""
    made = [_line(file, row, alone=len(files) == 1) for file in files for row in file.rows]
    order = {product: number for number, product in reversed(list(enumerate(line.product for line in made)))}
    return sorted(made, key=lambda line: order[line.product])


def _line(file: File, row: Row, alone: bool) -> Line:
    grid = "x".join(map(str, row.case.grid))
    ranks, case, machine = file.content["ranks"], row.case, file.machine
    peak = file.content["peak_flops_per_second"].get(case.dtype)
    return Line(
        label=f"{row.algorithm} {grid}" + ("" if alone else f", {file.name}"),
        ranks=ranks,
        product=case.title,
        dtype=case.dtype,
        algorithm=row.algorithm,
        seconds=median(row.seconds) if row.seconds else None,
        flops=case.flops,
        split=row.split,
        predicted=row.predicted,
        received=row.bytes_received,
        multiple=row.multiple_of_bound,
        intensity=case.flops / ranks / row.bytes_received if row.bytes_received else None,
        peak=peak or (None if machine is None else ranks * _rate(machine, case.dtype)),
        link=None if machine is None else ranks * machine.rate(machine.node * (machine.home(ranks - 1) > 0)),
    )


def _rate(machine: Machine, dtype: str) -> float:
    """FLOP/s of one rank in large products, in real arithmetic."""
    return operations(LARGE, LARGE, LARGE, dtype) / machine.gemm(LARGE, LARGE, LARGE, dtype)
