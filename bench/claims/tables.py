"""Results as tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import log
from statistics import median
from typing import Any

from bench.claims import dry
from bench.claims.cases import CASES
from bench.claims.claims import BESIDE, CLAIMS, Claim, ratio, seconds, spread, verdict

Results = Mapping[str, Any]  # by part, as in docs/experiments.json
Cell = tuple[float | None, str]  # a ratio, and its text in a table; where there is no ratio, the reason
NODES = {"a100x4": "A100", "v100x4": "V100"}  # pdla's machines, in words
COLUMNS = (*(f"predicted, {words}" for words in NODES.values()), "measured", "predicted for that")
NOT_RUN = "not run here"
VOLUMES = {"words of the linears": "linears", "bytes from other nodes": "far", "rings": "rings"}


def format_table(lines: Iterable[Iterable[str]]) -> str:
    """Format lines of cells as a table in Markdown; the first line is the heading. A first cell as above stays empty."""
    heading, *rest = (list(line) for line in lines)
    firsts = [line[0] for line in rest]
    for line, first, above in zip(rest[1:], firsts[1:], firsts, strict=False):
        line[0] = "" if first == above else first
    return "\n".join("| " + " | ".join(line) + " |" for line in [heading, ["---"] * len(heading), *rest])


def format_title(claim: Claim) -> str:
    return f"{claim.paper.split(',')[0]}: {claim.what}"


# ---------------------------------------------------------------------------------------------- the claims, side by side


def predict_ratio(claim: Claim, results: Results, machine: str, pass_name: str) -> Cell:
    """Predict the claim's ratio at the papers' sizes on one of pdla's machines."""
    return _ratio_of_dry(claim, results, results.get("full", {}).get(machine, {}), pass_name, NOT_RUN)


def predict_small_ratio(claim: Claim, results: Results, pass_name: str) -> Cell:
    """Predict the claim's ratio for the measured runs."""
    return _ratio_of_dry(claim, results, results.get("same", {}), pass_name, _explain(claim, results))


def _ratio_of_dry(claim: Claim, results: Results, figures: Mapping[str, Any], pass_name: str, reason: str) -> Cell:
    if CASES[claim.faster].undry:
        value = compare_trees(claim, results, pass_name)
        return value, f"{value:.2f} by formula"
    if not {claim.faster, claim.slower} <= set(figures):
        return None, reason
    value = ratio(claim, figures, pass_name)
    return value, f"{value:.2f}"


def find_measured(claim: Claim, results: Results, pass_name: str) -> Cell:
    """Find the claim's measured ratio of medians, with its quartiles."""
    figures = results.get("measured", {})
    if not {claim.faster, claim.slower} <= set(figures):
        return None, _explain(claim, results)
    value, (low, high) = ratio(claim, figures, pass_name), spread(claim, figures, pass_name)
    return value, f"{value:.2f} ({low:.2f} to {high:.2f})"


def _explain(claim: Claim, results: Results) -> str:
    """Explain why a claim has no measured figure."""
    return CASES[claim.faster].unmeasured or CASES[claim.slower].unmeasured or explain_unmeasured(results)


def explain_unmeasured(results: Results) -> str:
    return results.get("measured", {}).get("absent", NOT_RUN)


def make_claims_table(results: Results) -> str:
    heading = ["claim", "pass", "claimed", *COLUMNS, "so predicted, measured"]
    return format_table([heading, *(_make_claim_row(claim, results, pass_name) for claim in CLAIMS for pass_name in claim.of)])


def make_comparison_table(results: Results) -> str:
    """Make the table of comparisons that no paper claims, and of the control."""
    lines = ([claim.what, pass_name, *_make_columns(claim, results, pass_name)] for claim in BESIDE for pass_name in claim.of)
    return format_table([["beside the claims", "pass", *COLUMNS], *lines])


def _make_claim_row(claim: Claim, results: Results, pass_name: str) -> list[str]:
    values = (predict_ratio(claim, results, claim.machine, pass_name)[0], find_measured(claim, results, pass_name)[0])
    verdicts = ", ".join(verdict(claim, value) if value else "–" for value in values)
    return [format_title(claim), pass_name, f"{claim.value:.2f}", *_make_columns(claim, results, pass_name), verdicts]


def _make_columns(claim: Claim, results: Results, pass_name: str) -> list[str]:
    full = [predict_ratio(claim, results, machine, pass_name) for machine in NODES]
    return [text for _, text in (*full, find_measured(claim, results, pass_name), predict_small_ratio(claim, results, pass_name))]


# ---------------------------------------------------------------------------------------------- why


def compare_volumes(claim: Claim, results: Results, figure: str, pass_name: str) -> float:
    """Compute the ratio of bytes for each sequence, at the papers' sizes."""
    full = results["full"][claim.machine]
    slower, faster = (dry.sum_passes(full[case], figure, pass_name) for case in (claim.slower, claim.faster))
    return claim.sequences() * slower / faster


def compare_trees(claim: Claim, results: Results, pass_name: str) -> float:
    """Compute the ratio of words on the critical path if SUMMA's broadcasts and sums are binomial trees."""
    full = results.get("full", {}).get(claim.machine, {})
    slower, faster = (dry.count_by_trees(CASES[name].full, full.get(name, {}), pass_name) for name in (claim.slower, claim.faster))
    return claim.sequences() * slower / faster


def compare_steps(claim: Claim, results: Results, pass_name: str) -> dict[str, float]:
    """Compute the ratio of times on each machine of dry.build_machines."""
    slower, faster = (results["steps"][claim.machine][case] for case in (claim.slower, claim.faster))
    slow, fast = ({name: dry.sum_passes(side[name], "seconds", pass_name) for name in dry.STEPS} for side in (slower, faster))
    return {name: claim.sequences() * slow[name] / fast[name] for name in dry.STEPS}


def find_nearest(claim: Claim, results: Results, pass_name: str) -> str:
    """Find the explanation or prediction nearest to the claimed ratio."""
    assert claim.value is not None
    ratios = {name: compare_volumes(claim, results, figure, pass_name) for name, figure in VOLUMES.items()}
    ratios["binomial trees"] = compare_trees(claim, results, pass_name)
    ratios["the whole prediction"] = compare_steps(claim, results, pass_name)["computing"]
    if pass_name == "both" and {claim.faster, claim.slower} <= set(_strong(results)):
        ratios["the best placements"] = compare_best(claim, results, claim.machine)
        ratios["rings at the best placements"] = compare_best(claim, results, claim.machine, "rings")
    name = min(ratios, key=lambda way: abs(log(ratios[way] / claim.value)))
    return f"{name}, {ratios[name]:.2f}"


def make_explanation_table(results: Results) -> str:
    heading = ["claim", "pass", "claimed", "words", "from other nodes", "by rings", "by trees", "time with latency", "and nodes"]
    heading += ["and computing", "nearest"]
    is_complete = {"full", "steps"} <= set(results)
    return format_table([heading, *(_make_why_row(claim, results, claim.of[-1]) for claim in CLAIMS if is_complete)])


def _make_why_row(claim: Claim, results: Results, pass_name: str) -> list[str]:
    volumes = [compare_volumes(claim, results, figure, pass_name) for figure in VOLUMES.values()]
    steps = list(compare_steps(claim, results, pass_name).values())[1:]  # bandwidth alone gives the ratio of the words
    figures = [claim.value, *volumes, compare_trees(claim, results, pass_name), *steps]
    return [format_title(claim), pass_name, *(f"{figure:.2f}" for figure in figures), find_nearest(claim, results, pass_name)]


# ---------------------------------------------------------------------------------------------- placement


def sum_placements(results: Results, machine: str, case: str, figure: str = "seconds") -> dict[str, float]:
    """Sum a figure over both passes, by the axes inside a node."""
    return {tile: dry.sum_passes(figures, figure, "both") for tile, figures in results["placement"][machine][case].items()}


def make_placement_table(results: Results) -> str:
    heading = ["forward and backward, ms", *(f"{words}: {way}" for words in NODES.values() for way in ("usual", "best"))]
    lines = [heading]
    for case in _strong(results):
        lines.append([case.removeprefix("strong ")])
        for machine in NODES:
            tiles = sum_placements(results, machine, case)
            usual = dry.sum_passes(results["full"][machine][case], "seconds", "both")
            best = min(tiles, key=tiles.__getitem__)
            lines[-1] += [f"{1e3 * usual:.1f}", f"{1e3 * tiles[best]:.1f} ({best})"]
    return format_table(lines)


def _strong(results: Results) -> list[str]:
    return list(next(iter(results.get("placement", {}).values()), {}))


def compare_best(claim: Claim, results: Results, machine: str, figure: str = "seconds") -> float:
    """Compute a strong claim's ratio for both passes together, each side at its best placement."""
    slow, fast = (min(sum_placements(results, machine, case, figure).values()) for case in (claim.slower, claim.faster))
    return slow / fast


def make_best_table(results: Results) -> str:
    lines = [["each at its best placement, forward and backward", "claimed", *NODES.values(), "bytes from other nodes, by rings"]]
    for claim in CLAIMS:
        if {claim.faster, claim.slower} <= set(_strong(results)):
            rings = compare_best(claim, results, claim.machine, "rings")
            ratios = [*(compare_best(claim, results, machine) for machine in NODES), rings]
            lines.append([format_title(claim), f"{claim.value:.2f}", *(f"{ratio:.2f}" for ratio in ratios)])
    return format_table(lines)


# ---------------------------------------------------------------------------------------------- what was measured


def make_measured_table(results: Results) -> str:
    heading = ["case", "pass", "median, s", "link busy", "predicted / measured", "ledgers, MB", "kernel / ledgers"]
    lines = [heading]
    for name, case in CASES.items():
        if name in results.get("measured", {}):
            lines += [_make_measured_row(results, name, pass_name) for pass_name in ("forward", "backward")[: 1 + case.backward]]
    return format_table(lines)


def _make_measured_row(results: Results, name: str, pass_name: str) -> list[str]:
    figures = results["measured"][name]
    middle = median(seconds(results["measured"], name, pass_name))
    far, kernel = (dry.sum_passes(figures, figure, pass_name) for figure in ("far", "kernel"))
    busy = far / results["hosts"] / results["bytes_a_second"] / middle
    same = results.get("same", {}).get(name)
    predicted = dry.sum_passes(same, "seconds", pass_name) if same else None
    comparison = f"{predicted / middle:.2f}" if predicted else "by formula" if CASES[name].undry else NOT_RUN
    return [name, pass_name, f"{middle:.3f}", f"{busy:.0%}", comparison, f"{far / 1e6:.1f}", f"{kernel / far:.3f}"]


def describe_errors(results: Results) -> str:
    """Describe the errors of predictions of measured cases."""
    measured = results.get("measured", {})
    ratios = {
        name: dry.sum_passes(same, "seconds", "both") / median(seconds(measured, name, "both"))
        for name, same in results.get("same", {}).items()
    }
    if not ratios:
        return f"Nothing was measured: {explain_unmeasured(results)}."
    errors = {name: abs(ratio - 1) for name, ratio in ratios.items()}
    worst = max(errors, key=errors.__getitem__)
    return (
        f"Predicted times of the {len(ratios)} measured cases differ from the measured times by {median(errors.values()):.0%} "
        f"at the median. The farthest is {worst}: {ratios[worst]:.2f} of the measured time."
    )


def make_cluster_table(results: Results, cluster: Any, papers: Mapping[str, Any], by: tuple[int, ...]) -> str:
    """Make the table of the machine that describes the emulated cluster, and of its network beside the papers'."""
    single, rate, probes = cluster.flops * cluster.single, cluster.rate(True), results["measured"]["probes"]
    reached = [f"{probes[name] / results['bytes_a_second']:.0%}" for name in ("one_to_one", "all_to_all")]
    lines = [
        ["the emulated cluster", ""],
        [
            "links",
            f"{results['rate']} each way; reached: {reached[0]} by a megabyte a rank to the next host, {reached[1]} by a piece "
            f"from every rank to every other; {rate / 1e6:.3f} MB/s for each of the {cluster.node} ranks of a host",
        ],
        [
            "latency",
            f"{1e3 * cluster.far_latency:.1f} ms between hosts, {1e3 * cluster.latency:.1f} ms within; "
            f"{1e3 * cluster.gap:.2f} ms for each message more",
        ],
        ["calls", f"{1e3 * cluster.call:.2f} ms around each product and each step of elementwise work"],
        [
            "products",
            f"{single / 1e9:.2f} GFLOP/s in float32: a core's {single * results['crowd'] / 1e9:.0f} for {results['crowd']:g} ranks",
        ],
        ["elementwise", f"{cluster.memory / 1e9:.3f} GB/s; the error function of {cluster.erf / 1e6:.2f} million a second"],
    ]
    for name, paper in papers.items():
        weight = single / rate / (paper.flops * paper.single / paper.rate(True))
        words = ", ".join(f"{c * weight:.1f} (scaled down by {c})" for c in by)
        lines.append([f"network against products, over {NODES[name]}", words])
    return format_table(lines)
