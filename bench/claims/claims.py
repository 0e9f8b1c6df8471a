"""The papers' claims, and their ratios in a set of figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from bench.claims.cases import CASES

Told = Mapping[str, Mapping[str, Mapping[str, Any]]]  # by case, by pass: figures
TESSERACT, CUBE, TENSOR3D = "Tesseract, 2105.14500", "3-D, 2105.14450", "Tensor3D, 2305.13525v1"
ALL = ("forward", "backward", "both")
CLOSE, EQUAL = 1.2, 1.05  # a ratio within a fifth is "as claimed"; within a twentieth two ways are equally fast


@dataclass(frozen=True)
class Claim:
    """The claim that `faster` does `value` times as many sequences (images) a second as `slower`; None: no paper claims a figure.

    of       the passes of the claim; all three if the abstract names none
    machine  pdla's machine that is nearest to the paper's
    """

    paper: str
    what: str
    faster: str
    slower: str
    value: float | None
    of: tuple[str, ...] = ALL
    machine: str = "a100x4"

    def sequences(self) -> float:
        """The batch of the faster over that of the slower."""
        return CASES[self.faster].full.problem.batch / CASES[self.slower].full.problem.batch


STRONG_1D, STRONG_2D, STRONG_TESSERACT = "strong 1-D [64]", "strong 2-D [8,8]", "strong Tesseract [4,4,4]"
WEAK_1D, WEAK_2D, WEAK_TESSERACT = "weak 1-D [64]", "weak 2-D [8,8]", "weak Tesseract [4,4,4]"
WEAK_1D_OWN, WEAK_TESSERACT_OWN = "weak 1-D [64], 30 sequences", "weak Tesseract [4,4,4], 4096 features"
OWN, SAME = "own problems", "the same problem"
FORWARD, BOTH = ("forward",), ("both",)


def _weak() -> list[Claim]:
    values = {("forward", "1-D"): 4.0, ("forward", "2-D"): 1.7, ("both", "1-D"): 3.4, ("both", "2-D"): 1.7}
    names = {"forward": "inference", "both": "throughput"}
    slower = {("1-D", OWN): WEAK_1D_OWN, ("2-D", OWN): WEAK_2D, ("1-D", SAME): WEAK_1D, ("2-D", SAME): WEAK_2D}
    return [
        Claim(
            TESSERACT, f"weak, {names[which]}, over {other}, {size}",
            WEAK_TESSERACT_OWN if size == OWN else WEAK_TESSERACT, slower[other, size], value, (which,),
        )
        for size in (OWN, SAME) for (which, other), value in values.items()
    ]


CLAIMS = (
    Claim(TESSERACT, "strong, over 1-D", STRONG_TESSERACT, STRONG_1D, 1.38),
    Claim(TESSERACT, "strong, over 2-D", STRONG_TESSERACT, STRONG_2D, 1.53),
    *_weak(),
    Claim(CUBE, "over 1-D", "strong 3-D 4x4x4", STRONG_1D, 2.32, machine="v100x4"),
    Claim(CUBE, "over 2-D", "strong 3-D 4x4x4", STRONG_2D, 1.57, machine="v100x4"),
    Claim(TENSOR3D, "CNN, over Megatron-LM", "CNN Tensor3D", "CNN Megatron-LM", 1.6),
)
BESIDE = (
    Claim("", "control: [8,8,1] over [8,8], one algorithm", "strong Tesseract [8,8,1]", STRONG_2D, None, BOTH),
    Claim("", "Tensor3D 16x4 over 1-D", "strong Tensor3D 16x4", STRONG_1D, None, BOTH),
    Claim("", "Tensor3D 8x2x4 over 1-D", "strong Tensor3D 8x2x4", STRONG_1D, None, BOTH),
    Claim("", "weak, the same problem, 3-D over 1-D", "weak 3-D 4x4x4", WEAK_1D, None, BOTH),
    Claim("", "weak, the same problem, Tensor3D 16x4 over 1-D", "weak Tensor3D 16x4", WEAK_1D, None, BOTH),
    Claim("", "weak, the same problem, Tensor3D 4x1x16 over 1-D", "weak Tensor3D 4x1x16", WEAK_1D, None, BOTH),
    Claim("", "the CNN, Tensor3D in one shard over Megatron-LM", "CNN Tensor3D, 1 shard", "CNN Megatron-LM", None, BOTH),
    Claim("", "the CNN, Tensor3D over Megatron-LM, both in two shards", "CNN Tensor3D", "CNN Megatron-LM, 2 shards", None, BOTH),
    Claim("", "Tesseract, rows inside a node over col", f"{STRONG_TESSERACT}, rows inside a node", STRONG_TESSERACT, None, BOTH),
    Claim(
        "", "Tesseract over 2-D, panels by binomial trees", f"{STRONG_TESSERACT}, binomial trees",
        f"{STRONG_2D}, binomial trees", None, FORWARD,
    ),
)


# ---------------------------------------------------------------------------------------------- ratios


def seconds(told: Told, case: str, which: str) -> list[float]:
    """Seconds of a pass, or of "both", in each repeat; of a dry run a single figure."""
    passes = ("forward", "backward") if which == "both" else (which,)
    each = [told[case][name]["seconds"] for name in passes]
    return [sum(turn) for turn in zip(*([one] if isinstance(one, float) else one for one in each), strict=True)]


def ratio(claim: Claim, told: Told, which: str) -> float:
    """The faster's sequences a second over the slower's, by medians."""
    return claim.sequences() * median(seconds(told, claim.slower, which)) / median(seconds(told, claim.faster, which))


def spread(claim: Claim, told: Told, which: str) -> tuple[float, float]:
    """The least and the greatest ratio with each time at a quartile of its repeats."""
    slow, fast = (quartiles(seconds(told, case, which)) for case in (claim.slower, claim.faster))
    return claim.sequences() * slow[0] / fast[1], claim.sequences() * slow[1] / fast[0]


def quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high


def verdict(claim: Claim, found: float) -> str:
    """Compare a ratio with the claimed one, in words."""
    assert claim.value is not None
    if 1 / CLOSE <= found / claim.value <= CLOSE:
        return "as claimed"
    if found > claim.value:
        return "more"
    return "less" if found > EQUAL else "as fast" if found >= 1 / EQUAL else "slower"
