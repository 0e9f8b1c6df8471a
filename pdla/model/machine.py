"""A machine in a few figures: plans weigh work against words and messages by them, and dry runs predict times."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from importlib.resources import files
from itertools import pairwise
from math import inf
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pdla import config
from pdla.errors import ArgumentError, PdlaError, PlanError, list_choices, suggest

FIGURES = {  # the unit and the meaning of each figure
    "flops": ("flop/s", "a large float64 product"),
    "single": ("x", "as fast in float32"),
    "half": ("x", "as fast in 16-bit floats"),
    "memory": ("B/s", "elementwise work reads and writes"),
    "bandwidth": ("B/s", "received from a rank on the same node"),
    "network": ("B/s", "received from a rank on another node"),
    "injection": ("B/s", "received by a node from others; 0: no limit of its own"),
    "latency": ("s", "latency of a message from the same node"),
    "far_latency": ("s", "latency of a message from another node"),
    "gap": ("s", "each message occupies a rank"),
    "call": ("s", "overhead of a local product"),
    "step": ("s", "overhead of a step of a factorization"),
    "node": ("ranks", "on a node; 0: all are on one"),
    "overlap": ("", "of computing time in which messages move on"),
}
Inner = TypeVar("Inner", int, float)


def operations(m: int, n: int, k: Inner, dtype: Any) -> Inner:
    """Count the multiplications and additions of an m x k by k x n product, in real arithmetic."""
    return (8 if np.dtype(dtype).kind == "c" else 2) * m * n * k


@dataclass(frozen=True, repr=False)
class Machine:
    """Figures of one rank; those left out are a desktop core's under MPICH, rounded.

    The repr names the latter. To describe a cluster, change a similar machine:
    ``dataclasses.replace(pdla.Machine.load("h200x8"), node=4, network=2.5e10)``.

    Parameters
    ----------
    flops : float
        Operations a second of a large float64 product; a complex one counts as four real ones.
    bandwidth : float
        Bytes a second received from a rank on the same node.
    network : float
        Bytes a second received from a rank on another node.
    latency : float
        Seconds until the first byte of a message from the same node.
    single : float
        How many times as many operations a second in float32.
    half : float
        The same in 16-bit floats.
    reached : tuple of (size, share) pairs
        The share of `flops` that products of each size reach, sizes ascending; a size is the cube
        root of m n k. In between the logarithms are interpolated; above the last size the share is
        1; (): it is 1 at any size.
    call : float
        Seconds of overhead of each local product and each step of elementwise work (the
        interpreter, a kernel's launch).
    narrow : float
        The inner size of a product that takes as long as the overhead of LAPACK's work on a block,
        which is mostly on narrow panels.
    step : float
        Seconds of the interpreter's work in each step of a factorization.
    memory : float
        Bytes a second that elementwise work reads and writes.
    erf : float
        Elements a second of the error function; 0: limited by `memory` alone.
    far_latency : float
        Seconds until the first byte of a message from another node.
    gap : float
        Seconds for which each message, however short, occupies a rank that sends or receives it;
        its bytes may take longer.
    node : int
        Ranks on a node, the first of them on the first node; 0: all ranks are on one node.
    injection : float
        Bytes a second that all ranks of a node together receive from other nodes; 0: no limit but
        `network`.
    at_once : int
        Elements of a piece, where work is done in pieces, such as attention's scores: as many as a
        core's cache holds, or so many that a GPU's launches take little time.
    overlap : float
        The share of computing time in which messages move on: 1 with progress in hardware, 0
        without any.
    name : str
        The name of the machine.
    source : str
        The source of the figures.

    Raises
    ------
    ArgumentError
        For a figure of another type.
    PlanError
        For a number that is infinite or NaN, or outside the figure's range.

    Examples
    --------
    >>> pdla.Machine(flops=1e12, call=0.0).gemm(10000, 10000, 10000, "float64")
    2.0
    """

    flops: float = 5e10
    bandwidth: float = 5e9
    network: float = 1.25e9
    latency: float = 2e-6
    single: float = 2.0
    half: float = 2.0
    reached: tuple[tuple[float, float], ...] = ()
    call: float = 1e-6
    narrow: float = 100.0
    step: float = 2.5e-4
    memory: float = 1e10
    erf: float = 0.0
    far_latency: float = 2e-5
    gap: float = 0.0
    node: int = 0
    injection: float = 0.0
    at_once: int = 1 << 18
    overlap: float = 1.0
    name: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        for one in fields(self):
            object.__setattr__(self, one.name, _check(one.name, str(one.type), getattr(self, one.name)))

    def __repr__(self) -> str:
        """The machine as an expression: the figures that differ from the defaults, then the names of the default figures."""
        from pdla.show import format_exactly

        figures = ((figure, getattr(self, figure.name)) for figure in fields(self))
        changed = {figure.name: value for figure, value in figures if value != figure.default}
        arguments = (f"{name}={format_exactly(x) if isinstance(x, float) else repr(x)}" for name, x in changed.items())
        by_default = f"; by default {', '.join(self._default_figures)}" if changed and self._default_figures else ""
        return f"Machine({', '.join(arguments)}{by_default})"

    @property
    def _default_figures(self) -> list[str]:
        """The names of the figures with their defaults, a desktop core's. Figures that a file may leave out are not listed."""
        needed = (figure for figure in fields(self) if figure.name not in (*_OPTIONAL, "overlap"))
        return [figure.name for figure in needed if getattr(self, figure.name) == figure.default]

    def _repr_html_(self) -> str:
        """The figures with their units, as a table."""
        from pdla import show

        rows = [(name, show.with_unit(getattr(self, name), unit), what) for name, (unit, what) in FIGURES.items()]
        reached = ", ".join(f"{share:.0%} at {size:g}" for size, share in self.reached)
        rows += [("reached", reached, "of flops, by products of these sizes")] if reached else []
        by_default = f"by default, as of a desktop core: {', '.join(self._default_figures)}" if self._default_figures else ""
        return show.heading(self.title) + show.table((), rows) + show.note(self.source) + show.note(by_default)

    @staticmethod
    def load(name: str | Path) -> Machine:
        """Read a machine from a file, or find one of those that come with pdla. Not collective.

        Parameters
        ----------
        name : str or pathlib.Path
            A TOML file, or one of `Machine.known()`.

        Returns
        -------
        Machine
            The machine.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        ValueError
            For an unknown name, for a file with keys or values that no machine has, and for a
            missing figure. Only reached, narrow, step, erf, gap, node, injection, at_once, name and
            source may be missing.

        Examples
        --------
        >>> pdla.Machine.load("a100x4").node
        4
        """
        path = Path(name)
        if not path.suffix:
            path = Path(str(files("pdla.model") / "machines" / f"{name}.toml"))
        if not path.is_file():
            fault = f"no machine {str(name)!r}: a TOML file, or {list_choices(str(name), Machine.known())}"
            raise FileNotFoundError(fault) if Path(name).suffix else ValueError(fault)
        try:
            figures = tomllib.loads(path.read_text("utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        names = [figure.name for figure in fields(Machine)]
        for key in figures:
            if key not in names:
                raise ValueError(f"{path}: {key} = {figures[key]!r}; a machine has {', '.join(names)}{suggest(key, names)}")
        try:
            machine = Machine(**figures)
        except PdlaError as error:
            raise ValueError(f"{path}: {error}") from error
        if missing := [key for key in names if key not in (*figures, *_OPTIONAL)]:
            raise ValueError(f"{path}: lacks {', '.join(missing)}; only {', '.join(_OPTIONAL)} may be left out")
        return machine

    @staticmethod
    def of(given: Machine | str | Path) -> Machine:
        """Give a machine, or load it by its name or path.

        Parameters
        ----------
        given : Machine, str or pathlib.Path
            The machine, or what `load` takes.

        Returns
        -------
        Machine
            The machine.
        """
        return given if isinstance(given, Machine) else Machine.load(given)

    @staticmethod
    def choose() -> Machine:
        """Give the machine that plans are made for: PDLA_MACHINE's, else one of the defaults.

        Returns
        -------
        Machine
            The machine.

        Raises
        ------
        FileNotFoundError, ValueError
            As `load` does.
        """
        return _load_chosen(config.settings.machine)

    @staticmethod
    def describe_choice() -> str:
        """Describe the chosen machine, or the error in finding it, to be compared between ranks.

        Returns
        -------
        str
            Its figures, or the error's text.
        """
        try:
            return repr(Machine.choose())
        except (OSError, ValueError) as error:
            return str(error)

    @staticmethod
    def known() -> tuple[str, ...]:
        """List the machines that come with pdla.

        Returns
        -------
        tuple of str
            Their names.
        """
        folder = Path(str(files("pdla.model") / "machines"))
        return tuple(sorted(path.stem for path in folder.glob("*.toml")))

    @property
    def is_custom(self) -> bool:
        """Whether it is not the default machine. If so, plans are compared by their seconds."""
        return self != Machine()

    @property
    def title(self) -> str:
        """The name, or a phrase in its place."""
        return self.name or ("a machine without a name" if self.is_custom else "the default machine")

    def text(self) -> str:
        """Write the machine as a TOML file.

        Returns
        -------
        str
            The text, which `load` reads from a file.
        """
        lines = (f"{figure.name} = {_format_value(getattr(self, figure.name))}" for figure in fields(self))
        return "\n".join(lines) + "\n"

    # ------------------------------------------------------------------ costs in words, for prices

    @property
    def message(self) -> float:
        """The cost of one more message, in words of 8 bytes that a rank could receive in its gap.

        If the gap is 0, in its latency. Not in both: latencies of the messages of a round overlap.
        """
        return (self.gap or self.latency) * self.bandwidth / 8

    def meanwhile(self, multiplications: float) -> float:
        """Count the words that could be received while a rank computes in float64.

        Parameters
        ----------
        multiplications : float
            How many are done, and as many additions.

        Returns
        -------
        float
            Words of 8 bytes, from a rank on the same node.
        """
        return 2 * multiplications / self.flops * self.bandwidth / 8

    @property
    def distance(self) -> float:
        """How many words arrive from the same node in the time of one word from another node."""
        return self.bandwidth / self.network

    # ------------------------------------------------------------------ times and rates, for clocks

    def gemm(self, m: int, n: int, k: float, dtype: Any, count: int = 1, out: Any = None) -> float:
        """Predict the time of one call for some products m x k by k x n.

        The longer of two times: of the arithmetic, and of reading and writing the matrices.

        Parameters
        ----------
        m, n, k : int
            Sizes of each product.
        dtype : dtype
            The factors' dtype, which sets the rate, also that of 16-bit floats that are added up in
            float32.
        count : int, optional
            How many products.
        out : dtype, optional
            The result's dtype; by default the factors'.

        Returns
        -------
        float
            Seconds.
        """
        dtype = np.dtype(dtype)
        rate = self.most(dtype) * self._find_share(m * n * k)
        memory_time = ((m * k + k * n) * dtype.itemsize + 2 * m * n * np.dtype(out or dtype).itemsize) / self.memory
        return self.call + count * max(operations(m, n, k, dtype) / rate, memory_time)

    def most(self, dtype: Any) -> float:
        """Give the most operations a second on numbers of a dtype.

        Parameters
        ----------
        dtype : dtype
            Of the numbers.

        Returns
        -------
        float
            Operations a second, in real arithmetic.
        """
        dtype = np.dtype(dtype)
        real_size = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
        return self.flops * {8: 1.0, 4: self.single, 2: self.half}.get(real_size, 1.0)

    def lapack(self, m: int, n: int, operations: float, dtype: Any) -> float:
        """Predict the time of a factor, an inverse, or a solution by a triangle.

        As a product m x n of as many operations, whose inner size is longer by `narrow`.

        Parameters
        ----------
        m, n : int
            Sizes of the block that is written.
        operations : float
            Multiplications and additions of numbers of this dtype.
        dtype : dtype
            Of the block.

        Returns
        -------
        float
            Seconds.
        """
        return self.gemm(m, n, operations / (2 * m * n) + self.narrow, dtype)

    def _find_share(self, multiplications: float) -> float:
        """The share of `flops` that one product of so many multiplications reaches."""
        if not self.reached or multiplications >= self.reached[-1][0] ** 3:
            return 1.0
        sizes, shares = zip(*self.reached, strict=True)
        return float(np.exp(np.interp(np.log(max(1, multiplications)) / 3, np.log(sizes), np.log(shares))))

    def touch(self, size: int, steps: int = 1) -> float:
        """Predict the time of elementwise work.

        Parameters
        ----------
        size : int
            Bytes that it reads and writes in all.
        steps : int, optional
            The number of steps.

        Returns
        -------
        float
            Seconds.
        """
        return steps * self.call + size / self.memory

    def error_function(self, count: int, itemsize: int) -> float:
        """Predict the time of the error function of some elements.

        Parameters
        ----------
        count : int
            How many.
        itemsize : int
            Bytes of each.

        Returns
        -------
        float
            Seconds.
        """
        return max(self.call + count / self.erf if self.erf else 0.0, self.touch(2 * count * itemsize))

    def delay(self, far: bool) -> float:
        """Give the time until the first byte of a message.

        Parameters
        ----------
        far : bool
            Whether it comes from another node.

        Returns
        -------
        float
            Seconds.
        """
        return self.far_latency if far else self.latency

    def rate(self, sharing: int) -> float:
        """Give the rate at which a rank receives from another.

        Parameters
        ----------
        sharing : int
            Ranks of its node that receive from other nodes; 0: it receives from the same node.

        Returns
        -------
        float
            Bytes a second.
        """
        if not sharing:
            return self.bandwidth
        return min(self.network, self.injection / sharing) if self.injection else self.network

    def homes(self, ranks: int) -> tuple[int, ...]:
        """List the nodes of ranks.

        Parameters
        ----------
        ranks : int
            The number of ranks.

        Returns
        -------
        tuple of int
            The number of each rank's node; empty where all ranks are on one node.
        """
        return _homes(self.node, ranks) if 0 < self.node < ranks else ()

    def ladder(self, ranks: int) -> list[int]:
        """List the numbers of ranks to try if at most `ranks` may work.

        The list is 1, 2, 3, 4, 6, 8, 12 and so on, as many whole nodes, and `ranks`. Other numbers
        are hardly faster.

        Parameters
        ----------
        ranks : int
            The most.

        Returns
        -------
        list of int
            Ascending.
        """
        sides = [unit * side for unit in (1, self.node or 1) for side in (1, 3)]
        return sorted({ranks, *(count for side in sides for turn in range(ranks.bit_length()) if (count := side << turn) <= ranks)})

    def home(self, rank: int) -> int:
        """Find a rank's node.

        Parameters
        ----------
        rank : int
            The rank.

        Returns
        -------
        int
            The node's number.
        """
        return rank // self.node if self.node else 0


@lru_cache(maxsize=64)
def _homes(node: int, ranks: int) -> tuple[int, ...]:
    return tuple([rank // node for rank in range(ranks)])


@cache
def _load_chosen(name: str) -> Machine:
    try:
        return Machine.load(name) if name else Machine()
    except (OSError, ValueError) as error:
        raise type(error)(f"PDLA_MACHINE: {error}") from error


_OPTIONAL = ("reached", "narrow", "step", "erf", "gap", "node", "injection", "at_once", "name", "source")  # optional in a file
_RATES = ("flops", "single", "half", "memory", "bandwidth", "network")  # which must not be 0: times would be infinite
_KINDS: dict[str, tuple[Any, Any, str]] = {"int": (Integral, int, "whole"), "float": (Real, float, "finite")}


def _check(name: str, kind: str, value: Any) -> Any:
    """Check the figure of this name, and return it; ArgumentError for another type, PlanError for a wrong number."""
    if kind == "str" and not isinstance(value, str):
        raise ArgumentError(f"Machine: {name}={value!r}: a text")
    if kind == "str":
        return value
    if kind.startswith("tuple"):
        return _check_pairs(name, value)
    bounds = "above 0" if name in _RATES else "from 0 to 1" if name == "overlap" else "0 or more"
    types, convert, adjective = _KINDS[kind]
    message = f"Machine: {name}={value!r}: a {adjective} number, {bounds}"
    if not isinstance(value, types) or isinstance(value, bool):
        raise ArgumentError(message)
    try:
        number = convert(value)
    except OverflowError:
        number = inf
    if not 0 <= number < inf or (name in _RATES and number == 0) or (name == "overlap" and number > 1):
        raise PlanError(message)
    return number


def _check_pairs(name: str, value: Any) -> tuple[tuple[float, float], ...]:
    message = f"Machine: {name}={value!r}: pairs of a size and a share, above 0, sizes growing, as [[64, 0.5], [512, 0.9]]"
    sequences = (list, tuple)
    if not (isinstance(value, sequences) and all(isinstance(pair, sequences) and len(pair) == 2 for pair in value)):
        raise ArgumentError(message)
    if not all(isinstance(x, Real) and not isinstance(x, bool) for pair in value for x in pair):
        raise ArgumentError(message)
    if not all(0 < x < inf for pair in value for x in pair) or any(b[0] <= a[0] for a, b in pairwise(value)):
        raise PlanError(message)
    return tuple((float(size), float(share)) for size, share in value)


def _format_value(value: Any) -> str:
    if isinstance(value, tuple):
        return repr([list(pair) for pair in value])
    return f'"{value}"' if isinstance(value, str) else repr(value)
