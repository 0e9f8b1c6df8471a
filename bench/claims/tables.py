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


def title(claim: Claim) -> str:
    return f"{claim.paper.split(',')[0]}: {claim.what}"


# ---------------------------------------------------------------------------------------------- the claims, side by side


def predict_ratio(claim: Claim, results: Results, machine: str, which: str) -> Cell:
    """The claim's ratio, predicted at the papers' sizes on one of pdla's machines."""
    return _ratio_of_dry(claim, results, results.get("full", {}).get(machine, {}), which, NOT_RUN)


def predict_small_ratio(claim: Claim, results: Results, which: str) -> Cell:
    """The claim's ratio, predicted for the measured runs."""
    return _ratio_of_dry(claim, results, results.get("same", {}), which, _explain(claim, results))


def _ratio_of_dry(claim: Claim, results: Results, figures: Mapping[str, Any], which: str, otherwise: str) -> Cell:
    if CASES[claim.faster].undry:
        value = compare_trees(claim, results, which)
        return value, f"{value:.2f} by formula"
    if not {claim.faster, claim.slower} <= set(figures):
        return None, otherwise
    value = ratio(claim, figures, which)
    return value, f"{value:.2f}"


def find_measured(claim: Claim, results: Results, which: str) -> Cell:
    """The claim's measured ratio of medians, with its quartiles."""
    figures = results.get("measured", {})
    if not {claim.faster, claim.slower} <= set(figures):
        return None, _explain(claim, results)
    value, (low, high) = ratio(claim, figures, which), spread(claim, figures, which)
    return value, f"{value:.2f} ({low:.2f} to {high:.2f})"


def _explain(claim: Claim, results: Results) -> str:
    """The reason why a claim has no measured figure."""
    return CASES[claim.faster].unmeasured or CASES[claim.slower].unmeasured or explain_unmeasured(results)


def explain_unmeasured(results: Results) -> str:
    return results.get("measured", {}).get("absent", NOT_RUN)


def claims_table(results: Results) -> str:
    heading = ["claim", "pass", "claimed", *COLUMNS, "so predicted, measured"]
    return format_table([heading, *(_make_claim_row(claim, results, which) for claim in CLAIMS for which in claim.of)])


def beside_table(results: Results) -> str:
    """The table of comparisons that no paper claims, and of the control."""
    lines = ([claim.what, which, *_columns(claim, results, which)] for claim in BESIDE for which in claim.of)
    return format_table([["beside the claims", "pass", *COLUMNS], *lines])


def _make_claim_row(claim: Claim, results: Results, which: str) -> list[str]:
    values = (predict_ratio(claim, results, claim.machine, which)[0], find_measured(claim, results, which)[0])
    verdicts = ", ".join(verdict(claim, value) if value else "–" for value in values)
    return [title(claim), which, f"{claim.value:.2f}", *_columns(claim, results, which), verdicts]


def _columns(claim: Claim, results: Results, which: str) -> list[str]:
    full = [predict_ratio(claim, results, machine, which) for machine in NODES]
    return [text for _, text in (*full, find_measured(claim, results, which), predict_small_ratio(claim, results, which))]


# ---------------------------------------------------------------------------------------------- why


def compare_volumes(claim: Claim, results: Results, what: str, which: str) -> float:
    """The ratio of bytes for each sequence, at the papers' sizes."""
    full = results["full"][claim.machine]
    return claim.sequences() * dry.sum_passes(full[claim.slower], what, which) / dry.sum_passes(full[claim.faster], what, which)


def compare_trees(claim: Claim, results: Results, which: str) -> float:
    """The ratio of words on the critical path if SUMMA's broadcasts and sums are binomial trees."""
    full = results.get("full", {}).get(claim.machine, {})
    slower, faster = (dry.count_by_trees(CASES[name].full, full.get(name, {}), which) for name in (claim.slower, claim.faster))
    return claim.sequences() * slower / faster


def compare_steps(claim: Claim, results: Results, which: str) -> dict[str, float]:
    """The ratio of times on each machine of dry.build_machines."""
    slower, faster = (results["steps"][claim.machine][case] for case in (claim.slower, claim.faster))
    slow, fast = ({name: dry.sum_passes(side[name], "seconds", which) for name in dry.STEPS} for side in (slower, faster))
    return {name: claim.sequences() * slow[name] / fast[name] for name in dry.STEPS}


def find_nearest(claim: Claim, results: Results, which: str) -> str:
    """The explanation or prediction nearest to the claimed ratio."""
    assert claim.value is not None
    ratios = {name: compare_volumes(claim, results, what, which) for name, what in VOLUMES.items()}
    ratios["binomial trees"] = compare_trees(claim, results, which)
    ratios["the whole prediction"] = compare_steps(claim, results, which)["computing"]
    if which == "both" and {claim.faster, claim.slower} <= set(_strong(results)):
        ratios["the best placements"] = compare_best(claim, results, claim.machine)
        ratios["rings at the best placements"] = compare_best(claim, results, claim.machine, "rings")
    name = min(ratios, key=lambda one: abs(log(ratios[one] / claim.value)))
    return f"{name}, {ratios[name]:.2f}"


def why_table(results: Results) -> str:
    heading = ["claim", "pass", "claimed", "words", "from other nodes", "by rings", "by trees", "time with latency", "and nodes"]
    heading += ["and computing", "nearest"]
    known = {"full", "steps"} <= set(results)
    return format_table([heading, *(_make_why_row(claim, results, claim.of[-1]) for claim in CLAIMS if known)])


def _make_why_row(claim: Claim, results: Results, which: str) -> list[str]:
    volumes = [compare_volumes(claim, results, what, which) for what in VOLUMES.values()]
    steps = list(compare_steps(claim, results, which).values())[1:]  # bandwidth alone gives the ratio of the words
    figures = [claim.value, *volumes, compare_trees(claim, results, which), *steps]
    return [title(claim), which, *(f"{one:.2f}" for one in figures), find_nearest(claim, results, which)]


# ---------------------------------------------------------------------------------------------- placement


def sum_placements(results: Results, machine: str, case: str, what: str = "seconds") -> dict[str, float]:
    """A figure of both passes together, by the axes inside a node."""
    return {tile: dry.sum_passes(figures, what, "both") for tile, figures in results["placement"][machine][case].items()}


def placement_table(results: Results) -> str:
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


def compare_best(claim: Claim, results: Results, machine: str, what: str = "seconds") -> float:
    """A strong claim's ratio for both passes together, each side at its best placement."""
    slow, fast = (min(sum_placements(results, machine, case, what).values()) for case in (claim.slower, claim.faster))
    return slow / fast


def best_table(results: Results) -> str:
    lines = [["each at its best placement, forward and backward", "claimed", *NODES.values(), "bytes from other nodes, by rings"]]
    for claim in CLAIMS:
        if {claim.faster, claim.slower} <= set(_strong(results)):
            rings = compare_best(claim, results, claim.machine, "rings")
            ratios = [*(compare_best(claim, results, machine) for machine in NODES), rings]
            lines.append([title(claim), f"{claim.value:.2f}", *(f"{one:.2f}" for one in ratios)])
    return format_table(lines)


# ---------------------------------------------------------------------------------------------- what was measured


def measured_table(results: Results) -> str:
    heading = ["case", "pass", "median, s", "link busy", "predicted / measured", "ledgers, MB", "kernel / ledgers"]
    lines = [heading]
    for name, case in CASES.items():
        if name in results.get("measured", {}):
            lines += [_make_measured_row(results, name, which) for which in ("forward", "backward")[: 1 + case.backward]]
    return format_table(lines)


def _make_measured_row(results: Results, name: str, which: str) -> list[str]:
    figures = results["measured"][name]
    middle = median(seconds(results["measured"], name, which))
    far, kernel = (dry.sum_passes(figures, what, which) for what in ("far", "kernel"))
    busy = far / results["hosts"] / results["bytes_a_second"] / middle
    same = results.get("same", {}).get(name)
    guess = dry.sum_passes(same, "seconds", which) if same else None
    beside = f"{guess / middle:.2f}" if guess else "by formula" if CASES[name].undry else NOT_RUN
    return [name, which, f"{middle:.3f}", f"{busy:.0%}", beside, f"{far / 1e6:.1f}", f"{kernel / far:.3f}"]


def describe_errors(results: Results) -> str:
    """The errors of predictions of measured cases."""
    measured = results.get("measured", {})
    off = {
        name: dry.sum_passes(same, "seconds", "both") / median(seconds(measured, name, "both"))
        for name, same in results.get("same", {}).items()
    }
    if not off:
        return f"Nothing was measured: {explain_unmeasured(results)}."
    apart = {name: abs(one - 1) for name, one in off.items()}
    worst = max(apart, key=apart.__getitem__)
    return (
        f"Predicted times of the {len(off)} measured cases differ from the measured times by {median(apart.values()):.0%} at the "
        f"median. The farthest is {worst}: {off[worst]:.2f} of the measured time."
    )


def cluster_table(results: Results, cluster: Any, papers: Mapping[str, Any], by: tuple[int, ...]) -> str:
    """The table of the machine that describes the emulated cluster, and of its network beside the papers'."""
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
