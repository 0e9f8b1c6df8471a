"""`compare`: two results of --json side by side: rows that are slower beyond the noise, or receive more bytes."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from pdla.bench.arguments import COMMON, Parser, add_wide
from pdla.bench.commands.command import Command
from pdla.bench.measure.check import WRONG
from pdla.bench.report.content import find_misfit
from pdla.bench.report.table import size
from pdla.bench.screen import Screen
from pdla.bench.stop import FAILED, refuse
from pdla.bench.table import Column, Table
from pdla.errors import plural

PROBLEM = ("m", "n", "k", "dtype", "transa", "transb", "source")
KEYS = (*PROBLEM, "algorithm", "grid", "seconds", "bytes_received", "right")  # what a row must have
WORLD = ("world", "ranks", "machine", "mpi", "blas", "versions")  # differences in these are reported
RESAMPLES, SURE = 2000, 0.95  # of the bootstrap: draws, and the interval's share of them
FEW = 5  # repeats below which the spread is uncertain

Row = Mapping[str, Any]


class Ratio(NamedTuple):
    """Median after over median before, and its 95% interval over resampled repeats."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Pair:
    """A row of both files; threshold: the share by which the later row may be slower."""

    before: Row
    after: Row
    threshold: float

    @cached_property
    def ratio(self) -> Ratio | None:
        """None unless both rows have times."""
        old, new = self.before["seconds"], self.after["seconds"]
        return bootstrap(old, new) if old and new else None

    @property
    def repeats(self) -> int:
        return min(len(self.before["seconds"]), len(self.after["seconds"]))

    @property
    def more_bytes(self) -> bool:
        return self.after["bytes_received"] > self.before["bytes_received"]

    @property
    def broken(self) -> bool:
        return self.before["right"] and not self.after["right"]

    @property
    def worse(self) -> bool:
        return self.verdict == "slower" or self.more_bytes or self.broken

    @property
    def verdict(self) -> str:
        """"slower" or "faster" beyond the threshold and beyond chance; "noise" if chance may explain it."""
        if self.ratio is None:
            return WRONG if self.broken else "–"
        value, low, high = self.ratio
        if 1 / (1 + self.threshold) <= value <= 1 + self.threshold:
            return "as before"
        if self.repeats < 2 or low <= 1 <= high:
            return "noise"
        return "slower" if value > 1 else "faster"


def bootstrap(old: list[float], new: list[float]) -> Ratio:
    """The ratio of medians and its percentile interval (Efron 1979), with the same draws at every call."""
    draw = np.random.default_rng(0)
    olds, news = (np.median(draw.choice(seconds, (RESAMPLES, len(seconds))), axis=1) for seconds in (old, new))
    low, high = np.quantile(news / olds, [(1 - SURE) / 2, (1 + SURE) / 2])
    return Ratio(median(new) / median(old), float(low), float(high))


# ---------------------------------------------------------------------------------------------- the command


def add(to: Parser) -> None:
    """Add the command's arguments."""
    to.add_argument("before", metavar="BEFORE.json", help="the result of an earlier run, written by --json")
    to.add_argument("after", metavar="AFTER.json", help="the result of a later one")
    slower = "a row that is slower by more than this, beyond its noise, is called slower (default 5%%)"
    to.add_argument("--threshold", type=share, metavar="PERCENT", default="5%", help=slower)
    add_wide(to)


def share(text: str) -> float:
    try:
        found = float(text.removesuffix("%")) / 100
    except ValueError:
        found = -1.0
    if not text.endswith("%") or not 0 <= found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a share in per cent, such as 5%")
    return found


def run(arguments: argparse.Namespace) -> int:
    """Print both files side by side; return 1 if a row is slower, receives more bytes, or became wrong, else 0."""
    before, after = read(arguments.before), read(arguments.after)
    old, new = name_rows(before["rows"]), name_rows(after["rows"])
    pairs = {name: Pair(row, new[name], arguments.threshold) for name, row in old.items() if name in new}
    if not pairs:
        raise refuse(f"{arguments.before} and {arguments.after} have no product, algorithm and grid in common")
    screen = Screen()
    table = Table(screen, COLUMNS, arguments.wide)
    for done, (name, pair) in enumerate(pairs.items()):
        screen.show_progress(name, done, len(pairs))
        table.add(_cells(name, pair), style="wrong" if pair.worse else "")
    table.end()
    screen.print_text("", *write_notes(pairs, (arguments.before, old, before), (arguments.after, new, after)))
    return FAILED if any(pair.worse for pair in pairs.values()) else 0


def read(path: str) -> dict[str, Any]:
    """Read a file's result; raises Stop if it holds none."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise refuse(f"{path}: {error.strerror}") from error
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    rows = content.get("rows") if isinstance(content, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and set(KEYS) <= set(row) for row in rows):
        raise refuse(f"{path} is no result of python -m pdla.bench --json {path}, or gemm --json {path}")
    if wrong := find_misfit({"rows": [{key: row[key] for key in KEYS} for row in rows]}):
        raise refuse(f"{path}: {wrong}; see schema.json of pdla.bench.report")
    return content


def name_rows(rows: list[Row]) -> dict[str, Row]:
    """Rows by name: product, algorithm and grid; the second row of a name adds (2), and so on."""
    seen: Counter[str] = Counter()
    found = {}
    for row in rows:
        turned = "" if row["transa"] == row["transb"] == "N" else f" {row['transa']}{row['transb']}"
        source = "" if row["source"] == "random" else f" {row['source']}"
        product = f"{row['m']} x {row['n']} x {row['k']}{turned} {row['dtype']}{source}"
        name = f"{product}, {row['algorithm']} on {'x'.join(map(str, row['grid']))}"
        seen[name] += 1
        found[name if seen[name] == 1 else f"{name} ({seen[name]})"] = row
    return found


# ---------------------------------------------------------------------------------------------- what is printed


DRAWS, NAME = f"{SURE:.0%} of draws", "product, algorithm, grid"
COLUMNS = [
    Column("before ms", 8), Column("after ms", 8), Column("ratio", 6), Column(DRAWS, 12, more=True), Column("verdict", 9),
    Column("received", 11), Column(NAME, text=True),
]


def _cells(name: str, pair: Pair) -> dict[str, str]:
    """A row of the table, by column."""
    times = [f"{1e3 * median(row['seconds']):.4g}" if row["seconds"] else "–" for row in (pair.before, pair.after)]
    ratio, old, new = pair.ratio, pair.before["bytes_received"], pair.after["bytes_received"]
    return {
        "before ms": times[0],
        "after ms": times[1],
        "ratio": f"{ratio.value:.2f}" if ratio else "–",
        DRAWS: f"{ratio.low:.2f} to {ratio.high:.2f}" if ratio and pair.repeats > 1 else "–",
        "verdict": pair.verdict,
        "received": f"= {size(new)}" if old == new else f"{new - old:+} B",
        NAME: name,
    }


def write_notes(pairs: Mapping[str, Pair], *files: tuple[str, Mapping[str, Row], Mapping[str, Any]]) -> Iterator[str]:
    """The lines below the table: counts, rows of one file only, other differences, and rows of few repeats."""
    counts = Counter(pair.verdict for pair in pairs.values())
    more = sum(pair.more_bytes for pair in pairs.values())
    parts = [f"{counts[word]} {word}" for word in ("slower", "faster", "as before", "noise", WRONG) if counts[word]]
    yield f"{len(pairs)} in both: " + ", ".join([*parts, f"{more} with more bytes"])
    for (path, rows, _), (_, others, _) in zip(files, reversed(files), strict=True):
        yield from (f"only in {path}: {name}" for name in rows if name not in others)
    (_, _, before), (_, _, after) = files
    old, new = (dict(_flat("", {key: content.get(key) for key in WORLD})) for content in (before, after))
    unlike = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    yield from (f"differs: {key}: {old.get(key)} before, {new.get(key)} after" for key in unlike)
    few = sum(pair.ratio is not None and pair.repeats < FEW for pair in pairs.values())
    if few:
        whose = plural(few, "its", "their")
        yield f"{few} of fewer than {FEW} repeats: {whose} spread is hardly known; after a single repeat nothing is called slower"


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The values in nested dicts and lists, each with its path, such as machine.cores."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if inner is None:
        yield name, value
        return
    for key, each in inner:
        yield from _flat(f"{name}.{key}" if name else str(key), each)


COMMAND = Command(
    "compare", "set two results of --json side by side: what became slower, or receives more bytes", """\
  python -m pdla.bench compare before.json after.json
      which products became slower
""", run, add, alone=True, lacks=set(COMMON) - {"wide"},
)
