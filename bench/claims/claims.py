"""The papers' claims, and their ratios in a set of figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from bench.claims.cases import CASES

CaseFigures = Mapping[str, Mapping[str, Mapping[str, Any]]]  # figures by case and pass
TESSERACT, CUBE, TENSOR3D = "Tesseract, 2105.14500", "3-D, 2105.14450", "Tensor3D, 2305.13525v1"
ALL = ("forward", "backward", "both")
CLOSE, EQUAL = 1.2, 1.05  # a ratio within a fifth is "as claimed"; within a twentieth two ways are equally fast


@dataclass(frozen=True)
class Claim:
    """The claim that `faster` does `value` times as many sequences (images) a second as `slower`.

    value    None: no paper claims a figure
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
        """Compute the batch of the faster over the batch of the slower."""
        return CASES[self.faster].full.problem.batch / CASES[self.slower].full.problem.batch


STRONG_1D, STRONG_2D, STRONG_TESSERACT = "strong 1-D [64]", "strong 2-D [8,8]", "strong Tesseract [4,4,4]"
WEAK_1D, WEAK_2D, WEAK_TESSERACT = "weak 1-D [64]", "weak 2-D [8,8]", "weak Tesseract [4,4,4]"
WEAK_1D_OWN, WEAK_TESSERACT_OWN = "weak 1-D [64], 30 sequences", "weak Tesseract [4,4,4], 4096 features"
OWN, SAME = "own problems", "the same problem"
FORWARD, BOTH = ("forward",), ("both",)


def _list_weak_claims() -> list[Claim]:
    values = {("forward", "1-D"): 4.0, ("forward", "2-D"): 1.7, ("both", "1-D"): 3.4, ("both", "2-D"): 1.7}
    names = {"forward": "inference", "both": "throughput"}
    slower = {("1-D", OWN): WEAK_1D_OWN, ("2-D", OWN): WEAK_2D, ("1-D", SAME): WEAK_1D, ("2-D", SAME): WEAK_2D}
    return [
        Claim(
            TESSERACT, f"weak, {names[pass_name]}, over {other}, {size}",
            WEAK_TESSERACT_OWN if size == OWN else WEAK_TESSERACT, slower[other, size], value, (pass_name,),
        )
        for size in (OWN, SAME) for (pass_name, other), value in values.items()
    ]


CLAIMS = (
    Claim(TESSERACT, "strong, over 1-D", STRONG_TESSERACT, STRONG_1D, 1.38),
    Claim(TESSERACT, "strong, over 2-D", STRONG_TESSERACT, STRONG_2D, 1.53),
    *_list_weak_claims(),
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


def seconds(figures: CaseFigures, case: str, pass_name: str) -> list[float]:
    """List the seconds of a pass, or of "both", in each repeat; of a dry run a single figure."""
    passes = ("forward", "backward") if pass_name == "both" else (pass_name,)
    by_pass = [figures[case][name]["seconds"] for name in passes]
    return [sum(turn) for turn in zip(*([repeats] if isinstance(repeats, float) else repeats for repeats in by_pass), strict=True)]


def ratio(claim: Claim, figures: CaseFigures, pass_name: str) -> float:
    """Compute the faster's sequences a second over the slower's, by medians."""
    return claim.sequences() * median(seconds(figures, claim.slower, pass_name)) / median(seconds(figures, claim.faster, pass_name))


def spread(claim: Claim, figures: CaseFigures, pass_name: str) -> tuple[float, float]:
    """Compute the least and the greatest ratio with each time at its lower or upper quartile."""
    slow, fast = (quartiles(seconds(figures, case, pass_name)) for case in (claim.slower, claim.faster))
    return claim.sequences() * slow[0] / fast[1], claim.sequences() * slow[1] / fast[0]


def quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high


def verdict(claim: Claim, value: float) -> str:
    """Compare a ratio with the claimed one, in words."""
    assert claim.value is not None
    if 1 / CLOSE <= value / claim.value <= CLOSE:
        return "as claimed"
    if value > claim.value:
        return "more"
    return "less" if value > EQUAL else "as fast" if value >= 1 / EQUAL else "slower"
