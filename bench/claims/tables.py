"""Results as tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import log
from statistics import median
from typing import Any

from bench.claims import dry
from bench.claims.cases import CASES
from bench.claims.claims import ALL, BESIDE, CLAIMS, Claim, quartiles, ratio, seconds, spread, verdict

Results = Mapping[str, Any]  # by part, as in docs/experiments.json
Cell = tuple[float | None, str]  # a ratio, and its text in a table; where there is no ratio, the reason
NODES = {"a100x4": "A100", "v100x4": "V100"}  # pdla's machines, in words
COLUMNS = (*(f"predicted, {words}" for words in NODES.values()), "measured", "predicted for that")
NOT_RUN = "not run here"
VOLUMES = {"words of the linears": "linears", "bytes from other nodes": "far", "rings": "rings"}


def rows(lines: Iterable[Iterable[str]]) -> str:
    """A table in Markdown of lines of cells, the first of which is the heading."""
    heading, *rest = (list(line) for line in lines)
    return "\n".join("| " + " | ".join(line) + " |" for line in [heading, ["---"] * len(heading), *rest])


def title(claim: Claim) -> str:
    return f"{claim.paper.split(',')[0]}: {claim.what}"


# ---------------------------------------------------------------------------------------------- the claims, side by side


def predicted(claim: Claim, told: Results, machine: str, which: str) -> Cell:
    """The claim's ratio, predicted at the papers' sizes on one of pdla's machines."""
    return _dry(claim, told, told.get("full", {}).get(machine, {}), which, NOT_RUN)


def predicted_small(claim: Claim, told: Results, which: str) -> Cell:
    """The claim's ratio, predicted for what was measured."""
    return _dry(claim, told, told.get("same", {}), which, _reason(claim, told))


def _dry(claim: Claim, told: Results, figures: Mapping[str, Any], which: str, otherwise: str) -> Cell:
    if CASES[claim.faster].undry:
        value = trees(claim, told, which)
        return value, f"{value:.2f} by formula"
    if not {claim.faster, claim.slower} <= set(figures):
        return None, otherwise
    value = ratio(claim, figures, which)
    return value, f"{value:.2f}"


def found(claim: Claim, told: Results, which: str) -> Cell:
    """The claim's ratio as measured: of the medians, with its quartiles."""
    figures = told.get("measured", {})
    if not {claim.faster, claim.slower} <= set(figures):
        return None, _reason(claim, told)
    value, (low, high) = ratio(claim, figures, which), spread(claim, figures, which)
    return value, f"{value:.2f} ({low:.2f} to {high:.2f})"


def _reason(claim: Claim, told: Results) -> str:
    """Why there is no measured figure for a claim."""
    return CASES[claim.faster].unmeasured or CASES[claim.slower].unmeasured or why_unmeasured(told)


def why_unmeasured(told: Results) -> str:
    return told.get("measured", {}).get("absent", NOT_RUN)


def claims_table(told: Results) -> str:
    heading = ["claim", "pass", "claimed", *COLUMNS, "so predicted, measured"]
    return rows([heading, *(_claimed(claim, told, which) for claim in CLAIMS for which in claim.of)])


def beside_table(told: Results) -> str:
    """The comparisons that no paper claims, and the control."""
    lines = ([claim.what, which, *_columns(claim, told, which)] for claim in BESIDE for which in claim.of)
    return rows([["beside the claims", "pass", *COLUMNS], *lines])


def _claimed(claim: Claim, told: Results, which: str) -> list[str]:
    values = (predicted(claim, told, claim.machine, which)[0], found(claim, told, which)[0])
    verdicts = ", ".join(verdict(claim, value) if value else "–" for value in values)
    return [title(claim), which, f"{claim.value:.2f}", *_columns(claim, told, which), verdicts]


def _columns(claim: Claim, told: Results, which: str) -> list[str]:
    full = [predicted(claim, told, machine, which) for machine in NODES]
    return [text for _, text in (*full, found(claim, told, which), predicted_small(claim, told, which))]


# ---------------------------------------------------------------------------------------------- why


def volume(claim: Claim, told: Results, what: str, which: str) -> float:
    """The ratio of bytes for each sequence, at the papers' sizes."""
    full = told["full"][claim.machine]
    return claim.sequences() * dry.of(full[claim.slower], what, which) / dry.of(full[claim.faster], what, which)


def trees(claim: Claim, told: Results, which: str) -> float:
    """The ratio of words on the critical path, if SUMMA's broadcasts and sums were binomial trees."""
    full = told.get("full", {}).get(claim.machine, {})
    slower, faster = (dry.by_trees(CASES[name].full, full.get(name, {}), which) for name in (claim.slower, claim.faster))
    return claim.sequences() * slower / faster


def step_ratios(claim: Claim, told: Results, which: str) -> dict[str, float]:
    """The ratio of times on each of the machines that are built up step by step (dry.without)."""
    slower, faster = (told["steps"][claim.machine][case] for case in (claim.slower, claim.faster))
    times = {name: (dry.of(slower[name], "seconds", which), dry.of(faster[name], "seconds", which)) for name in dry.STEPS}
    return {name: claim.sequences() * slow / fast for name, (slow, fast) in times.items()}


def largest_step(ratios: dict[str, float]) -> str:
    """The step, from bandwidth alone on, that changes the ratio most."""
    changes = {after: ratios[after] / ratios[before] for before, after in zip(dry.STEPS, dry.STEPS[1:], strict=False)}
    name = max(changes, key=lambda step: abs(log(changes[step])))
    return f"{name}, x {changes[name]:.2f}"


def nearest(claim: Claim, told: Results, which: str) -> str:
    """Which explanation, or prediction, comes nearest to the claimed ratio."""
    assert claim.value is not None
    told_ = {name: volume(claim, told, what, which) for name, what in VOLUMES.items()}
    told_ |= {"binomial trees": trees(claim, told, which), "the whole prediction": step_ratios(claim, told, which)["computing"]}
    if which == "both" and {claim.faster, claim.slower} <= set(_strong(told)):
        told_["the best placements"] = best(claim, told, claim.machine)
        told_["rings at the best placements"] = best(claim, told, claim.machine, "rings")
    name = min(told_, key=lambda one: abs(log(told_[one] / claim.value)))
    return f"{name}, {told_[name]:.2f}"


def why_table(told: Results) -> str:
    heading = ["claim", "pass", "claimed", "words of linears", "all bytes", "from other nodes", "the same by rings"]
    heading += ["by binomial trees", "time of bandwidth alone", "with latency", "and nodes", "and computing", "changed most by"]
    known = {"full", "steps"} <= set(told)
    return rows([heading, *(_why(claim, told, which) for claim in CLAIMS if known for which in claim.of)])


def _why(claim: Claim, told: Results, which: str) -> list[str]:
    volumes = [volume(claim, told, what, which) for what in ("linears", "bytes", "far", "rings")]
    steps = step_ratios(claim, told, which)
    figures = [claim.value, *volumes, trees(claim, told, which), *steps.values()]
    return [title(claim), which, *(f"{one:.2f}" for one in figures), largest_step(steps)]


# ---------------------------------------------------------------------------------------------- placement


def placed(told: Results, machine: str, case: str, what: str = "seconds") -> dict[str, float]:
    """A figure of both passes together, by what lies inside a node."""
    return {tile: dry.of(figures, what, "both") for tile, figures in told["placement"][machine][case].items()}


def placement_table(told: Results) -> str:
    heading = ["forward and backward, ms", *(f"{words}: {way}" for words in NODES.values() for way in ("usual", "best", "worst"))]
    lines = [heading]
    for case in _strong(told):
        lines.append([case.removeprefix("strong ")])
        for machine in NODES:
            tiles = placed(told, machine, case)
            usual = dry.of(told["full"][machine][case], "seconds", "both")
            ends = (
                f"{1e3 * tiles[tile]:.1f} ({tile})"
                for tile in (min(tiles, key=tiles.__getitem__), max(tiles, key=tiles.__getitem__))
            )
            lines[-1] += [f"{1e3 * usual:.1f}", *ends]
    return rows(lines)


def _strong(told: Results) -> list[str]:
    return list(next(iter(told.get("placement", {}).values()), {}))


def best(claim: Claim, told: Results, machine: str, what: str = "seconds") -> float:
    """A strong claim's ratio for both passes together, each side at its best placement."""
    slow, fast = (min(placed(told, machine, case, what).values()) for case in (claim.slower, claim.faster))
    return slow / fast


def best_table(told: Results) -> str:
    lines = [["each at its best placement, forward and backward", "claimed", *NODES.values(), "bytes from other nodes, by rings"]]
    for claim in CLAIMS:
        if {claim.faster, claim.slower} <= set(_strong(told)):
            ratios = [*(best(claim, told, machine) for machine in NODES), best(claim, told, claim.machine, "rings")]
            lines.append([title(claim), f"{claim.value:.2f}", *(f"{one:.2f}" for one in ratios)])
    return rows(lines)


# ---------------------------------------------------------------------------------------------- what was measured


def measured_table(told: Results) -> str:
    heading = ["case", "pass", "median, s", "quartiles, s", "least, s", "link busy", "predicted, s", "predicted / measured"]
    heading += ["ledgers, MB", "kernel, MB", "kernel / ledgers", "messages a rank"]
    lines = [heading]
    for name, case in CASES.items():
        if name in told.get("measured", {}):
            lines += [_measured(told, name, which) for which in (ALL if case.backward else ALL[:1])]
    return rows(lines)


def _measured(told: Results, name: str, which: str) -> list[str]:
    figures = told["measured"][name]
    times = seconds(told["measured"], name, which)
    middle, (low, high) = median(times), quartiles(times)
    far, kernel, messages = (dry.of(figures, what, which) for what in ("far", "kernel", "messages"))
    busy = far / told["hosts"] / told["bytes_a_second"] / middle
    same = told.get("same", {}).get(name)
    guess = dry.of(same, "seconds", which) if same else None
    beside = [f"{guess:.3f}", f"{guess / middle:.2f}"] if guess else ["–", "by formula" if CASES[name].undry else NOT_RUN]
    wire = [f"{far / 1e6:.1f}", f"{kernel / 1e6:.1f}", f"{kernel / far:.3f}", f"{messages:.0f}"]
    return [name, which, f"{middle:.3f}", f"{low:.3f} to {high:.3f}", f"{min(times):.3f}", f"{busy:.0%}", *beside, *wire]


def errors(told: Results) -> str:
    """How far predictions are from what was measured."""
    measured = told.get("measured", {})
    off = {
        name: dry.of(same, "seconds", "both") / median(seconds(measured, name, "both"))
        for name, same in told.get("same", {}).items()
    }
    if not off:
        return f"Nothing was measured: {why_unmeasured(told)}."
    apart = {name: abs(one - 1) for name, one in off.items()}
    worst = max(apart, key=apart.__getitem__)
    return (
        f"The predicted times of the {len(off)} cases that were measured differ from the measured ones by "
        f"{median(apart.values()):.0%} at the median, and by {apart[worst]:.0%} at most "
        f"({worst}: {off[worst]:.2f} of the measured time)."
    )


def cluster_table(told: Results, cluster: Any, papers: Mapping[str, Any], by: tuple[int, ...]) -> str:
    """The machine that describes the emulated cluster, and how its network compares with the papers', for problems scaled down."""
    single, rate, probes = cluster.flops * cluster.single, cluster.rate(True), told["measured"]["probes"]
    reached = [f"{probes[name] / told['bytes_a_second']:.0%}" for name in ("one_to_one", "all_to_all")]
    lines = [
        ["the emulated cluster", ""],
        [
            "links",
            f"{told['rate']} each way; reached of it: {reached[0]} by a megabyte a rank to the next host, {reached[1]} by a piece "
            f"from every rank to every other, {rate / 1e6:.3f} MB/s for each of the {cluster.node} ranks of a host",
        ],
        [
            "latency",
            f"{1e3 * cluster.far_latency:.1f} ms between hosts, {1e3 * cluster.latency:.1f} ms within; "
            f"{1e3 * cluster.gap:.2f} ms for each message more",
        ],
        ["calls", f"{1e3 * cluster.call:.2f} ms around each product and each step of elementwise work"],
        [
            "products",
            f"{single / 1e9:.2f} GFLOP/s in float32: a core's {single * told['crowd'] / 1e9:.0f} for {told['crowd']:g} ranks",
        ],
        ["elementwise", f"{cluster.memory / 1e9:.3f} GB/s; the error function of {cluster.erf / 1e6:.2f} million a second"],
    ]
    for name, paper in papers.items():
        weight = single / rate / (paper.flops * paper.single / paper.rate(True))
        words = ", ".join(f"{c * weight:.1f} (scaled down by {c})" for c in by)
        lines.append([f"network against products, over that of {NODES[name]}", words])
    return rows(lines)
