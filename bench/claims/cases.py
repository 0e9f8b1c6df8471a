"""The compared cases: schemes on grids, on the papers' problems at full size and scaled down.

A problem scaled down by c has 1/c of the tokens and of the features, which keeps all ratios of volumes. To keep communication over
computation, too, bandwidth must fall by c times the ratio of the two machines' flops.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import pdla
from pdla import nn

DTYPE = "float32"


@dataclass(frozen=True)
class Transformer:
    """A transformer layer; batch: its sequences."""

    hidden: int
    sequence: int
    batch: int
    heads: int = 64

    @property
    def tokens(self) -> int:
        return self.batch * self.sequence

    def scale_down(self, c: int) -> Transformer:
        return replace(self, hidden=self.hidden // c, sequence=self.sequence // c)

    def layer(self, scheme: nn.Scheme) -> nn.Layer:
        return nn.TransformerLayer(scheme, self.hidden, self.heads, sequence=self.sequence, dtype=DTYPE)

    def __str__(self) -> str:
        return f"layer of {self.hidden} features, {self.batch} sequences of {self.sequence}"


@dataclass(frozen=True)
class UNet:
    """A residual U-Net on square images; hidden: channels at its highest level."""

    hidden: int
    levels: int
    side: int
    batch: int
    groups: int = 32

    @property
    def sequence(self) -> int:
        return self.side**2

    @property
    def tokens(self) -> int:
        return self.batch * self.sequence

    def layer(self, scheme: nn.Scheme) -> nn.Layer:
        size: dict[str, Any] = {"height": self.side, "width": self.side, "levels": self.levels}
        return nn.UNetBlock(scheme, self.hidden, groups=self.groups, dtype=DTYPE, **size)

    def __str__(self) -> str:
        levels = f"{self.levels} level{'s' * (self.levels > 1)}"
        return f"U-Net of {self.hidden} channels, {levels}, {self.batch} images of {self.side} x {self.side}"


Problem = Transformer | UNet


@dataclass(frozen=True)
class Way:
    """A scheme on a grid. `tile`: the ranks of a node along each axis; None: as many of col, then of row, as fit."""

    scheme: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    options: tuple[tuple[str, Any], ...] = ()
    tile: tuple[int, ...] | None = None

    @property
    def ranks(self) -> int:
        return prod(self.shape)

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip(self.axes, self.shape, strict=True))

    def make_scheme(self, comm: Any) -> nn.Scheme:
        """Collective: make the scheme on its grid, over all ranks of comm."""
        order = None if self.tile is None else pdla.tiled_order(self.shape, self.tile)
        return getattr(nn, self.scheme)(pdla.ProcessGrid(self.shape, self.axes, comm, order), **dict(self.options))


@dataclass(frozen=True)
class Run:
    """A way to compute a problem."""

    way: Way
    problem: Problem

    def layer(self, comm: Any) -> tuple[nn.Layer, pdla.DistMatrix]:
        """Collective: make the layer, and an input x for it."""
        scheme, problem = self.way.make_scheme(comm), self.problem
        layout = scheme.residual(problem.sequence)
        x = pdla.random((problem.tokens, problem.hidden), scheme.grid, layout, dtype=DTYPE)
        return problem.layer(scheme), x


@dataclass(frozen=True)
class Case:
    """One run of the papers at full size, and its counterpart on the emulated cluster, scaled down.

    trees       whether the cluster broadcasts by MPI's own trees
    backward    whether the backward pass runs, too
    undry       why a dry run cannot predict the time; "": it can
    unmeasured  why the cluster does not run it; "": it does
    """

    name: str
    full: Run
    small: Run
    trees: bool = False
    backward: bool = True
    undry: str = ""
    unmeasured: str = ""


# ---------------------------------------------------------------------------------------------- ways

LINE, SQUARE, CUBE = ("row",), ("row", "col"), ("row", "col", "depth")
ONE = Way("Megatron1D", (64,), LINE)
TWO = Way("Summa2D", (8, 8), SQUARE)
FLAT = Way("Tesseract", (8, 8, 1), CUBE)
DEEP = Way("Tesseract", (4, 4, 4), CUBE)
DEEP_ROWS = replace(DEEP, tile=(4, 1, 1))
THREE = Way("Cube3D", (4, 4, 4), CUBE)
TENSOR = Way("Tensor3D", (16, 4), SQUARE)
STRONG_BEST = Way("Tensor3D", (8, 2, 4), CUBE)  # the grid of 64 ranks with the fewest words
WEAK_BEST = Way("Tensor3D", (4, 1, 16), CUBE)

# ---------------------------------------------------------------------------------------------- problems

STRONG, WEAK = Transformer(3072, 512, 16), Transformer(8192, 512, 384)
OWN_1D, OWN_TESSERACT = Transformer(8192, 512, 30), Transformer(4096, 512, 768)
STRONG_BY, WEAK_BY = 8, 64
# With these channels the CNN has the paper's 28 billion parameters.
CNN, CNN_SMALL = UNet(2944, 3, 128, 2048), UNet(64, 1, 16, 8)
ALL_RANKS, GROUP = 256, 32  # of the CNN: ranks, and those that share one copy of its weights
MPI_TREES = {"MPIR_CVAR_IBCAST_INTRA_ALGORITHM": "sched_binomial"}
UNCLAIMED = "–"  # no paper claims it: dry runs alone
OF_MPI = "the ratio of words on the critical path, as a dry run does not know the messages of MPI's own broadcasts"


def strong(name: str, way: Way, **more: Any) -> Case:
    return Case(f"strong {name}", Run(way, STRONG), Run(way, STRONG.scale_down(STRONG_BY)), **more)


def weak(name: str, way: Way, problem: Transformer = WEAK, **more: Any) -> Case:
    return Case(f"weak {name}", Run(way, problem), Run(way, problem.scale_down(WEAK_BY)), **more)


def by_trees(name: str, way: Way) -> Case:
    """Make a case of the forward pass alone, by SUMMA with the ranks' blocks as panels, broadcast by MPI's binomial trees."""
    options = (("panel", STRONG.tokens), ("keep", False))
    return strong(name, replace(way, options=options), trees=True, backward=False, undry=OF_MPI)


def cnn(name: str, scheme: str, grid: tuple[int, ...], shards: int = 1, unmeasured: str = "") -> Case:
    """Make a case on 256 ranks, and on 64 with a smaller data axis and as many ranks to a copy of the weights."""
    axes = ("data", "row", "col")[: 1 + len(grid)]
    full, small = (Way(scheme, (ranks // GROUP, *grid), axes, (("shards", shards),)) for ranks in (ALL_RANKS, 64))
    return Case(f"CNN {name}", Run(full, CNN), Run(small, CNN_SMALL), unmeasured=unmeasured)


CASES = {
    case.name: case
    for case in (
        strong("1-D [64]", ONE), strong("2-D [8,8]", TWO), strong("Tesseract [8,8,1]", FLAT), strong("Tesseract [4,4,4]", DEEP),
        strong("Tesseract [4,4,4], rows inside a node", DEEP_ROWS), strong("3-D 4x4x4", THREE),
        strong("Tensor3D 16x4", TENSOR), strong("Tensor3D 8x2x4", STRONG_BEST),
        by_trees("2-D [8,8], binomial trees", TWO), by_trees("Tesseract [4,4,4], binomial trees", DEEP),
        weak("1-D [64]", ONE), weak("2-D [8,8]", TWO), weak("Tesseract [4,4,4]", DEEP),
        weak("3-D 4x4x4", THREE, unmeasured=UNCLAIMED), weak("Tensor3D 16x4", TENSOR, unmeasured=UNCLAIMED),
        weak("Tensor3D 4x1x16", WEAK_BEST, unmeasured=UNCLAIMED),
        weak("1-D [64], 30 sequences", ONE, OWN_1D), weak("Tesseract [4,4,4], 4096 features", DEEP, OWN_TESSERACT),
        cnn("Megatron-LM", "Megatron1D", (GROUP,)), cnn("Tensor3D", "Tensor3D", (4, 8), shards=2),
        cnn("Megatron-LM, 2 shards", "Megatron1D", (GROUP,), shards=2, unmeasured=UNCLAIMED),
        cnn("Tensor3D, 1 shard", "Tensor3D", (4, 8), unmeasured=UNCLAIMED),
    )
}
