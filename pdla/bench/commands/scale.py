"""`scale`: strong and weak scaling of a problem on up to a million ranks of a described machine."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from pdla.bench.arguments import Parser, add_wide, machine, rank_count, to_draw
from pdla.bench.commands import problem
from pdla.bench.commands.command import Command
from pdla.bench.commands.problem import record
from pdla.bench.leave import check_path, write_file, write_json
from pdla.bench.screen import Screen
from pdla.bench.stop import refuse
from pdla.bench.table import Column, Table
from pdla.errors import ShapeError, plural
from pdla.matmul.search.fastest import watch
from pdla.simulate.networks import SCHEMES
from pdla.simulate.scaling import Point, Problem, Result, scaling

MARKS = "osD^v"


def add(to: Parser) -> None:
    """Add the command's arguments."""
    counts = (
        ("from", "RANKS", 1, "the fewest ranks"), ("to", "RANKS", 10**6, "the most ranks"),
        ("factor", "N", 4, "factor from one number of ranks to the next"),
    )
    for name, metavar, default, what in counts:
        how = f"{what} (default {default})"
        to.add_argument(f"--{name}", dest=f"{name}_", metavar=metavar, type=rank_count, default=default, help=how)
    to.add_argument("--weak", action="store_true", help="weak scaling: let the problem grow with the ranks, equal work for each")
    grows = "with --weak, what grows of a transformer: the batch as the ranks (default), or features and heads as their square root"
    to.add_argument("--grow", choices=("batch", "hidden"), help=grows)
    problem.add(to)
    add_wide(to)
    to.add_argument("--plot", metavar="FILE", help="draw time and efficiency to FILE, whose ending tells the format: svg, png, pdf")


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each number of ranks; return the exit status."""
    of, on, counts = problem.read_problem(arguments), machine(arguments.machine), _list_ranks(arguments)
    check_path(arguments.json, "--json")
    if arguments.plot is not None:
        _check_plot(arguments.plot)
    grows = _check_growth(arguments, of)
    how = grows and f"{grows} growing"
    try:
        found = scaling(of, counts, on, grows, arguments.memory)
    except ShapeError as error:
        raise refuse(f"--weak: {error}") from error
    points: list[Point] = []
    several = f"{counts[0]} to {counts[-1]} ranks" if len(counts) > 1 else f"{counts[0]} {plural(counts[0], 'rank')}"
    screen = Screen()
    screen.print_text(*problem.describe(of, on, f"{how or 'the same'} on {several}"))
    table = Table(screen, COLUMNS, arguments.wide)

    def tell(done: int, most: int) -> None:
        count = counts[len(points)]
        screen.show_progress(f"{count} {plural(count, 'rank')}: {done} run dry", len(points), len(counts))

    with watch(tell):
        for point in found:
            points.append(point)
            table.add(_cells(point, points))
    table.end()
    if of.kind == "transformer":
        _print_schemes(screen, points)
    content = {"command": "scale", "machine": asdict(on), "problem": problem.to_json(of), "grows": how, "rows": to_json(points)}
    write_file(arguments.json, lambda path: write_json(path, content), "--json")
    title = "\n".join(problem.describe(of, on, how or "the same on any number of ranks"))
    write_file(arguments.plot, lambda path: plot(points, path, title), "--plot")
    return 0


def _list_ranks(arguments: argparse.Namespace) -> list[int]:
    first, last, factor = arguments.from_, arguments.to_, arguments.factor_
    if first > last or factor < 2:
        raise refuse(f"--from {first} --to {last} --factor {factor}: upwards, by a factor of 2 or more")
    counts = [first]
    while counts[-1] * factor <= last:
        counts.append(counts[-1] * factor)
    return counts if counts[-1] == last else [*counts, last]


def _check_growth(arguments: argparse.Namespace, of: Problem) -> str:
    """The size that grows; "" for strong scaling."""
    if arguments.grow and not (arguments.weak and arguments.grow in of.grows):
        raise refuse(f"--grow {arguments.grow} goes with --weak, for a transformer")
    return (arguments.grow or of.grows[0]) if arguments.weak else ""


def to_json(points: list[Point]) -> list[dict[str, Any]]:
    """Points for JSON; `efficiency`: a rank's rate over that of the first point with a way."""
    rate = _reference_rate(points)

    def full(point: Point, way: Result | None) -> dict[str, Any] | None:
        return None if way is None else record(way, point.problem) | {"efficiency": point.rate(way) / rate}

    return [
        {
            "ranks": point.ranks,
            "problem": problem.to_json(point.problem),
            "best": full(point, point.best),
            "schemes": {name: full(point, found) for name, found in point.schemes.items()},
        }
        for point in points
    ]


def _reference_rate(points: list[Point]) -> float:
    """The rate at efficiency 1: that of the fewest ranks with a way."""
    return next((point.rate(point.best) for point in points if point.best), 1.0)


# ---------------------------------------------------------------------------------------------- what is printed


def _cells(point: Point, points: list[Point]) -> dict[str, str]:
    """A number of ranks and its fastest way, by column."""
    if not point.best:
        return dict.fromkeys((column.heading for column in COLUMNS), "–") | {"ranks": f"{point.ranks}", "way": "none that fits"}
    efficiency = 100 * point.rate(point.best) / _reference_rate(points)
    found = problem.cells(record(point.best, point.problem), point.ranks)
    return found | {"ranks": f"{point.ranks}", "efficiency": f"{efficiency:.3g}%"}


def _print_schemes(screen: Screen, points: list[Point]) -> None:
    """A table of the seconds of each scheme."""
    table = Table(screen, [RANKS, *(Column(name, 8) for name in SCHEMES)])
    for point in points:
        ways = {name: point.schemes[name] for name in SCHEMES}
        times = {name: f"{way.seconds:.3g}" if way else "–" for name, way in ways.items()}
        table.add({"ranks": f"{point.ranks}"} | times, "seconds of each scheme")


RANKS = Column("ranks", 7, name=True)
COLUMNS = [
    RANKS, Column("s", 8), Column("efficiency"), Column("computing", more=True), Column("GB received", more=True),
    Column("x bound"), Column("way", text=True),
]


# ---------------------------------------------------------------------------------------------- what is drawn


def _check_plot(path: str) -> None:
    """Raise Stop before any work if matplotlib is missing or cannot write such a file."""
    try:
        to_draw(path)
    except argparse.ArgumentTypeError as error:
        raise refuse(f"--plot {error}") from error


def plot(points: list[Point], path: str, title: str) -> None:
    """Draw time and efficiency over ranks: a line for each scheme. Raises OSError if that fails."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "pdla", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure((9.0, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        for mark, (name, found) in zip(MARKS, _list_curves(points).items(), strict=False):
            drawn: dict[str, Any] = {"marker": mark, "markersize": 4, "linewidth": 1.2, "label": name}
            ranks = [point.ranks for point, _ in found]
            left.plot(ranks, [way.seconds for _, way in found], **drawn)
            right.plot(ranks, [point.rate(way) / _reference_rate(points) for point, way in found], **drawn)
        left.set(xscale="log", yscale="log", xlabel="ranks", ylabel="seconds")
        right.set(xscale="log", ylim=(0, None), xlabel="ranks", ylabel="efficiency")
        if left.lines:
            left.legend(frameon=False)
        figure.suptitle(title, fontsize=9)
        figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


def _list_curves(points: list[Point]) -> dict[str, list[tuple[Point, Result]]]:
    """The points with a way, by scheme; those of the best way if the problem has no schemes."""
    names = [*points[0].schemes] or ["best"]
    ways = {name: [(point, way) for point in points if (way := point.schemes.get(name, point.best))] for name in names}
    return {name: found for name, found in ways.items() if found}


COMMAND = Command(
    "scale", "find the fastest ways on ever more ranks, up to a million: strong or weak scaling", """\
  python -m pdla.bench scale --machine a100x4 --from 64 --plot scaling.svg
      a transformer on 64 to a million ranks
""", run, add, alone=True, lacks=("threads", "array", "dry_run", "ranks"),
)
