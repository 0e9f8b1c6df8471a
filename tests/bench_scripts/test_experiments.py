"""The papers' claims: ratios are what times and volumes say, every claim has its figures, the page is rendered from results."""

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from helpers.jobs import LONGEST

import pdla
from bench import experiments
from bench.claims import cases, claims, dry, job, page, tables
from pdla.model.machine import Machine

ROOT = Path(__file__).parents[2]

STRONG = "strong Tesseract [4,4,4]"


@cache
def dried(name, size="small", machine="a100x4"):
    return dry.run_dry(getattr(cases.CASES[name], size), Machine.load(machine))


def figures(seconds, size=100):
    one = {"bytes": 4 * size, "linears": 2 * size, "far": size, "rings": size / 4, "messages": 10}
    return {name: one | {"seconds": seconds * share} for name, share in (("forward", 1.0), ("backward", 2.0))}


def results():
    """As the study keeps them: the n-th case takes n seconds forward and 2n backward; measured 1.5 times that."""
    full = {name: figures(float(n), 100 * n) for n, name in enumerate(cases.CASES, 1)}
    dry_ones = {name: told for name, told in full.items() if not cases.CASES[name].undry}
    measured = {name: _measured(told) for name, told in full.items() if not cases.CASES[name].unmeasured}
    for name in [name for name in measured if not cases.CASES[name].backward]:
        del measured[name]["backward"]
    strong = [name for name in dry_ones if name.startswith(experiments.PLACED)]
    placed = {name: {"4 row": figures(1.0), "4 col": figures(float(n))} for n, name in enumerate(strong, 2)}
    built_up = {name: dict.fromkeys(dry.STEPS, told) for name, told in dry_ones.items()}
    probes = {"far_latency": 1e-3, "latency": 5e-4, "gap": 1e-4, "one_to_one": 5e6, "all_to_all": 4e6}
    told = {
        "about": {"cpu": "a processor", "cores": 2, "date": "a month", "load": 0.5}, "parameters": 28_000_000_000,
        "full": dict.fromkeys(tables.NODES, dry_ones), "steps": dict.fromkeys(tables.NODES, built_up),
        "placement": dict.fromkeys(tables.NODES, placed), "calibrated": vars(Machine()), "rate": "50mbit", "repeats": 3,
        "hosts": 16, "bytes_a_second": 6.25e6, "crowd": 32.0, "measured": measured | {"probes": probes, "wire": 1.02},
        "same": {name: told for name, told in dry_ones.items() if name in measured},
    }
    return json.loads(page.format_json(told))


def _measured(told):
    return {
        name: one | {"kernel": 1.1 * one["far"], "seconds": [1.5 * one["seconds"] * turn for turn in (0.9, 1.0, 1.2)]}
        for name, one in told.items()
    }


def machines(told):
    return {name: Machine.load(name) for name in tables.NODES} | {"emulated": experiments.describe_cluster(told)}


# ---------------------------------------------------------------------------------------------- ratios


def test_a_ratio_is_of_sequences_a_second():
    own = next(claim for claim in claims.CLAIMS if (claim.faster, claim.slower) == (claims.WEAK_TESSERACT_OWN, claims.WEAK_1D_OWN))
    told = {own.faster: figures(2.0), own.slower: figures(1.0)}
    assert [claims.ratio(own, told, which) for which in claims.ALL] == pytest.approx([768 / 30 / 2] * 3)


def test_the_spread_is_of_quartiles():
    claim = claims.CLAIMS[0]
    slow, fast = ({"forward": {"seconds": list(times)}} for times in ((4.0, 5.0, 6.0), (1.0, 2.0, 3.0)))
    told = {claim.slower: slow, claim.faster: fast}
    assert claims.ratio(claim, told, "forward") == 2.5
    assert claims.spread(claim, told, "forward") == (4.5 / 2.5, 5.5 / 1.5)


@pytest.mark.parametrize(
    ("found", "said"), [(1.53, "as claimed"), (1.3, "as claimed"), (1.9, "more"), (1.2, "less"), (1.0, "as fast"), (0.9, "slower")]
)
def test_a_verdict_says_as_plainly_what_is_not_found(found, said):
    claim = next(claim for claim in claims.CLAIMS if claim.value == 1.53)
    assert claims.verdict(claim, found) == said


@pytest.mark.parametrize(
    ("slower", "faster", "which", "value"),
    [
        ("strong 1-D [64]", STRONG, "forward", 3.36),
        ("strong 1-D [64]", STRONG, "both", 2.00),
        ("strong 2-D [8,8]", STRONG, "forward", 1.07),
        ("strong 2-D [8,8]", STRONG, "both", 0.96),
        ("strong 1-D [64]", "strong 3-D 4x4x4", "both", 4.10),
        ("strong 2-D [8,8]", "strong 3-D 4x4x4", "both", 1.96),
        ("strong 1-D [64]", "strong Tensor3D 16x4", "both", 2.63),
        ("weak 2-D [8,8]", "weak Tesseract [4,4,4]", "forward", 1.94),
        ("weak 2-D [8,8]", "weak Tesseract [4,4,4]", "both", 1.87),
    ],
)
@pytest.mark.parametrize("size", ["full", "small"])
def test_volumes_have_the_ratios_of_the_schemes_formulas_at_either_size(slower, faster, which, value, size):
    words = [dry.sum_passes(dried(name, size), "linears", which) for name in (slower, faster)]
    assert words[0] / words[1] == pytest.approx(value, abs=0.006)


@pytest.mark.parametrize(("which", "value"), [("forward", 1.38), ("both", 1.32)])
def test_binomial_trees_favour_depth(which, value):
    two, deep = (dry.count_by_trees(cases.CASES[name].full, {}, which) for name in ("strong 2-D [8,8]", STRONG))
    assert two / deep == pytest.approx(value, abs=0.005)


def test_the_two_forms_of_2d_are_one_algorithm():
    assert dried("strong 2-D [8,8]") == dried("strong Tesseract [8,8,1]")


def test_tensor3d_runs_on_the_grid_with_the_fewest_words():
    """Of all grids of 64 with depth."""
    for case in ("strong Tensor3D 8x2x4", "weak Tensor3D 4x1x16"):
        run = cases.CASES[case].small
        shapes = [(r, c, 64 // r // c) for r in (1, 2, 4, 8, 16, 32, 64) for c in (1, 2, 4, 8, 16, 32, 64) if r * c <= 64]
        ways = [cases.Way("Tensor3D", shape, cases.CUBE) for shape in shapes if run.problem.batch >= shape[2]]
        assert min(ways, key=lambda way: _words(way, run.problem)) == run.way


def _words(way, problem):
    return dry.sum_passes(dry.run_dry(cases.Run(way, problem), Machine()), "linears", "both")


# ---------------------------------------------------------------------------------------------- what takes the time


def test_a_machine_is_built_up_from_bandwidth():
    machine = Machine.load("v100x4")
    parts = dry.build_machines(machine)
    assert list(parts) == list(dry.STEPS) and parts["computing"] is machine
    steps = dry.run_steps(cases.CASES[STRONG].small, machine)
    seconds = {name: dry.sum_passes(told, "seconds", "both") for name, told in steps.items()}
    received = dry.sum_passes(dried(STRONG), "bytes", "both")
    assert seconds["bandwidth"] == pytest.approx(received / machine.rate(True), rel=0.02)  # both ways at once, whole
    assert seconds["bandwidth"] < seconds["latency"] and seconds["placement"] < seconds["computing"]


def test_a_ring_enters_a_node_once():
    """64 ranks in a row, four a node. Of 63 pieces of a sum 60 come from other nodes to each rank, of a gather to one of four; in a
    ring all 63 to one of four."""
    told = dried("strong 1-D [64]")["forward"]
    assert told["far"] / told["bytes"] == pytest.approx((60 + 60 / 4) / 2 / 63, rel=1e-3)
    assert told["rings"] / told["bytes"] == pytest.approx(1 / 4, rel=1e-3)


def test_every_box_of_a_node_is_tried():
    tiles = dry.run_placements(cases.CASES[STRONG], Machine.load("a100x4"))
    assert set(tiles) == {"4 row", "4 col", "4 depth", "2 row x 2 col", "2 row x 2 depth", "2 col x 2 depth"}
    assert tiles["4 col"] == dried(STRONG, "full") and len({dry.sum_passes(told, "far", "both") for told in tiles.values()}) > 1


# ---------------------------------------------------------------------------------------------- the page


def test_every_claim_has_its_columns_or_a_reason():
    told = results()
    for claim in (*claims.CLAIMS, *claims.BESIDE):
        for which in claim.of:
            small = tables.predict_small_ratio(claim, told, which)
            full = tables.predict_ratio(claim, told, "a100x4", which)
            for value, text in (full, tables.find_measured(claim, told, which), small):
                assert text.startswith(f"{value:.2f}") if value else text == cases.UNCLAIMED
    assert all(not cases.CASES[case].unmeasured for claim in claims.CLAIMS for case in (claim.faster, claim.slower))


def test_what_could_not_be_measured_is_said_in_each_place():
    told = results()
    told["measured"], told["same"] = {"absent": "network namespaces need root"}, {}
    text = page.render(told, {name: Machine.load(name) for name in tables.NODES})
    rows = [line for line in text.splitlines() if line.startswith("| Tesseract: ") and line.count("|") == 9]
    assert rows and all(line.count("network namespaces need root") == 2 for line in rows)
    assert "Nothing was measured: network namespaces need root." in text


def test_the_page_is_rendered_from_results_alone(tmp_path):
    told = results()
    text = page.render(told, machines(told))
    assert "{{" not in text and tables.NOT_RUN not in text
    order = list(cases.CASES)
    n, of = (order.index(name) + 1 for name in ("strong 1-D [64]", STRONG))
    start, *_, row = _table(text, "| claim |")[2:5]
    assert start.startswith("| Tesseract: strong, over 1-D | forward |") and row.startswith("|  | both |")
    assert row.count(f" {n / of:.2f} ") == 4  # predicted on two machines, measured, predicted for that
    assert "differ from the measured times by 33% at the median" in text
    columns = {len(line.split(" | ")) for line in _table(text, "| claim |")}
    assert len(columns) == 1
    (tmp_path / "_static").mkdir()
    pytest.importorskip("matplotlib")
    page.write(told, tmp_path, machines(told))
    assert (tmp_path / "experiments.md").read_text() == text
    assert "<svg" in (tmp_path / "_static" / "experiments.svg").read_text()


def _table(text, heading):
    lines = text[text.index(heading) :].splitlines()
    return lines[: lines.index("")]


def test_no_result_on_the_page_is_typed():
    """All figures in its prose are of what was run, not of what came out."""
    prose = re.sub(r"`[^`]*`|\$[^$]*\$|\{\{\w+\}\}", "", page.TEMPLATE.read_text())
    set_up = {"1", "2", "3", "4", "8", "16", "32", "64", "60", "1.6", "3072"}
    assert {figure.rstrip(".") for figure in re.findall(r"\b\d[\d.]*", prose)} <= set_up


# ---------------------------------------------------------------------------------------------- the command


def test_rates_are_read_as_tc_reads_them():
    assert [experiments.parse_rate(rate) for rate in ("50mbit", "1.5gbit", "800bit")] == [6.25e6, 1.875e8, 100]


def test_a_stopped_run_goes_on(tmp_path):
    """What was kept is not run again, and lines that ranks have added are taken in."""
    file = tmp_path / "found.json"
    first = experiments.Results(file, again=False)
    first.keep("full", {"a100x4": {}})
    first.lines.write_text(json.dumps({"probes": {"gap": 1.0}}) + "\n")
    again = experiments.Results(file, again=False)
    again.add_lines()
    assert again.told == {"full": {"a100x4": {}}, "measured": {"probes": {"gap": 1.0}}}
    again.finish()
    assert not experiments.Results(file, again=False).told and experiments.Results(file, again=True).told == again.told


def test_why_there_is_no_cluster_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(experiments, "HOSTS", 0)
    monkeypatch.setattr(sys, "argv", ["experiments.py", "--json", str(tmp_path / "found.json")])
    given = experiments.read_arguments()
    told = experiments.measure_cases(experiments.Results(given.json, again=False), given)
    assert set(told) == {"absent"} and told["absent"].startswith("cluster: --hosts 0")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rate", "fast"], "--rate fast --repeats 10: a rate such as 50mbit"),
        (["--only", "none"], "--only none: none of full"),
        (["--only", "same"], "run without --only first"),
    ],
)
def test_what_cannot_be_run_is_refused(words, said, tmp_path):
    command = [sys.executable, "-m", "bench.experiments", "--json", tmp_path / "found.json", *words]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=LONGEST)
    assert done.returncode != 0 and said in done.stderr and not done.stdout


def test_measuring_counts_and_times_each_pass():
    small = cases.Run(cases.Way("Summa2D", (2, 2), cases.SQUARE), cases.Transformer(16, 4, 4, heads=4))
    told = pdla.run(4, job.measure_case, cases.Case("small", small, small), 2)[0]
    expected = dry.run_dry(small, Machine())
    assert set(told) == {"forward", "backward"}
    for name, one in told.items():
        assert len(one["seconds"]) == 2 and min(one["seconds"]) > 0
        assert (one["bytes"], one["messages"]) == (expected[name]["bytes"], expected[name]["messages"])
    forward = cases.Case("small", small, small, backward=False)
    assert set(pdla.run(4, job.measure_case, forward, 1)[0]) == {"forward"}
    assert set(pdla.run(4, job.measure_network)[0]) == {"far_latency", "latency", "gap", "one_to_one", "all_to_all"}
