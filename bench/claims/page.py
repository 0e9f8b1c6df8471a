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
    """Format results as JSON with numbers of five digits, a line for each case."""

    def round_values(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: round_values(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [round_values(inner) for inner in value]
        return float(f"{value:.5g}") if isinstance(value, float) else value

    return re.sub(r"\}\}, ", "}},\n", json.dumps(round_values(results))) + "\n"


# ---------------------------------------------------------------------------------------------- in words


def summarize(results: Results) -> str:
    """Count the claims of each verdict."""
    columns = {"predicted at full size": lambda claim: tables.predict_ratio(claim, results, claim.machine, claim.of[-1])}
    columns["measured"] = lambda claim: tables.find_measured(claim, results, claim.of[-1])
    parts = []
    for name, cell in columns.items():
        counts = Counter(verdict(claim, value) if (value := cell(claim)[0]) else "unknown" for claim in CLAIMS)
        parts.append(f"{name}: " + ", ".join(f"{count} {word}" for word, count in counts.most_common()))
    return f"Of {len(CLAIMS)} ratios claimed, {'; '.join(parts)}."


# ---------------------------------------------------------------------------------------------- the page

SECTIONS = {  # of the page, each with the function that makes it
    "claims": tables.make_claims_table, "beside": tables.make_comparison_table, "summary": summarize,
    "errors": tables.describe_errors, "why": tables.make_explanation_table, "placement": tables.make_placement_table,
    "best": tables.make_best_table, "measured": tables.make_measured_table,
}


def render(results: Results, machines: Mapping[str, Any]) -> str:
    """Render the page. machines: the described machines by name, and "emulated" if the cluster ran."""
    texts = {name: make(results) for name, make in SECTIONS.items()} | _describe_set_up(results) | _describe_problems()
    if cluster := machines.get("emulated"):
        papers = {name: machines[name] for name in NODES}
        texts["cluster"] = tables.make_cluster_table(results, cluster, papers, (STRONG_BY, WEAK_BY))
    return re.sub(r"\{\{(\w+)\}\}", lambda name: texts[name[1]], TEMPLATE.read_text())


def _describe_set_up(results: Results) -> dict[str, str]:
    """Describe the set-up of the runs."""
    about = results["about"]
    return {
        "about": f"{about['cores']} cores of {about['cpu']}, {about['date']}", "load": f"{about['load']:.1f}", "undry": OF_MPI,
        "rate": results.get("rate", NOT_RUN), "repeats": str(results.get("repeats", NOT_RUN)),
        "cluster": tables.explain_unmeasured(results),
        "wire": str(results.get("measured", {}).get("wire", NOT_RUN)),
        "papers": "; ".join(dict.fromkeys(claim.paper for claim in CLAIMS)),
        "cnn_parameters": f"{results['parameters'] / 1e9:.1f} billion parameters",
    }


def _describe_problems() -> dict[str, str]:
    cases = {
        "strong": STRONG_1D,
        "weak": WEAK_1D,
        "weak_1d": WEAK_1D_OWN,
        "weak_tesseract": WEAK_TESSERACT_OWN,
        "cnn": "CNN Tensor3D",
    }
    full = {name: str(CASES[case].full.problem) for name, case in cases.items()}
    small = {f"{name}_small": str(CASES[case].small.problem) for name, case in cases.items()}
    rank_counts = {
        f"cnn_ranks{end}": str(run.way.ranks)
        for end, run in (("", CASES[cases["cnn"]].full), ("_small", CASES[cases["cnn"]].small))
    }
    return full | small | rank_counts


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
    axes.set_yticks(range(len(CLAIMS)), [f"{tables.format_title(claim)} ({claim.of[-1]})" for claim in CLAIMS])
    axes.set(xscale="log", xlabel="times as fast", ylim=(len(CLAIMS) - 0.5, -0.5))
    axes.set_xticks([0.5, 1, 2, 4, 8, 16, 32, 64], ["0.5", "1", "2", "4", "8", "16", "32", "64"])
    axes.minorticks_off()
    figure.legend(loc="outside lower center", ncols=len(MARKS), fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def _list_marks(claim: Claim, results: Results) -> tuple[float | None, ...]:
    pass_name = claim.of[-1]
    cells = (
        tables.predict_ratio(claim, results, claim.machine, pass_name),
        tables.find_measured(claim, results, pass_name),
        tables.predict_small_ratio(claim, results, pass_name),
    )
    return (claim.value, *(value for value, _ in cells))


def write(results: Results, docs: Path, machines: Mapping[str, Any]) -> None:
    """Write experiments.md and _static/experiments.svg into the folder of the docs."""
    (docs / "experiments.md").write_text(render(results, machines))
    draw(results, docs / "_static" / "experiments.svg")
