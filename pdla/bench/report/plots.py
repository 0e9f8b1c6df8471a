"""Figures by matplotlib: the split of time, roofline, scaling, volume over the lower bound."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

from pdla.bench.report.lines import Line
from pdla.bench.report.table import size
from pdla.bench.stop import refuse
from pdla.errors import plural

PARTS = {"computing": "#4477aa", "communicating": "#ee8866", "waiting": "#bbbbbb"}
COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa7733", "#66ccee", "#aa3377", "#bbbb33", "#777777", "#332288", "#882255")
WIDTH, LINE, HEAD = 8.0, 0.24, 0.9  # inches: width of a figure; height for each bar, and above and below the bars
BAR = 0.8  # height of a bar, as a share of LINE
STYLES = "dashed: predicted\ndotted: ideal"


def save(lines: Sequence[Line], folder: str, form: str) -> list[str]:
    """Write each figure for which the lines have data into a folder; return a line for each figure. Raises Stop."""
    if find_spec("matplotlib") is None:
        raise refuse("--plots needs matplotlib: pip install 'pdla[plot]'")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        return [_save(name, draw(lines), Path(folder, f"{name}.{form}")) for name, draw in FIGURES.items()]
    except OSError as error:
        raise refuse(f"--plots: {error}") from error


def _save(name: str, figure: Any, path: Path) -> str:
    if figure is None:
        return f"left out: {name}, which needs {NEEDS[name]}"
    figure.savefig(path, dpi=150)
    return f"written: {path}"


def _figure(rows: int, heights: Sequence[float]) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure((WIDTH, sum(heights)), layout="constrained")
    axes = figure.subplots(rows, squeeze=False, height_ratios=heights)[:, 0]
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


# ---------------------------------------------------------------------------------------------- bars


def _products(lines: Sequence[Line]) -> list[list[Line]]:
    """Group lines by product."""
    return [list(group) for _, group in groupby(lines, lambda line: line.product)]


def draw_split(lines: Sequence[Line]) -> Any:
    """Stacked bars of the counted run, and below it of the predicted run; a frame for each product."""
    groups = _products([line for line in lines if line.split or line.predicted])
    if not groups:
        return None
    bars = [[bar for line in group for bar in _list_bars(line)] for group in groups]
    figure, frames = _figure(len(groups), [HEAD + LINE * len(some) for some in bars])
    for group, some, axes in zip(groups, bars, frames, strict=True):
        for at, (_, split) in enumerate(some):
            left = 0.0
            for part, colour in PARTS.items():
                axes.barh(at, getattr(split, part), BAR, left, color=colour, label=part if at == 0 else None)
                left += getattr(split, part)
        _label_bars(axes, [name for name, _ in some], group[0].product)
        axes.set_xlabel("seconds")
    figure.legend(*frames[0].get_legend_handles_labels(), loc="outside upper right", ncols=3, frameon=False)
    return figure


def _list_bars(line: Line) -> list[tuple[str, Any]]:
    splits = [(line.label, line.split), ("predicted" if line.split else f"{line.label}, predicted", line.predicted)]
    return [(name, split) for name, split in splits if split is not None]


def _label_bars(axes: Any, names: Sequence[str], title: str) -> None:
    axes.set_yticks(range(len(names)), names, fontsize="small")
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_title(title, loc="left", fontsize="medium")


def draw_volume(lines: Sequence[Line]) -> Any:
    """Bars of bytes received over the lower bound; the line at 1 is the bound."""
    groups = _products([line for line in lines if line.multiple is not None])
    if not groups:
        return None
    figure, frames = _figure(len(groups), [HEAD + LINE * len(group) for group in groups])
    for group, axes in zip(groups, frames, strict=True):
        drawn = axes.barh(range(len(group)), [line.multiple for line in group], BAR, color=PARTS["communicating"])
        axes.bar_label(drawn, [f" {size(line.received)}" for line in group], fontsize="small")
        axes.axvline(1, color="black", linestyle="dashed", linewidth=1)
        axes.margins(x=0.12)
        _label_bars(axes, [line.label for line in group], group[0].product)
    frames[-1].set_xlabel("bytes received / lower bound")
    return figure


# ---------------------------------------------------------------------------------------------- points


def draw_roofline(lines: Sequence[Line]) -> Any:
    """FLOP/s of all ranks against flops for each byte received, under the roofs of GEMMs and links."""
    some = [line for line in lines if line.intensity and any(_seconds(line))]
    if not some:
        return None
    figure, (axes,) = _figure(1, [4.5])
    ends = min(line.intensity or 0 for line in some) / 2, 2 * max(line.intensity or 0 for line in some)
    colours = dict(zip(dict.fromkeys(line.algorithm for line in some), COLOURS, strict=False))
    for name, colour in colours.items():
        axes.plot([], [], "o", color=colour, label=name)
    for line in some:
        for rate, marker in _rates(line):
            fill = "full" if marker == "o" else "none"
            axes.plot(line.intensity, rate, marker, color=colours[line.algorithm], fillstyle=fill)
    for name, line in {f"{line.dtype}, {line.ranks} {plural(line.ranks, 'rank')}": line for line in some if line.peak}.items():
        xs, ys = _roof(ends, line.peak or 0.0, line.link)
        axes.plot(xs, ys, color="black", linewidth=0.8)
        axes.annotate(f" {name}", (xs[-1], ys[-1]), fontsize="x-small", va="center")
    axes.set(xscale="log", yscale="log", xlabel="flops for each byte received", ylabel="FLOP/s of all ranks")
    figure.legend(loc="outside right upper", frameon=False, fontsize="small", title="hollow: predicted")
    return figure


def _rates(line: Line) -> list[tuple[float, str]]:
    """FLOP/s measured and predicted, each with its marker."""
    return [(line.flops / seconds, marker) for seconds, marker in zip(_seconds(line), "os", strict=True) if seconds]


def _roof(ends: tuple[float, float], peak: float, link: float | None) -> tuple[list[float], list[float]]:
    """The corners of the roof between two intensities, as x and y."""
    ridge = [peak / link] if link and ends[0] < peak / link < ends[1] else []
    xs = [ends[0], *ridge, ends[1]]
    return xs, [min(peak, link * x) if link else peak for x in xs]


def draw_scaling(lines: Sequence[Line]) -> Any:
    """Seconds on the fastest grid against ranks; a frame for each product with several numbers of ranks."""
    products = [group for group in _products(lines) if len({line.ranks for line in group if any(_seconds(line))}) > 1]
    if not products:
        return None
    figure, frames = _figure(len(products), [4.0] * len(products))
    for group, axes in zip(products, frames, strict=True):
        ranks = sorted({line.ranks for line in group})
        for (name, curves), colour in zip(_curves(group).items(), COLOURS, strict=False):
            _draw_curve(axes, name, curves, colour)
        axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel="seconds")
        axes.set_xticks(ranks, [str(number) for number in ranks])
        axes.set_xticks([], minor=True)
        axes.set_title(group[0].product, loc="left", fontsize="medium")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize="small", title=STYLES)
    return figure


Points = list[tuple[int, float]]  # ranks, and seconds on the fastest grid of so many


def _seconds(line: Line) -> tuple[float | None, float | None]:
    """Seconds measured and predicted."""
    return line.seconds, line.predicted.seconds if line.predicted else None


def _curves(lines: Sequence[Line]) -> dict[str, tuple[Points, Points]]:
    """The points measured and predicted, by algorithm."""
    least: dict[str, tuple[dict[int, float], dict[int, float]]] = {}
    for line in lines:
        for found, seconds in zip(least.setdefault(line.algorithm, ({}, {})), _seconds(line), strict=True):
            if seconds:
                found[line.ranks] = min(seconds, found.get(line.ranks, seconds))
    return {name: (sorted(measured.items()), sorted(predicted.items())) for name, (measured, predicted) in least.items()}


def _draw_curve(axes: Any, name: str, curves: tuple[Points, Points], colour: str) -> None:
    for points, style in zip(curves, ("o-", "s--"), strict=True):
        if points:
            axes.plot(*zip(*points, strict=True), style, color=colour, fillstyle="full" if style == "o-" else "none")
    axes.plot([], [], "o-", color=colour, label=name)
    (ranks, seconds), (last, _) = (curves[0] or curves[1])[0], (curves[0] or curves[1])[-1]
    axes.plot([ranks, last], [seconds, seconds * ranks / last], ":", color=colour, linewidth=0.8)


FIGURES = {"split": draw_split, "roofline": draw_roofline, "scaling": draw_scaling, "volume": draw_volume}
NEEDS = {
    "split": "rows that were run, or predicted on a machine",
    "roofline": "rows that have times and receive bytes",
    "scaling": "one product on two or more numbers of ranks",
    "volume": "rows with a lower bound, of two ranks or more",
}
