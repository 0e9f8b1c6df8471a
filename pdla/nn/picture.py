"""A network in HTML: its layers, their parameters, how these are cut, and this rank's blocks."""

from __future__ import annotations

from math import prod
from typing import Any

from pdla import show
from pdla.nn.parameter import Parameter

THUMB = 40.0  # pixels


def picture(layer: Any) -> str:
    """Show a layer as HTML. Local; draws no parameters."""
    rows = []
    for node, prefix in layer.all_layers().items():
        rows.append((prefix.removesuffix(".") or "all", _describe(node), "", "", "", ""))
        parameters = ((name, value) for name, value in vars(node).items() if isinstance(value, Parameter))
        rows += [(f"{prefix}{name}", "", *_describe_parameter(parameter)) for name, parameter in parameters]
    matrices = [parameter.allocated for parameter in layer.all_parameters()]
    numbers, nbytes = sum(X.size for X in matrices), sum(X.stored.nbytes for X in matrices)
    title = f"{layer!r}: {numbers} numbers in {len(matrices)} parameters, {show.with_unit(nbytes, 'B')} on this rank"
    return show.heading(title) + show.table(("", "layer", "shape", "cut", "on this rank", ""), rows)


def _describe(layer: Any) -> str:
    return repr(layer).removesuffix(f" on {layer.scheme!r}")


def _describe_parameter(parameter: Parameter) -> tuple[str, str, str, str]:
    """Describe a parameter: its shape, layout and local block as text, and a drawing of the block in the matrix."""
    X = parameter.allocated
    rows, cols = (show.densities(part.starts, part.stops, n) for part, n in zip(X.indices, X.shape, strict=True))
    cut = repr(X.layout).removeprefix("Layout(").removesuffix(")") or "whole on every rank"
    drawing = show.faces("", X.shape, [(show.OWN, (rows, cols))], THUMB) if prod(X.shape) else ""
    return " x ".join(map(str, X.shape)), cut, " x ".join(map(str, X.stored.shape)), drawing
