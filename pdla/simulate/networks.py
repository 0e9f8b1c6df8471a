"""Find the fastest scheme and grid for a transformer's training step on a described machine, by dry runs of a layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, isqrt, prod
from typing import Any, ClassVar

import numpy as np

from pdla import nn
from pdla.comm.dry import dry_run
from pdla.errors import ShapeError, plural
from pdla.grid import ProcessGrid
from pdla.layout import Layout, axes_of
from pdla.matmul.search import checks
from pdla.matmul.search.estimate import (
    Move,
    Seconds,
    Sizes,
    allreduce,
    count_indices,
    count_words,
    find_fastest,
    gather,
    list_divisors,
    settle,
)
from pdla.matmul.search.fastest import Candidate, Found, search
from pdla.matrix.create import zeros
from pdla.model import received_lower_bound
from pdla.model.cost import Cost
from pdla.model.machine import Machine
from pdla.nn.scheme import LinearLayouts, split_axes

Options = tuple[tuple[str, Any], ...]  # names and values of a scheme's options
SCHEMES = ("Megatron1D", "Summa2D", "Tesseract", "Cube3D", "Tensor3D")
STATES = 4  # arrays of the weights' size: weights, gradients, and AdamW's two moments
MOST = 150  # the most dry runs of a search


@dataclass(frozen=True)
class Transformer:
    """A transformer to train; `fastest` predicts a training step.

    Parameters
    ----------
    hidden, heads, sequence : int
        Features, attention heads of a layer, and tokens of a sequence.
    batch, layers : int
        Sequences of a step, and layers.
    dtype : str, optional
        The type of weights and activations: "float32" or "float64".

    Raises
    ------
    ShapeError
        For numbers below 1, and for heads that do not divide the features.

    Examples
    --------
    >>> sizes = dict(hidden=2048, heads=8, sequence=256, batch=16, layers=2)
    >>> gpt = pdla.simulate.Transformer(**sizes)
    >>> [str(step.choice) for step in gpt.fastest(4, "a100x4", count=2).best]
    ['Megatron1D data=2 row=2, sequence_parallel=True', 'Megatron1D row=4, sequence_parallel=True']
    """

    kind: ClassVar[str] = "transformer"
    grows: ClassVar[tuple[str, ...]] = ("batch", "hidden")  # the sizes that may grow with the ranks

    hidden: int
    heads: int
    sequence: int
    batch: int
    layers: int
    dtype: str = "float32"

    def __post_init__(self) -> None:
        numbers = {name: getattr(self, name) for name in ("hidden", "heads", "sequence", "batch", "layers")}
        checks.check_sizes("a transformer", 1, **numbers)
        if self.hidden % self.heads:
            raise ShapeError(f"a transformer of hidden={self.hidden}: not heads={self.heads} equal heads")

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.batch * self.sequence

    @property
    def linears(self) -> tuple[tuple[str, int, int, tuple[int, int]], ...]:
        """A layer's linears: place in a pair, inputs, outputs, units in which both are cut."""
        h, size = self.hidden, self.hidden // self.heads
        attention = ("first", h, 3 * h, (1, 3 * size)), ("second", h, h, (size, 1))
        return *attention, ("first", h, 4 * h, (1, 1)), ("second", 4 * h, h, (1, 1))

    @property
    def flops(self) -> int:
        """Flops of a step: linears and attention, forward and backward."""
        return 3 * self.layers * self.tokens * (24 * self.hidden**2 + 2 * self.sequence * self.hidden)

    def lower_bound(self, ranks: int) -> float:
        """Bound the bytes that some rank must receive for the linears' products.

        The bound takes each product by itself, and holds no matrix twice.

        Parameters
        ----------
        ranks : int
            The number of ranks that share the work.

        Returns
        -------
        float
            Bytes.
        """
        words = sum(3 * received_lower_bound(self.tokens, n, k, ranks) for _, k, n, _ in self.linears)
        return self.layers * self.itemsize * words

    def grown(self, ratio: float, what: str) -> Transformer:
        """Return a transformer whose step has `ratio` times this step's work, rounded to whole sizes.

        Parameters
        ----------
        ratio : float
            The new transformer's work over this one's.
        what : str
            "batch", or "hidden": features and heads grow as the square root of the ratio.

        Returns
        -------
        Transformer
            A transformer of the same dtype.
        """
        if what == "batch":
            return replace(self, batch=max(1, round(self.batch * ratio)))
        heads = max(1, round(self.heads * ratio**0.5))
        return replace(self, heads=heads, hidden=heads * (self.hidden // self.heads))

    def fastest(
        self, ranks: int, machine: Machine | str, count: int = 10, memory: float = inf, most: int = MOST,
        schemes: Iterable[str] = SCHEMES,
    ) -> Found[Step]:
        """Find the fastest schemes and grids, by dry runs of a layer. Not collective.

        Parameters
        ----------
        ranks : int
            The number of ranks. The search uses fewer where no scheme can use all, or where fewer
            are faster (see `Machine.ladder`).
        machine : Machine or str
            The machine, or its name or file.
        count : int, optional
            The number of steps to return.
        memory : float, optional
            The most bytes that a rank may need.
        most : int, optional
            The most dry runs.
        schemes : iterable of str, optional
            The schemes to compare.

        Returns
        -------
        Found
            Steps (`Step`), the fastest first.

        Raises
        ------
        PlanError
            For numbers of ranks or of steps below 1, and for unknown schemes.
        """
        schemes = tuple(schemes)
        checks.check_search(ranks, count)
        checks.check_names("scheme", schemes, SCHEMES)
        described = Machine.of(machine)
        found = find_fastest_on(self, count_usable(ranks, self), described, schemes, count, most, memory)
        for fewer in reversed(described.ladder(ranks)[:-1]):
            limit = found.best[0].seconds if found.best else inf
            if self.flops / (fewer * described.most(self.dtype)) >= limit or (found.too_large and not found.best):
                break
            found = found.with_faster(find_fastest_on(self, fewer, described, schemes, 1, most, memory, limit), count)
        return found

    def __str__(self) -> str:
        return (
            f"{self.layers} {plural(self.layers, 'layer')} of {self.hidden} {plural(self.hidden, 'feature')}, "
            f"{self.heads} {plural(self.heads, 'head')}, {self.batch} {plural(self.batch, 'sequence')} of {self.sequence}, "
            f"{8 * self.itemsize}-bit floats"
        )


@dataclass(frozen=True)
class Choice:
    """A scheme on a grid; consecutive ranks are neighbours along the last axis."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    options: Options = ()

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip(self.axes, self.shape, strict=True))

    @property
    def ranks(self) -> int:
        return prod(self.shape)

    def scheme(self, comm: Any) -> nn.Scheme:
        return getattr(nn, self.name)(ProcessGrid(self.shape, self.axes, comm, order="C"), **dict(self.options))

    def reorder(self, sizes: Sizes) -> Choice:
        """The same choice with the axes in the order of `sizes`."""
        return replace(self, axes=tuple(sizes), shape=tuple(sizes.values()))

    def __str__(self) -> str:
        grid = " ".join(f"{axis}={n}" for axis, n in self.sizes.items() if n > 1) or "1 rank"
        return f"{self.name} {grid}" + "".join(f", {key}={value}" for key, value in self.options)


@dataclass(frozen=True)
class Step:
    """A step's cost on the first rank; bytes of its parameters, and bytes kept from forward to backward."""

    choice: Choice
    cost: Cost
    parameters: int
    kept: int

    @property
    def seconds(self) -> float:
        """Seconds of the step."""
        return self.cost.seconds

    @property
    def least(self) -> float:
        """The least possible seconds: those of the step, which a dry run has found."""
        return self.cost.seconds

    @property
    def size(self) -> int:
        """Bytes that the first rank needs: weights, gradients, AdamW's two moments, and what forward keeps for backward."""
        return STATES * self.parameters + self.kept


# ---------------------------------------------------------------------------------------------- choices


def choices(ranks: int, net: Transformer, schemes: Iterable[str] = SCHEMES) -> Iterator[Choice]:
    """Every scheme on every grid of all ranks that cuts heads, features and sequences into non-empty parts."""
    for name in schemes:
        for shape, options in _list_grids(name, ranks, net):
            axes = ("data", "row", "col", "depth")[: len(shape)]
            choice = Choice(name, shape, axes, options)
            if _fits(choice, net):
                yield choice


def count_usable(ranks: int, net: Transformer) -> int:
    """The largest number of ranks, up to `ranks`, on which some scheme has a grid."""
    bound = min(ranks, net.batch * net.heads * net.hidden)
    return next(count for count in range(bound, 0, -1) if any(True for _ in choices(count, net)))


def _list_grids(name: str, ranks: int, net: Transformer) -> Iterator[tuple[tuple[int, ...], Options]]:
    for data in list_divisors(ranks, net.batch):
        rest = ranks // data
        if name == "Megatron1D":
            yield (data, rest), ()
            if rest > 1:
                yield (data, rest), (("sequence_parallel", True),)
        elif name == "Summa2D" and isqrt(rest) ** 2 == rest:
            yield (data, isqrt(rest), isqrt(rest)), ()
        elif name == "Cube3D" and round(rest ** (1 / 3)) ** 3 == rest:
            yield (data, *3 * (round(rest ** (1 / 3)),)), ()
        elif name in ("Tesseract", "Tensor3D"):
            for depth in list_divisors(rest, net.batch // data):
                yield from _list_deep_grids(name, data, rest // depth, depth, net)


def _list_deep_grids(name: str, data: int, face: int, depth: int, net: Transformer) -> Iterator[tuple[tuple[int, ...], Options]]:
    q = isqrt(face)
    if name == "Tensor3D":
        yield from (((data, row, face // row, depth), ()) for row in list_divisors(face, net.heads))
    elif q * q == face and depth > 1:
        yield from (((data, q, q, depth), options) for options in ((), (("cut_weights", True),)))


def _fits(choice: Choice, net: Transformer) -> bool:
    scheme, sizes = _make_uncut(choice.name, choice.options), choice.sizes
    sequences, heads = (prod(sizes.get(axis, 1) for axis in axes) for axes in split_axes(scheme.first.Y))
    features = max(prod(sizes.get(axis, 1) for axis in part) for part in split_axes(scheme.first.W))
    return sequences <= net.batch and heads <= net.heads and features <= net.hidden


@lru_cache
def _make_uncut(name: str, options: Options) -> nn.Scheme:
    """The scheme on a grid of one rank: its tables and layouts are those of every grid."""
    axes = {"Megatron1D": ("data", "row"), "Summa2D": ("data", "row", "col")}.get(name, ("data", "row", "col", "depth"))
    return dry_run(1, Choice(name, (1,) * len(axes), axes, options).scheme)[0]


# ---------------------------------------------------------------------------------------------- closed forms


@lru_cache(maxsize=1024)
def _list_linears(name: str, options: Options, net: Transformer) -> list[tuple[LinearLayouts, int, int]]:
    scheme = _make_uncut(name, options)
    return [(scheme.linear(scheme.table(kind), net.sequence, units), k, n) for kind, k, n, units in net.linears]


def moves(choice: Choice, net: Transformer) -> Iterator[Move]:
    """The moves of a layer to the first rank, forward and backward."""
    sizes, keep, m = choice.sizes, _make_uncut(choice.name, choice.options).keep, net.tokens
    for at, k, n in _list_linears(choice.name, choice.options, net):
        for _ in range(1 if keep else 2):
            yield from gather((m, k), at.X, at.x, sizes, net.itemsize)
            yield from gather((k, n), at.W, at.w, sizes, net.itemsize)
        yield from gather((m, n), at.Y, at.y.summed, sizes, net.itemsize)
        yield from settle((m, n), at.y, at.Y, sizes, net.itemsize)
        yield from settle((m, k), at.dx, at.X, sizes, net.itemsize)
        yield from settle((k, n), at.dw, at.W, sizes, net.itemsize)
        yield from _vector(n, at.Y, sizes, net.itemsize)
    for _ in ("before attention", "before the MLP"):
        yield from _norm(_list_linears(choice.name, choice.options, net)[0][0].X, net, sizes)


def _vector(n: int, layout: Layout, sizes: Sizes, itemsize: int) -> Iterator[Move]:
    """The gradient of a parameter (1, n), such as a bias: a sum over the tokens of an activation in layout `layout`."""
    yield from allreduce(count_indices(n, layout.cols, sizes), axes_of(layout.rows), sizes, itemsize)


def _norm(layout: Layout, net: Transformer, sizes: Sizes) -> Iterator[Move]:
    """A LayerNorm's sums over features, two forward and two together backward, and the gradients of gain and offset."""
    tokens = count_indices(net.tokens, layout.rows, sizes)
    for words in (tokens, tokens, 2 * tokens):
        yield from allreduce(words, axes_of(layout.cols), sizes, net.itemsize)
    for _ in ("gain", "offset"):
        yield from _vector(net.hidden, layout, sizes, net.itemsize)


def estimate(choice: Choice, net: Transformer, machine: Machine) -> Candidate[Choice]:
    """The choice in the order of axes with the least message time, with its seconds and memory by closed forms.

    Only the memory of linears is counted.
    """
    layer_moves = tuple(moves(choice, net))
    work = sum(_predict_work(at, k, n, choice, net, machine) for at, k, n in _list_linears(choice.name, choice.options, net))
    best, sizes = find_fastest(layer_moves, work, choice.sizes, machine, net.itemsize)
    seconds = Seconds(*(net.layers * part for part in (best.work, best.near, best.far, best.saved)))
    return Candidate(choice.reorder(sizes), seconds, net.layers * _count_memory(choice, net))


def _predict_work(at: LinearLayouts, k: int, n: int, choice: Choice, net: Transformer, machine: Machine) -> float:
    """Seconds of a linear's three products."""
    sizes = choice.sizes
    tokens, outputs = count_indices(net.tokens, at.y.rows, sizes), count_indices(n, at.y.cols, sizes)
    return 3 * machine.gemm(tokens, outputs, count_indices(k, at.w.rows, sizes), net.dtype)


def _count_memory(choice: Choice, net: Transformer) -> int:
    """The least bytes of a layer's linears: weights, gradients and moments, inputs, and the first linear's outputs."""
    sizes, words = choice.sizes, 0
    for i, (at, k, n) in enumerate(_list_linears(choice.name, choice.options, net)):
        words += STATES * count_words((k, n), at.W, sizes) + count_words((net.tokens, k), at.X, sizes)
        words += count_words((net.tokens, n), at.Y, sizes) if i == 0 else 0
    return words * net.itemsize


# ---------------------------------------------------------------------------------------------- dry runs


def find_fastest_on(
    net: Transformer, ranks: int, machine: Machine, schemes: Iterable[str] = SCHEMES, count: int = 1, most: int = MOST,
    memory: float = inf, limit: float = inf,
) -> Found[Step]:
    """The fastest schemes and grids on exactly `ranks` ranks; steps of `limit` seconds or more are not run."""
    candidates = (estimate(choice, net, machine) for choice in choices(ranks, net, schemes))
    return search(candidates, lambda choice: step(choice, net, machine), count, most, memory, limit)


def step(choice: Choice, net: Transformer, machine: Machine) -> Step:
    """A step's cost: one layer's, by a dry run forward and backward, times the number of layers."""
    sizes = choice.sizes
    data_parallel = all(n == 1 for axis, n in sizes.items() if axis != "data")  # all schemes are the same then
    run = Choice("Megatron1D", (sizes["data"], 1), ("data", "row")) if data_parallel else choice
    cost, parameters, kept = _measure_layer(run, net, machine)
    figures = {name: net.layers * figure for name, figure in vars(cost).items()} | {"peak_workspace": cost.peak_workspace}
    return Step(choice, Cost(**figures), net.layers * parameters, net.layers * kept)


@lru_cache(maxsize=256)
def _measure_layer(choice: Choice, net: Transformer, machine: Machine) -> tuple[Cost, int, int]:
    """A layer's cost, the bytes of its parameters, and the bytes that forward keeps for backward."""

    def program(comm: Any) -> tuple[int, int]:
        scheme = choice.scheme(comm)
        layer = nn.TransformerLayer(scheme, net.hidden, net.heads, sequence=net.sequence, dtype=net.dtype)
        x = zeros((net.tokens, net.hidden), scheme.grid, scheme.residual(net.sequence), dtype=net.dtype)
        y = layer.forward(x)
        kept = layer.kept_bytes()
        layer.backward(y)
        return sum(value.stored.nbytes for value in layer.parameters().values()), kept

    result, ledger = dry_run(choice.ranks, program, machine=machine)
    return Cost.of([ledger]), *result
