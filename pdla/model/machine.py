"""A machine in a few figures, by which a plan weighs work against words and messages, and a dry run tells the time."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from pdla import config


def operations(m: int, n: int, k: int, dtype: Any) -> int:
    """Multiplications and additions of an m x k by k x n product, in real arithmetic."""
    return (8 if np.dtype(dtype).kind == "c" else 2) * m * n * k


@dataclass(frozen=True)
class Machine:
    """Figures of one rank; the defaults are one core of a desktop processor under MPICH, rounded.

    flops      operations a second of a large float64 product; a complex one counts as four real ones
    single     how many times as many in float32;  half: in 16-bit floats
    reached    pairs (size, share of `flops` that products of that size reach), sizes ascending; a size is the cube root of
               m n k. In between the logarithms are interpolated; above the last size the share is 1;  (): it is 1 at any size
    call       seconds of overhead of each local product and each step of elementwise work (the interpreter, a kernel's launch)
    memory     bytes a second that elementwise work reads and writes
    erf        elements a second of the error function; 0: limited by `memory` alone
    bandwidth  bytes a second received from a rank on the same node;  network: from a rank on another node
    latency    seconds until a message begins to arrive from the same node;  far_latency: from another
    gap        seconds for which each message, however short, occupies a rank that sends or receives it; its bytes may take longer
    node       ranks on a node, the first of them on the first node; 0: all ranks are on one node
    injection  bytes a second that all ranks of a node together receive from other nodes; 0: no limit but `network`
    overlap    the share of computing time in which messages move on: 1 with progress in hardware, 0 without any
    name, source  what the machine is, and where the figures are from
    """

    flops: float = 5e10
    bandwidth: float = 5e9
    network: float = 1.25e9
    latency: float = 2e-6
    single: float = 2.0
    half: float = 2.0
    reached: tuple[tuple[float, float], ...] = ()
    call: float = 1e-6
    memory: float = 1e10
    erf: float = 0.0
    far_latency: float = 2e-5
    gap: float = 0.0
    node: int = 0
    injection: float = 0.0
    overlap: float = 1.0
    name: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reached", tuple((float(size), float(share)) for size, share in self.reached))  # files have lists

    @staticmethod
    def load(name: str | Path) -> Machine:
        """A machine from a TOML file, or by name one of those that come with pdla (`Machine.known()`).

        ValueError for a file with keys or values that no machine has, or without a figure for which 0 would not mean "none": only
        reached, erf, gap, node, injection, name and source may be left out. FileNotFoundError, which lists the known machines.
        """
        path = Path(name)
        if not path.suffix:
            path = Path(str(files("pdla.model") / "machines" / f"{name}.toml"))
        if not path.is_file():
            raise FileNotFoundError(f"no machine {str(name)!r}: a TOML file, or one of {', '.join(Machine.known())}")
        try:
            figures = tomllib.loads(path.read_text("utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        known = {one.name: str(one.type) for one in fields(Machine)}
        for key, value in figures.items():
            fits = key in known and _fits(value, known[key])
            if not fits or (key in _RATES and value == 0) or (key == "overlap" and value > 1):
                raise ValueError(f"{path}: {key} = {value!r}; a machine has {', '.join(known)}: {_FORM}")
        if missing := [key for key in known if key not in (*figures, *_OPTIONAL)]:
            raise ValueError(f"{path}: lacks {', '.join(missing)}; only {', '.join(_OPTIONAL)} may be left out")
        return Machine(**figures)

    @staticmethod
    def of(given: Machine | str | Path) -> Machine:
        """The machine itself, or one loaded by its name or path."""
        return given if isinstance(given, Machine) else Machine.load(given)

    @staticmethod
    def chosen() -> Machine:
        """The machine that plans are made for: the one that PDLA_MACHINE names, else the defaults. Raises as `load` does."""
        return _chosen(config.settings.machine)

    @staticmethod
    def chosen_in_words() -> str:
        """The figures of the chosen machine, or the error in finding it, as a text to be compared between ranks."""
        try:
            return repr(Machine.chosen())
        except (OSError, ValueError) as error:
            return str(error)

    @staticmethod
    def known() -> tuple[str, ...]:
        """The names of the machines that come with pdla."""
        folder = Path(str(files("pdla.model") / "machines"))
        return tuple(sorted(path.stem for path in folder.glob("*.toml")))

    @property
    def title(self) -> str:
        """Its name or, without one, what to call it."""
        return self.name or ("the default machine" if self == Machine() else "a machine without a name")

    def text(self) -> str:
        """As a TOML file."""
        lines = (f"{one.name} = {_written(getattr(self, one.name))}" for one in fields(self))
        return "\n".join(lines) + "\n"

    # ------------------------------------------------------------------ what a price needs

    @property
    def message(self) -> float:
        """What one more message costs, as words of 8 bytes that could be received in its gap, or, if that is 0, in its latency.

        The gap, since messages of a round are under way together, so that their latencies pass at the same time.
        """
        return (self.gap or self.latency) * self.bandwidth / 8

    def meanwhile(self, multiplications: float) -> float:
        """Words of 8 bytes that could be received while so many multiplications, and additions, are done in float64."""
        return 2 * multiplications / self.flops * self.bandwidth / 8

    @property
    def distance(self) -> float:
        """How many words can be received within a node in the time of one word from another node."""
        return self.bandwidth / self.network

    def seconds(self, flops: float, received: float, messages: float, itemsize: int = 8) -> float:
        """Seconds for so many flops, bytes and messages received, without overlap. itemsize: of a float, or of a complex's part."""
        return flops * itemsize / 8 / self.flops + received / self.bandwidth + messages * (self.latency + self.gap)

    # ------------------------------------------------------------------ what a clock needs

    def gemm(self, m: int, n: int, k: int, dtype: Any, count: int = 1, out: Any = None) -> float:
        """Seconds of one call for `count` products m x k by k x n: to compute or, if longer, to read and write the matrices.

        dtype  of the factors, which sets the rate: 16-bit floats are multiplied as such where they are added up in float32
        out    of the result; None: the factors'
        """
        kind = np.dtype(dtype)
        real = kind.itemsize // 2 if kind.kind == "c" else kind.itemsize
        rate = self.flops * {8: 1.0, 4: self.single, 2: self.half}.get(real, 1.0) * self._reached(m * n * k)
        moved = ((m * k + k * n) * kind.itemsize + 2 * m * n * np.dtype(out or kind).itemsize) / self.memory
        return self.call + count * max(operations(m, n, k, kind) / rate, moved)

    def _reached(self, multiplications: int) -> float:
        """The share of `flops` that one product of so many multiplications reaches."""
        if not self.reached or multiplications >= self.reached[-1][0] ** 3:
            return 1.0
        sizes, shares = zip(*self.reached, strict=True)
        return float(np.exp(np.interp(np.log(max(1, multiplications)) / 3, np.log(sizes), np.log(shares))))

    def touch(self, size: int, steps: int = 1) -> float:
        """Seconds of elementwise work that reads and writes `size` bytes in all, in so many steps."""
        return steps * self.call + size / self.memory

    def error_function(self, count: int, itemsize: int) -> float:
        """Seconds of the error function of `count` elements."""
        return max(self.call + count / self.erf if self.erf else 0.0, self.touch(2 * count * itemsize))

    def delay(self, far: bool) -> float:
        """Seconds until a message begins to arrive."""
        return self.far_latency if far else self.latency

    def rate(self, far: bool) -> float:
        """Bytes a second that a rank receives while all ranks of its node receive, too."""
        if not far:
            return self.bandwidth
        return min(self.network, self.injection / max(1, self.node)) if self.injection else self.network

    def home(self, rank: int) -> int:
        """The number of a rank's node."""
        return rank // self.node if self.node else 0


@cache
def _chosen(name: str) -> Machine:
    try:
        return Machine.load(name) if name else Machine()
    except (OSError, ValueError) as error:
        raise type(error)(f"PDLA_MACHINE: {error}") from error


_OPTIONAL = ("reached", "erf", "gap", "node", "injection", "name", "source")  # of which there may be none
_RATES = ("flops", "single", "half", "memory", "bandwidth", "network")  # which must not be 0: times would be infinite
_FORM = (
    f"finite figures of 0 or more, {', '.join(_RATES)} above 0, node a whole number, overlap up to 1; "
    "reached = [[size, share], ...], above 0, sizes growing"
)


def _fits(value: Any, kind: str) -> bool:
    """Whether a value from a file is valid for a field of this type."""
    if kind == "str":
        return isinstance(value, str)
    if not kind.startswith("tuple"):
        return type(value) in ((int,) if kind == "int" else (int, float)) and 0 <= value < inf
    pairs = value if isinstance(value, list) else [None]
    figures = all(isinstance(pair, list) and len(pair) == 2 and all(_fits(x, "float") and x > 0 for x in pair) for pair in pairs)
    return figures and all(one[0] < other[0] for one, other in pairwise(pairs))


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return repr([list(pair) for pair in value])
    return f'"{value}"' if isinstance(value, str) else repr(value)
