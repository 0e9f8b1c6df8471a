"""Render docs/experiments.md and its picture from results, with every figure of the page."""

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
from bench.claims.tables import NODES, NOT_RUN, Results

TEMPLATE = Path(__file__).with_name("experiments.md")
MARKS = {  # of the picture: marker, colour, size
    "claimed": ("|", "#222222", 16), "predicted at full size": ("o", "#2f6fed", 6),
    "measured, scaled down": ("s", "#f6a04d", 6), "predicted for that": ("x", "#b5651d", 6),
}


def format_json(results: Results) -> str:
    """JSON with numbers of five digits, a line for each case."""

    def round_values(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: round_values(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [round_values(inner) for inner in value]
        return float(f"{value:.5g}") if isinstance(value, float) else value

    return re.sub(r"\}\}, ", "}},\n", json.dumps(round_values(results))) + "\n"


# ---------------------------------------------------------------------------------------------- in words


def summary(results: Results) -> str:
    """Count the claims of each verdict."""
    which = {"predicted at full size": lambda claim: tables.predict_ratio(claim, results, claim.machine, claim.of[-1])}
    which["measured"] = lambda claim: tables.find_measured(claim, results, claim.of[-1])
    said = []
    for name, cell in which.items():
        counts = Counter(verdict(claim, value) if (value := cell(claim)[0]) else "unknown" for claim in CLAIMS)
        said.append(f"{name}: " + ", ".join(f"{count} {word}" for word, count in counts.most_common()))
    return f"Of {len(CLAIMS)} ratios claimed, {'; '.join(said)}."


# ---------------------------------------------------------------------------------------------- the page

MADE = {
    "claims": tables.claims_table, "beside": tables.beside_table, "summary": summary,
    "errors": tables.describe_errors, "why": tables.why_table, "placement": tables.placement_table, "best": tables.best_table,
    "measured": tables.measured_table,
}


def render(results: Results, machines: Mapping[str, Any]) -> str:
    """Render the page. machines: the described machines by name, and "emulated" if the cluster ran."""
    filled = {name: made(results) for name, made in MADE.items()} | _set_up(results) | _problems()
    if cluster := machines.get("emulated"):
        papers = {name: machines[name] for name in NODES}
        filled["cluster"] = tables.cluster_table(results, cluster, papers, (STRONG_BY, WEAK_BY))
    return re.sub(r"\{\{(\w+)\}\}", lambda name: filled[name[1]], TEMPLATE.read_text())


def _set_up(results: Results) -> dict[str, str]:
    """The set-up of the runs, in words."""
    about = results["about"]
    return {
        "about": f"{about['cores']} cores of {about['cpu']}, {about['date']}", "load": f"{about['load']:.1f}", "undry": OF_MPI,
        "rate": results.get("rate", NOT_RUN), "repeats": str(results.get("repeats", NOT_RUN)),
        "cluster": tables.explain_unmeasured(results),
        "wire": str(results.get("measured", {}).get("wire", NOT_RUN)),
        "papers": "; ".join(dict.fromkeys(claim.paper for claim in CLAIMS)),
        "cnn_parameters": f"{results['parameters'] / 1e9:.1f} billion parameters",
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


def draw(results: Results, path: Path) -> None:
    """Draw a line for each claim: claimed, predicted at full size, measured with its quartiles, predicted for the measurement."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "pdla", "font.size": 9})
    figure, axes = plt.subplots(figsize=(9, 0.34 * len(CLAIMS) + 1.4), constrained_layout=True)
    axes.axvline(1, color="#cccccc", linewidth=0.8)
    for i, claim in enumerate(CLAIMS):
        for (label, (marker, colour, size)), value in zip(MARKS.items(), _list_marks(claim, results), strict=True):
            if value is not None:
                axes.plot(value, i, marker=marker, color=colour, markersize=size, linestyle="", label=label if i == 0 else None)
        if tables.find_measured(claim, results, claim.of[-1])[0] is not None:
            ends = spread(claim, results["measured"], claim.of[-1])
            axes.plot(ends, (i, i), color=MARKS["measured, scaled down"][1], linewidth=1.5)
    axes.set_yticks(range(len(CLAIMS)), [f"{tables.title(claim)} ({claim.of[-1]})" for claim in CLAIMS])
    axes.set(xscale="log", xlabel="times as fast", ylim=(len(CLAIMS) - 0.5, -0.5))
    axes.set_xticks([0.5, 1, 2, 4, 8, 16, 32, 64], ["0.5", "1", "2", "4", "8", "16", "32", "64"])
    axes.minorticks_off()
    figure.legend(loc="outside lower center", ncols=len(MARKS), fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def _list_marks(claim: Claim, results: Results) -> tuple[float | None, ...]:
    which = claim.of[-1]
    cells = (
        tables.predict_ratio(claim, results, claim.machine, which),
        tables.find_measured(claim, results, which),
        tables.predict_small_ratio(claim, results, which),
    )
    return (claim.value, *(value for value, _ in cells))


def write(results: Results, docs: Path, machines: Mapping[str, Any]) -> None:
    """Write experiments.md and _static/experiments.svg into the folder of the docs."""
    (docs / "experiments.md").write_text(render(results, machines))
    draw(results, docs / "_static" / "experiments.svg")
