"""Figures from the lines of jobs: a row for each product and number of ranks, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rich.table import Table

from bench.common.launch import CORES
from bench.common.product import Product
from bench.common.table import start_table

FEW = f"pdla on {CORES}"
LABELS = {  # columns: module, variant (None: the best of all), and whether to show the workspace
    "NumPy": ("numpy_alone", None, False),
    "ceiling": ("ceiling", "", False),
    "and barriers": ("ceiling", "barriers", False),
    "pdla native": ("ours", "native", True),
    "pdla shared": ("ours", "shared", True),
    FEW: ("ours", "few", False),
    "pdla 2-D blocks": ("ours", "blocks", True),
    "by hand": ("by_hand", None, False),
    "ScaLAPACK": ("pdgemm", None, False),
    "DTensor": ("dtensor", None, False),
}
CEILINGS = ("ceiling", "and barriers")
ALL_RANKS = ("pdla native", "pdla shared")
OURS = (*ALL_RANKS, FEW)
PEERS = ("by hand", "ScaLAPACK", "DTensor")


@dataclass
class Measured:
    """A side's figures for one product.

    workspace  bytes
    holders    the number of ranks with a part of C
    exact      whether the product of integers is exact
    seconds    of every turn
    """

    variant: str
    about: str
    workspace: int | None
    holders: int
    exact: bool | None = None
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return median(self.seconds)

    def over(self, other: Measured) -> float:
        """The median ratio of this side's time to the other's, turn by turn; a failed job has fewer turns."""
        return median(own / peer for own, peer in zip(self.seconds, other.seconds, strict=False))


@dataclass
class Row:
    """One product on `ranks` ranks: each side's figures by (module, variant), and reasons for sides left out."""

    ranks: int
    product: Product
    sides: dict[tuple[str, str], Measured] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, line: dict[str, Any]) -> None:
        key = (line["side"], line["variant"])
        measured = self.sides.setdefault(key, Measured(line["variant"], line["about"], line["workspace"], line["holders"]))
        measured.seconds += line["seconds"]
        measured.exact = line["exact"] if measured.exact is None else measured.exact

    def best(self, label: str) -> Measured | None:
        module, shown, _ = LABELS[label]
        sides = [side for (name, variant), side in self.sides.items() if name == module and shown in (None, variant)]
        return min(sides, key=lambda side: side.median, default=None)

    def over_numpy(self, label: str) -> float | None:
        """NumPy's time over the side's, the median over turns; None unless both ran."""
        numpy, side = self.best("NumPy"), self.best(label)
        return numpy.over(side) if numpy and side else None

    @property
    def wrong(self) -> list[str]:
        return [f"{name} {variant}".strip() for (name, variant), side in self.sides.items() if side.exact is False]

    @property
    def title(self) -> str:
        return f"{self.ranks} ranks, {format_sizes(self.product)} {self.product.dtype}"


def format_sizes(product: Product) -> str:
    return f"{product.m} x {product.n} x {product.k}"


# ---------------------------------------------------------------------------------------------- the table


def make_table(ranks: int, rows: Iterable[Row]) -> Table:
    """Make the table of each side's milliseconds, with NumPy's time over them and, for pdla's sides, the workspace a rank.

    The last column has the faster of pdla's sides on all ranks over the ceilings without and with barriers.
    """
    sides = (name for label, (_, _, space) in LABELS.items() for name in (f"{label}, ms", *["workspace"] * space))
    table = start_table(f"{ranks} ranks", "m x n x k", *sides, "over ceilings")
    for row in rows:
        table.add_row(*_make_cells(row), style="bold red" if row.wrong else None)
    return table


def _make_cells(row: Row) -> list[str]:
    cells = [f"{format_sizes(row.product)} {row.product.dtype.replace('float', 'f')}"]
    for label, (_, _, space) in LABELS.items():
        side = row.best(label)
        cells.append(_format_time(row, label, side) if side else "–")
        if space:
            cells.append("–" if side is None or side.workspace is None else f"{side.workspace / 2**20:.2f} MiB")
    return [*cells, _compare_ceilings(row)]


def _compare_ceilings(row: Row) -> str:
    ours, ceilings = _find_fastest(row, ALL_RANKS), [side for label in CEILINGS if (side := row.best(label))]
    return " ".join(f"{ours.over(ceiling):.2f}" for ceiling in ceilings) if ours and ceilings else "–"


def _find_fastest(row: Row, labels: Iterable[str]) -> Measured | None:
    return min((side for label in labels if (side := row.best(label))), key=lambda side: side.median, default=None)


def _format_time(row: Row, label: str, side: Measured) -> str:
    ratio = row.over_numpy(label)
    variant = f" {side.variant}" if LABELS[label][1] is None and side.variant else ""
    share = f"  {ratio:.2f}" if ratio and label != "NumPy" else ""
    return f"{1e3 * side.median:.3g}{share}{variant}{_format_holders(row, label, side)}"


def _format_holders(row: Row, label: str, side: Measured) -> str:
    """Format the number of ranks with a part of C, if large blocks leave some ranks without, and their cores to the others."""
    return f", C on {side.holders} of {row.ranks}" if label in PEERS and side.holders < row.ranks else ""


def summarize(rows: list[Row]) -> list[str]:
    """Count the rows where pdla in native layouts beats every measured peer; list the others, and wrong results.

    pdla's figure is the best of OURS: on all ranks, or on as many as there are cores.
    """
    compared = [row for row in rows if row.best("pdla native") and any(map(row.best, PEERS))]
    slower = {row.title: faster for row in compared if (faster := _find_faster(row))}
    wrong = [f"WRONG on integers: {row.title}: {', '.join(row.wrong)}" for row in rows if row.wrong]
    checked = sum(side.exact is True for row in rows for side in row.sides.values())
    ahead = f"{len(compared) - len(slower)} of {len(compared)} rows"
    return [
        f"pdla in its native layouts, best of {len(OURS)}, is faster than every peer measured in {ahead}",
        *(f"  not in {title}: {faster}" for title, faster in slower.items()),
        f"exact on integers, twice: {checked} of {sum(len(row.sides) for row in rows)} products of a side",
        *wrong,
    ]


def _find_faster(row: Row) -> str:
    """Describe the peers that are faster than the best of pdla's native layouts."""
    ours = _find_fastest(row, OURS)
    if ours is None:
        return ""
    faster = [(p, side, share) for p in PEERS if (side := row.best(p)) and (share := side.over(ours)) < 1]
    times = ", ".join(f"{p} {share:.3f} of its time{_format_holders(row, p, side)}" for p, side, share in faster)
    return f"pdla {1e3 * ours.median:.3g} ms, {times}" if faster else ""


def list_left_out(rows: Iterable[Row]) -> list[str]:
    """List the sides and products left out, by reason."""
    titles_by_reason: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for name, why in row.left_out.items():
            titles_by_reason.setdefault((name, why), []).append(row.title)
    return [f"left out: {name}: {why}: {'; '.join(titles)}" for (name, why), titles in titles_by_reason.items()]


def to_json(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Convert rows to an entry for each row and side, with the time of every turn."""
    return [
        {
            "ranks": row.ranks, "m": row.product.m, "n": row.product.n, "k": row.product.k, "dtype": row.product.dtype,
            "side": module, "variant": variant, "seconds_median": side.median,
            "numpy_over_side": numpy.over(side) if (numpy := row.best("NumPy")) else None,
            "workspace_bytes": side.workspace, "exact": side.exact, "about": side.about, "holders": side.holders,
            "seconds": side.seconds,
        }
        for row in rows
        for (module, variant), side in row.sides.items()
    ]
