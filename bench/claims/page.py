"""Renders docs/experiments.md and its picture from results: every figure on the page is put in here."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.claims import tables
from bench.claims.cases import CASES, OF_MPI, STRONG_BY, WEAK_BY
from bench.claims.claims import CLAIMS, STRONG_1D, WEAK_1D, WEAK_1D_OWN, WEAK_TESSERACT_OWN, Claim, spread, verdict
from bench.claims.tables import NODES, NOT_RUN, Cell, Results

TEMPLATE = Path(__file__).with_name("experiments.md")
MARKS = {  # of the picture: marker, colour, size
    "claimed": ("|", "#222222", 16), "predicted at full size": ("o", "#2f6fed", 6),
    "measured, scaled down": ("s", "#f6a04d", 6), "predicted for that": ("x", "#b5651d", 6),
}


def compact(told: Results) -> str:
    """JSON with numbers of five digits, a line for each case."""

    def rounded(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: rounded(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [rounded(inner) for inner in value]
        return float(f"{value:.5g}") if isinstance(value, float) else value

    return re.sub(r"\}\}, ", "}},\n", json.dumps(rounded(told))) + "\n"


# ---------------------------------------------------------------------------------------------- in words


def conclusions(told: Results) -> str:
    """A line for each claim, about its pass, or about the whole step where the abstract does not say."""
    return "\n".join(f"* {_conclusion(claim, told)}" for claim in CLAIMS)


def _conclusion(claim: Claim, told: Results) -> str:
    which = claim.of[-1]
    at_full, there = tables.predicted(claim, told, claim.machine, which), tables.found(claim, told, which)
    words = (
        f"**{claim.paper}, {claim.what}: {claim.value:.2f} claimed.** Predicted at full size on {NODES[claim.machine]}, {which}: "
    )
    words += f"{_judged(claim, at_full)}; measured: {_judged(claim, there)}."
    if not {"full", "steps"} <= set(told):
        return words
    linears, far, rings = (tables.volume(claim, told, what, which) for what in ("linears", "far", "rings"))
    trees, step = tables.trees(claim, told, which), tables.largest_step(tables.step_ratios(claim, told, which))
    nearest = tables.nearest(claim, told, which)
    return (
        f"{words} The words of the linears alone would give {linears:.2f}, the bytes from other nodes {far:.2f}, those by rings "
        f"{rings:.2f}, and binomial trees {trees:.2f}. Beyond bandwidth, what changes the ratio most is {step}. "
        f"Of all these, the whole prediction and the best placements, the nearest to the claim: {nearest}."
    )


def _judged(claim: Claim, cell: Cell) -> str:
    value, text = cell
    return f"{text}, {verdict(claim, value)}" if value else text


def summary(told: Results) -> str:
    """How many claims there are of each verdict."""
    which = {"predicted at full size": lambda claim: tables.predicted(claim, told, claim.machine, claim.of[-1])}
    which["measured"] = lambda claim: tables.found(claim, told, claim.of[-1])
    said = []
    for name, cell in which.items():
        counts = Counter(verdict(claim, value) if (value := cell(claim)[0]) else "unknown" for claim in CLAIMS)
        said.append(f"{name}: " + ", ".join(f"{count} {word}" for word, count in counts.most_common()))
    return f"Of {len(CLAIMS)} ratios claimed, {'; '.join(said)}."


# ---------------------------------------------------------------------------------------------- the page

MADE = {
    "claims": tables.claims_table, "beside": tables.beside_table, "summary": summary, "conclusions": conclusions,
    "errors": tables.errors, "why": tables.why_table, "placement": tables.placement_table, "best": tables.best_table,
    "measured": tables.measured_table,
}


def render(told: Results, machines: Mapping[str, Any]) -> str:
    """The page; `machines`: the described ones by name, and "emulated" where there was one."""
    filled = {name: made(told) for name, made in MADE.items()} | _set_up(told) | _problems()
    if cluster := machines.get("emulated"):
        papers = {name: machines[name] for name in NODES}
        filled["cluster"] = tables.cluster_table(told, cluster, papers, (STRONG_BY, WEAK_BY))
    return re.sub(r"\{\{(\w+)\}\}", lambda name: filled[name[1]], TEMPLATE.read_text())


def _set_up(told: Results) -> dict[str, str]:
    """How everything was run, in words."""
    about = told["about"]
    return {
        "about": f"{about['cores']} cores of {about['cpu']}, {about['date']}", "load": f"{about['load']:.1f}", "undry": OF_MPI,
        "rate": told.get("rate", NOT_RUN), "repeats": str(told.get("repeats", NOT_RUN)), "cluster": tables.why_unmeasured(told),
        "wire": str(told.get("measured", {}).get("wire", NOT_RUN)),
        "cnn_parameters": f"{told['parameters'] / 1e9:.1f} billion parameters",
    }


def _problems() -> dict[str, str]:
    shown = {
        "strong": STRONG_1D,
        "weak": WEAK_1D,
        "weak_1d": WEAK_1D_OWN,
        "weak_tesseract": WEAK_TESSERACT_OWN,
        "cnn": "CNN Tensor3D",
    }
    full = {name: str(CASES[case].full.problem) for name, case in shown.items()}
    small = {f"{name}_small": str(CASES[case].small.problem) for name, case in shown.items()}
    ranks = {
        f"cnn_ranks{end}": str(run.way.ranks)
        for end, run in (("", CASES[shown["cnn"]].full), ("_small", CASES[shown["cnn"]].small))
    }
    return full | small | ranks


def draw(told: Results, path: Path) -> None:
    """Draw a line for each claim: claimed, predicted at full size, measured with its quartiles, predicted for the measurement."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "pdla", "font.size": 9})
    figure, axes = plt.subplots(figsize=(9, 0.34 * len(CLAIMS) + 1.4), constrained_layout=True)
    axes.axvline(1, color="#cccccc", linewidth=0.8)
    for i, claim in enumerate(CLAIMS):
        for (label, (marker, colour, size)), value in zip(MARKS.items(), _marked(claim, told), strict=True):
            if value is not None:
                axes.plot(value, i, marker=marker, color=colour, markersize=size, linestyle="", label=label if i == 0 else None)
        if tables.found(claim, told, claim.of[-1])[0] is not None:
            axes.plot(spread(claim, told["measured"], claim.of[-1]), (i, i), color=MARKS["measured, scaled down"][1], linewidth=1.5)
    axes.set_yticks(range(len(CLAIMS)), [f"{tables.title(claim)} ({claim.of[-1]})" for claim in CLAIMS])
    axes.set(xscale="log", xlabel="times as fast", ylim=(len(CLAIMS) - 0.5, -0.5))
    axes.set_xticks([0.5, 1, 2, 4, 8, 16, 32, 64], ["0.5", "1", "2", "4", "8", "16", "32", "64"])
    axes.minorticks_off()
    figure.legend(loc="outside lower center", ncols=len(MARKS), fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def _marked(claim: Claim, told: Results) -> tuple[float | None, ...]:
    which = claim.of[-1]
    cells = (
        tables.predicted(claim, told, claim.machine, which),
        tables.found(claim, told, which),
        tables.predicted_small(claim, told, which),
    )
    return (claim.value, *(value for value, _ in cells))


def write(told: Results, docs: Path, machines: Mapping[str, Any]) -> None:
    """Write experiments.md and _static/experiments.svg into the folder of the docs."""
    (docs / "experiments.md").write_text(render(told, machines))
    draw(told, docs / "_static" / "experiments.svg")
