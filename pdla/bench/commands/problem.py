"""Read the problem of `predict` and `scale`, a product or a transformer, and format its figures."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any

from pdla.bench.arguments import Parser, above_zero, positive, sizes
from pdla.bench.stop import refuse
from pdla.errors import ShapeError
from pdla.model.machine import Machine
from pdla.simulate import Product, Transformer
from pdla.simulate.networks import Step
from pdla.simulate.scaling import Problem, Result

SIZES = {
    "hidden": (3072, "features of the transformer"),
    "heads": (64, "attention heads of a layer"),
    "sequence": (512, "tokens of a sequence"),
    "batch": (64, "sequences of a step"),
    "layers": (24, "layers of the transformer"),
}
DTYPES: dict[str, tuple[str, ...]] = {  # default first
    "transformer": ("float32", "float64"), "product": ("float64", "float32", "complex64", "complex128"),
}


def add(to: Parser) -> None:
    """Add the arguments of the problem and of the machine."""
    on = f"the machine: a TOML file that calibrate has written, or {', '.join(Machine.known())} "
    on += "(default: that of PDLA_MACHINE, or one of round figures)"
    to.add_argument("--machine", metavar="NAME", default=argparse.SUPPRESS, help=on)
    product = "a product C = A B instead of the transformer, with an M x K matrix A and a K x N matrix B"
    to.add_argument("--product", type=sizes, metavar="MxNxK", help=product)
    for name, (default, what) in SIZES.items():
        to.add_argument(f"--{name}", type=positive, metavar="N", help=f"{what} (default {default})")
    to.add_argument("--dtype", choices=DTYPES["product"], help="default float32 for a transformer, float64 for a product")
    to.add_argument("--memory", type=gigabytes, metavar="GB", default=inf, help="leave out what needs more memory a rank than this")
    to.add_argument("--json", metavar="FILE", default=argparse.SUPPRESS, help="write machine and all figures to FILE")


def gigabytes(text: str) -> float:
    """A size in GB, in bytes."""
    return above_zero(text, "a size in GB, such as 40 or 0.5") * 1e9


def read_problem(arguments: argparse.Namespace) -> Problem:
    """The product or the transformer of the arguments; raises Stop if they contradict each other."""
    given = [name for name in SIZES if getattr(arguments, name) is not None]
    if arguments.product:
        if given:
            raise refuse(f"--product has no --{given[0]}: that is a transformer's")
        m, n, k = arguments.product
        return Product(m, n, k, arguments.dtype or DTYPES["product"][0])
    dtype = arguments.dtype or DTYPES["transformer"][0]
    if dtype not in DTYPES["transformer"]:
        raise refuse(f"--dtype {dtype}: a transformer's is {' or '.join(DTYPES['transformer'])}")
    try:
        return Transformer(**{name: getattr(arguments, name) or default for name, (default, _) in SIZES.items()}, dtype=dtype)
    except ShapeError as error:
        raise refuse(error) from error


# ---------------------------------------------------------------------------------------------- figures


def record(result: Result, of: Problem) -> dict[str, Any]:
    """A result's figures for JSON and CSV; the bound is for the ranks that it uses."""
    bound = of.lower_bound(result.choice.ranks)
    figures = {
        "choice": str(result.choice),
        "kind": result.choice.name,
        "grid": " ".join(f"{axis}={n}" for axis, n in result.choice.sizes.items()),
        "ranks_used": result.choice.ranks,
        "seconds": result.seconds,
        "computing": result.cost.computing / result.seconds,
        "bytes_received": result.cost.bytes_received,
        "messages": result.cost.messages,
        "multiple_of_bound": result.cost.bytes_received / bound if bound else None,
        "bytes_needed": result.size,
    }
    if isinstance(result, Step):
        return figures | {"bytes_of_parameters": result.parameters, "bytes_of_kept": result.kept}
    return figures | {"bytes_of_workspace": result.cost.peak_workspace, "bytes_of_matrices": result.matrices}


def cells(row: Mapping[str, Any], ranks: int) -> dict[str, str]:
    """A record on `ranks` ranks, in the columns that both commands share."""
    idle, multiple = ranks - row["ranks_used"], row["multiple_of_bound"]
    return {
        "s": f"{row['seconds']:.3g}",
        "computing": f"{row['computing']:.0%}",
        "GB received": f"{row['bytes_received'] / 1e9:.3g}",
        "x bound": "–" if multiple is None else f"{multiple:.2f}",
        "way": row["choice"] + (f", {idle} idle" if idle else ""),
    }


def describe(of: Problem, machine: Machine, what: str) -> tuple[str, str]:
    """The heading of a table: the problem and the machine."""
    return f"{of}{', forward and backward' if of.kind == 'transformer' else ''}, {what}", f"of {machine.title}"


def to_json(of: Problem) -> dict[str, Any]:
    """A problem for JSON."""
    return {"kind": of.kind, **asdict(of)}


# ---------------------------------------------------------------------------------------------- files


def write_csv(path: str, rows: list[dict[str, Any]]) -> None:
    with Path(path).open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
