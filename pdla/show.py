"""HTML and SVG for notebooks, from strings and numbers: elements, tables, bars, matrices in colours; and long arrays in short.

The output is well-formed XML, legible on light and dark pages: text has the page's own colour, or is
dark on a pale ground.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain, pairwise
from math import floor, log10
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

COLOURS = (  # of ranks: pale, and different from their neighbours
    "#8dd3c7", "#ffed6f", "#bebada", "#fb8072", "#80b1d3", "#fdb462", "#b3de69", "#fccde5", "#d9d9d9", "#bc80bd", "#ccebc5",
    "#fbb4ae", "#b3cde3", "#decbe4", "#fed9a6", "#e5d8bd",
)
OWN, COMING = "#5b8ff9", "#b5d0ff"  # elements that a rank holds, and those that it receives
DARK = "#222222"  # text on these
CELL, LETTER = 26.0, 6.5  # pixels: the least side of a cell, the width of a letter
SIDE = 320.0  # pixels of a matrix with too many cells for squares
SINGLE = 16  # the most rows or columns that are drawn as squares
NAMED, TOLD = 4, 16  # the most ranks that are named in a cell, and in its tooltip; of more the first and the last
ENDS = 3  # elements of a long array that are printed at either end
STYLE = "<style>svg { color: black } @media (prefers-color-scheme: dark) { svg { color: white } }</style>"


class Span(NamedTuple):
    """Neighbouring rows or columns, from `start` up to `stop`, of the same ranks; `key` identifies these."""

    start: int
    stop: int
    key: Any


Spans = tuple[Sequence[Span], Sequence[Span]]  # rows and columns


@dataclass(frozen=True, repr=False)
class Drawing:
    """A picture: drawn in a notebook, printed as text elsewhere. Local.

    Parameters
    ----------
    svg : str
        The picture, as an SVG element.
    text : str
        The same in characters.
    """

    svg: str
    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> None:
        """Write the picture to a file. Not collective.

        Parameters
        ----------
        path : str or pathlib.Path
            The SVG file.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        Path(path).write_text(self.svg.replace(">", f">{STYLE}", 1) + "\n", encoding="utf-8")


# ---------------------------------------------------------------------------------------------- elements


class Markup(str):
    """Text that is HTML already."""


def element(name: str, *inner: str, **attributes: Any) -> Markup:
    """Write an element; `inner` is markup. Write a hyphen in the name of an attribute as _."""
    named = "".join(f' {key.replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items())
    return Markup(f"<{name}{named}>{''.join(inner)}</{name}>")


def heading(text: str) -> str:
    """Write the heading of a picture."""
    return element("div", element("code", escape(text)))


def note(text: str) -> str:
    """Write a remark in small letters."""
    return element("small", escape(text))


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Write a table of texts and markup, without a head if that is empty."""
    style = "text-align: left; padding: 1px 10px 1px 0"
    lines = [[element("th", _cell(word), style=style) for word in head]] if head else []
    lines += [[element("td", _cell(word), style=style) for word in row] for row in rows]
    return element("table", *(element("tr", *line) for line in lines), style="border-collapse: collapse; margin: 4px 0")


def _cell(word: Any) -> str:
    return word if isinstance(word, Markup) else escape(str(word))


def bar(share: float) -> Markup:
    """Draw a bar, of a share of the longest one."""
    return element("div", style=f"width: {max(1, round(200 * share))}px; height: 10px; background: {OWN}")


def swatch(colour: str, text: str) -> str:
    """Write an entry of a legend."""
    square = element("span", style=f"display: inline-block; width: 10px; height: 10px; background: {colour}; margin: 0 4px 0 8px")
    return square + escape(text)


def set_in_row(*parts: str) -> str:
    """Set some parts in a row."""
    return element("div", *(element("div", part) for part in parts), style="display: flex; flex-wrap: wrap; gap: 16px")


# ---------------------------------------------------------------------------------------------- numbers


def with_unit(value: float, unit: str) -> str:
    """Format a number with its unit, and a prefix for bytes, operations and seconds."""
    if unit not in ("B", "B/s", "flop", "flop/s", "s") or not value:
        return f"{value:.3g} {unit}".strip()
    thousands = min(max(floor(log10(value) / 3 + 1e-9), -3), 6)
    return f"{value / 1000.0**thousands:.3g} {'nµm kMGTPE'[thousands + 3].strip()}{unit}"


def format_exactly(value: float) -> str:
    """Format a number exactly, in few digits."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def abbreviate(array: Any) -> str:
    """List an array's elements; of a long one the ends, as NumPy prints it."""
    words = [*map(str, array)] if len(array) <= 2 * ENDS + 2 else [*map(str, array[:ENDS]), "...", *map(str, array[-ENDS:])]
    return f"[{', '.join(words)}]"


# ---------------------------------------------------------------------------------------------- matrices


def owners(
    shape: tuple[int, int], rows: Sequence[Span], cols: Sequence[Span], holders: Callable[[Any, Any], Sequence[int]], join: str,
    here: int | None = None,
) -> Drawing:
    """Draw a matrix in the colours of the ranks that hold each part; parts of the rank `here` have a frame.

    If the spans end before the matrix, its top left corner is drawn.
    """
    ranks = [[tuple(holders(i.key, j.key)) for j in cols] for i in rows]
    labels = [[_label(found, join, NAMED) for found in line] for line in ranks]
    colours = {found: COLOURS[at % len(COLOURS)] for at, found in enumerate(dict.fromkeys(chain(*ranks)))}
    longest = max((len(label) for line in labels for label in line), default=0)
    down, across = _places(rows, 0), _places(cols, longest)
    parts: list[str] = []
    for i, row in enumerate(rows):
        for j, col in enumerate(cols):
            found, box = ranks[i][j], (across[j], down[i], across[j + 1] - across[j], down[i + 1] - down[i])
            who = f"{'rank' if len(found) == 1 else 'ranks'} {_label(found, join, TOLD)}"
            said = f"{_range('row', row)}, {_range('column', col)}: {who}"
            parts.append(_rectangle(box, colours[found], said))
            if box[2] >= LETTER * len(labels[i][j]) and box[3] >= 12:
                parts.append(_text(box[0] + box[2] / 2, box[1] + box[3] / 2, labels[i][j]))
    frames: list[str] = [
        element("rect", x=_px(across[j] + 2), y=_px(down[i] + 2), width=_px(across[j + 1] - across[j] - 4),
                height=_px(down[i + 1] - down[i] - 4), fill="none", stroke=DARK, stroke_width=1.5)
        for i in range(len(rows)) for j in range(len(cols)) if here is not None and here in ranks[i][j]
    ]  # fmt: skip
    end = rows[-1].stop if rows else 0, cols[-1].stop if cols else 0
    corner = "" if end == shape else f"{end[0]} x {end[1]} elements at the top left of "
    name = f"{corner}{shape[0]} x {shape[1]}"
    return Drawing(svg((across[-1], down[-1]), name, parts + frames), _in_characters(rows, cols, labels, name))


def faces(name: str, shape: tuple[int, int], layers: Sequence[tuple[str, Spans]], side: float = SIDE / 2) -> Markup:
    """Draw a matrix to scale, below its name: layers of a colour, rows and columns, one above the other. Keys are densities."""
    scale = min(side / max(*shape, 1), CELL)
    height, width = (max(4.0, n * scale) for n in shape)
    parts: list[str] = [element("rect", x=0, y=0, width=_px(width), height=_px(height), fill="currentColor", fill_opacity=0.08)]
    down, across = height / max(shape[0], 1), width / max(shape[1], 1)
    for colour, (rows, cols) in layers:
        parts += [
            element("rect", x=_px(j.start * across), y=_px(i.start * down), width=_px((j.stop - j.start) * across),
                    height=_px((i.stop - i.start) * down), fill=colour, fill_opacity=f"{i.key * j.key:.2g}")
            for i in rows for j in cols
        ]  # fmt: skip
    picture = svg((width, height), name, parts)
    return element("div", escape(name), element("div", picture)) if name else picture


def densities(starts: np.ndarray, stops: np.ndarray, n: int, most: int = 32) -> list[Span]:
    """Convert runs of indices of 0 to n - 1 to at most `most` spans. The key of a span is the share that runs cover."""
    if len(starts) <= most:
        return [Span(int(lo), int(hi), 1.0) for lo, hi in zip(starts, stops, strict=True)]
    ups, edges = np.cumsum(stops - starts), np.linspace(0, n, most + 1)
    below = np.interp(edges, np.stack([starts, stops], 1).ravel(), np.stack([ups - stops + starts, ups], 1).ravel())
    shares = np.round(np.diff(below) / np.diff(edges), 2)
    cuts = [0, *(np.flatnonzero(np.diff(shares)) + 1).tolist(), most]
    return [Span(edges[lo], edges[hi], float(shares[lo])) for lo, hi in pairwise(cuts) if shares[lo]]


def svg(size: tuple[float, float], title: str, parts: Sequence[str]) -> Markup:
    """Write a picture of so many pixels, width first."""
    width, height = (_px(max(1.0, side) + 2) for side in size)
    return element(
        "svg", element("title", escape(title)), *parts, xmlns="http://www.w3.org/2000/svg", viewBox=f"-1 -1 {width} {height}",
        width=width, height=height, font_family="sans-serif", font_size=11, fill="currentColor",
    )  # fmt: skip


def _places(spans: Sequence[Span], letters: int) -> list[float]:
    """The start of each span, and the end of the last, in pixels."""
    if all(span.stop - span.start == 1 for span in spans) and len(spans) <= SINGLE:
        side = max(CELL, LETTER * letters + 6)
        return [side * i for i in range(len(spans) + 1)]
    scale = SIDE / spans[-1].stop
    return [0.0, *(span.stop * scale for span in spans)]


def _rectangle(box: tuple[float, float, float, float], colour: str, title: str) -> str:
    x, y, width, height = map(_px, box)
    return element(
        "rect", element("title", escape(title)), x=x, y=y, width=width, height=height, fill=colour, stroke="white", stroke_width=0.8
    )


def _text(x: float, y: float, text: str) -> str:
    return element("text", escape(text), x=_px(x), y=_px(y), text_anchor="middle", dominant_baseline="central", fill=DARK)


def _px(x: float) -> str:
    return f"{x:.1f}".removesuffix(".0")


def _label(ranks: Sequence[int], join: str, most: int) -> str:
    shown = [*map(str, ranks)] if len(ranks) <= most else [str(ranks[0]), "...", str(ranks[-1])]
    return join.join(shown)


def _range(what: str, span: Span) -> str:
    return f"{what} {span.start}" if span.stop - span.start == 1 else f"{what}s {span.start} to {span.stop - 1}"


def _in_characters(rows: Sequence[Span], cols: Sequence[Span], labels: list[list[str]], name: str) -> str:
    """Print the labels in columns, with the lengths of spans unless all are 1, and the name if it is of a part."""
    single = all(span.stop - span.start == 1 for span in (*rows, *cols))
    lines = labels if single else [
        ["", *(str(col.stop - col.start) for col in cols)],
        *([str(row.stop - row.start), *line] for row, line in zip(rows, labels, strict=True)),
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    printed = ["  ".join(map(str.rjust, line, widths)) for line in lines]
    return "\n".join([*printed, f"({name})"] if " of " in name or not printed else printed)
